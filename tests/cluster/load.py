"""A client that keeps a lab busy while things break, and remembers what it was answered."""

import random
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import httpx

from tests.cluster.judge import FINAL, Asked, Run
from tests.cluster.lab import Lab
from tests.stalls import StallWatch, Try
from tests.system.product import wait_for

SUBMIT_SECONDS = 90
"""Until an answer must have come, whatever broke."""
GONE_SECONDS = 60
INSPECT_SECONDS = 2.0
PLAIN = {"launcher": "command", "environment": "python", "min_gpus": 1, "max_gpus": 1, "time_limit_seconds": 600}


class Client:
    """Submits with a key of its own and asks again with the same until it is answered."""

    def __init__(self, lab: Lab, seed: int, other: "Client | None" = None) -> None:
        """``other``: one whose code and history this one shares."""
        self.lab = lab
        self.rng = random.Random(seed)
        text = (Path(__file__).parent / "witness_job.py").read_text()
        self.code: dict[str, Any] = other.code if other else lab.upload(f"witness {seed}", job=text)
        self.asked: list[Asked] = other.asked if other else []
        self._prefix = uuid.uuid4().hex[:8]
        self._counter = 0

    def submit(self, seconds: float, code: int = 0, rate: int = 50, extra: str = "", **spec: Any) -> Asked:
        self._counter += 1
        asked = Asked(f"{self._prefix}-{self._counter}", code)
        self.asked.append(asked)
        entry = f"python job.py --seconds {seconds:.1f} --code {code} --rate {rate} {extra}".strip()
        body = {**PLAIN, **self.code, "entry": entry, **spec}
        until = time.monotonic() + SUBMIT_SECONDS
        while asked.job is None and time.monotonic() < until:
            answer = self.ask("POST", "jobs/", json=body, headers={"Idempotency-Key": asked.key})
            asked.answers.append(answer.status_code if answer is not None else 0)
            if answer is not None and answer.status_code in (200, 201):
                asked.job = int(answer.json()["id"])
            else:
                time.sleep(0.2)
        return asked

    def cancel(self, asked: Asked) -> None:
        """409: it had finished before, and the finish wins."""
        until = time.monotonic() + SUBMIT_SECONDS
        while time.monotonic() < until:
            answer = self.ask("POST", f"jobs/{asked.job}/cancel/")
            if answer is not None and answer.status_code == 200:
                asked.cancelled_at = time.monotonic()
                return
            if answer is not None and answer.status_code == 409:
                return
            time.sleep(0.2)

    def ask(self, method: str, path: str, **options: Any) -> httpx.Response | None:
        """None when no answer came."""
        try:
            return self.lab.api(method, path, **options)
        except httpx.HTTPError:
            return None

    def get(self, path: str, **params: Any) -> Any:
        answer = self.ask("GET", path, params=params)
        if answer is None or answer.status_code != 200:
            return None
        found = answer.json()
        return found["results"] if isinstance(found, dict) and "results" in found else found

    def open_jobs(self) -> list[int]:
        """Those that are not final, or of which nothing can be learnt now."""
        known = [each.job for each in self.asked if each.job is not None]
        rows = {job: self.get(f"jobs/{job}/") for job in known}
        return [job for job, row in rows.items() if row is None or row["state"] not in FINAL]

    def finals(self, seconds: float, jobs: Iterable[int] | None = None) -> dict[int, str]:
        """State of each of ``jobs``, by default of all that were submitted, once all are final or the time is up."""
        known = {each.job for each in self.asked if each.job is not None}
        open_jobs = known if jobs is None else set(jobs)
        states: dict[int, str] = {}
        until = time.monotonic() + seconds
        while open_jobs and time.monotonic() < until:
            for job in sorted(open_jobs):
                if (row := self.get(f"jobs/{job}/")) is not None:
                    states[job] = row["state"]
                    if row["state"] in FINAL:
                        open_jobs.discard(job)
            if open_jobs:
                time.sleep(0.5)
        return states

    def cancel_open(self, states: Mapping[int, str]) -> None:
        """Cancel the jobs that are not in a final state, so that the next fault finds a lab with all its GPUs."""
        for job in [job for job, state in states.items() if state not in FINAL]:
            self.ask("POST", f"jobs/{job}/cancel/")

    def causes(self, jobs: Iterable[int]) -> list[str]:
        """What the portal gives as the causes of those that failed: where to look when they should not have."""
        rows = {job: self.get(f"jobs/{job}/") for job in sorted(jobs)}
        return [f"job {job}: {row['cause']}" for job, row in rows.items() if row and row["state"] == "FAILED"]

    def logs(self) -> dict[tuple[int, int], bytes]:
        """All that the portal has of what the jobs wrote, by job and attempt."""
        found: dict[tuple[int, int], bytes] = {}
        for job in (each.job for each in self.asked if each.job is not None):
            for stream in self.get(f"jobs/{job}/streams/") or []:
                if stream["label"] == "rank 0":
                    answer = self.ask("GET", f"jobs/{job}/log/", params={"stream": stream["id"]})
                    found[job, stream["attempt"]] = answer.content if answer is not None else b""
        return found

    def unclosed(self) -> list[str]:
        """Streams of logs that may still grow, and jobs of which nothing can be learnt now."""
        found: list[str] = []
        for job in (each.job for each in self.asked if each.job is not None):
            streams = self.get(f"jobs/{job}/streams/")
            if streams is None:
                found.append(f"job {job}: no answer")
            else:
                found += [f"job {job}: {each['label']}" for each in streams if not each["closed"]]
        return found


