"""No combination of attempt, driver, hosts and nodes is a dead end: ranks live, or a named rule ends the attempt in time.

Every combination is played against the pure rules with nodes that do not help: what starts never gets further, and what
is asked to stop either does so or does not react. The table in docs/architecture/reliability.md names the same rules.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any, NamedTuple

import pytest

from portal.jobs import survival
from portal.jobs.models import Attempt, Container, ContainerState, Job
from portal.jobs.rules import (
    ASSIGNED_SECONDS,
    DRIVER_REACTION_SECONDS,
    NO_CONTAINERS_SECONDS,
    PREPARING_SECONDS,
    STOP_SECONDS,
    AttemptFacts,
    due_actions,
    max_silence,
)
from portal.jobs.survival import AnyContainer, ContainerFacts, SurvivalRule, ended_well, hosts_of, lacks_driver
from portal.scheduler.driver_failover import REPLACEMENT_DELAY

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
TURN = timedelta(seconds=1)
"""The time between two cycles of the scheduler, shorter than it is: the bounds are those of the rules alone."""
TURNS = 12
"""The maximum number of cycles from the first rule to the last: one rule follows from another."""
RUN, STOP = Container.Wanted.RUN, Container.Wanted.STOP
RUNNING, EXITED = ContainerState.RUNNING, ContainerState.EXITED
HOST, DRIVER = Container.Role.HOST, Container.Role.DRIVER
SILENCE_SECONDS = max_silence().total_seconds()
LIMITS = (
    REPLACEMENT_DELAY,
    timedelta(seconds=DRIVER_REACTION_SECONDS),
    timedelta(seconds=NO_CONTAINERS_SECONDS),
    timedelta(seconds=ASSIGNED_SECONDS),
    timedelta(seconds=PREPARING_SECONDS),
    timedelta(seconds=STOP_SECONDS) + max_silence(),
)

LIVE: dict[str, dict[str, Any]] = {
    "assigned": {"state": "ASSIGNED"},
    "preparing": {"state": "PREPARING"},
    "running": {"state": "RUNNING"},
    "on a node being drained": {"state": "RUNNING", "draining": True},
    "assigned to a node being drained": {"state": "ASSIGNED", "draining": True},
    "on a silent node": {"state": "RUNNING", "last_seen_at": None},
    "preparing on a silent node": {"state": "PREPARING", "last_seen_at": None},
    "stopping because of a drain": {"state": "STOPPING", "wanted": STOP, "stop_reason": "drained", "draining": True},
    "asked to stop before it started": {"state": "ASSIGNED", "wanted": STOP, "stop_reason": "preempted"},
}
ENDED: dict[str, dict[str, Any]] = {
    "ended well": {"exit_reason": "exited", "exit_code": 0},
    "failed": {"exit_reason": "exited", "exit_code": 1},
    "lost": {"exit_reason": "lost"},
    "fenced": {"exit_reason": "fenced"},
    "stopped for a drain": {"exit_reason": "stopped", "wanted": STOP, "stop_reason": "drained"},
    "stopped from outside": {"exit_reason": "stopped"},
    "out of memory": {"exit_reason": "oom"},
    "never created": {"exit_reason": "create_error"},
    "launch error": {"exit_reason": "launch_error"},
}
STATES = LIVE | {words: {"state": "EXITED", "exited_at": BEGIN, **fields} for words, fields in ENDED.items()}


class Kind(NamedTuple):
    """A kind of attempt; ``slots`` are those of its hosts, from the first."""

    name: str
    elastic: bool
    overlay_network: int | None
    min_gpus: int
    slots: tuple[int, ...]
    driver: bool = True


KINDS = (
    Kind("elastic over two nodes, either is enough", True, 1, 2, (2, 2)),
    Kind("elastic over two nodes, minimum spans them", True, 1, 3, (2, 2)),
    Kind("elastic over two nodes, the first is enough", True, 1, 2, (2, 1)),
    Kind("elastic on one node", True, None, 1, (1, 1)),
    Kind("fixed size over two nodes", False, 1, 4, (2, 2)),
    Kind("one container", False, None, 1, (1,), driver=False),
)


def attempt_of(kind: Kind, **changes: Any) -> AttemptFacts:
    usual = {
        "id": 1,
        "job_id": 1,
        "created_at": BEGIN,
        "started_at": BEGIN,
        "wanted": Attempt.Wanted.RUN,
        "stop_reason": "",
        "counted_seconds": 0,
        "overlay_network": kind.overlay_network,
        "intent": Job.Intent.RUN,
        "elastic": kind.elastic,
        "min_gpus": kind.min_gpus,
        "time_limit_seconds": 10_000_000,
    }
    return AttemptFacts(**{**usual, **changes})


def container_of(index: int, role: str, slots: int, words: str, now: datetime = BEGIN) -> ContainerFacts:
    usual = {
        "id": index,
        "attempt_id": 1,
        "role": role,
        "index": index,
        "state_since": now,
        "wanted": RUN,
        "stop_reason": "",
        "stop_requested_at": None,
        "exited_at": None,
        "exit_code": None,
        "exit_reason": "",
        "slots": slots,
        "draining": False,
        "last_seen_at": now,
    }
    container = ContainerFacts(**{**usual, **STATES[words]})
    return container._replace(stop_requested_at=now) if container.wanted == STOP else container


def combinations(kind: Kind) -> Iterator[tuple[str, ...]]:
    """The state of its driver, if it has one, and of each host, in words."""
    return product(STATES, repeat=len(kind.slots) + kind.driver)


def containers_of(kind: Kind, states: Sequence[str]) -> list[ContainerFacts]:
    containers = [container_of(0, DRIVER, 0, states[0])] if kind.driver else []
    return containers + [
        container_of(i, HOST, kind.slots[i - 1], words) for i, words in enumerate(states[kind.driver :], start=1)
    ]


class Played(NamedTuple):
    """The result of a combination: the rules that acted, and the seconds until its end, or whether ranks train."""

    rules: tuple[str, ...]
    ended: float | None
    trains: bool = False


def play(kind: Kind, attempt: AttemptFacts, containers: list[ContainerFacts], *, deaf: bool) -> Played:
    """Act as ``lifecycle.sweep``, ``settle`` and ``driver_failover`` do, until the attempt has ended or nothing is due."""
    rules: list[str] = []
    now: datetime | None = BEGIN
    while now is not None:
        seen = [
            container if container.last_seen_at is None else container._replace(last_seen_at=now)
            for container in containers
        ]
        acted = len(rules)
        for due in list(due_actions(attempt, seen, now)):
            rules.append(f"{due.what}:{due.reason}" if due.reason else due.what)
            if due.what == "settle":
                return Played(tuple(rules), (now - BEGIN).total_seconds())
            if due.what == "stop":
                attempt = attempt._replace(wanted=Attempt.Wanted.STOP, stop_reason=due.reason)
                containers = [stopped(container, due.reason, now) for container in containers]
            else:
                assert due.container is not None
                containers = [
                    changed(container, due.what, due.reason, now) if container.id == due.container.id else container
                    for container in containers
                ]
        if not containers and attempt.wanted == Attempt.Wanted.STOP:
            return Played(tuple(rules), (now - BEGIN).total_seconds())
        if not deaf:
            containers = [obeyed(container, now) for container in containers]
        if successor := new_driver(attempt, containers, now):
            rules.append("new driver")
            containers.append(successor)
        now = now + TURN if len(rules) > acted else next_moment(attempt, containers, now)
    return Played(tuple(rules), None, trains(kind, attempt, containers))


def next_moment(attempt: AttemptFacts, containers: Sequence[ContainerFacts], now: datetime) -> datetime | None:
    """Return when the next limit of a rule will have passed; None when all have."""
    times = {
        time
        for container in containers
        for time in (container.state_since, container.exited_at, container.stop_requested_at)
        if time
    }
    passed = {time + limit for time in times | {attempt.created_at} for limit in LIMITS}
    return min((time + TURN for time in passed if time + TURN > now), default=None)


def stopped(container: ContainerFacts, reason: str, now: datetime) -> ContainerFacts:
    if container.state == EXITED or container.wanted == STOP:
        return container
    return container._replace(wanted=STOP, stop_reason=reason, stop_requested_at=now)


def changed(container: ContainerFacts, what: str, reason: str, now: datetime) -> ContainerFacts:
    if what == "stop_container":
        return stopped(container, reason, now)
    lost = container.last_seen_at is None or what == "unstoppable"
    assert lost, what
    return container._replace(state=EXITED, exited_at=now, exit_reason="lost")


def obeyed(container: ContainerFacts, now: datetime) -> ContainerFacts:
    """A node that is heard of stops what it is asked to."""
    if container.state == EXITED or container.wanted == RUN or container.last_seen_at is None:
        return container
    return container._replace(state=EXITED, exited_at=now, exit_reason="stopped")


def new_driver(attempt: AttemptFacts, containers: Sequence[ContainerFacts], now: datetime) -> ContainerFacts | None:
    drivers = [container for container in containers if container.role == DRIVER]
    rested = all(
        container.exited_at is not None and now - container.exited_at >= REPLACEMENT_DELAY for container in drivers
    )
    wanted = attempt.wanted == Attempt.Wanted.RUN and lacks_driver(attempt.survival_rule, containers)
    if not (drivers and rested and wanted):
        return None
    if not any(container.state == RUNNING and container.wanted == RUN for container in hosts_of(containers)):
        return None
    return container_of(max(container.index for container in containers) + 1, DRIVER, 0, "running", now)


def trains(kind: Kind, attempt: AttemptFacts, containers: Sequence[ContainerFacts]) -> bool:
    """Return whether ranks are live and have a driver; those of a host that has ended well count, since their work is done."""
    at_work = [
        container
        for container in containers
        if container.state == RUNNING and container.wanted == RUN and not container.draining
    ]
    hosts = hosts_of(at_work)
    ready = sum(container.slots for container in [*hosts, *filter(ended_well, hosts_of(containers))])
    led = not kind.driver or any(container.role == DRIVER for container in at_work)
    return attempt.wanted == Attempt.Wanted.RUN and bool(hosts) and led and ready >= kind.min_gpus


def bound(states: Sequence[str], *, deaf: bool) -> float:
    """Return the seconds until an attempt that cannot train has ended, as docs/architecture/reliability.md promises."""
    start = SILENCE_SECONDS
    if any("assigned" in words or "before it started" in words for words in states):
        start = ASSIGNED_SECONDS
    if any(words.startswith("preparing") for words in states):
        start = PREPARING_SECONDS
    stops = 2 if deaf else 0  # of one container, and then of the rest
    return start + DRIVER_REACTION_SECONDS + stops * (STOP_SECONDS + SILENCE_SECONDS) + TURNS * TURN.total_seconds()


def dead_ends(kind: Kind, *, deaf: bool) -> list[str]:
    """The combinations that neither train nor end, or end too late."""
    found = []
    for states in combinations(kind):
        played = play(kind, attempt_of(kind), containers_of(kind, states), deaf=deaf)
        if played.ended is None and not played.trains:
            found.append(f"{states} is stuck after {played.rules}")
        if played.ended is not None and played.ended > bound(states, deaf=deaf):
            found.append(f"{states} ended only after {played.ended:g} s: {played.rules}")
    return found


@pytest.mark.parametrize("deaf", [False, True], ids=["obeys", "deaf"])
@pytest.mark.parametrize("kind", KINDS, ids=[kind.name for kind in KINDS])
def test_ranks_live_or_a_rule_ends_the_attempt_in_time(kind: Kind, deaf: bool) -> None:
    assert dead_ends(kind, deaf=deaf)[:20] == []


@pytest.mark.parametrize("intent", [Job.Intent.CANCEL, Job.Intent.HOLD])
def test_what_a_person_stops_ends_in_any_state(intent: str) -> None:
    kind = KINDS[1]
    late = []
    for states in combinations(kind):
        played = play(kind, attempt_of(kind, intent=intent), containers_of(kind, states), deaf=True)
        if played.ended is None or played.ended > bound(states, deaf=True):
            late.append(f"{states}: {played}")
    assert late[:20] == []


def test_an_attempt_without_containers_is_ended() -> None:
    played = play(KINDS[0], attempt_of(KINDS[0]), [], deaf=False)
    assert (played.rules, played.trains) == (("stop:stuck",), False)
    assert (
        played.ended is not None
        and NO_CONTAINERS_SECONDS < played.ended <= NO_CONTAINERS_SECONDS + 2 * TURN.total_seconds()
    )


def test_counting_hosts_instead_of_gpus_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def first_host_is_enough(rule: SurvivalRule, left: Sequence[AnyContainer]) -> bool:
        """Decide as ``survival._is_enough`` once did: the first host has all that is needed."""
        hosts = hosts_of(left)
        began = any(container.state not in (ContainerState.ASSIGNED, ContainerState.PREPARING) for container in hosts)
        return began and (
            any(container.index == 1 for container in hosts)
            or sum(container.slots for container in hosts) >= rule.min_gpus
        )

    monkeypatch.setattr(survival, "_is_enough", first_host_is_enough)
    found = dead_ends(KINDS[1], deaf=False)
    assert any("('running', 'running', 'lost') is stuck" in text for text in found)
