"""What really ran when, by the engines, and whether the portal's account and the laws agree with it."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from django.db import models

from portal.jobs import logs
from portal.jobs.models import FINISHED_STATES, Allocation, Attempt, Container, Job, JobEvent, JobState, LogStream
from portal.jobs.rules import job_state
from runners.spec import RunSpec
from tests.stalls import StallWatch, Try

COMMAND = Job.Launcher.COMMAND
"""One process, however many GPUs it has."""
STALL_SECONDS = 120.0
"""Until a node counts as lost (49 s), the scheduler has turned (8 s), and what is left has stopped; with kills between."""
TIMES: dict[type[models.Model], tuple[str, ...]] = {
    Job: ("started_at", "finished_at"),
    Attempt: ("created_at", "started_at", "ended_at"),
    Container: ("assigned_at", "running_at", "exited_at"),
    Allocation: ("allocated_at", "released_at"),
}


@dataclass(frozen=True)
class Expected:
    """What must become of a job, whatever was killed."""

    state: str
    attempts: int | None
    """Exactly so many: a kill alone runs nothing again. None where chance decides how often its nodes fail."""
    goes_on: bool = False
    """Each attempt found what the one before had left in /checkpoints."""


@dataclass
class Run:
    node: str
    spec: RunSpec
    began: float
    found: list[str] = field(default_factory=list)
    """Attempts that left a line in its checkpoints, its own being the last."""
    ended: float | None = None


class Judge:
    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.runs: list[Run] = []
        self.complaints: list[str] = []
        self.jobs: dict[str, int] = {}
        self.expected: dict[int, Expected] = {}
        self.finished: dict[int, tuple[str, object]] = {}
        self.stalls = StallWatch(STALL_SECONDS)
        self.forgotten: set[str] = set()
        """Containers that the portal cannot know any more."""
        self.incomplete: set[str] = set()
        """Those of whose logs it has no more than the backup."""

    def complain(self, what: str) -> None:
        if what not in self.complaints:
            self.complaints.append(what)

    # --- engines tell

    def began(self, node: str, spec: RunSpec, starts: Path) -> None:
        for run in self.runs:
            if run.spec.name == spec.name:
                self.complain(f"{spec.name} was started twice")
            known = run.spec.name not in self.forgotten
            if known and run.ended is None and run.spec.job == spec.job and run.spec.attempt != spec.attempt:
                self.complain(f"{spec.name} was started while {run.spec.name} ran")
            if run.ended is None and (both := set(run.spec.gpus) & set(spec.gpus)):
                self.complain(f"{spec.name} and {run.spec.name} had {both} at once")
        self.runs.append(Run(node, spec, self.clock(), starts.read_text().split() if starts.exists() else []))

    def live(self, node: str, names: Iterable[str]) -> None:
        for run in self.runs:
            if run.node == node and run.ended is None and run.spec.name not in names:
                run.ended = self.clock()

    def left(self, node: str, what: list[str]) -> None:
        if what:
            self.complain(f"left on {node}: {what}")

    # --- stories ask

    def expect(self, key: str, job: int, expected: Expected) -> None:
        if self.jobs.setdefault(key, job) != job:
            self.complain(f"{key} was accepted twice: {self.jobs[key]} and {job}")
        self.expected[job] = expected

    def forget(self) -> None:
        """A backup was restored: what it does not have never was, nor anything that became of the rest since."""
        jobs = set(Job.objects.values_list("pk", flat=True))
        parts = set(Container.objects.values_list("name", flat=True))
        self.forgotten |= {run.spec.name for run in self.runs if run.spec.name not in parts}
        self.incomplete |= {run.spec.name for run in self.runs if run.ended is not None}
        self.expected = {job: expected for job, expected in self.expected.items() if job in jobs}
        self.jobs = {key: job for key, job in self.jobs.items() if job in jobs}
        self.finished.clear()
        self.stalls.forget()

    def known(self) -> list[Run]:
        return [run for run in self.runs if run.spec.name not in self.forgotten]

    def at_work(self, key: str) -> list[Run]:
        runs = [run for run in self.known() if run.spec.job == self.jobs[key] and run.ended is None]
        return sorted(runs, key=lambda run: (run.spec.role != "driver", run.began))

    def hosts(self, key: str, number: int) -> int:
        """Of this attempt, at work now."""
        return sum(run.spec.number == number and run.spec.role == "host" for run in self.at_work(key))

    def ranks(self, key: str, number: int) -> int:
        """Of this attempt, alive now."""
        return sum(run.spec.slots for run in self.at_work(key) if run.spec.number == number and run.spec.role == "host")

    # --- what must always hold

    def look(self) -> None:
        """After each round; all processes are between two pieces of work."""
        held = list(Allocation.objects.filter(released_at=None).select_related("container", "attempt"))
        for row in held:
            if row.container.state == "EXITED" or row.attempt.ended_at is not None:
                self.complain(f"{row.container.name} has ended and holds a GPU")
        for gpu, count in Counter(row.gpu_id for row in held).items():
            if count > 1:
                self.complain(f"GPU {gpu} is held {count} times")
        live = set(Attempt.objects.filter(ended_at=None).values_list("job", flat=True))
        for job, state, finished_at in Job.objects.values_list("pk", "state", "finished_at"):
            if (state == JobState.RUNNING) != (job in live):
                self.complain(f"job {job} is {state}; with a live attempt: {job in live}")
            if self.finished.setdefault(job, (state, finished_at)) != (state, finished_at):
                if self.finished[job][0] in FINISHED_STATES:
                    self.complain(f"job {job} was {self.finished[job]} and is {state}")
                self.finished[job] = (state, finished_at)

    def watch(self) -> None:
        """After each round: time alone makes a stall of what was well."""
        held = Attempt.objects.filter(allocations__released_at=None, allocations__isnull=False).distinct()
        rows = held.values_list("job", "number", "job__min_gpus", "job__launcher")
        needed = {Try(job, number): 1 if launcher == COMMAND else least for job, number, least, launcher in rows}
        ranks: Counter[Try] = Counter()
        for run in self.known():
            if run.ended is None and run.spec.role == "host":
                ranks[Try(run.spec.job, run.spec.number)] += run.spec.slots
        for complaint in self.stalls.look(self.clock(), needed, ranks):
            self.complain(complaint)

    def close(self) -> None:
        """In the end, when everything rests."""
        rows = {job.pk: job for job in Job.objects.all()}
        for job, expected in self.expected.items():
            if job not in rows:
                self.complain(f"job {job} was accepted and is lost")
                continue
            attempts = list(rows[job].attempts.order_by("number"))
            outcomes = [str(attempt.outcome) for attempt in attempts]
            many = len(attempts) if expected.attempts is None else expected.attempts
            if (rows[job].state, len(attempts)) != (expected.state, many):
                self.complain(f"job {job} is {rows[job].state} after {outcomes}, not {expected}")
            if rows[job].state != job_state(rows[job].intent, rows[job].retries, outcomes):
                self.complain(f"job {job} is {rows[job].state} with {rows[job].intent} and {outcomes}")
            if [attempt.number for attempt in attempts] != list(range(1, len(attempts) + 1)):
                self.complain(f"job {job} has gaps in its attempts")
            seqs = list(JobEvent.objects.filter(job=job).order_by("seq").values_list("seq", flat=True))
            if seqs != list(range(1, len(seqs) + 1)):
                self.complain(f"job {job} has gaps in its history: {seqs}")
            self._checkpoints(job, expected)
        if unknown := set(rows) - set(self.expected):
            self.complain(f"jobs whose submission was never acknowledged: {unknown}")
        if Allocation.objects.filter(released_at=None).exists():
            self.complain("GPUs stay taken")
        if ran := [run.spec.name for run in self.runs if run.ended is None]:
            self.complain(f"still at work: {ran}")
        self._logs()
        self._durations()

    def _durations(self) -> None:
        """Nothing ends before it begins, whatever became of the clocks."""
        for model, names in TIMES.items():
            for row in model._default_manager.values_list(*names):
                known = [at for at in row if at is not None]
                if known != sorted(known):
                    self.complain(f"a {model.__name__} has {[str(at) for at in row]} for {names}")

    def _checkpoints(self, job: int, expected: Expected) -> None:
        for run in self.known():
            if expected.goes_on and run.spec.job == job and run.spec.role == "host":
                want = [str(number) for number in range(1, run.spec.number + 1)]
                if list(dict.fromkeys(run.found)) != want:
                    self.complain(f"{run.spec.name} goes on from {run.found}, not from {want}")

    def _logs(self) -> None:
        """Whatever ran wrote one line for each rank when it began."""
        parts = {part.name: part for part in Container.objects.all()}
        for run in [run for run in self.known() if run.spec.name not in self.incomplete]:
            wrote = {"setup": b"pretending to run\n"}
            output = dict(run.spec.env).get("FAKE_OUTPUT", "").encode()
            wrote |= {str(rank): output for rank in range(run.spec.slots)}
            streams = LogStream.objects.filter(container=parts[run.spec.name])
            kept = {row.name: (logs.read(row, 0, 1000), row.closed) for row in streams}
            if kept != {name: (text, True) for name, text in wrote.items()}:
                self.complain(f"the log of {run.spec.name} is {kept}")
