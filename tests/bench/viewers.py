"""``python -m tests.bench.viewers [VIEWERS [SECONDS]]``: many open logs of one job that writes 200 lines a second.

The lab has PostgreSQL and Redis; the web process and the one for nodes are those of the product. An agent's client passes
the lines on as the agent does: it pauses four times as long as the last transfer took, from 0.1 to 1 s. Each viewer
acknowledges as the page does, and must receive every byte once: each piece is compared with what was written at its offset. A
delay is the time from the writing of a line to its arrival at a socket, measured at every tenth viewer. All of it shares the
processors of one machine, of which the viewers take as much as the web process. Exits with 1 when a target is missed, and when
not all viewers are connected within CONNECT_SECONDS.
"""

import asyncio
import json
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import websockets

from tests.bench.nodes import cpu_seconds
from tests.bench.portal import portal_here
from tests.bench.targets import Target, verdict

VIEWERS, SECONDS, LINES_PER_SECOND = 1_000, 60.0, 200
PER_USER = 20
MAX_P99_MS = 1_000.0
ACK_BYTES = 32 * 1024
CONNECTING = 16
"""The number of viewers that connect at the same time."""
CONNECT_SECONDS = 120.0
LAST_LINES_SECONDS = 30
ROOT = Path(__file__).resolve().parents[2]


# --- the lab -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Lab:
    token: str
    """Of the node."""
    job: int
    container: str
    cookies: list[str]
    """The session of each user."""


def make_lab(users: int) -> Lab:
    """Create a running job, and users who may see it and are signed in."""
    from django.conf import settings
    from django.test import Client

    from portal.accounts.models import digest
    from portal.projects.models import Membership
    from tests.portal import jobs_world as world

    token = "sln_bench-viewers"
    owner = world.make_user("owner")
    project = world.make_project(owner)
    node = world.make_node("alpha", token_digest=digest(token))
    job = world.make_job(project)
    part = world.place(job, list(node.gpus.all())[:1]).containers.get()
    world.run(part)
    cookies = []
    for number in range(users):
        user = world.make_user(f"viewer{number}")
        Membership.objects.create(project=project, user=user, role="member")
        client = Client()
        client.force_login(user)
        name = settings.SESSION_COOKIE_NAME
        cookies.append(f"{name}={client.cookies[name].value}")
    return Lab(token, job.pk, part.name, cookies)


@contextmanager
def serving(env: dict[str, str], *options: str) -> Iterator[tuple[int, int]]:
    """Start a web process of the product; yield its process id and its port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    endpoint = f"tcp:{port}:interface=127.0.0.1"
    process = subprocess.Popen([sys.executable, "-m", "portal.serving", "-e", endpoint, *options], cwd=ROOT, env=env)
    try:
        until = time.monotonic() + 60
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


def resident_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


# --- the job -----------------------------------------------------------------------------------------------------


class Writer(threading.Thread):
    """Writes lines with their times, and passes them on as an agent does."""

    def __init__(self, port: int, lab: Lab, seconds: float) -> None:
        super().__init__()
        self.port, self.lab, self.seconds = port, lab, seconds
        self.text = b""

    def run(self) -> None:
        from runners.agent.log_shipper import MAX_PAUSE_SECONDS, PAUSE_PER_SEND, POLL_SECONDS
        from runners.agent.portal_client import PortalClient

        portal = PortalClient(f"http://127.0.0.1:{self.port}", self.lab.token, allow_http=True)
        began, written = time.time(), 0
        while written < self.seconds * LINES_PER_SECOND:
            due = int((time.time() - began) * LINES_PER_SECOND)
            stamps = [began + number / LINES_PER_SECOND for number in range(written, due)]
            lines = b"".join(b"%.4f step of a training with a loss of 0.12345 and more words\n" % at for at in stamps)
            sent_at = time.monotonic()
            mark = (len(self.text), int(time.time() * 1000))
            self.text += lines  # before the first viewer gets them
            if lines:
                portal.append_log(self.lab.container, "0", mark[0], lines, marks=(mark,), label="Rank 0")
            written = max(written, due)
            took = time.monotonic() - sent_at
            time.sleep(min(MAX_PAUSE_SECONDS, max(POLL_SECONDS, PAUSE_PER_SEND * took)))
        portal.close()


# --- the viewers -------------------------------------------------------------------------------------------------


@dataclass
class Viewer:
    """A browser that shows the log."""

    writer: Writer
    times: bool
    """Whether it notes the delays."""
    received: int = 0
    problem: str = ""
    """What went wrong first."""
    rest: bytes = b""
    """The line that has not come whole."""
    delays: list[float] = field(default_factory=list)
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once it has everything that there is, or has failed."""

    async def watch(self, port: int, job: int, cookie: str, slots: asyncio.Semaphore) -> None:
        try:
            async with slots:
                socket = await websockets.connect(
                    f"ws://127.0.0.1:{port}/ws/jobs/{job}/log/",
                    additional_headers={"Cookie": cookie, "Origin": f"http://127.0.0.1:{port}"},
                    proxy=None,
                    open_timeout=CONNECT_SECONDS,
                    ping_interval=None,
                )
            async with socket:
                await self.read(socket)
                self.note(f"closed with {socket.close_code}")
        except (OSError, websockets.WebSocketException) as problem:
            self.note(f"{type(problem).__name__}: {problem}")
        finally:
            self.ready.set()

    async def read(self, socket: websockets.ClientConnection) -> None:
        acked = 0
        async for message in socket:
            if isinstance(message, str):
                about = json.loads(message)
                if about["type"] == "streams":
                    await socket.send(json.dumps({"type": "read", "cursors": {}}))
                elif about["type"] == "idle":
                    self.ready.set()
                continue
            self.take(message)
            if self.received - acked >= ACK_BYTES:
                acked = self.received
                await socket.send(json.dumps({"type": "ack", "bytes": acked}))

    def take(self, frame: bytes) -> None:
        now = time.time()
        (length,) = struct.unpack_from(">I", frame)
        offset, data = json.loads(frame[4 : 4 + length])["o"], frame[4 + length :]
        if offset != self.received:
            self.note(f"a piece at {'a later' if offset > self.received else 'an earlier'} offset than the next")
        elif self.writer.text[offset : offset + len(data)] != data:
            self.note("other bytes than were written")
        self.received += len(data)
        if self.times:
            *lines, self.rest = (self.rest + data).split(b"\n")
            self.delays += [now - float(line.split(b" ", 1)[0]) for line in lines]

    def note(self, problem: str) -> None:
        self.problem = self.problem or problem


