"""Segments and changes of a job's GPUs, from its rank groups; of an attempt without a driver, from its containers.

``timeline_of`` reads the database, the rest is pure.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import pairwise

from django.db.models import Count

from portal.cluster.slots import in_cpu_slots, noun
from portal.jobs.models import Allocation, Attempt, Container, Job, Outcome, StopReason
from portal.jobs.resize_timeline.models import RankGroup
from portal.ui import counted, duration

MAX_ROWS = 50
SAME_MOMENT = timedelta(seconds=3)
"""Containers of an attempt that start or end within this time of each other do so for one reason."""
LOST_REASONS = ("lost", "fenced")


@dataclass(frozen=True, slots=True)
class HostSpan:
    """A host container of an attempt, from start to end."""

    host: str
    node: str
    gpus: int
    running_at: datetime | None
    exited_at: datetime | None
    stop_reason: str
    exit_reason: str


@dataclass(frozen=True, slots=True)
class GroupSpan:
    """The hosts that train from ``at`` on, one entry for each rank."""

    at: datetime
    hosts: tuple[str, ...]
    cost_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class AttemptSpan:
    """An attempt that has trained."""

    number: int
    outcome: str
    stop_reason: str
    ended_at: datetime | None
    hosts: tuple[HostSpan, ...]
    groups: tuple[GroupSpan, ...]
    """At least one, ascending."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A time on the same GPUs."""

    since: datetime
    until: datetime | None
    """None while it lasts."""
    gpus: int
    attempt: int
    nodes: tuple[tuple[str, int], ...]
    """Names, and how many GPUs of each."""


@dataclass(frozen=True, slots=True)
class Resize:
    """A change between two segments."""

    at: datetime
    before: int
    after: int
    cause: str
    """A sentence."""
    cost_seconds: float | None
    """How long the job did not train because of it; None when that was not measured (yet)."""

    @property
    def cost(self) -> str:
        seconds = self.cost_seconds
        return "" if seconds is None else f"{seconds:.1f} s" if seconds < 9.95 else duration(seconds)


@dataclass(frozen=True, slots=True)
class ResizeTimeline:
    """All segments of a job and the changes between them."""

    segments: tuple[Segment, ...]
    changes: tuple[Resize, ...]
    noun: str = "GPU"
    """What the job ran on: GPU, or CPU slot."""

    @property
    def cost_seconds(self) -> float:
        """The sum over all changes whose cost is known."""
        return sum(change.cost_seconds or 0.0 for change in self.changes)

    @property
    def latest(self) -> tuple[tuple[int, Resize], ...]:
        """The last changes with their numbers, for a table."""
        return tuple(enumerate(self.changes, start=1))[-MAX_ROWS:]

    @property
    def marks(self) -> tuple[tuple[datetime, str], ...]:
        """When the number of GPUs changed, and how, for lines across charts."""
        changes = [change for _, change in self.latest if change.before != change.after]
        return tuple((change.at, f"{change.before} → {counted(change.after, self.noun)}") for change in changes)


def timeline_of(job: Job) -> ResizeTimeline:
    """Return the timeline of a job, in four queries."""
    attempts = list(job.attempts.order_by("number"))
    hosts: dict[int, list[HostSpan]] = {attempt.pk: [] for attempt in attempts}
    rows = Container.objects.filter(attempt__in=attempts, role=Container.Role.HOST).order_by("index")
    names = ("spec__hostname", "node__name", "gpus", "running_at", "exited_at", "stop_reason", "exit_reason")
    for attempt, *values in rows.annotate(gpus=Count("allocations")).values_list("attempt", *names):
        hosts[attempt].append(HostSpan(*values))
    groups: dict[int, list[GroupSpan]] = {attempt.pk: [] for attempt in attempts}
    reported = RankGroup.objects.filter(driver__attempt__in=attempts).order_by("at", "driver__index", "number")
    for attempt, at, ranks, cost in reported.values_list("driver__attempt", "at", "hosts", "cost_seconds"):
        groups[attempt].append(GroupSpan(at, tuple(ranks), cost))
    spans = []
    for each in attempts:
        found = groups[each.pk] or groups_of_containers(hosts[each.pk])
        if found:
            spans.append(_attempt_span(each, hosts[each.pk], found))
    kinds = Allocation.objects.filter(container__attempt__in=attempts).order_by().values_list("gpu__kind", flat=True)
    return build_timeline(spans, noun(kinds.distinct()))


def _attempt_span(attempt: Attempt, hosts: Sequence[HostSpan], groups: Sequence[GroupSpan]) -> AttemptSpan:
    return AttemptSpan(
        attempt.number,
        attempt.outcome,
        attempt.stop_reason,
        attempt.ended_at,
        tuple(hosts),
        tuple(without_repetitions(groups)),
    )


def groups_of_containers(hosts: Sequence[HostSpan]) -> list[GroupSpan]:
    """Return which hosts ran when, for an attempt whose driver reported no group."""
    moments = sorted({at for host in hosts for at in (host.running_at, host.exited_at) if host.running_at and at})
    found = []
    for place, at in enumerate(moments):
        if place + 1 < len(moments) and moments[place + 1] - at <= SAME_MOMENT:
            continue  # the next moment belongs to the same change
        running = [host for host in hosts if _is_running_at(host, at)]
        if running:
            found.append(GroupSpan(at, tuple(host.host for host in running for _ in range(host.gpus))))
    return found


