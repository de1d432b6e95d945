"""What the demo lab's people submitted in its last month. Pure: the same arguments give the same jobs.

Each habit has its own rhythm: trainings by day, batches in the evening that run overnight, sweeps of short jobs, a few
large jobs over several nodes, exercises of a course, and a rush before a deadline that is in progress at the start.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, time, timedelta
from functools import partial
from math import exp
from typing import Literal, NamedTuple

from runners.demo.nodes import LARGE_GPU, SMALL_GPU, GpuModel
from runners.demo.programs import FailureKind
from scheduling.types import ANY_GPU, GpuRequest

DAYS = 30
HOUR, DAY = 3600.0, 86_400.0
RUSH_HOURS = 16.0
"""How long before the start of the demo the rush began."""
LAST_SECONDS = 1500.0
"""The jobs that wait at the start of the demo, whatever else runs, were submitted within this time before it."""
LOAD = 0.84
"""GPU-hours requested, as a part of those that the lab has; some are requested too late to be used."""
MAX_JOB_HOURS, MIN_JOB_SECONDS = 15.0, 150.0
TYPICAL_GPUS = 16
"""The size of the lab for which the counts in ``JOB_PATTERNS`` are made."""

Fate = Literal["", "cancelled", "time_limit"] | FailureKind
"""What ends a job if nothing else does; empty when it succeeds."""
SubmissionTime = Literal["day", "evening", "any", "rush", "practical", "last"]
HOURLY_WEIGHTS: dict[str, tuple[float, ...]] = {
    "day": (*[0.1] * 7, 0.5, 2, 4, 4, 3, 2, 4, 5, 5, 4, 3, 1.5, 0.8, 0.6, 0.5, 0.3, 0.2),
    "evening": (*[0.1] * 15, 0.5, 2, 6, 8, 6, 3, 1.5, 0.8, 0.4),
    "any": (*[0.6] * 8, *[1.2] * 12, *[0.9] * 4),
}
"""The likelihood of a submission, by hour of the day."""
WEEKEND_FACTORS = {"day": 0.3, "evening": 0.6, "any": 0.8}


@dataclass(frozen=True, slots=True)
class JobPattern:
    """A kind of job that some people submit repeatedly."""

    project: str
    people: tuple[str, ...]
    names: tuple[str, ...]
    launcher: Literal["command", "torchrun", "horovod"]
    sizes: tuple[tuple[float, float], ...]
    """(Minimum, maximum) of GPUs, as parts of a node; at least one GPU."""
    count: int
    """Jobs per month in a lab of ``TYPICAL_GPUS``."""
    hours: float
    """The median length, on the minimum of GPUs."""
    when: SubmissionTime = "day"
    burst: tuple[int, int] = (1, 1)
    elastic: bool = False
    resumable: bool = False
    limit_hours: float = 48.0
    spread: float = 0.7
    """Standard deviation of the logarithm of the length."""
    fails: float = 0.12
    mishaps: tuple[FailureKind, ...] = ("import_error", "file_not_found", "gpu_memory", "nan")
    knobs: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """(Argument, the values that people try)."""
    busy_percent: int = 80
    """The utilisation of its GPUs while it trains."""
    memory_mib: int = 22_000
    gpu_request: GpuRequest = ANY_GPU
    """Which GPUs its jobs accept, in a lab that has several models."""
    about: str = ""
    """The description of its project."""


JOB_PATTERNS: tuple[JobPattern, ...] = (
    JobPattern(
        "Street scenes", ("bela", "gil", "ada"), ("segmentation", "segmentation, larger crops", "depth from video"),
        "horovod", ((0.5, 1.0), (0.25, 1.0), (0.5, 2.0)), 110, 3.4, elastic=True, resumable=True,
        mishaps=("gpu_memory", "gpu_memory", "nan", "file_not_found", "lost_each_other"),
        knobs=(("--crop", ("512", "640", "768")), ("--lr", ("0.01", "0.02", "0.05"))), busy_percent=88, memory_mib=31_000,
        about="Segmentation and depth from a car's cameras.",
    ),
    JobPattern(
        "Digits from pictures", ("ada", "bela"), ("resnet on digits", "larger batch", "baseline"),
        "torchrun", ((0.5, 0.5), (0.25, 0.25)), 70, 1.4, fails=0.1,
        mishaps=("import_error", "shapes", "disk_full"),
        knobs=(("--depth", ("18", "34", "50")), ("--batch", ("64", "128", "256"))), busy_percent=74,
        about="Small networks on handwritten digits; a baseline for everything else.",
    ),
    JobPattern(
        "Speech commands", ("chen", "hana"), ("keyword spotting", "keyword spotting, noisy", "ablation"),
        "torchrun", ((1.0, 1.0), (0.5, 0.5)), 80, 5.0, when="evening", limit_hours=24.0, fails=0.14,
        mishaps=("file_not_found", "host_memory", "nan", "disk_full", "shared_memory"),
        knobs=(("--augment", ("none", "noise", "speed")),), busy_percent=69, memory_mib=18_500,
        about="Keyword spotting in noise, trained over night.",
    ),
    JobPattern(
        "Dialects", ("dana", "hana"), ("fine-tuning", "fine-tuning, frozen encoder", "evaluation"),
        "horovod", ((0.25, 0.75), (0.5, 1.0)), 80, 2.0, when="any", elastic=True, resumable=True, fails=0.1,
        mishaps=("no_internet", "gpu_memory", "arguments"),
        knobs=(("--lr", ("1e-5", "3e-5", "1e-4")),), busy_percent=81, memory_mib=35_000,
        gpu_request=GpuRequest(LARGE_GPU.memory_mib),
        about="Fine-tuning speech models for dialects.",
    ),
    JobPattern(
        "Sparse optimisers", ("emre", "ines"), ("sweep",), "command", ((0.0, 0.0),), 420, 0.55, burst=(6, 18),
        fails=0.06, mishaps=("nan", "nan", "nan", "arguments"), limit_hours=6.0, spread=0.45,
        knobs=(("--lr", ("0.003", "0.01", "0.03", "0.1", "0.3", "1.0")), ("--decay", ("0", "1e-4", "5e-4"))),
        busy_percent=57, memory_mib=6_400,
        about="Sweeps: which learning rates and decays keep sparse networks trainable.",
    ),
    JobPattern(
        "Legged robots", ("jonas", "kira"), ("policy from simulation", "world model"), "torchrun",
        ((2.0, 2.0), (1.5, 1.5)), 14, 11.0, when="any", resumable=True, limit_hours=40.0, spread=0.4, fails=0.15,
        mishaps=("lost_each_other", "host_memory", "gpu_memory"),
        knobs=(("--envs", ("4096", "8192")),), busy_percent=93, memory_mib=36_500,
        gpu_request=GpuRequest(LARGE_GPU.memory_mib, same_kind=True),
        about="Policies trained in simulation, on several nodes.",
    ),
    JobPattern(
        "Deep learning course", ("fay", "luca"), ("exercise 3", "exercise 4", "first try"), "command", ((0.0, 0.0),),
        90, 0.4, burst=(1, 3), fails=0.38, limit_hours=4.0,
        mishaps=("import_error", "file_not_found", "shapes", "arguments", "exception", "no_internet"),
        knobs=(("--epochs", ("5", "10", "20")),), busy_percent=24, memory_mib=3_100,
        about="Exercises and practicals of the winter course.",
    ),
    JobPattern(
        "Deep learning course", ("fay", "luca"), ("practical 4",), "command", ((0.0, 0.0),), 14, 0.35, when="practical",
        fails=0.3, limit_hours=4.0, mishaps=("shapes", "exception"), busy_percent=38, memory_mib=3_100,
    ),
    JobPattern(
        "Street scenes", ("bela", "gil", "ada"), ("camera-ready, table 2", "camera-ready, ablation", "camera-ready"),
        "horovod", ((0.25, 0.5), (0.5, 1.0), (0.5, 0.5)), 12, 2.2, when="rush", elastic=True, resumable=True, fails=0.1,
        mishaps=("gpu_memory", "nan", "disk_full"),
        knobs=(("--crop", ("512", "768")), ("--seed", ("1", "2", "3"))), busy_percent=90, memory_mib=33_000,
        gpu_request=GpuRequest(kinds=(LARGE_GPU.name,)),
    ),
    JobPattern(
        "Speech commands", ("chen", "hana", "chen"), ("keyword spotting", "ablation", "keyword spotting, noisy"),
        "torchrun", ((1.0, 1.0),), 3, 1.2, when="last", fails=0.0,
        knobs=(("--augment", ("none", "noise", "speed")),), busy_percent=69, memory_mib=18_500,
    ),
)  # fmt: skip


NIGHTLY = JobPattern(
    "Dialects", ("dana",), ("nightly evaluation",), "horovod", ((0.0, 0.0),), 0, 0.5, limit_hours=30.0, fails=0.0,
    busy_percent=61, memory_mib=14_000,
)  # fmt: skip
"""The job of a schedule; it is not drawn."""
NIGHTLY_AT = time(2, 30)
"""In UTC."""
NIGHTS = 9
MISSED_NIGHT, SKIPPED_NIGHT = 4, 6
"""The nights, counted back from the last one, in which the portal was down, and in which the job before had not ended."""
LONG_NIGHT_HOURS = 25.5
"""The length of the job before the skipped night."""


@dataclass(frozen=True, slots=True)
class JobRequest:
    """One job as it was submitted, and what becomes of it if nothing else happens. Times are seconds since the start."""

    number: int
    pattern: JobPattern
    owner: str
    name: str
    arguments: tuple[str, ...]
    submitted: float
    min_gpus: int
    max_gpus: int
    seconds: float
    """Its length on ``min_gpus``: until its end, or until it fails."""
    whole_seconds: float
    """Its length on ``min_gpus`` if it did not fail."""
    limit_seconds: int
    fate: Fate = ""
    cancelled: float | None = None
    deadline: float | None = None
    priority: int = 0
    gpu_request: GpuRequest = ANY_GPU

    @property
    def gpu_memory_mib(self) -> int:
        """The memory in MiB that it uses of a GPU that has as much."""
        return self.pattern.memory_mib + self.number * 131 % 2048

    @property
    def spread(self) -> bool:
        """Whether it may use several nodes."""
        return self.pattern.launcher != "command"


class NodePart(NamedTuple):
    """The GPUs of one model of a node: policies see each part as a node."""

    node: int
    """The number of the node, from 0."""
    gpus: int
    model: GpuModel


@dataclass(frozen=True, slots=True)
class LabSize:
    """How large the demo lab is."""

    nodes: int
    gpus: int
    """The GPUs of each node."""

    @property
    def total(self) -> int:
        return self.nodes * self.gpus

    @property
    def small_gpus(self) -> int:
        """How many GPUs of the first node are of the smaller model; a lab of one node or one GPU a node has none."""
        return self.gpus // 2 if self.nodes > 1 else 0

    @property
    def parts(self) -> tuple[NodePart, ...]:
        """The parts of its nodes: the number of a node is that of the part with its large GPUs."""
        small = self.small_gpus
        large = (NodePart(n, self.gpus - (small if n == 0 else 0), LARGE_GPU) for n in range(self.nodes))
        return (*large, *([NodePart(0, small, SMALL_GPU)] if small else []))

    def gpu_request(self, pattern: JobPattern, min_gpus: int) -> GpuRequest:
        """Return which GPUs a job accepts: any, where the lab has no others or too few of those of its pattern."""
        large = self.total - self.small_gpus
        return pattern.gpu_request if self.small_gpus and 4 * min_gpus <= 3 * large else ANY_GPU

    def gpus_for(self, part: float) -> int:
        """The number of GPUs that is a part of a node."""
        return max(1, min(self.total, round(part * self.gpus)))


@dataclass(slots=True)
class _WorkloadGenerator:
    chance: random.Random
    start: datetime
    end: float
    size: LabSize
    practical: float
    """When the course's practical began."""
    requests: list[JobRequest] = field(default_factory=list)

    def add_jobs(self, pattern: JobPattern) -> None:
        larger = self.size.total / TYPICAL_GPUS
        count = max(3, round(pattern.count * larger ** (0.3 if larger > 1 else 0.5)))
        if pattern.when == "last":
            count = max(pattern.count, self.size.nodes)  # together they request the whole lab
        while count > 0:
            burst = min(count, self.chance.randint(*pattern.burst))
            owner, name = self.chance.choice(pattern.people), self.chance.choice(pattern.names)
            at, size = self._submission_time(pattern), self.chance.choice(pattern.sizes)
            for _ in range(burst):
                at += self.chance.uniform(5, 45) if burst > 1 else 0.0
                self._add_job(pattern, owner, name, min(at, self.end - 1), size)
            count -= burst

    def _submission_time(self, pattern: JobPattern) -> float:
        if pattern.when == "rush":
            # They become more frequent as the deadline approaches.
            before: float = self.chance.random() ** 1.5
            return self.end - RUSH_HOURS * HOUR * before
        if pattern.when == "last":
            return self.end - LAST_SECONDS * (0.1 + 0.9 * self.chance.random())
        if pattern.when == "practical":
            return self.practical + self.chance.random() * 3 * HOUR
        while True:
            # Sweeps wait until the rush is over.
            at = self.chance.random() * (self.end - (RUSH_HOURS * HOUR if pattern.burst[1] > 3 else 0.0))
            moment = self.start + timedelta(seconds=at)
            rest = WEEKEND_FACTORS[pattern.when] if moment.weekday() >= 5 else 1.0
            if self.chance.random() * 8 < HOURLY_WEIGHTS[pattern.when][moment.hour] * rest:
                return at

    def _add_job(self, pattern: JobPattern, owner: str, name: str, at: float, size: tuple[float, float]) -> None:
        chance = self.chance
        min_gpus = self.size.gpus_for(size[0])
        max_gpus = max(min_gpus, self.size.gpus_for(size[1])) if pattern.elastic else min_gpus
        whole = pattern.hours * HOUR * exp(chance.gauss(0, pattern.spread))
        knobs = [(knob, chance.choice(values)) for knob, values in pattern.knobs]
        fate = self._fate(pattern)
        if fate == "lost_each_other" and min_gpus == 1:
            fate = "exception"
        self.requests.append(
            JobRequest(
                number=0,
                pattern=pattern,
                owner=owner,
                name=_sweep_job_name(name, knobs) if pattern.burst[1] > 3 else name,
                arguments=(*(word for pair in knobs for word in pair), *FAILING_ARGUMENTS.get(fate, ())),
                submitted=at,
                min_gpus=min_gpus,
                max_gpus=max_gpus,
                seconds=whole,
                whole_seconds=whole,
                limit_seconds=int(pattern.limit_hours * HOUR),
                fate=fate,
                cancelled=at + chance.expovariate(1 / (1.5 * HOUR)) + 60 if fate == "cancelled" else None,
                deadline=self.end + 9 * HOUR if pattern.when == "rush" else None,
                priority=1 if pattern.when == "rush" and chance.random() < 0.3 else 0,
                gpu_request=self.size.gpu_request(pattern, min_gpus),
            )
        )

    def _fate(self, pattern: JobPattern) -> Fate:
        fate = self.chance.random()
        if fate < pattern.fails:
            return self.chance.choice(pattern.mishaps)
        fate -= pattern.fails
        return "cancelled" if fate < 0.04 else "time_limit" if fate < 0.055 and pattern.hours > 1 else ""


