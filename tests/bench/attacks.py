"""``python -m tests.bench.attacks``: the effect of one hostile user or stranger on the others.

Four simulated nodes run eight jobs under a portal of real processes, as ``make run`` starts them. One attack after the
other runs for ``--seconds`` while the reports of a node and the pages of a user are timed. Prints for each the median and
the 99th percentile of both, the additional memory of the web processes, and the jobs lost. With ``--one-process`` one
process answers nodes and users, as in earlier releases.
"""

import argparse
import asyncio
import io
import json
import os
import socket
import subprocess
import sys
import tarfile
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httpx
import websockets

from tests.bench.line import session_cookies
from tests.outside import lab as outside
from tests.system.product import ROOT, Product, wait_for

NODES, JOBS = 4, 8
PERIOD_SECONDS = 0.25
PATIENCE_SECONDS = 60
MAX_NODE_SECONDS = 1.0
MAX_GROWTH_MIB = 200
CODE_MIB = 90
WAITING = 450
"""The number of waiting jobs; a member may have at most 500."""


class SplitWebProduct(Product):
    """Starts web processes as ``manage.py up`` does."""

    def start(self, name: str) -> None:
        if name != "web":
            super().start(name)
            return
        to_pages, pages = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        to_nodes, nodes = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listening = socket.create_server(("127.0.0.1", self.port), backlog=512)
        self.sockets = (to_pages, pages, to_nodes, nodes, listening)
        self._run("web", ["portal.serving", "--handed-over"], pages)
        self._run("nodes-web", ["portal.serving", "--only", "nodes", "--handed-over"], nodes)
        self._run("entry", ["portal.serving.entry"], listening, to_pages, to_nodes)

    def _run(self, name: str, words: list[str], *given: socket.socket) -> None:
        handles = [each.fileno() for each in given]
        with (self.home / f"{name}.out").open("ab") as out:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", *words, *map(str, handles)],
                cwd=ROOT,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                pass_fds=handles,
                start_new_session=True,
            )


@dataclass
class Lab:
    product: Product
    made: outside.Lab
    jobs: list[int]

    @property
    def member(self) -> dict[str, str]:
        """Return the headers of the hostile user."""
        return {"Authorization": f"Bearer {self.made.people[1].rest.token}"}

    @property
    def code(self) -> Mapping[str, int]:
        return self.made.people[1].project


@dataclass
class ResponseTimes:
    """Response times in seconds; an answer that never came counts as the time limit."""

    seconds: list[float] = field(default_factory=list)

    def quantile(self, share: float) -> float:
        some = sorted(self.seconds)
        return some[min(len(some) - 1, int(share * len(some)))]

    def __str__(self) -> str:
        return f"median {self.quantile(0.5):.3f} s, p99 {self.quantile(0.99):.3f} s of {len(self.seconds)}"


def measure(ask: Callable[[], None], into: ResponseTimes, over: threading.Event) -> None:
    while not over.is_set():
        began = time.monotonic()
        try:
            ask()
            into.seconds.append(time.monotonic() - began)
        except (httpx.HTTPError, OSError):
            into.seconds.append(max(time.monotonic() - began, PATIENCE_SECONDS))
        over.wait(max(0.0, PERIOD_SECONDS - (time.monotonic() - began)))


def resident_mib(product: Product) -> float:
    """Return the resident memory of the processes that answer users and nodes, in MiB."""
    total = 0.0
    for name in ("web", "nodes-web", "entry"):
        if (process := product.processes.get(name)) is not None:
            with open(f"/proc/{process.pid}/statm") as file:  # noqa: PTH123
                total += int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    return total


# --- the attacks: each runs until the event is set -----------------------------------------------------------------

Attack = Callable[[Lab, threading.Event], None]


def flood_of_messages(lab: Lab, over: threading.Event) -> None:
    """Acknowledge endlessly on twenty sockets of one user."""
    headers = {"Cookie": session_cookies(lab.product), "Origin": lab.product.url}
    uri = f"{lab.product.url.replace('http', 'ws')}/ws/jobs/{lab.jobs[0]}/log/"

    async def one() -> None:
        while not over.is_set():
            with suppress(OSError, websockets.WebSocketException, TimeoutError):
                async with websockets.connect(uri, additional_headers=headers, proxy=None, open_timeout=10) as viewer:
                    while not over.is_set():
                        await viewer.send('{"type": "ack", "bytes": 0}')
            await asyncio.sleep(0.05)

    async def all_of_them() -> None:
        await asyncio.gather(*(one() for _ in range(20)))

    asyncio.run(all_of_them())


