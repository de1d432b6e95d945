"""An outside judge of what jobs did while things broke. It never asks the portal what happened.

Its witnesses: the jobs themselves (``witness_job.py``) over a socket in each machine's /data, which the kernel closes
the moment a job's process is gone; a lock on a file for each GPU, which the job holds while it has the GPU; the engines'
own lists; and the client's history of what it submitted and was answered. What the portal reports in the end (states,
logs) is what is judged.

    Run           one process of one job, from its first word to its death
    Asked         one submit, with what must become of it
    judged(...)   every way in which they contradict what must always hold; pure
"""

import itertools
import json
import selectors
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from tests.cluster.machines import Machine
from tests.cluster.witness_job import lines

PIPE_BYTES = 65_536
"""The capacity of a pipe: so much of what a killed process wrote may never have been read."""
MARKER = b"[schedulearn] "
"""Begins a remark of ours within a log."""
SHELL_REMARK = b"Terminated\n"
"""What the shell of a plain command writes about a program that was ended by SIGTERM."""
FINAL = ("SUCCEEDED", "FAILED", "CANCELLED")


@dataclass
class Run:
    machine: str
    began: float
    job: int = 0
    number: int = 0
    gpus: tuple[str, ...] = ()
    wrote: int = 0
    """Lines that it reported, after it wrote them."""
    code: int | None = None
    """The exit code that it announced; None if it never got that far."""
    taken: str = ""
    """A GPU that it was given while another process held it."""
    ended: float | None = None

    def overlaps(self, other: "Run") -> bool:
        first, second = sorted((self, other), key=lambda run: run.began)
        return first.ended is None or second.began < first.ended


@dataclass
class Asked:
    """One job as the client knows it. ``answers`` are the status codes of all tries to submit it; 0: none came."""

    key: str
    code: int = 0
    job: int | None = None
    answers: list[int] = field(default_factory=list)
    cancelled_at: float | None = None
    """When the cancel was acknowledged."""
    own_fault: bool = False
    """It breaks a limit of its own: it must fail."""

    def may_become(self) -> tuple[str, ...]:
        natural = "SUCCEEDED" if self.code == 0 and not self.own_fault else "FAILED"
        return (natural, "CANCELLED") if self.cancelled_at is not None else (natural,)


@dataclass
class RingAsked:
    """A job whose ranks are processes of their own, with what must become of it."""

    job: int
    may_become: tuple[str, ...] = ("SUCCEEDED",)
    again: bool = False
    """It may be run a second time."""


@dataclass(frozen=True)
class Rules:
    """What a fault may do to jobs."""

    calm: bool = True
    """Nothing is run a second time."""
    cancel_seconds: float = 15.0
    """After an acknowledged cancel, until the process is gone."""
    cut_logs: bool = False
    """A log may say that a part of it was dropped."""
    whole_logs: bool = False
    """Supervisors outlive what they watch: also what a killed process wrote last is there."""


def judged(
    asked: Iterable[Asked],
    runs: Iterable[Run],
    finals: Mapping[int, str],
    logs: Mapping[tuple[int, int], bytes],
    rules: Rules,
    lost_machines: Iterable[str] = (),
) -> list[str]:
    """``finals``: job -> state; ``logs``: (job, attempt's number) -> bytes, both as the portal has them in the end."""
    asked, by_job = list(asked), defaultdict[int, list[Run]](list)
    for run in runs:
        by_job[run.job].append(run)
    complaints: list[str] = []
    known = {each.job: each for each in asked if each.job is not None}
    for each in asked:
        if each.job is None:
            complaints.append(f"{each.key} was never accepted: answers {each.answers}")
        if 500 in each.answers:
            complaints.append(f"{each.key} was answered 500")
    complaints += [f"job {job} ran, but was never submitted" for job in by_job if job not in known]
    if len(known) < sum(each.job is not None for each in asked):
        complaints.append("two submits became one job")
    complaints += [f"job {job} exists without a submit" for job in finals if job not in known]
    for job, what in known.items():
        mine = sorted(by_job[job], key=lambda run: run.began)
        complaints += of_job(what, mine, finals.get(job, "gone"), rules)
        for run in mine:
            log = logs.get((job, run.number), b"")
            if rules.cut_logs and MARKER in log:
                complaints += of_cut_log(run, log)
            else:
                complaints += of_log(run, log, run.machine in lost_machines, 0 if rules.whole_logs else PIPE_BYTES)
    return complaints


