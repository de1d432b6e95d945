"""The cost of the agent API in a large lab: 500 nodes of 8 GPUs, each with a job, that report every 5 s over real HTTP.

``python -m tests.bench.nodes [NODES [SECONDS]]`` uses its own PostgreSQL and Redis. It measures the processor time of the
web process for one report, and for one node that waits in its long poll, with a floor: the same requests to a bare ASGI
application that parses the same JSON and makes one UPDATE in the same database. Multiplied by their rate, this is the share
of the agent API of one core. So a machine with other load, where requests are less frequent, gives the same figure except
for the effect on its caches, for which a tenth is allowed. The target is a quarter of a core for reports and long polls
together, including the idle process; a scheduling cycle over the same nodes may take 300 ms. Exits with 1 when one is
missed.
"""

import asyncio
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench.portal import portal_here

NODES, SECONDS, GPUS = 500, 60, 8
HEARTBEAT_SECONDS = 5.0
TARGET, TURN_MS = 0.25, 300
TOLERANCE = 1.1
AT_ONCE = 16
"""Concurrent reports, as many as 500 nodes have when each is answered within a few hundredths of a second."""
WAITING = 100
"""The number of nodes whose long poll is measured; the cost is proportional to it."""
POLL_SECONDS, IDLE_SECONDS = 45.0, 10.0
TICKS = os.sysconf("SC_CLK_TCK")
ROOT = Path(__file__).resolve().parents[2]