def slow_readers(lab: Lab, over: threading.Event) -> None:
    """Start twelve downloads of a large code version that are never read, and restart them when they are cut off."""
    path = f"/api/v1/projects/{lab.code['project']}/code/{large_code(lab)}/download/"
    text = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: {lab.member['Authorization']}\r\n\r\n"
    stuck: list[socket.socket] = []
    while not over.is_set():
        for each in stuck:
            each.close()
        stuck = []
        for _ in range(12):
            with suppress(OSError):
                connection = socket.create_connection(("127.0.0.1", lab.product.port), 10)
                connection.sendall(text.encode())
                stuck.append(connection)
        over.wait(45)
    for each in stuck:
        each.close()


def large_code(lab: Lab) -> int:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        entry = tarfile.TarInfo("weights.bin")
        entry.size = CODE_MIB << 20
        tar.addfile(entry, io.BytesIO(os.urandom(entry.size)))
    headers = {**lab.member, "Content-Type": "application/octet-stream"}
    url = f"{lab.product.url}/api/v1/projects/{lab.code['project']}/code/?name=big.tar"
    answer = httpx.post(url, content=content.getvalue(), headers=headers, timeout=300, trust_env=False)
    answer.raise_for_status()
    return int(answer.json()["number"])


def password_guessing(lab: Lab, over: threading.Event) -> None:
    """Guess passwords on forty connections of a stranger, each guess under another name."""

    def guess(_: int) -> None:
        with httpx.Client(base_url=lab.product.url, timeout=PATIENCE_SECONDS, trust_env=False) as client:
            while not over.is_set():
                with suppress(httpx.HTTPError, KeyError):
                    if "csrftoken" not in client.cookies:
                        client.get("/accounts/sign-in/")
                    form = {
                        "username": uuid.uuid4().hex,
                        "password": "x",
                        "csrfmiddlewaretoken": client.cookies["csrftoken"],
                    }
                    client.post("/accounts/sign-in/", data=form, headers={"Referer": lab.product.url})

    in_parallel(40, guess)