def of_job(what: Asked, runs: list[Run], final: str, rules: Rules) -> list[str]:
    job, found = what.job, []
    if final not in FINAL:
        found.append(f"job {job} is lost: in the end it is {final}")
    elif final not in what.may_become():
        found.append(f"job {job} is {final} in the end, it should be {' or '.join(what.may_become())}")
    if final == "SUCCEEDED" and not any(run.code == 0 for run in runs):
        found.append(f"job {job} has SUCCEEDED without having run to its end")
    found += [f"job {job} was given {run.taken} of {run.machine}, which was in use" for run in runs if run.taken]
    found += [f"job {job} still runs on {run.machine}" for run in runs if run.ended is None]
    for i, run in enumerate(runs):
        found += [f"job {job} ran twice at once" for other in runs[i + 1 :] if run.overlaps(other)]
    if rules.calm and len(runs) > 1:
        found.append(f"job {job} was run {len(runs)} times")
    if final == "CANCELLED" and what.cancelled_at is not None:
        latest = max((run.ended or 0.0 for run in runs), default=0.0)
        if latest > what.cancelled_at + rules.cancel_seconds:
            found.append(f"job {job} ran on for {latest - what.cancelled_at:.1f} s after its cancel")
    return found


def judged_rings(asked: Iterable[RingAsked], ranks: Iterable[Run], finals: Mapping[int, str]) -> list[str]:
    """``ranks``: all processes of all rings. Those of one attempt live side by side, those of two must not."""
    by_job, found = defaultdict[int, list[Run]](list), []
    for rank in ranks:
        by_job[rank.job].append(rank)
    for each in asked:
        job, mine = each.job, by_job[each.job]
        if finals.get(job) not in each.may_become:
            found.append(f"ring {job} is {finals.get(job)} in the end, it should be {' or '.join(each.may_become)}")
        found += [f"ring {job} was given {rank.taken} of {rank.machine}, in use" for rank in mine if rank.taken]
        found += [f"ring {job} still has a rank on {rank.machine}" for rank in mine if rank.ended is None]
        numbers = {rank.number for rank in mine}
        if len(numbers) > 1 and not each.again:
            found.append(f"ring {job} was run {len(numbers)} times")
        pairs = itertools.combinations(mine, 2)
        if any(one.number != other.number and one.overlaps(other) for one, other in pairs):
            found.append(f"ring {job} ran twice at once")
    return found


