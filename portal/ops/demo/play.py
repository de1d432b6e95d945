"""What ran where and when: the month decided by the project's own policies, in the project's own simulator. Pure.

Three policies follow each other, as an admin switched them. ``play`` simulates the month and some hours beyond, so that
the remaining time of jobs that run at its end is known; nothing after the end is recorded.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from portal.ops.demo.workload import DAY, DAYS, HOUR, Ask, Size
from scheduling import registry
from scheduling.messages import Message
from scheduling.reservations import plan_with_reservations
from scheduling.simulate import Loss, Options, Submission, accounts_of, lasts, linear, simulate
from scheduling.types import Job, Node, Placement, Plan, Policy, Reservation, Snapshot

END = DAYS * DAY
BEYOND_SECONDS = 12 * HOUR
KNOWN_BEFORE = 40 * HOUR
"""How long before its start a reservation is made, in seconds."""
LOOK_SECONDS = 900.0
"""After how long a policy decides again at the latest."""
QUIET_SECONDS = 30.0
"""Nothing is decided so shortly before the end of the month, so that no GPU is between two jobs then."""
RELEASE_SECONDS = 10.0
"""From the request for GPUs until they are free."""
EXPONENT = 0.9
"""n GPUs are n ** EXPONENT times as fast."""
SWITCHES: tuple[tuple[float, str, Mapping[str, Any]], ...] = (
    (0.0, "fifo", {}),
    (9.42 * DAY, "elastic_fifo", {}),
    (20.6 * DAY, "fair_share", {"half_life_days": 7.0}),
)
"""(Since when, in seconds from the start; the policy that decides then; its parameters)."""
LOST_AT, BACK_AT = 16.45 * DAY, 16.45 * DAY + 3.2 * HOUR
"""When the last node was lost, and when it came back."""


@dataclass(slots=True)
class Piece:
    """GPUs of one node that an attempt held from one change to the next: those of one container, or of the first."""

    node: int
    gpus: int
    since: float
    asked_back: float | None = None
    until: float | None = None
    """None if the attempt holds them at the end of the month."""


@dataclass(slots=True)
class SimulatedAttempt:
    """An attempt. ``ended`` is None for one that runs at the end of the month."""

    placed: float
    policy: int
    """Which of ``SWITCHES`` was in force."""
    placement: dict[int, int]
    pieces: list[Piece]
    resizes: list[tuple[float, int, int]] = field(default_factory=list)
    ended: float | None = None
    ended_as: str = ""
    stopped_at: float | None = None
    """When its stop was requested, for one that was preempted or cancelled."""

    @property
    def gpus(self) -> int:
        return sum(self.placement.values())


@dataclass(slots=True)
class Story:
    """One job, from its submission to the end of the month."""

    ask: Ask
    starts_after: float
    """Seconds from its placement to its first line of output."""
    simulated_attempts: list[SimulatedAttempt] = field(default_factory=list)
    finished: float | None = None
    status: str = "QUEUED"
    reason: Message | None = None
    """Why it waits at the end of the month."""
    left_seconds: float = 0.0
    """How long a job that runs at the end of the month continues. At most three quarters of an hour, so that visitors
    see something change."""


class Switching:
    """Several policies one after the other; each begins without the state of the one before."""

    title: ClassVar[str] = "The policies of the demo's month"
    explanation: ClassVar[str] = ""

    def __init__(self, reservations: Sequence[Reservation]) -> None:
        self._policies: list[Policy] = [registry.build(key, params) for _, key, params in SWITCHES]
        self._reservations = reservations

    def plan(self, snapshot: Snapshot) -> Plan:
        now, place = snapshot.now, in_force(snapshot.now)
        state: Mapping[str, Any] = snapshot.state["state"] if snapshot.state.get("place") == place else {}
        known = tuple(each for each in self._reservations if each.start - KNOWN_BEFORE <= now < each.end)
        view = replace(snapshot, state=state, reservations=known)
        plan = plan_with_reservations(self._policies[place].plan, view)
        edges = [edge for each in self._reservations for edge in (each.start, each.end) if edge > now]
        again_at = min([*edges, *([] if plan.again_at is None else [plan.again_at]), now + LOOK_SECONDS])
        return Plan(plan.target, plan.reasons, {"place": place, "state": plan.state}, plan.batches, again_at)


def in_force(at: float) -> int:
    """Return the index in ``SWITCHES`` of the policy that decides at that time."""
    return max(place for place, (since, _, _) in enumerate(SWITCHES) if since <= at)


def play(
    asks: Sequence[Ask],
    size: Size,
    groups: Mapping[str, str],
    weights: Mapping[str, float],
    reservations: Sequence[Reservation] = (),
) -> list[Story]:
    """Return the stories of all jobs, in the order of their submission.

    ``groups`` names the group of each person, ``weights`` has the share of each group. Nodes of reservations are
    numbers from 0, their times seconds since the start.
    """
    stories = {str(ask.number): Story(ask, 14.0 + ask.number * 7 % 41) for ask in asks}
    submissions = [_submission(story, groups) for story in stories.values()]
    nodes = [Node(str(n), f"demo-{n + 1}", size.gpus, size.gpus) for n in range(size.nodes)]
    losses = [Loss(str(size.nodes - 1), LOST_AT, BACK_AT)] if size.nodes > 1 else []
    recorder = _Recorder(stories, losses)
    result = simulate(
        Switching(reservations),
        nodes,
        submissions,
        accounts=accounts_of(submissions, {f"group {name}": weight for name, weight in weights.items()}),
        options=Options(
            release_seconds=RELEASE_SECONDS,
            losses=losses,
            until=END + BEYOND_SECONDS,
            window_seconds=20.0,
            used_days=30,
        ),
        on_turn=recorder.see,
    )
    for row in result.jobs:
        recorder.end(stories[row.id], row.ended_at, row.outcome)
    return list(stories.values())


def _submission(story: Story, groups: Mapping[str, str]) -> Submission:
    ask = story.ask
    habit, curve = ask.habit, linear(ask.max_gpus, EXPONENT)
    return Submission(
        Job(
            id=str(ask.number),
            owner=ask.owner,
            submitted_at=ask.submitted,
            min_gpus=ask.min_gpus,
            max_gpus=ask.max_gpus,
            priority=ask.priority,
            elastic=habit.elastic,
            spread=ask.spread,
            preemptible=habit.resumable,
            group=f"group {groups[ask.owner]}",
            script=habit.project,
            deadline=ask.deadline,
            longest_seconds=float(ask.limit_seconds),
        ),
        lasts(ask.seconds, ask.min_gpus, curve, knowledge="none"),
        start_seconds=story.starts_after,
        end_seconds=2.0,
        cancelled_at=ask.cancelled,
        checkpoint_seconds=None if habit.resumable else float("inf"),
    )


class _Recorder:
    """Makes attempts from what the policies see and plan."""

    def __init__(self, stories: Mapping[str, Story], losses: Sequence[Loss]) -> None:
        self.stories, self.losses = stories, losses

    def see(self, snapshot: Snapshot, plan: Plan) -> None:
        now = snapshot.now
        if now > END - QUIET_SECONDS:
            return
        for job in snapshot.jobs:
            story = self.stories[job.id]
            live = (
                story.simulated_attempts[-1]
                if story.simulated_attempts and story.simulated_attempts[-1].ended is None
                else None
            )
            if live is not None and live.stopped_at is None and _own(job.now_on) != live.placement:
                self._lost(live, _own(job.now_on))
                live = live if live.ended is None else None
            target = _own(plan.target.get(job.id, {}))
            if target == _own(job.now_on):
                pass
            elif not target and live is not None:
                self._stop(live, now, "preempted")
            elif live is None:
                story.simulated_attempts.append(
                    SimulatedAttempt(now, in_force(now), target, _first_pieces(story.ask, target, now))
                )
            else:
                self._resize(live, target, now)
            story.reason = None if target else plan.reasons.get(job.id)

    def _lost(self, live: SimulatedAttempt, left: dict[int, int]) -> None:
        at = max(loss.at for loss in self.losses)
        gone = {int(loss.node) for loss in self.losses}
        for piece in live.pieces:
            if piece.until is None and piece.node in gone:
                piece.until = at
        if left:
            live.resizes.append((at, live.gpus, sum(left.values())))
            live.placement = left
            return
        for piece in live.pieces:
            if piece.until is None:
                live.stopped_at = at
                piece.asked_back, piece.until = at, at + RELEASE_SECONDS
        live.ended, live.ended_as = max(piece.until or at for piece in live.pieces), "lost"

    def _stop(self, live: SimulatedAttempt, now: float, outcome: str) -> None:
        live.stopped_at, live.ended_as = now, outcome
        for piece in live.pieces:
            if piece.until is None:
                piece.asked_back, piece.until = now, now + RELEASE_SECONDS
        live.ended = now + RELEASE_SECONDS

    def _resize(self, live: SimulatedAttempt, target: dict[int, int], now: float) -> None:
        live.resizes.append((now, live.gpus, sum(target.values())))
        for node in {*target, *live.placement}:
            more = target.get(node, 0) - live.placement.get(node, 0)
            if more > 0:
                live.pieces.extend(Piece(node, 1, now) for _ in range(more))
            for _ in range(-more):
                _give_back(live, node, now)
        live.placement = target

    def end(self, story: Story, ended_at: float | None, outcome: str) -> None:
        """Record what became of a job after the last decision that included it."""
        live = (
            story.simulated_attempts[-1]
            if story.simulated_attempts and story.simulated_attempts[-1].ended is None
            else None
        )
        if ended_at is not None and ended_at <= END and (live is not None or outcome == "cancelled"):
            story.finished = ended_at
            if live is not None:
                live.ended, live.ended_as = ended_at, _outcome(story.ask, outcome)
                if outcome != "ended":
                    live.stopped_at = ended_at - min(RELEASE_SECONDS, ended_at - live.placed)
                for piece in live.pieces:
                    piece.until = ended_at if piece.until is None else min(piece.until, ended_at)
            story.status = "CANCELLED" if outcome == "cancelled" else "SUCCEEDED" if _well(story) else "FAILED"
        elif live is not None:
            story.status = "RUNNING"
            left = (END + BEYOND_SECONDS if ended_at is None else ended_at) - END
            story.left_seconds = max(90.0, min(left, 240.0 + story.ask.number * 397 % 2400))


def _first_pieces(ask: Ask, target: Mapping[int, int], now: float) -> list[Piece]:
    """Return pieces as ``run_specs.host_placements`` does: an elastic job has its base and a piece per further GPU."""
    most_first = sorted(target.items(), key=lambda item: (-item[1], str(item[0])))
    if not ask.habit.elastic:
        return [Piece(node, gpus, now) for node, gpus in most_first]
    (home, here), *others = most_first
    base = min(ask.min_gpus, here)
    singles = [(home, here - base), *others]
    return [Piece(home, base, now), *(Piece(node, 1, now) for node, count in singles for _ in range(count))]


def _well(story: Story) -> bool:
    return bool(story.simulated_attempts) and story.simulated_attempts[-1].ended_as == "succeeded"


def _outcome(ask: Ask, outcome: str) -> str:
    if outcome == "cancelled":
        return "cancelled"
    if outcome == "timed out":
        return "timed_out"
    return "succeeded" if ask.fate in ("", "cancelled", "time_limit") else "failed"


def _give_back(live: SimulatedAttempt, node: int, now: float) -> None:
    """Release one GPU of a node: that of the youngest piece, but not of the attempt's first."""
    for piece in reversed(live.pieces):
        if piece.node == node and piece.until is None and piece.gpus == 1 and piece is not live.pieces[0]:
            piece.asked_back, piece.until = now, now + RELEASE_SECONDS
            return
    raise ValueError(f"Nothing can be released on node {node}.")


def _own(placement: Placement) -> dict[int, int]:
    return {int(node): gpus for node, gpus in placement.items() if gpus}
