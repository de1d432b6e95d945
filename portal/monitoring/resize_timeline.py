"""A job's GPUs over time: on how many it ran when, why that changed, and what each change cost.

An attempt's rings say it (``Ring``); of one that has no driver, its containers do. ``of_job`` reads, the rest is pure.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import pairwise

from django.db.models import Count

from portal.cluster.slots import in_cpu_slots, noun
from portal.jobs.models import Allocation, Attempt, Container, Job, Outcome, StopReason
from portal.monitoring.models import Ring
from portal.ui import counted, duration

MOST_ROWS = 50
TOGETHER = timedelta(seconds=3)
"""Containers of one attempt that begin or end within this time of each other do so for one reason."""


@dataclass(frozen=True, slots=True)
class Part:
    """A host of an attempt."""

    host: str
    node: str
    gpus: int
    running_at: datetime | None
    exited_at: datetime | None
    stop_reason: str
    exit_reason: str


@dataclass(frozen=True, slots=True)
class Formed:
    """From ``at`` on these hosts train; ``hosts`` has one entry for each rank."""

    at: datetime
    hosts: tuple[str, ...]
    cost_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Try:
    """An attempt that has come to train."""

    number: int
    outcome: str
    stop_reason: str
    ended_at: datetime | None
    parts: tuple[Part, ...]
    rings: tuple[Formed, ...]
    """At least one, ascending."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """A time on the same GPUs."""

    since: datetime
    until: datetime | None
    """None while it lasts."""
    gpus: int
    attempt: int
    nodes: tuple[tuple[str, int], ...]
    """Names, and how many GPUs of each."""


@dataclass(frozen=True, slots=True)
class Change:
    at: datetime
    before: int
    after: int
    cause: str
    """A sentence."""
    cost_seconds: float | None
    """How long nothing was trained for it; None when nobody has measured it (yet)."""

    @property
    def cost(self) -> str:
        seconds = self.cost_seconds
        return "" if seconds is None else f"{seconds:.1f} s" if seconds < 9.95 else duration(seconds)


@dataclass(frozen=True, slots=True)
class Band:
    stretches: tuple[Stretch, ...]
    changes: tuple[Change, ...]
    noun: str = "GPU"
    """What it ran on: GPU, or CPU slot."""

    @property
    def cost_seconds(self) -> float:
        """Of all changes whose cost is known."""
        return sum(change.cost_seconds or 0.0 for change in self.changes)

    @property
    def latest(self) -> tuple[tuple[int, Change], ...]:
        """The last changes with their numbers, for a table."""
        return tuple(enumerate(self.changes, start=1))[-MOST_ROWS:]


def of_job(job: Job) -> Band:
    """Four queries."""
    attempts = list(job.attempts.order_by("number"))
    parts: dict[int, list[Part]] = {attempt.pk: [] for attempt in attempts}
    rows = Container.objects.filter(attempt__in=attempts, role=Container.Role.HOST).order_by("index")
    names = ("spec__hostname", "node__name", "gpus", "running_at", "exited_at", "stop_reason", "exit_reason")
    for attempt, *values in rows.annotate(gpus=Count("allocations")).values_list("attempt", *names):
        parts[attempt].append(Part(*values))
    rings: dict[int, list[Formed]] = {attempt.pk: [] for attempt in attempts}
    told = Ring.objects.filter(driver__attempt__in=attempts).order_by("at", "driver__index", "number")
    for attempt, at, hosts, cost in told.values_list("driver__attempt", "at", "hosts", "cost_seconds"):
        rings[attempt].append(Formed(at, tuple(hosts), cost))
    tries = []
    for each in attempts:
        found = rings[each.pk] or _from_containers(parts[each.pk])
        if found:
            tries.append(_try(each, parts[each.pk], found))
    kinds = Allocation.objects.filter(container__attempt__in=attempts).order_by().values_list("gpu__kind", flat=True)
    return band(tries, noun(kinds.distinct()))


def _try(attempt: Attempt, parts: Sequence[Part], rings: Sequence[Formed]) -> Try:
    return Try(
        attempt.number, attempt.outcome, attempt.stop_reason, attempt.ended_at, tuple(parts), tuple(_merged(rings))
    )


def _from_containers(parts: Sequence[Part]) -> list[Formed]:
    """Who ran when, for an attempt that has no ring, or whose driver says nothing of it."""
    moments = sorted({at for part in parts for at in (part.running_at, part.exited_at) if part.running_at and at})
    found = []
    for place, at in enumerate(moments):
        if place + 1 < len(moments) and moments[place + 1] - at <= TOGETHER:
            continue  # more happens at the same time
        here = [part for part in parts if _runs(part, at)]
        if here:
            found.append(Formed(at, tuple(part.host for part in here for _ in range(part.gpus))))
    return found


def _runs(part: Part, at: datetime) -> bool:
    return part.running_at is not None and part.running_at <= at and (part.exited_at is None or part.exited_at > at)


def _merged(rings: Sequence[Formed]) -> list[Formed]:
    """Without rings that nobody has noticed: the same hosts, and no time lost.

    A ring that a new driver found, and formed anew at once, is one change.
    """
    found: list[Formed] = []
    for ring in rings:
        same = bool(found) and Counter(ring.hosts) == Counter(found[-1].hosts)
        if same and ring.cost_seconds and len(found) > 1 and found[-1].cost_seconds is None:
            found[-1] = replace(found[-1], cost_seconds=ring.cost_seconds)
        elif not same or ring.cost_seconds:
            found.append(ring)
    return found


# --- what became of it -------------------------------------------------------------------------------------------


def band(tries: Sequence[Try], word: str = "GPU") -> Band:
    """``word`` says what the job ran on, as ``portal.cluster.slots.noun`` does."""
    stretches: list[Stretch] = []
    changes: list[Change] = []
    for each, later in zip(tries, [*tries[1:], None], strict=False):
        ends = [*(ring.at for ring in each.rings[1:]), each.ended_at]
        for ring, until in zip(each.rings, ends, strict=True):
            stretches.append(Stretch(ring.at, until, len(ring.hosts), each.number, _nodes(each, ring)))
        for before, after in pairwise(each.rings):
            cause = _why(each.parts, before, after)
            changes.append(Change(after.at, len(before.hosts), len(after.hosts), cause, after.cost_seconds))
        if later is not None and each.ended_at is not None:
            changes.append(_again(each, later, each.ended_at))
    if word != "GPU":
        changes = [replace(change, cause=in_cpu_slots(change.cause)) for change in changes]
    return Band(tuple(stretches), tuple(changes), word)


def _nodes(of: Try, ring: Formed) -> tuple[tuple[str, int], ...]:
    nodes = {part.host: part.node for part in of.parts}
    return tuple(sorted(Counter(nodes.get(host, "?") for host in ring.hosts).items()))


def _again(ended: Try, later: Try, ended_at: datetime) -> Change:
    """From one attempt to the next: nothing ran meanwhile."""
    before, first = ended.rings[-1], later.rings[0]
    where = " and ".join(name for name, _ in _nodes(later, first))
    cause = f"{_end_of(ended)}; attempt {later.number} runs on {where}."
    cost = max(0.0, (first.at - ended_at).total_seconds())
    return Change(first.at, len(before.hosts), len(first.hosts), cause, cost)


def _end_of(ended: Try) -> str:
    if ended.outcome == Outcome.PREEMPTED:
        drained = ended.stop_reason == StopReason.DRAINED
        return f"{_named(ended.parts)} was drained" if drained else "Stopped to make room for others"
    return {
        Outcome.LOST: f"{_named([part for part in ended.parts if part.exit_reason in LOST])} was lost",
        Outcome.HELD: "Put on hold and released",
        Outcome.FAILED: "It failed and was tried again",
        Outcome.ERROR: "The lab could not run it on",
    }.get(Outcome(ended.outcome), "It ended")


def _named(parts: Sequence[Part]) -> str:
    names = sorted({part.node for part in parts})
    return f"Node {names[0]}" if len(names) == 1 else "A node of it"


LOST = ("lost", "fenced")


def _why(parts: Sequence[Part], before: Formed, after: Formed) -> str:
    """Who has left and why, and who has come."""
    left, came = Counter(before.hosts), Counter(after.hosts)
    gone = [part for part in parts if left[part.host] > came[part.host]]
    new = [part for part in parts if came[part.host] > left[part.host]]
    clauses = [clause for why in dict.fromkeys(map(_reason, gone)) for clause in _left(why, gone, left, came)]
    for node in dict.fromkeys(part.node for part in new):
        more = sum(came[part.host] - left[part.host] for part in new if part.node == node)
        clauses.append(f"{counted(more, 'idle GPU')} of {node} joined")
    text = "; ".join(clauses) or "a rank ended and was started again"
    return f"{text[:1].upper()}{text[1:]}."


def _reason(part: Part) -> str:
    return part.stop_reason or part.exit_reason or "silent"


def _left(why: str, gone: Sequence[Part], left: Counter[str], came: Counter[str]) -> Iterator[str]:
    those = [part for part in gone if _reason(part) == why]
    for node in dict.fromkeys(part.node for part in those):
        less = counted(sum(left[part.host] - came[part.host] for part in those if part.node == node), "GPU")
        yield {
            StopReason.DRAINED.value: f"node {node} is drained",
            StopReason.PREEMPTED.value: f"{less} of {node} went back for others",
            "lost": f"node {node} was lost",
            "fenced": f"node {node} lost contact with the portal",
            "silent": f"node {node} fell silent",
            "oom": f"out of memory on {node}",
            "disk": f"out of disk space on {node}",
        }.get(why, f"the ranks on {node} ended")