def costly_uploads(lab: Lab, over: threading.Event) -> None:
    """Upload forty small archives at a time, whose extended headers are one long number."""
    number = b"1" * 100_000
    block = tarfile.TarInfo("header")
    block.type, block.size = tarfile.XHDTYPE, len(number)
    content = block.tobuf(tarfile.USTAR_FORMAT) + number.ljust(-(-len(number) // 512) * 512, b"\0") + bytes(1024)
    url = f"{lab.product.url}/api/v1/projects/{lab.code['project']}/code/?name=x.tar"
    headers = {**lab.member, "Content-Type": "application/octet-stream"}
    repeat(over, 40, lambda client: client.post(url, content=content, headers=headers))


def costly_questions(lab: Lab, over: threading.Event) -> None:
    """Ask endlessly, as one user, what would help each of several hundred waiting jobs."""
    client = httpx.Client(base_url=f"{lab.product.url}/api/v1", headers=lab.member, timeout=60, trust_env=False)
    spec = {
        **lab.code,
        "launcher": "command",
        "environment": "pytorch-horovod",
        "entry": "python train.py",
        "min_gpus": 4,
        "max_gpus": 4,
    }
    waiting: list[int] = []
    while len(waiting) < WAITING and not over.is_set():
        answer = client.post("jobs/", json={**spec, "time_limit_seconds": 600})
        if answer.status_code != 201:
            break
        waiting.append(answer.json()["id"])
    asked = iter(waiting * 1000)
    repeat(over, 10, lambda _: client.get(f"jobs/{next(asked)}/forecast/changes/"))


def endless_submissions(lab: Lab, over: threading.Event) -> None:
    """Submit and cancel a job endlessly on twenty connections of one user."""
    url = f"{lab.product.url}/api/v1/jobs/"
    spec = {**lab.code, "launcher": "command", "environment": "pytorch-horovod", "entry": "python train.py"}
    spec |= {"min_gpus": 4, "max_gpus": 4, "time_limit_seconds": 600}

    def submit_and_cancel(client: httpx.Client) -> None:
        answer = client.post(url, json=spec, headers=lab.member)
        if answer.status_code == 201:
            client.post(f"{url}{answer.json()['id']}/cancel/", headers=lab.member)

    repeat(over, 20, submit_and_cancel)


def repeat(over: threading.Event, count: int, ask: Callable[[httpx.Client], Any]) -> None:
    def one(_: int) -> None:
        with httpx.Client(timeout=PATIENCE_SECONDS, trust_env=False) as client:
            while not over.is_set():
                with suppress(httpx.HTTPError, ValueError):
                    ask(client)

    in_parallel(count, one)


def in_parallel(count: int, work: Callable[[int], None]) -> None:
    with ThreadPoolExecutor(count) as pool:
        list(pool.map(work, range(count)))


ATTACKS: dict[str, Attack] = {
    "nothing": lambda _, over: ignore_result(over.wait()),
    "messages": flood_of_messages,
    "downloads": slow_readers,
    "passwords": password_guessing,
    "uploads": costly_uploads,
    "questions": costly_questions,
    "submissions": endless_submissions,
}


def ignore_result(_: object) -> None:
    """Ignore a result."""


# --- the run -------------------------------------------------------------------------------------------------------


def start_jobs(made: outside.Lab) -> Lab:
    person = made.people[0]
    jobs = []
    for _ in range(JOBS):
        spec = {**person.project, "launcher": "command", "environment": "pytorch-horovod", "entry": "python train.py"}
        never = {"FAKE_RUN_SECONDS": "never"}
        job = person.rest.call(
            "POST", "jobs/", json={**spec, "min_gpus": 1, "max_gpus": 1, "time_limit_seconds": 86400, "env_vars": never}
        )
        jobs.append(int(job["id"]))
    wait_for("all jobs run", lambda: not interrupted_jobs(made, jobs), 60, every=0.5)
    return Lab(made.product, made, jobs)


def interrupted_jobs(made: outside.Lab, jobs: list[int]) -> list[int]:
    """Return the jobs that do not run, or that run for the second time."""

    def runs(job: int) -> bool:
        return (
            made.admin.get(f"jobs/{job}/")["state"] == "RUNNING"
            and made.admin.get(f"jobs/{job}/attempts/")["count"] == 1
        )

    return [job for job in jobs if not runs(job)]


def report_as_node(lab: Lab) -> Callable[[], None]:
    """Return a function that reports as the agent of another node."""
    token = lab.made.admin.call("POST", "nodes/join-token/")["token"]
    client = httpx.Client(base_url=lab.product.url, timeout=PATIENCE_SECONDS, trust_env=False)
    body = {
        "join_token": token,
        "name": f"probe-{uuid.uuid4().hex[:6]}",
        "runtime": "fake",
        "facts": {},
        "problems": [],
    }
    joined = client.post("/agent/v1/join", json=body).raise_for_status().json()
    report = {
        "boot": str(uuid.uuid4()), "full_pass": True, "runtime": "fake", "facts": {}, "problems": [],
        "gpus": [], "environments": [], "containers": [],
    }  # fmt: skip
    headers = {"Authorization": f"Bearer {joined['token']}"}
    return lambda: ignore_result(
        client.post("/agent/v1/sync", content=json.dumps(report), headers=headers).raise_for_status()
    )


def measure_attack(lab: Lab, attack: Attack, seconds: float) -> tuple[ResponseTimes, ResponseTimes, float]:
    nodes, pages = ResponseTimes(), ResponseTimes()
    over = threading.Event()
    headers = {"Authorization": f"Bearer {lab.product.token}"}
    reader = httpx.Client(base_url=lab.product.url, timeout=PATIENCE_SECONDS, trust_env=False)
    before, maximum = resident_mib(lab.product), 0.0
    work = [
        threading.Thread(target=attack, args=(lab, over), daemon=True),
        threading.Thread(target=measure, args=(report_as_node(lab), nodes, over)),
        threading.Thread(target=measure, args=(lambda: ignore_result(reader.get("/accounts/sign-in/")), pages, over)),
        threading.Thread(
            target=measure, args=(lambda: ignore_result(reader.get("/api/v1/jobs/", headers=headers)), pages, over)
        ),
    ]
    for each in work:
        each.start()
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        maximum = max(maximum, resident_mib(lab.product))
        time.sleep(0.25)
    over.set()
    for each in work:
        each.join(2 * PATIENCE_SECONDS)
    return nodes, pages, maximum - before


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.attacks", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="of each attack (default 60)")
    parser.add_argument("--one-process", action="store_true", help="one process answers nodes and people")
    parser.add_argument("attacks", nargs="*", choices=[*ATTACKS, []], help="some of them only")
    args = parser.parse_args(arguments)
    missed = 0
    for name in args.attacks or ATTACKS:
        with outside.lab(NODES, product=Product if args.one_process else SplitWebProduct) as made:
            lab = start_jobs(made)
            nodes, pages, growth = measure_attack(lab, ATTACKS[name], args.seconds)
            gone = interrupted_jobs(made, lab.jobs)
        print(f"{name}: nodes {nodes}; pages {pages}; +{growth:.0f} MiB; {len(gone)} of {JOBS} jobs lost", flush=True)
        missed += nodes.quantile(0.99) > MAX_NODE_SECONDS or growth > MAX_GROWTH_MIB or bool(gone)
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
