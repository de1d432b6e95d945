"""What the agent API costs in a large lab: 500 nodes of 8 GPUs that report every 5 s, over real HTTP.

``python -m tests.bench.nodes [NODES [SECONDS]]`` on PostgreSQL and Redis of its own. Prints how much of one core the web
process takes for all reports, what a node that waits in its long poll costs beside them, the time of a report, and the
scheduler's turn over the same nodes. The target is a quarter of a core. Processor time per report is what is measured, and
multiplied by their rate: so a machine that is busy with other things, and reports less often, gives the same figure.
"""

import asyncio
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

NODES, SECONDS, GPUS = 500, 60, 8
HEARTBEAT_SECONDS = 5.0
TARGET = 0.25
AT_ONCE = 16
"""Reports under way; more would wait for each other on the way to the database."""
WAITING = 50
"""Nodes whose long poll is measured; more are as many times as much."""
TICKS = os.sysconf("SC_CLK_TCK")
ROOT = Path(__file__).resolve().parents[2]


def cpu_seconds(pid: int) -> float:
    """Of a process with all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def make_nodes(count: int) -> list[str]:
    """Their tokens."""
    from portal.accounts.models import digest
    from portal.cluster.models import Gpu, Node, NodeEnvironment
    from tests.portal.control_world import ready_node
    from tests.portal.jobs_world import make_environment

    tokens = [f"sln_bench-{number:06}" for number in range(count)]
    environment = make_environment()
    for number, token in enumerate(tokens):
        ready_node(f"bench{number:04}", GPUS, (), token_digest=digest(token))
    nodes = list(Node.objects.order_by("pk"))
    Gpu.objects.update(kind="cuda", model="bench", memory_mib=81_920)
    NodeEnvironment.objects.bulk_create(
        [NodeEnvironment(node=node, environment=environment, state="ready") for node in nodes]
    )
    return tokens


def report(number: int, chance: random.Random) -> bytes:
    """Each GPU reads otherwise each time, as real ones do."""
    name = f"bench{number:04}"
    gpus = [
        {
            "uuid": f"{name}-gpu{index}",
            "index": index,
            "kind": "cuda",
            "model": "bench",
            "memory_mib": 81_920,
            "healthy": True,
            "problem": "",
            "utilisation_percent": chance.randint(0, 100),
            "memory_used_mib": chance.randint(0, 81_920),
            "temperature_celsius": chance.randint(30, 85),
        }
        for index in range(GPUS)
    ]
    said = {"boot": "b1", "full_pass": True, "runtime": "fake", "facts": {"cpus": 64}, "problems": [], "gpus": gpus}
    ready = {"key": "pytorch", "digest": "", "state": "ready", "progress_percent": 0, "detail": ""}
    return json.dumps({**said, "environments": [ready], "containers": []}).encode()


async def request(port: int, token: str, method: str, path: str, body: bytes = b"") -> bytes:
    """One request on a connection of its own, as cheap for us as can be: what is measured is the other side."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        writer.write(head.encode() + body)
        answer = await reader.read(-1)
    finally:
        writer.close()
    if not answer.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(f"{path}: {answer[:300]!r}")
    return answer.rpartition(b"\r\n\r\n")[2]


async def beat(port: int, number: int, token: str, until: float, took: list[float], door: asyncio.Semaphore) -> None:
    chance = random.Random(number)
    due = time.monotonic() + HEARTBEAT_SECONDS * chance.random()
    while due < until:
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        async with door:
            body, began = report(number, chance), time.monotonic()
            await request(port, token, "POST", "/agent/v1/sync", body)
            took.append(time.monotonic() - began)
        due = max(due + HEARTBEAT_SECONDS, time.monotonic())


async def listen(port: int, token: str, until: float) -> None:
    """The long poll beside the reports."""
    seen = ""
    while time.monotonic() < until:
        seen = json.loads(await request(port, token, "GET", f"/agent/v1/wait?seen={seen}"))["seen"]