def _is_running_at(host: HostSpan, at: datetime) -> bool:
    return host.running_at is not None and host.running_at <= at and (host.exited_at is None or host.exited_at > at)


def without_repetitions(groups: Sequence[GroupSpan]) -> list[GroupSpan]:
    """Drop groups on the same hosts that took no time.

    The group that a new driver finds and the one that it forms from it at once count as one change.
    """
    found: list[GroupSpan] = []
    for group in groups:
        same = bool(found) and Counter(group.hosts) == Counter(found[-1].hosts)
        if same and group.cost_seconds and len(found) > 1 and found[-1].cost_seconds is None:
            found[-1] = replace(found[-1], cost_seconds=group.cost_seconds)
        elif not same or group.cost_seconds:
            found.append(group)
    return found


# --- segments and changes ----------------------------------------------------------------------------------------


def build_timeline(attempts: Sequence[AttemptSpan], word: str = "GPU") -> ResizeTimeline:
    """Return the timeline of these attempts; ``word`` is what the job ran on, from ``portal.cluster.slots.noun``."""
    segments: list[Segment] = []
    changes: list[Resize] = []
    for each, later in zip(attempts, [*attempts[1:], None], strict=False):
        ends = [*(group.at for group in each.groups[1:]), each.ended_at]
        for group, until in zip(each.groups, ends, strict=True):
            segments.append(Segment(group.at, until, len(group.hosts), each.number, _nodes(each, group)))
        for before, after in pairwise(each.groups):
            cause = _cause(each.hosts, before, after)
            changes.append(Resize(after.at, len(before.hosts), len(after.hosts), cause, after.cost_seconds))
        if later is not None and each.ended_at is not None:
            changes.append(_restart_between(each, later, each.ended_at))
    if word != "GPU":
        changes = [replace(change, cause=in_cpu_slots(change.cause)) for change in changes]
    return ResizeTimeline(tuple(segments), tuple(changes), word)


def _nodes(attempt: AttemptSpan, group: GroupSpan) -> tuple[tuple[str, int], ...]:
    nodes = {host.host: host.node for host in attempt.hosts}
    return tuple(sorted(Counter(nodes.get(host, "?") for host in group.hosts).items()))


def _restart_between(ended: AttemptSpan, later: AttemptSpan, ended_at: datetime) -> Resize:
    """The change from one attempt to the next. Nothing runs between them."""
    before, first = ended.groups[-1], later.groups[0]
    nodes = " and ".join(name for name, _ in _nodes(later, first))
    cause = f"{_end_reason(ended)}; attempt {later.number} runs on {nodes}."
    cost = max(0.0, (first.at - ended_at).total_seconds())
    return Resize(first.at, len(before.hosts), len(first.hosts), cause, cost)


def _end_reason(ended: AttemptSpan) -> str:
    if ended.outcome == Outcome.PREEMPTED:
        drained = ended.stop_reason == StopReason.DRAINED
        return f"{_node_of(ended.hosts)} was drained" if drained else "Stopped to make room for others"
    return {
        Outcome.LOST: f"{_node_of([host for host in ended.hosts if host.exit_reason in LOST_REASONS])} was lost",
        Outcome.HELD: "Put on hold and released",
        Outcome.FAILED: "It failed and was retried",
        Outcome.ERROR: "The lab could not keep it running",
    }.get(Outcome(ended.outcome), "It ended")


def _node_of(hosts: Sequence[HostSpan]) -> str:
    names = {host.node for host in hosts}
    return f"Node {min(names)}" if len(names) == 1 else "One of its nodes"


def _cause(hosts: Sequence[HostSpan], before: GroupSpan, after: GroupSpan) -> str:
    """Return a sentence about the hosts that left, with the reason, and those that joined."""
    old, new = Counter(before.hosts), Counter(after.hosts)
    gone = [host for host in hosts if old[host.host] > new[host.host]]
    came = [host for host in hosts if new[host.host] > old[host.host]]
    clauses = [clause for why in dict.fromkeys(map(_reason, gone)) for clause in _departures(why, gone, old, new)]
    for node in dict.fromkeys(host.node for host in came):
        more = sum(new[host.host] - old[host.host] for host in came if host.node == node)
        clauses.append(f"{counted(more, 'idle GPU')} of {node} joined")
    text = "; ".join(clauses) or "a rank ended and was restarted"
    return f"{text[:1].upper()}{text[1:]}."


def _reason(host: HostSpan) -> str:
    return host.stop_reason or host.exit_reason or "silent"


def _departures(why: str, gone: Sequence[HostSpan], old: Counter[str], new: Counter[str]) -> Iterator[str]:
    hosts = [host for host in gone if _reason(host) == why]
    for node in dict.fromkeys(host.node for host in hosts):
        less = counted(sum(old[host.host] - new[host.host] for host in hosts if host.node == node), "GPU")
        yield {
            StopReason.DRAINED.value: f"node {node} is being drained",
            StopReason.PREEMPTED.value: f"{less} of {node} went to other jobs",
            "lost": f"node {node} was lost",
            "fenced": f"node {node} lost contact with the portal",
            "silent": f"node {node} stopped responding",
            "oom": f"out of memory on {node}",
            "disk": f"out of disk space on {node}",
        }.get(why, f"the ranks on {node} ended")
