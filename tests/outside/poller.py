"""Polls the portal twice a second, as a script would, until ``end``."""

import re
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any

from tests.outside.record import RUNNING, Attempt, Event, Job, Node, Part, Poll, Reservation, Span, Step
from tests.outside.rest import RefusedError, Rest

PERIOD_SECONDS = 0.5
TIMELINE_EVERY, STEPS_EVERY = 16, 2
"""Polls."""
REMOVED = re.compile(r" \(removed \d+\)$")
UNFINISHED = {"state": ["QUEUED", "RUNNING", "HELD"]}


def moment(text: str | None) -> float | None:
    return None if text is None else datetime.fromisoformat(text).timestamp()


def sure(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


class Poller(threading.Thread):
    """``polls``, ``steps`` and ``spans`` grow while it runs. ``error`` is what ended it, if anything did."""

    def __init__(self, rest: Rest) -> None:
        super().__init__(name="poller", daemon=True)
        self.rest = rest
        self.polls: list[Poll] = []
        self.steps: list[Step] = []
        self.spans: dict[tuple[int, str, int], Span] = {}
        self.nodes: set[int] = set()
        """Ids of all nodes that were ever seen."""
        self.error: BaseException | None = None
        self._ending = threading.Event()

    def run(self) -> None:
        try:
            while not self._ending.is_set():
                began = time.monotonic()
                with suppress(RefusedError):  # noted by the client, and a violation if it is the portal's
                    self.poll()
                self._ending.wait(max(0.0, began + PERIOD_SECONDS - time.monotonic()))
        except BaseException as error:
            self.error = error
            raise

    def end(self) -> None:
        self._ending.set()
        self.join(60)

    def poll(self) -> None:
        began = time.time()
        nodes = self.rest.get("nodes/")
        nodes_ended = time.time()
        jobs = {row["id"]: job_of(row) for row in self.rest.pages("jobs/", **UNFINISHED)}
        reservations = tuple(reservation_of(row) for row in self.rest.get("reservations/"))
        policy = str(self.rest.get("policy/")["policy"])
        self.nodes |= {row["id"] for row in nodes}
        seen = tuple(node_of(row) for row in nodes)
        poll = Poll(began, nodes_ended, time.time(), seen, jobs, reservations, policy)
        self.polls.append(poll)
        if len(self.polls) % STEPS_EVERY == 0:
            self._read_step(poll)
        if len(self.polls) % TIMELINE_EVERY == 0:
            self.read_timeline()

    def _read_step(self, poll: Poll) -> None:
        """Of one running job after the other."""
        running = sorted(job.id for job in poll.jobs.values() if job.state == RUNNING)
        if not running:
            return
        job = running[(len(self.polls) // STEPS_EVERY) % len(running)]
        try:
            step = int(self.rest.get(f"jobs/{job}/progress/")["step"])
        except RefusedError:
            self.steps.append(Step(time.time(), job, None))
        else:
            self.steps.append(Step(time.time(), job, step))

    def read_timeline(self) -> None:
        """Machine by machine, since one answer has at most 600 entries."""
        for node in sorted(self.nodes):
            for row in self.rest.get("timeline/", window="hour", node=node)["results"]:
                span = span_of(row)
                self.spans[row["gpu"], row["since"], span.job] = span


def job_of(row: Mapping[str, Any]) -> Job:
    return Job(
        id=row["id"],
        owner=row["submitted_by"],
        state=row["state"],
        intent=row["intent"],
        tier=row["tier"],
        opportunistic=row["opportunistic"],
        elastic=row["elastic"],
        resumable=row["resumable"],
        launcher=row["launcher"],
        min_gpus=row["min_gpus"],
        max_gpus=row["max_gpus"],
        reason=row["waiting_reason"],
        place=row["queue_position"],
        submitted_at=sure(row["submitted_at"]),
        started_at=moment(row["started_at"]),
        finished_at=moment(row["finished_at"]),
    )


def node_of(row: Mapping[str, Any]) -> Node:
    is_open = row["online"] and row["approved"] and not (row["cordoned"] or row["draining"])
    gpus = sorted(row["gpus"], key=lambda gpu: gpu["index"])
    return Node(row["id"], row["name"], is_open, tuple(gpu["job"] for gpu in gpus))


def reservation_of(row: Mapping[str, Any]) -> Reservation:
    users = frozenset(row["users"])
    return Reservation(row["id"], row["node"], row["gpus"], sure(row["start"]), sure(row["end"]), users)


def span_of(row: Mapping[str, Any]) -> Span:
    node = REMOVED.sub("", row["node"])
    return Span(node, row["index"], sure(row["since"]), moment(row["until"]), row["job"], row["attempt"])


def event_of(row: Mapping[str, Any]) -> Event:
    return Event(row["seq"], sure(row["at"]), row["kind"], row["text"])


def attempt_of(row: Mapping[str, Any]) -> Attempt:
    return Attempt(
        number=row["number"],
        created_at=sure(row["created_at"]),
        started_at=moment(row["started_at"]),
        ended_at=moment(row["ended_at"]),
        outcome=row["outcome"],
        stop_reason=row["stop_reason"],
        parts=tuple(
            Part(
                name=part["name"],
                role=part["role"],
                node=REMOVED.sub("", part["node"]),
                gpus=tuple(part["gpus"]),
                running_at=moment(part["running_at"]),
                exited_at=moment(part["exited_at"]),
                exit_reason=part["exit_reason"],
                detail=part["detail"],
            )
            for part in row["containers"]
        ),
    )