async def play(port: int, tokens: list[str], seconds: float) -> list[float]:
    """Seconds that each report took."""
    until, took, door = time.monotonic() + seconds, list[float](), asyncio.Semaphore(AT_ONCE)
    await asyncio.gather(*(beat(port, number, token, until, took, door) for number, token in enumerate(tokens)))
    return took


async def poll(port: int, tokens: list[str], seconds: float) -> None:
    waits = [asyncio.ensure_future(listen(port, token, time.monotonic() + seconds)) for token in tokens]
    await asyncio.sleep(seconds)
    for wait in waits:
        wait.cancel()
    await asyncio.gather(*waits, return_exceptions=True)


@contextmanager
def web(env: dict[str, str]) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "daphne", "-v", "0", "-b", "127.0.0.1", "-p", str(port), "portal.asgi:application"]
    process = subprocess.Popen(command, cwd=ROOT, env=env)
    try:
        until = time.monotonic() + 120
        while time.monotonic() < until:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                time.sleep(0.2)
        yield process, port
    finally:
        process.terminate()
        process.wait(20)


def reports(pid: int, port: int, tokens: list[str], seconds: float) -> tuple[float, list[float]]:
    """Processor seconds for one report, and how long each took."""
    asyncio.run(play(port, tokens, HEARTBEAT_SECONDS * 2))  # the first reports write more
    before = cpu_seconds(pid)
    took = asyncio.run(play(port, tokens, seconds))
    return (cpu_seconds(pid) - before) / len(took), took


def waiting(pid: int, port: int, tokens: list[str], seconds: float) -> float:
    """Of one core, for one node that waits for news and gets none."""
    asyncio.run(poll(port, tokens, HEARTBEAT_SECONDS))
    before, began = cpu_seconds(pid), time.monotonic()
    asyncio.run(poll(port, tokens, seconds))
    return (cpu_seconds(pid) - before) / (time.monotonic() - began) / len(tokens)


def turn_ms() -> float:
    """The scheduler's turn over these nodes when nothing changes: median of five, after one that learns the past."""
    from portal.control.history import History
    from tests.portal.control_world import heartbeat, lead, turn

    heartbeat()
    epoch, history, took = lead(), History(), []
    for _ in range(6):
        began = time.monotonic()
        turn(epoch, history=history)
        took.append((time.monotonic() - began) * 1e3)
    return statistics.median(took[1:])


def main(nodes: int = NODES, seconds: float = SECONDS) -> int:
    from tests import servers

    with ExitStack() as stack:
        env = {
            **os.environ,
            "DATABASE_URL": stack.enter_context(servers.postgres()),
            "REDIS_URL": stack.enter_context(servers.redis()),
            "SECRET_KEY": "only-for-tests-and-longer-than-thirty-two-characters",
            "SCHEDULEARN_HOME": stack.enter_context(tempfile.TemporaryDirectory(prefix="sl-bench-nodes-")),
            "DJANGO_SETTINGS_MODULE": "portal.settings",
            "LOG_LEVEL": "WARNING",
        }
        os.environ.update(env)
        import django
        from django.core.management import call_command

        django.setup()
        call_command("migrate", verbosity=0)
        tokens = make_nodes(nodes)
        with web(env) as (process, port):
            each, took = reports(process.pid, port, tokens, seconds)
            wait = waiting(process.pid, port, tokens[:WAITING], seconds)
        ordered = sorted(took)
        print(
            f"{nodes} nodes of {GPUS} GPUs: {1e3 * each:.1f} ms of processor a report; answered within"
            f" {1e3 * statistics.median(took):.0f} ms (median), {1e3 * ordered[int(len(ordered) * 0.99)]:.0f} ms (p99)"
        )
        print(
            f"agent API at a report every {HEARTBEAT_SECONDS:.0f} s: {100 * each * nodes / HEARTBEAT_SECONDS:.0f} % of one core"
            f" (target {100 * TARGET:.0f} %); their long polls {100 * wait * nodes:.0f} % more;"
            f" scheduler's turn over them {turn_ms():.0f} ms"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(*(int(each) for each in sys.argv[1:3])))