class Load(threading.Thread):
    """Submits jobs of all kinds at a steady pace until it is asked to end; cancels some."""

    def __init__(self, client: Client, pace_seconds: float, longest_seconds: float) -> None:
        super().__init__(daemon=True)
        self.client = client
        self.pace_seconds = pace_seconds
        self.longest_seconds = longest_seconds
        self.over = threading.Event()
        self.turn = threading.Lock()
        """Held while it submits: who takes it has peace."""
        self.trouble = ""

    def run(self) -> None:
        rng = self.client.rng
        try:
            while not self.over.is_set():
                with self.turn:
                    self._submit(rng)
                self.over.wait(rng.uniform(0.5, 1.5) * self.pace_seconds)
        except Exception as error:  # noqa: BLE001  a client that died must not pass for one that saw nothing
            self.trouble = f"the client died: {error!r}"

    def _submit(self, rng: random.Random) -> None:
        code = rng.choice((0, 0, 0, 0, 0, 0, 0, 1, 3))
        asked = self.client.submit(rng.uniform(1, self.longest_seconds), code, rng.choice((20, 100, 400)))
        if asked.job is not None and rng.random() < 0.06:
            self.over.wait(rng.uniform(0, 3))
            self.client.cancel(asked)

    def end(self) -> None:
        self.over.set()
        self.join(SUBMIT_SECONDS + 10)


class Inspector(threading.Thread):
    """Compares the jobs that the portal lists as running with the processes that live, until it is asked to end.

    A job without living processes wastes its GPUs. While the portal does not answer, nothing is held against it.
    """

    def __init__(self, client: Client, living: Callable[[], Iterable[Run]]) -> None:
        super().__init__(daemon=True)
        self.over = threading.Event()
        self.complaints: set[str] = set()
        self._client, self._living, self._watch = client, living, StallWatch()

    def run(self) -> None:
        while not self.over.wait(INSPECT_SECONDS):
            rows = self._client.get("jobs/", state="RUNNING", page_size=100)
            if rows is None:
                self._watch.forget()
                continue
            holding = {Try(row["id"], 0): 1 if row["launcher"] == "command" else row["min_gpus"] for row in rows}
            ranks = Counter(Try(run.job, 0) for run in self._living())
            self.complaints.update(self._watch.look(time.monotonic(), holding, ranks))

    def end(self) -> list[str]:
        self.over.set()
        self.join(30)
        return sorted(self.complaints)


def left_over(lab: Lab) -> list[str]:
    """Containers and networks of jobs that are still on an engine."""
    found: list[str] = []
    for machine in lab.lan.machines:
        if machine.space is None:
            continue
        for kind in (("ps", "-a", "--format", "{{.Names}}"), ("network", "ls", "--format", "{{.Name}}")):
            names = machine.docker(*kind, "--filter", "label=sl.installation").stdout.decode().split()
            found += [f"{name} on {machine.name}" for name in names]
    return found


def wait_until_tidy(lab: Lab) -> str:
    """What is left of jobs after a minute; nothing when all is gone."""
    try:
        wait_for("nothing is left", lambda: not left_over(lab), GONE_SECONDS, every=0.5)
    except AssertionError:
        return f"left on the engines: {', '.join(left_over(lab))}"
    return ""