async def connect_all(web: tuple[int, int], viewers: list[Viewer], lab: Lab) -> list[asyncio.Task[None]]:
    """Connect the viewers, at most CONNECTING at a time; raises SystemExit when that takes more than CONNECT_SECONDS."""
    pid, port = web
    slots = asyncio.Semaphore(CONNECTING)
    began, spent = time.monotonic(), cpu_seconds(pid)
    tasks = [
        asyncio.create_task(viewer.watch(port, lab.job, lab.cookies[number // PER_USER], slots))
        for number, viewer in enumerate(viewers)
    ]
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            for viewer in viewers:
                await viewer.ready.wait()
    except TimeoutError:
        connected = sum(viewer.ready.is_set() for viewer in viewers)
        raise SystemExit(
            f"{connected} of {len(viewers)} viewers were connected after {CONNECT_SECONDS:.0f} s"
            f" ({cpu_seconds(pid) - spent:.1f} s of processor time of the web process)."
        ) from None
    took, spent = time.monotonic() - began, cpu_seconds(pid) - spent
    print(
        f"Connected in {took:.1f} s, of which the web process used {spent:.1f} s of a core:"
        f" {1000 * spent / len(viewers):.1f} ms a viewer",
        flush=True,
    )
    return tasks


async def watch_all(web: tuple[int, int], nodes: int, lab: Lab, count: int, seconds: float) -> int:
    pid, _ = web
    writer = Writer(nodes, lab, seconds)
    viewers = [Viewer(writer, times=number % 10 == 0) for number in range(count)]
    before = resident_mib(pid)
    tasks = await connect_all(web, viewers, lab)
    connected, spent = resident_mib(pid), cpu_seconds(pid)
    writer.start()
    await asyncio.to_thread(writer.join)
    until = time.monotonic() + LAST_LINES_SECONDS
    while time.monotonic() < until and not all(each.problem or each.received >= len(writer.text) for each in viewers):
        await asyncio.sleep(0.1)
    spent, after = cpu_seconds(pid) - spent, resident_mib(pid)
    for viewer in viewers:
        if viewer.received < len(writer.text):
            viewer.note(f"not everything within {LAST_LINES_SECONDS} s of the last line")
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.sleep(5)
    for problem, number in Counter(viewer.problem for viewer in viewers if viewer.problem).items():
        print(f"{number} viewers: {problem}", flush=True)
    complete = sum(not viewer.problem for viewer in viewers)
    delays = sorted(1000 * delay for viewer in viewers for delay in viewer.delays)
    print(
        f"{count} viewers, {len(writer.text.splitlines()):,} lines in {seconds:.0f} s. Delay: median {delays[len(delays) // 2]:.0f} ms,"
        f" p99 {delays[int(len(delays) * 0.99)]:.0f} ms, at most {delays[-1]:.0f} ms. The web process: {spent / seconds:.0%} of"
        f" a core; {before:.0f} MiB before, {connected:.0f} MiB with all connected, {after:.0f} MiB at the end,"
        f" {resident_mib(pid):.0f} MiB once they had left; {1024 * (connected - before) / count:.0f} KiB a viewer"
    )
    return verdict(
        [
            Target("viewers that received every byte once", complete, count, at_least=True),
            Target("p99 of the delays", delays[int(len(delays) * 0.99)], MAX_P99_MS, "ms"),
            Target("growth while the lines came", after - connected, 64, "MiB"),
        ]
    )


def main(viewers: int = VIEWERS, seconds: float = SECONDS) -> int:
    with portal_here() as env:
        lab = make_lab(-(-viewers // PER_USER))
        with serving(env) as web, serving(env, "--only", "nodes") as (_, nodes):
            return asyncio.run(watch_all(web, nodes, lab, viewers, seconds))


if __name__ == "__main__":
    sys.exit(main(*(int(text) for text in sys.argv[1:])))
