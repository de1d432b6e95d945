"""What was seen and done in one run, as plain values. Times are seconds since 1970."""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from tests.outside.rest import Failure

LAYERS = ("premium", "standard", "basic", "opportunistic")
"""The lab serves an earlier one first."""
WAITING, RUNNING, HELD = "QUEUED", "RUNNING", "HELD"
STARTS_SECONDS = 10.0
"""A scheduler that was started decides within this."""
FINISHED = frozenset({"SUCCEEDED", "FAILED", "CANCELLED"})


@dataclass(frozen=True, slots=True)
class Job:
    """A job as one answer shows it."""

    id: int
    owner: str
    state: str
    intent: str = "run"
    tier: str = "standard"
    opportunistic: bool = False
    elastic: bool = False
    resumable: bool = False
    launcher: str = "command"
    min_gpus: int = 1
    max_gpus: int = 1
    reason: str = ""
    place: int | None = None
    submitted_at: float = 0.0
    started_at: float | None = None
    finished_at: float | None = None

    @property
    def layer(self) -> int:
        """Index into ``LAYERS``."""
        return LAYERS.index("opportunistic" if self.opportunistic else self.tier)

    @property
    def can_be_stopped(self) -> bool:
        return self.resumable or self.opportunistic

    @property
    def waits(self) -> bool:
        return self.state == WAITING and self.intent == "run"


@dataclass(frozen=True, slots=True)
class Node:
    id: int
    name: str
    open: bool
    """Online, approved, not cordoned or being drained."""
    holders: tuple[int | None, ...]
    """By GPU: the job that holds it."""


@dataclass(frozen=True, slots=True)
class Reservation:
    id: int
    node: str
    gpus: int
    start: float
    end: float
    users: frozenset[str]


@dataclass(frozen=True, slots=True)
class Poll:
    """One round of requests: the machines, then the unfinished jobs, then the calendar."""

    began: float
    nodes_ended: float
    ended: float
    nodes: tuple[Node, ...] = ()
    jobs: Mapping[int, Job] = field(default_factory=dict)
    reservations: tuple[Reservation, ...] = ()
    policy: str = ""

    def held_by(self, job: int) -> int:
        return sum(holder == job for node in self.nodes for holder in node.holders)

    def free(self) -> dict[str, int]:
        """GPUs that are visibly free, on nodes that take work."""
        return {node.name: node.holders.count(None) for node in self.nodes if node.open}


@dataclass(frozen=True, slots=True)
class Act:
    """Something that a person or the checker itself did. ``began`` is before the request, ``ended`` after its answer."""

    what: str
    began: float
    ended: float
    job: int | None = None
    node: str = ""
    who: str = ""
    """Whose limit."""
    value: int | None = None
    """GPUs of a limit; None for no limit."""
    text: str = ""
    """Which policy, with its parameters."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a submitted job is to do, and so how it has to end."""

    run_seconds: float
    exit_code: int = 0
    retries: int = 0
    overruns: bool = False
    """It runs until its time limit."""


@dataclass(frozen=True, slots=True)
class Event:
    seq: int
    at: float
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Part:
    """A container."""

    name: str
    role: str
    node: str
    gpus: tuple[int, ...]
    running_at: float | None
    exited_at: float | None
    exit_reason: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Attempt:
    number: int
    created_at: float
    started_at: float | None
    ended_at: float | None
    outcome: str
    stop_reason: str = ""
    parts: tuple[Part, ...] = ()

    @property
    def nodes(self) -> frozenset[str]:
        return frozenset(part.node for part in self.parts)


@dataclass(frozen=True, slots=True)
class Span:
    """A GPU held by a job, from the timeline."""

    node: str
    index: int
    since: float
    until: float | None
    job: int
    attempt: int

    def covers(self, moment: float) -> bool:
        return self.since <= moment and (self.until is None or moment < self.until)


@dataclass(frozen=True, slots=True)
class Step:
    """How far a running job was; None when it had reported nothing."""

    at: float
    job: int
    step: int | None