def cpu_seconds(pid: int) -> float:
    """Return the processor seconds of a process with all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


# --- the lab -----------------------------------------------------------------------------------------------------


def make_lab(count: int) -> list[str]:
    """Create nodes that are all busy, each with one job; return their tokens."""
    from portal.accounts.models import digest
    from portal.cluster.models import Gpu, Node
    from portal.environments.models import NodeEnvironment
    from tests.portal.control_world import heartbeat, queue, ready_node, run_agents, turn
    from tests.portal.jobs_world import make_environment

    tokens = [f"sln_bench-{number:06}" for number in range(count)]
    environment = make_environment()
    for number, token in enumerate(tokens):
        ready_node(name_of(number), GPUS, (), token_digest=digest(token))
    Gpu.objects.update(kind="cuda", model="bench", memory_mib=81_920)
    NodeEnvironment.objects.bulk_create(
        [NodeEnvironment(node=node, environment=environment, state="ready") for node in Node.objects.order_by("pk")]
    )
    for _ in range(count):
        queue(GPUS, launcher="command")
    while True:
        heartbeat()
        if not turn().applied.started:
            return tokens
        run_agents()


def containers() -> dict[str, list[dict[str, Any]]]:
    """Return the reports of the agents about their containers, by node."""
    from portal.jobs.models import Container

    reported: dict[str, list[dict[str, Any]]] = {}
    for part in Container.objects.select_related("attempt", "node").order_by("pk"):
        entry = {"name": part.name, "epoch": part.attempt.number, "state": part.state, "detail": part.detail}
        rest = {"running_at": None, "exit_code": None, "exit_reason": "", "collected": False}
        reported.setdefault(part.node.name, []).append(entry | rest)
    return reported


def name_of(number: int) -> str:
    return f"bench{number:04}"


FACTS = {
    "hostname": "bench", "system": "Debian GNU/Linux 12 (bookworm)", "kernel": "6.1.0-28-amd64", "python": "3.11.7",
    "agent": "0.1.0", "cpus": 64, "memory_mib": 515_000, "disk_free_mib": 1_500_160, "runc": "1.1.5", "live_restore": True,
    "packages": {"runc": "1.1.5+ds1-1+deb12u1", "containerd": "1.6.20~ds1-1+deb12u1", "docker.io": "20.10.24+dfsg1-1"},
    "address": "10.1.0.2", "interface": "eth0", "driver": "570.86.15", "gpus_by_variable": False, "ring_address": "10.1.0.2",
    "engine": "Docker 20.10.24", "containerd": "1.6.20", "storage": "overlay2", "cgroup": "v2", "nvidia_runtime": True,
}  # fmt: skip


def report(number: int, chance: random.Random, parts: list[dict[str, Any]]) -> bytes:
    """Return the body of a report, with different readings of each GPU each time, as from real ones."""
    gpus = [
        {
            "uuid": f"{name_of(number)}-gpu{index}",
            "index": index,
            "kind": "cuda",
            "model": "bench",
            "memory_mib": 81_920,
            "healthy": True,
            "problem": "",
            "utilisation_percent": chance.randint(0, 100),
            "memory_used_mib": chance.randint(0, 81_920),
            "temperature_celsius": chance.randint(30, 85),
            "links": "NVLink to 1, 2, 3, 4, 5, 6, 7",
            "outside": "",
            "fault": "",
        }
        for index in range(GPUS)
    ]
    facts = {"boot": "b1", "full_pass": True, "runtime": "fake", "facts": FACTS, "problems": [], "gpus": gpus}
    ready = {"key": "pytorch", "digest": "", "state": "ready", "progress_percent": 0, "detail": ""}
    return json.dumps({**facts, "environments": [ready], "containers": parts}, separators=(",", ":")).encode()


# --- the agents --------------------------------------------------------------------------------------------------


class Line:
    """A persistent connection, as agents have; as cheap as possible, because the other side is measured."""

    def __init__(self, port: int, token: str) -> None:
        self.port, self.token = port, token
        self.streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, method: str, path: str, body: bytes = b"") -> bytes:
        if self.streams is None:
            self.streams = await asyncio.open_connection("127.0.0.1", self.port)
        reader, writer = self.streams
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nUser-Agent: schedulearn-agent\r\nAccept: */*\r\n"
            f"Authorization: Bearer {self.token}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        answer = (await reader.readuntil(b"\r\n\r\n")).decode()
        if not answer.startswith("HTTP/1.1 200"):
            raise RuntimeError(f"{path}: {answer}")
        [length] = (line for line in answer.splitlines() if line.lower().startswith("content-length:"))
        return await reader.readexactly(int(length.split(":")[1]))

    def close(self) -> None:
        if self.streams is not None:
            self.streams[1].close()


@dataclass(frozen=True)
class Agents:
    """The agents of all nodes, which send requests to a port."""

    pid: int
    port: int
    tokens: list[str]
    parts: dict[str, list[dict[str, Any]]]

    def reports(self, seconds: float) -> tuple[float, list[float]]:
        """Return the processor seconds of one report, and the response times."""
        asyncio.run(self._report(HEARTBEAT_SECONDS * 2))  # the first reports write more
        before = cpu_seconds(self.pid)
        took = asyncio.run(self._report(seconds))
        return (cpu_seconds(self.pid) - before) / len(took), took

    def idle(self, seconds: float) -> float:
        """Return the share of one core without requests."""
        before = cpu_seconds(self.pid)
        time.sleep(seconds)
        return (cpu_seconds(self.pid) - before) / seconds

    def polls(self, seconds: float, idle: float) -> float:
        """Return the share of one core beyond ``idle`` for one node that waits in a long poll without changes."""
        return (asyncio.run(self._poll(seconds)) / seconds - idle) / len(self.tokens[:WAITING])

    async def _report(self, seconds: float) -> list[float]:
        until, took, semaphore = time.monotonic() + seconds, list[float](), asyncio.Semaphore(AT_ONCE)

        async def beat(number: int, token: str) -> None:
            chance, line = random.Random(number), Line(self.port, token)
            due = time.monotonic() + HEARTBEAT_SECONDS * chance.random()
            while due < until:
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                async with semaphore:
                    body, began = report(number, chance, self.parts.get(name_of(number), [])), time.monotonic()
                    await line.ask("POST", "/agent/v1/sync", body)
                    took.append(time.monotonic() - began)
                due = max(due + HEARTBEAT_SECONDS, time.monotonic())
            line.close()

        await asyncio.gather(*(beat(number, token) for number, token in enumerate(self.tokens)))
        return took

    async def _poll(self, seconds: float) -> float:
        """Return processor seconds, once all wait: they start one after the other, and repeat one after the other."""

        async def listen(number: int, token: str) -> None:
            line, seen = Line(self.port, token), ""
            await asyncio.sleep(POLL_SECONDS * number / WAITING)
            while True:
                seen = json.loads(await line.ask("GET", f"/agent/v1/wait?seen={seen}"))["seen"]

        waits = [asyncio.ensure_future(listen(*each)) for each in enumerate(self.tokens[:WAITING])]
        await asyncio.sleep(POLL_SECONDS)
        before = cpu_seconds(self.pid)
        await asyncio.sleep(seconds)
        spent = cpu_seconds(self.pid) - before
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
        return spent


# --- the servers -------------------------------------------------------------------------------------------------


@contextmanager
def web(application: str, env: dict[str, str]) -> Iterator[tuple[int, int]]:
    """Start a web process; yield its process id and its port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "daphne", "-v", "0", "-b", "127.0.0.1", "-p", str(port), application]
    process = subprocess.Popen(command, cwd=ROOT, env=env)
    try:
        until = time.monotonic() + 120
        while time.monotonic() < until:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                time.sleep(0.2)
        yield process.pid, port
    finally:
        process.terminate()
        process.wait(20)


