"""Small records by hand, in which all is well until a test plants something."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tests.outside.record import Act, Asked, Attempt, Event, Job, Node, Part, Poll, Record, Reservation, Span

START = 1_000.0
END = 1_030.0
NODES = ("n1", "n2")
STRICT = 'fifo {"backfill": false, "strict": true}'


def job(id: int, **fields: Any) -> Job:
    return Job(**{"id": id, "owner": "alice", "state": "RUNNING", "submitted_at": START - 60.0, **fields})


def waiting(id: int, reason: str = "All 8 GPUs are in use.", **fields: Any) -> Job:
    return job(id, **{"state": "QUEUED", "reason": reason, "place": 1, **fields})


def poll(
    at: float, holders: Mapping[str, Sequence[int | None]] | None = None, jobs: Sequence[Job] = (), **more: Any
) -> Poll:
    """Machines have four GPUs; those that are not named are free."""
    seen = dict.fromkeys(NODES, (None,) * 4) | {name: tuple(held) for name, held in (holders or {}).items()}
    nodes = tuple(Node(number, name, True, held) for number, (name, held) in enumerate(seen.items(), start=1))
    usual = {"policy": "fifo", "nodes": nodes, "jobs": {each.id: each for each in jobs}}
    return Poll(began=at, nodes_ended=at + 0.02, ended=at + 0.05, **{**usual, **more})


def repeated(
    holders: Mapping[str, Sequence[int | None]] | None = None, jobs: Sequence[Job] = (), **more: Any
) -> list[Poll]:
    """The same, twice a second."""
    return [poll(START + number / 2, holders, jobs, **more) for number in range(int(2 * (END - START)))]


def span(job: int, node: str = "n1", index: int = 0, since: float = START - 30.0, until: float | None = None) -> Span:
    return Span(node, index, since, until, job, 1)


def attempt(created: float = START - 30.0, ended: float | None = None, **fields: Any) -> Attempt:
    part = Part("sl-1-a1-0", "host", "n1", (0,), created + 0.5, ended)
    usual = {"number": 1, "started_at": created + 0.5, "outcome": "", "parts": (part,)}
    return Attempt(created_at=created, ended_at=ended, **{**usual, **fields})


def stopped(at: float, created: float, reason: str = "preempted", **fields: Any) -> tuple[Attempt, Event]:
    """An attempt that was asked to stop, and the line of its history."""
    outcome = {"preempted": "preempted", "cancelled": "cancelled"}.get(reason, "preempted")
    event = Event(5, at, "stopping", "Attempt 1 was asked to stop: to make room for others.")
    return attempt(created, at + 0.5, outcome=outcome, stop_reason=reason, **fields), event


def act(what: str, at: float, **fields: Any) -> Act:
    return Act(what, at, at + 0.1, **fields)


def reservation(node: str = "n1", gpus: int = 2, users: Sequence[str] = ("bob",), **fields: Any) -> Reservation:
    usual: dict[str, Any] = {"id": 1, "start": START + 5.0, "end": END + 60.0}
    return Reservation(node=node, gpus=gpus, users=frozenset(users), **{**usual, **fields})


def record(jobs: Sequence[Job] = (), **fields: Any) -> Record:
    usual: dict[str, Any] = {"polls": repeated(jobs=[each for each in jobs if each.state != "SUCCEEDED"])}
    return Record(**{"seed": 7, "jobs": {each.id: each for each in jobs}, **usual, **fields})


def quiet() -> Record:
    """Two jobs run, one waits for a moment and starts, one is done: everything that laws look at, and nothing wrong."""
    running = [job(1, min_gpus=2, max_gpus=2), job(2, owner="bob", tier="basic", min_gpus=4, max_gpus=4)]
    later = waiting(
        3, "It needs 4 GPUs at once; the largest group of free ones is 2, on node n1.", min_gpus=4, max_gpus=4
    )
    done = job(4, state="SUCCEEDED", owner="bob", finished_at=START - 5.0)
    holders: dict[str, list[int | None]] = {"n1": [1, 1, None, None], "n2": [2, 2, 2, 2]}
    parts = {
        1: [attempt(parts=(Part("sl-1-a1-0", "host", "n1", (0, 1), START - 29.0, None),))],
        2: [attempt(parts=(Part("sl-2-a1-0", "host", "n2", (0, 1, 2, 3), START - 29.0, None),))],
        4: [
            attempt(
                START - 50.0,
                START - 40.0,
                outcome="succeeded",
                parts=(Part("sl-4-a1-0", "host", "n1", (0,), START - 49.0, START - 40.0),),
            )
        ],
    }
    spans = [
        span(1),
        span(1, index=1),
        *(span(2, "n2", index) for index in range(4)),
        span(4, since=START - 50.0, until=START - 40.0),
    ]
    return record(
        [*running, later, done],
        polls=repeated(holders, [*running, later]),
        attempts=parts,
        spans=spans,
        acts=[act("limit", START - 100.0, who="alice", value=6), act("policy", START - 100.0, text=STRICT)],
        usage={"alice": 120.0, "bob": 250.0},
        usage_total=370.0,
        usage_at=END,
        asked={4: Asked(9.0)},
    )


def changed(base: Record, **fields: Any) -> Record:
    return replace(base, **fields)
