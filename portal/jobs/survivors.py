"""An elastic ring over several nodes goes on without what it lost, be it its first host or its driver: pure functions.

Its ranks keep their work in memory. What left the ring without anybody's fault counts no longer, as long as enough of
it is left; a new driver takes over (``scheduler.driver_failover``). Any other attempt depends on its driver and its base.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple, TypeVar

from portal.jobs.models import Attempt, Container, ContainerState, Job, StopReason

LOST_REASONS = frozenset({"lost", "fenced"})
PUT_ASIDE = frozenset({StopReason.PREEMPTED, StopReason.DRAINED, StopReason.STUCK, StopReason.GPU_FAULT})
"""Reasons to stop one part of an attempt."""


class SeenPart(NamedTuple):
    """What the clock's rules look at in a container: a large lab has thousands, and each turn looks at all of them."""

    id: int
    attempt_id: int
    role: str
    index: int  # type: ignore[assignment]  # instead of a tuple's own, as a container has it
    state: str
    state_since: datetime
    wanted: str
    stop_reason: str
    stop_requested_at: datetime | None
    exited_at: datetime | None
    exit_code: int | None
    exit_reason: str
    slots: int
    draining: bool
    """Of its node, like the next."""
    last_seen_at: datetime | None


class Bond(NamedTuple):
    """What decides whether an attempt goes on without some of its parts."""

    moves: bool
    """It is an elastic ring over several nodes."""
    least: int
    """GPUs it cannot do without, wherever they are."""
    asked: bool
    """It was told to stop, other than because its work is done."""


FIXED = Bond(moves=False, least=1, asked=False)
Part = TypeVar("Part", Container, SeenPart)


def bond(elastic: bool, ring: int | None, least: int, stop_reason: str) -> Bond:
    return Bond(elastic and ring is not None, least, stop_reason not in ("", StopReason.DONE))


def bond_of(job: Job, attempt: Attempt) -> Bond:
    return bond(job.elastic, attempt.overlay_network, job.min_gpus, attempt.stop_reason)


def counting(how: Bond, parts: Sequence[Part]) -> list[Part]:
    """The parts by which the attempt is judged: without those that it goes on without; all, when it cannot go on."""
    if not how.moves:
        return list(parts)
    left = [part for part in parts if not _gave_way(part)]
    hosts = hosts_of(left)
    # A driver also says "fenced" when its ring broke for that; then its hosts end too, and none of them well.
    led = _drivers(left) or any(part.state != ContainerState.EXITED or ended_well(part) for part in hosts)
    if not led or not _enough(how, left) or (how.asked and not _drivers(left)):
        return list(parts)
    return left


def goes_on_without_drained(how: Bond, parts: Sequence[SeenPart]) -> bool:
    """Enough of it runs on nodes that are not being drained. Hosts that have ended by themselves are the driver's to judge,
    which therefore stays until then."""
    staying = [
        part
        for part in parts
        if part.state != ContainerState.EXITED and not part.draining and part.wanted == Container.Wanted.RUN
    ]
    return how.moves and _enough(how, staying)


def lacks_driver(how: Bond, parts: Sequence[Part]) -> bool:
    """It goes on, but nobody leads it."""
    left = counting(how, parts)
    live = any(part.state == ContainerState.RUNNING for part in hosts_of(left))
    return how.moves and not how.asked and live and not _drivers(left)


def ended_well(part: Container | SeenPart) -> bool:
    return part.state == ContainerState.EXITED and part.exit_reason == "exited" and part.exit_code == 0


def hosts_of(parts: Sequence[Part]) -> list[Part]:
    return [part for part in parts if part.role == Container.Role.HOST]


def _drivers(parts: Sequence[Part]) -> list[Part]:
    return [part for part in parts if part.role == Container.Role.DRIVER]


def put_aside(part: Container | SeenPart) -> bool:
    """It was stopped alone, and its attempt was to go on."""
    stopped = part.state == ContainerState.EXITED and part.exit_reason == "stopped"
    return stopped and part.stop_reason in PUT_ASIDE


def _gave_way(part: Container | SeenPart) -> bool:
    return put_aside(part) or (part.state == ContainerState.EXITED and part.exit_reason in LOST_REASONS)


def _enough(how: Bond, left: Sequence[Part]) -> bool:
    """At least one rank that holds the work, and as many GPUs as it needs."""
    hosts = hosts_of(left)
    began = any(part.state not in (ContainerState.ASSIGNED, ContainerState.PREPARING) for part in hosts)
    return began and sum(part.slots for part in hosts) >= how.least


def base(how: Bond, parts: Sequence[Part]) -> list[Part]:
    """The first host, and as many others, those at work before the rest, as it takes to have the GPUs it needs."""
    hosts: list[Part] = sorted(hosts_of(parts), key=lambda part: part.index)
    others: list[Part] = sorted(hosts[1:], key=lambda part: (part.state != ContainerState.RUNNING, part.index))
    ordered: list[Part] = hosts[:1] + others
    count = gpus = 0
    for part in ordered:
        if count and gpus >= how.least:
            break
        count, gpus = count + 1, gpus + part.slots
    return ordered[:count]