def _sweep_job_name(name: str, knobs: Sequence[tuple[str, str]]) -> str:
    """Return the name of a sweep's job, which has its arguments."""
    return " ".join([name, *(f"{knob[2:]}={value}" for knob, value in knobs)])


FAILING_ARGUMENTS: dict[str, tuple[str, str]] = {
    "import_error": ("--transforms", "albumentations"),
    "arguments": ("--learning-rate", "0.1"),
}
"""Arguments that make a program fail in this way, although the same code succeeds with others."""
EARLY_FAILURE_SECONDS: dict[str, tuple[float, float]] = {
    "import_error": (4, 25),
    "arguments": (2, 9),
    "file_not_found": (8, 70),
    "shapes": (20, 120),
    "exception": (15, 200),
    "no_internet": (30, 150),
    "gpu_memory": (40, 600),
    "shared_memory": (60, 300),
}
"""Seconds after which a program fails that fails early; any other fails somewhere in between."""


def submissions(start: datetime, size: LabSize, seed: int, practical: float) -> list[JobRequest]:
    """Return the jobs in the order of submission, numbered from 1. ``start`` is the beginning of the month."""
    chance = random.Random(seed)  # noqa: S311  # nothing secret depends on it
    generator = _WorkloadGenerator(chance, start, DAYS * DAY, size, practical)
    for pattern in JOB_PATTERNS:
        generator.add_jobs(pattern)
    drawn = sorted(generator.requests, key=lambda request: request.submitted)
    luck = [chance.random() for _ in drawn]
    wanted = LOAD * size.total * DAYS * DAY
    low, high = 0.01, 100.0
    for _ in range(40):  # lengths have bounds, so the factor is found by halving
        factor = (low * high) ** 0.5
        asked = sum(request.min_gpus * request.seconds for request in map(partial(_scale_request, factor), drawn, luck))
        low, high = (factor, high) if asked < wanted else (low, factor)
    scaled = [*map(partial(_scale_request, high), drawn, luck), *_nightly_jobs(start)]
    scaled.sort(key=lambda request: request.submitted)
    return [replace(request, number=number) for number, request in enumerate(scaled, start=1)]