def of_log(run: Run, log: bytes, lost: bool, unread: int = PIPE_BYTES) -> list[str]:
    """``lost``: its machine lost power, and with it what was not yet read from the pipe. ``unread``: bytes that may be
    missing at the end of what a killed process wrote."""
    if run.code is None:
        log = log.removesuffix(SHELL_REMARK)
    reported = lines(run.job, run.number, 0, run.wrote)
    ahead = lines(run.job, run.number, run.wrote, run.wrote + 1 + max(0, len(log) - len(reported)) // 20)
    where = f"log of job {run.job}, attempt {run.number}"
    if run.code is not None and not lost and log != reported:
        return [f"the {where} has {len(log)} bytes, {first_difference(log, reported)}; written were {len(reported)}"]
    if not (reported + ahead).startswith(log):
        return [f"the {where} is not what was written: {first_difference(log, reported + ahead)}"]
    if not lost and len(log) < len(reported) - unread:
        return [f"the {where} lacks {len(reported) - len(log)} bytes"]
    return []


def of_cut_log(run: Run, log: bytes) -> list[str]:
    """What stands before the first remark is the beginning of what was written, what stands after the last its end."""
    written = lines(run.job, run.number, 0, run.wrote)
    before, after = log[: log.index(MARKER)], log[log.rindex(MARKER) :].partition(b"\n")[2]
    if not written.startswith(before.removesuffix(b"\n")):
        return [f"the cut log of job {run.job}, attempt {run.number} does not begin as what was written"]
    if run.code is not None and not written.endswith(after):
        return [f"the cut log of job {run.job}, attempt {run.number} does not end as what was written"]
    return []


def first_difference(one: bytes, other: bytes) -> str:
    at = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    return f"another from byte {at}: {one[at : at + 60]!r} instead of {other[at : at + 60]!r}"


class Judge:
    """Listens to all jobs of all machines in a thread of its own."""

    def __init__(self, machines: Iterable[Machine], slots: int) -> None:
        self.runs: list[Run] = []
        self.ranks: list[Run] = []
        """Processes of jobs that are rings."""
        self._lock = threading.Lock()
        self._selector = selectors.DefaultSelector()
        self._links: dict[socket.socket, tuple[Run, bytearray]] = {}
        self._over = False
        for machine in machines:
            data = machine.folder / "data"
            (data / "locks").mkdir(parents=True)
            for slot in range(slots):
                (data / "locks" / f"cpu-{slot}").touch(0o644)
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(str(data / "judge.sock"))
            (data / "judge.sock").chmod(0o666)
            listener.listen(128)
            self._selector.register(listener, selectors.EVENT_READ, machine.name)
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        while not self._over:
            ready = [key for key, _ in self._selector.select(0.2)]
            now = time.monotonic()
            with self._lock:
                for key in sorted(ready, key=lambda key: key.data is not None):  # deaths before births
                    if key.data is None:
                        self._hear(key.fileobj, now)
                    else:
                        link, _ = key.fileobj.accept()  # type: ignore[union-attr]
                        link.setblocking(False)
                        self._links[link] = (Run(key.data, now), bytearray())
                        self._selector.register(link, selectors.EVENT_READ, None)

    def _hear(self, link: Any, now: float) -> None:
        run, buffer = self._links[link]
        try:
            received = link.recv(1 << 20)
        except BlockingIOError:
            return
        except OSError:
            received = b""
        buffer += received
        *whole, rest = bytes(buffer).split(b"\n")
        buffer[:] = rest
        for line in whole:
            word = json.loads(line)
            if "job" in word:
                run.job, run.number, run.gpus = word["job"], word["number"], tuple(word["gpus"])
                run.taken = word.get("taken", "")
                (self.ranks if word.get("ring") else self.runs).append(run)
            run.wrote = word.get("wrote", run.wrote)
            run.code = word.get("end", run.code)
        if not received:
            run.ended = now
            self._selector.unregister(link)
            del self._links[link]
            link.close()

    def seen(self) -> list[Run]:
        with self._lock:
            return list(self.runs)

    def seen_ranks(self) -> list[Run]:
        with self._lock:
            return list(self.ranks)

    def living(self) -> list[Run]:
        return [run for run in self.seen() if run.ended is None]

    def living_ranks(self) -> list[Run]:
        """Those of rings, too."""
        return [run for run in [*self.seen(), *self.seen_ranks()] if run.ended is None]

    def release(self, jobs: Iterable[int]) -> None:
        """Lets jobs go on that wait for us."""
        wanted = set(jobs)
        with self._lock:
            for link, (run, _) in self._links.items():
                if run.job in wanted:
                    with suppress(OSError):
                        link.send(b"!")

    def close(self) -> None:
        self._over = True
        self._thread.join(5)
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        self._selector.close()