@dataclass(frozen=True)
class Record:
    seed: int
    polls: Sequence[Poll] = ()
    acts: Sequence[Act] = ()
    jobs: Mapping[int, Job] = field(default_factory=dict)
    """As they were at the end."""
    asked: Mapping[int, Asked] = field(default_factory=dict)
    events: Mapping[int, Sequence[Event]] = field(default_factory=dict)
    attempts: Mapping[int, Sequence[Attempt]] = field(default_factory=dict)
    spans: Sequence[Span] = ()
    steps: Sequence[Step] = ()
    usage: Mapping[str, float] = field(default_factory=dict)
    """GPU-seconds by person, from the usage report at the end."""
    usage_total: float = 0.0
    usage_at: float = 0.0
    groups: Mapping[str, frozenset[str]] = field(default_factory=dict)
    node_gpus: int = 4
    failures: Sequence[Failure] = ()
    requests: int = 0

    def acts_of(self, *kinds: str) -> list[Act]:
        return [act for act in self.acts if act.what in kinds]

    def around(self, moment: float) -> tuple[Poll | None, Poll | None]:
        """The last poll that had ended by then, and the first that began after."""
        before = bisect_right(self._ends, moment)
        after = bisect_left(self._begins, moment)
        return (
            self.polls[before - 1] if before else None,
            self.polls[after] if after < len(self.polls) else None,
        )

    def between(self, since: float, until: float) -> Sequence[Poll]:
        """Polls wholly within that time."""
        return self.polls[bisect_left(self._begins, since) : bisect_right(self._ends, until)]

    def held_at(self, moment: float) -> Iterator[Span]:
        for span in self._spans_by_second[int(moment)]:
            if span.covers(moment):
                yield span

    def policy_between(self, since: float, until: float) -> str | None:
        """The one policy in force all that time, with its parameters; None when it may have been two."""
        found = ""
        for act in self.acts_of("policy"):
            if act.ended <= since:
                found = act.text
            elif act.began <= until:
                return None
        return found

    def limited(self, owner: str) -> list[str]:
        """Whose limits ever applied to this person: their own, and those of their groups."""
        names = dict.fromkeys(act.who for act in self.acts_of("limit"))
        return [who for who in names if owner in self.people(who)]

    def people(self, who: str) -> frozenset[str]:
        return self.groups.get(who, frozenset({who}))

    def limits_between(self, who: str, since: float, until: float) -> list[int | None]:
        """Each limit that may have been in force within that time; None for none."""
        changes = [act for act in self.acts_of("limit") if act.who == who]
        begins = [(float("-inf"), None), *((act.began, act.value) for act in changes)]
        ends = [*(act.ended for act in changes), float("inf")]
        return [value for (began, value), end in zip(begins, ends, strict=True) if began <= until and end >= since]

    def is_scheduler_down(self, since: float, until: float) -> bool:
        """Whether it was killed, or may still have been away, within that time."""
        kills = sorted(self.acts_of("kill", "restart"), key=lambda act: act.began)
        for act, following in zip(kills, [*kills[1:], None], strict=False):
            if act.what == "kill":
                up = following.ended + STARTS_SECONDS if following is not None else float("inf")
                if act.began <= until and up >= since:
                    return True
        return False

    @cached_property
    def _begins(self) -> list[float]:
        return [poll.began for poll in self.polls]

    @cached_property
    def _ends(self) -> list[float]:
        return [poll.ended for poll in self.polls]

    @cached_property
    def _spans_by_second(self) -> Mapping[int, list[Span]]:
        found: defaultdict[int, list[Span]] = defaultdict(list)
        last = max([*self._ends, *(span.until or span.since for span in self.spans)], default=0.0)
        for span in self.spans:
            for second in range(int(span.since), int(span.until if span.until is not None else last) + 2):
                found[second].append(span)
        return found


@dataclass(frozen=True, slots=True)
class Violation:
    law: str
    at: float
    text: str
    job: int | None = None


def pairs(polls: Sequence[Poll]) -> Iterable[tuple[Poll, Poll]]:
    return zip(polls, polls[1:], strict=False)