def nights(end: datetime) -> list[datetime]:
    """Return when the schedule of ``NIGHTLY`` was due in the last nights before the end of the month, the last one first."""
    last = datetime.combine(end.astimezone(UTC).date(), NIGHTLY_AT, UTC)
    if last >= end:
        last -= timedelta(days=1)
    return [last - timedelta(days=number) for number in range(NIGHTS)]


def _nightly_jobs(start: datetime) -> Iterator[JobRequest]:
    """Yield the jobs that the schedule submitted."""
    for number, due in enumerate(nights(start + timedelta(days=DAYS))):
        if number in (MISSED_NIGHT, SKIPPED_NIGHT):
            continue
        seconds = (
            LONG_NIGHT_HOURS * HOUR if number == SKIPPED_NIGHT + 1 else NIGHTLY.hours * HOUR * (0.8 + 0.07 * number)
        )
        yield JobRequest(
            number=0, pattern=NIGHTLY, owner=NIGHTLY.people[0], name=NIGHTLY.names[0], arguments=("--split", "test"),
            submitted=(due - start).total_seconds() + 7.0, min_gpus=1, max_gpus=1, seconds=seconds,
            whole_seconds=seconds, limit_seconds=int(NIGHTLY.limit_hours * HOUR),
        )  # fmt: skip


def _scale_request(factor: float, request: JobRequest, luck: float) -> JobRequest:
    """Return the job with the length that gives the lab its load, cut short if it fails."""
    whole = min(MAX_JOB_HOURS * HOUR, max(MIN_JOB_SECONDS, request.whole_seconds * factor))
    if request.fate in EARLY_FAILURE_SECONDS:
        soonest, latest = EARLY_FAILURE_SECONDS[request.fate]
        return replace(request, seconds=min(whole, soonest + luck * (latest - soonest)), whole_seconds=whole)
    if request.fate == "time_limit":
        return replace(
            request, seconds=whole, whole_seconds=whole, limit_seconds=max(600, int(whole * 0.7) // 600 * 600)
        )
    part = 1.0 if request.fate in ("", "cancelled") else 0.08 + 0.72 * luck
    limit = max(request.limit_seconds, int(2 * whole // HOUR + 1) * 3600)
    return replace(request, seconds=whole * part, whole_seconds=whole, limit_seconds=limit)