_threads, _kept = ThreadPoolExecutor(4), threading.local()


async def floor(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Answer a report with the minimum of work that any such web process must do."""
    if scope["type"] != "http":
        return
    body = b""
    while (message := await receive()).get("more_body"):
        body += message["body"]
    json.loads(body + message["body"])
    token = dict(scope["headers"])[b"authorization"].partition(b" ")[2].decode()
    await asyncio.get_running_loop().run_in_executor(_threads, _update, token)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"{}"})


def _update(token: str) -> None:
    import hashlib

    import psycopg2

    if not hasattr(_kept, "line"):
        _kept.line = psycopg2.connect(os.environ["DATABASE_URL"])
        _kept.line.autocommit = True
    with _kept.line.cursor() as cursor:
        held = hashlib.sha256(token.encode()).hexdigest()
        cursor.execute("UPDATE cluster_node SET last_seen_at = now() WHERE token_digest = %s", [held])


def turn_ms() -> tuple[float, float]:
    """Return the time of a scheduling cycle over these nodes without changes: median of five, after one that reads the past.

    By the clock, and the scheduler's own computing.
    """
    from portal.scheduler.job_history import History
    from tests.portal.control_world import heartbeat, lead, turn

    epoch, history, took, computed = lead(), History(), [], []
    for _ in range(6):
        heartbeat()
        began, worked = time.monotonic(), time.process_time()
        turn(epoch, history=history)
        took.append((time.monotonic() - began) * 1e3)
        computed.append((time.process_time() - worked) * 1e3)
    return statistics.median(took[1:]), statistics.median(computed[1:])


def main(nodes: int = NODES, seconds: float = SECONDS) -> int:
    with portal_here() as env:
        tokens = make_lab(nodes)
        parts = containers()
        with web("tests.bench.nodes:floor", env) as (pid, port):
            bare, _ = Agents(pid, port, tokens, parts).reports(seconds / 3)
        with web("portal.asgi:application", env) as (pid, port):
            agents = Agents(pid, port, tokens, parts)
            each, took = agents.reports(seconds)
            idle = agents.idle(IDLE_SECONDS)
            wait = agents.polls(max(seconds, POLL_SECONDS), idle)
        turn = turn_ms()
    return report_costs(nodes, bare, each, took, idle, wait, turn)


def report_costs(
    nodes: int, bare: float, each: float, took: list[float], idle: float, wait: float, turn: tuple[float, float]
) -> int:
    """Print the measurements; return 0 when the targets are met."""
    ordered, rate = sorted(took), nodes / HEARTBEAT_SECONDS
    print(
        f"{nodes} nodes of {GPUS} GPUs with a job each: {1e3 * each:.2f} ms of processor a report,"
        f" {each / bare:.1f} times the floor of {1e3 * bare:.2f} ms; answered within"
        f" {1e3 * statistics.median(took):.0f} ms (median), {1e3 * ordered[int(len(ordered) * 0.99)]:.0f} ms (p99)"
    )
    share = each * rate + wait * nodes + idle
    held = share <= TARGET * TOLERANCE and turn[0] <= TURN_MS * TOLERANCE
    print(
        f"agent API: {100 * share:.1f} % of one core (at most {100 * TARGET:.0f} %): reports every {HEARTBEAT_SECONDS:.0f} s"
        f" {100 * each * rate:.1f} %, long polls {100 * wait * nodes:.1f} %, idle {100 * idle:.1f} %;"
        f" scheduling cycle over these nodes: {turn[0]:.0f} ms (at most {TURN_MS} ms), {turn[1]:.0f} ms of them computing"
    )
    print("held" if held else f"MISSED, a tenth allowed for ({share:.3f} of a core, {turn[0]:.0f} ms)")
    return int(not held)


if __name__ == "__main__":
    sys.exit(main(*(int(each) for each in sys.argv[1:3])))
