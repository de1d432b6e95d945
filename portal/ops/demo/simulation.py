"""What ran where and when: the month decided by the project's own policies, in the project's own simulator. Pure.

Three policies follow each other, as an admin switched them. ``simulate_month`` simulates the month and some hours beyond,
so that the remaining time of jobs that run at its end is known; nothing after the end is recorded.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from portal.ops.demo.workload import DAY, DAYS, HOUR, JobRequest, LabSize
from scheduling import registry
from scheduling.messages import Message
from scheduling.reservations import plan_with_reservations
from scheduling.simulate import Loss, Options, Submission, accounts_of, lasts, linear, simulate
from scheduling.types import Job, Node, Placement, Plan, Policy, Reservation, Snapshot

END = DAYS * DAY
OVERRUN_SECONDS = 12 * HOUR
"""How long the simulation continues after the end of the month."""
BOOKED_AHEAD_SECONDS = 40 * HOUR
"""How long before its start a reservation is made."""
MAX_DECISION_INTERVAL_SECONDS = 900.0
"""The maximum time between two decisions of a policy."""
QUIET_SECONDS = 30.0
"""Nothing is decided so shortly before the end of the month, so that no GPU is between two jobs then."""
RELEASE_SECONDS = 10.0
"""From the request for GPUs until they are free."""
SPEEDUP_EXPONENT = 0.9
"""n GPUs are n ** SPEEDUP_EXPONENT times as fast."""
POLICY_SWITCHES: tuple[tuple[float, str, Mapping[str, Any]], ...] = (
    (0.0, "fifo", {}),
    (9.42 * DAY, "elastic_fifo", {}),
    (20.6 * DAY, "fair_share", {"half_life_days": 7.0}),
)
"""(Since when, in seconds from the start; the policy that decides then; its parameters)."""
LOST_AT, BACK_AT = 16.45 * DAY, 16.45 * DAY + 3.2 * HOUR
"""When the last node was lost, and when it came back."""


@dataclass(slots=True)
class GpuHolding:
    """GPUs of one node that an attempt held from one change to the next: those of one container, or of the first."""

    node: int
    """The number of the node's part (``LabSize.parts``)."""
    gpus: int
    since: float
    release_requested: float | None = None
    until: float | None = None
    """None if the attempt holds them at the end of the month."""


@dataclass(slots=True)
class SimulatedAttempt:
    """An attempt. ``ended`` is None for one that runs at the end of the month."""

    placed: float
    policy: int
    """Which of ``POLICY_SWITCHES`` was in force."""
    placement: dict[int, int]
    holdings: list[GpuHolding]
    resizes: list[tuple[float, int, int]] = field(default_factory=list)
    ended: float | None = None
    ended_as: str = ""
    stopped_at: float | None = None
    """When its stop was requested, for one that was preempted or cancelled."""

    @property
    def gpus(self) -> int:
        return sum(self.placement.values())


@dataclass(slots=True)
class DemoJob:
    """One job, from its submission to the end of the month."""

    request: JobRequest
    startup_seconds: float
    """Seconds from its placement to its first line of output."""
    attempts: list[SimulatedAttempt] = field(default_factory=list)
    finished: float | None = None
    status: str = "QUEUED"
    reason: Message | None = None
    """Why it waits at the end of the month."""
    remaining_seconds: float = 0.0
    """How long a job that runs at the end of the month continues. At most three quarters of an hour, so that visitors
    see something change."""


class SwitchingPolicy:
    """Several policies one after the other; each begins without the state of the one before."""

    title: ClassVar[str] = "The policies of the demo's month"
    explanation: ClassVar[str] = ""

    def __init__(self, reservations: Sequence[Reservation]) -> None:
        self._policies: list[Policy] = [registry.build(key, params) for _, key, params in POLICY_SWITCHES]
        self._reservations = reservations

    def plan(self, snapshot: Snapshot) -> Plan:
        now, place = snapshot.now, policy_index_at(snapshot.now)
        state: Mapping[str, Any] = snapshot.state["state"] if snapshot.state.get("place") == place else {}
        known = tuple(each for each in self._reservations if each.start - BOOKED_AHEAD_SECONDS <= now < each.end)
        view = replace(snapshot, state=state, reservations=known)
        plan = plan_with_reservations(self._policies[place].plan, view)
        edges = [edge for each in self._reservations for edge in (each.start, each.end) if edge > now]
        again_at = min(
            [*edges, *([] if plan.again_at is None else [plan.again_at]), now + MAX_DECISION_INTERVAL_SECONDS]
        )
        return Plan(plan.target, plan.reasons, {"place": place, "state": plan.state}, plan.batches, again_at)


def policy_index_at(at: float) -> int:
    """Return the index in ``POLICY_SWITCHES`` of the policy that decides at that time."""
    return max(place for place, (since, _, _) in enumerate(POLICY_SWITCHES) if since <= at)


def simulate_month(
    requests: Sequence[JobRequest],
    size: LabSize,
    groups: Mapping[str, str],
    weights: Mapping[str, float],
    reservations: Sequence[Reservation] = (),
) -> list[DemoJob]:
    """Return all jobs with their attempts, in the order of submission.

    ``groups`` names the group of each person, ``weights`` has the share of each group. Nodes of reservations are
    numbers from 0, their times seconds since the start.
    """
    demo_jobs = {str(request.number): DemoJob(request, 14.0 + request.number * 7 % 41) for request in requests}
    submissions = [_submission(demo_job, groups) for demo_job in demo_jobs.values()]
    parted = {part.node for number, part in enumerate(size.parts) if number != part.node}
    nodes = [
        Node(
            str(number), f"demo-{part.node + 1}", part.gpus, part.gpus, kind=part.model.name,
            gpu_memory_mib=part.model.memory_mib, part_of=f"demo-{part.node + 1}" if part.node in parted else "",
        )
        for number, part in enumerate(size.parts)
    ]  # fmt: skip
    losses = [Loss(str(size.nodes - 1), LOST_AT, BACK_AT)] if size.nodes > 1 else []
    recorder = _Recorder(demo_jobs, losses)
    result = simulate(
        SwitchingPolicy(reservations),
        nodes,
        submissions,
        accounts=accounts_of(submissions, {f"group {name}": weight for name, weight in weights.items()}),
        options=Options(
            release_seconds=RELEASE_SECONDS,
            losses=losses,
            until=END + OVERRUN_SECONDS,
            window_seconds=20.0,
            used_days=30,
        ),
        on_turn=recorder.record_plan,
    )
    for row in result.jobs:
        recorder.record_end(demo_jobs[row.id], row.ended_at, row.outcome)
    return list(demo_jobs.values())


def _submission(demo_job: DemoJob, groups: Mapping[str, str]) -> Submission:
    request = demo_job.request
    pattern, curve = request.pattern, linear(request.max_gpus, SPEEDUP_EXPONENT)
    return Submission(
        Job(
            id=str(request.number),
            owner=request.owner,
            submitted_at=request.submitted,
            min_gpus=request.min_gpus,
            max_gpus=request.max_gpus,
            priority=request.priority,
            elastic=pattern.elastic,
            spread=request.spread,
            preemptible=pattern.resumable,
            group=f"group {groups[request.owner]}",
            script=pattern.project,
            deadline=request.deadline,
            gpu_request=request.gpu_request,
            longest_seconds=float(request.limit_seconds),
        ),
        lasts(request.seconds, request.min_gpus, curve, knowledge="none"),
        start_seconds=demo_job.startup_seconds,
        end_seconds=2.0,
        cancelled_at=request.cancelled,
        checkpoint_seconds=None if pattern.resumable else float("inf"),
    )


class _Recorder:
    """Makes attempts from what the policies see and plan."""

    def __init__(self, demo_jobs: Mapping[str, DemoJob], losses: Sequence[Loss]) -> None:
        self.demo_jobs, self.losses = demo_jobs, losses

    def record_plan(self, snapshot: Snapshot, plan: Plan) -> None:
        now = snapshot.now
        if now > END - QUIET_SECONDS:
            return
        for job in snapshot.jobs:
            demo_job = self.demo_jobs[job.id]
            live = demo_job.attempts[-1] if demo_job.attempts and demo_job.attempts[-1].ended is None else None
            if live is not None and live.stopped_at is None and _by_node_number(job.now_on) != live.placement:
                self._record_loss(live, _by_node_number(job.now_on))
                live = live if live.ended is None else None
            target = _by_node_number(plan.target.get(job.id, {}))
            if target == _by_node_number(job.now_on):
                pass
            elif not target and live is not None:
                self._record_stop(live, now, "preempted")
            elif live is None:
                demo_job.attempts.append(
                    SimulatedAttempt(now, policy_index_at(now), target, _first_holdings(demo_job.request, target, now))
                )
            else:
                self._record_resize(live, target, now)
            demo_job.reason = None if target else plan.reasons.get(job.id)

    def _record_loss(self, live: SimulatedAttempt, left: dict[int, int]) -> None:
        at = max(loss.at for loss in self.losses)
        gone = {int(loss.node) for loss in self.losses}
        for holding in live.holdings:
            if holding.until is None and holding.node in gone:
                holding.until = at
        if left:
            live.resizes.append((at, live.gpus, sum(left.values())))
            live.placement = left
            return
        for holding in live.holdings:
            if holding.until is None:
                live.stopped_at = at
                holding.release_requested, holding.until = at, at + RELEASE_SECONDS
        live.ended, live.ended_as = max(holding.until or at for holding in live.holdings), "lost"

    def _record_stop(self, live: SimulatedAttempt, now: float, outcome: str) -> None:
        live.stopped_at, live.ended_as = now, outcome
        for holding in live.holdings:
            if holding.until is None:
                holding.release_requested, holding.until = now, now + RELEASE_SECONDS
        live.ended = now + RELEASE_SECONDS

    def _record_resize(self, live: SimulatedAttempt, target: dict[int, int], now: float) -> None:
        live.resizes.append((now, live.gpus, sum(target.values())))
        for node in {*target, *live.placement}:
            more = target.get(node, 0) - live.placement.get(node, 0)
            if more > 0:
                live.holdings.extend(GpuHolding(node, 1, now) for _ in range(more))
            for _ in range(-more):
                _release_gpu(live, node, now)
        live.placement = target

    def record_end(self, demo_job: DemoJob, ended_at: float | None, outcome: str) -> None:
        """Record what became of a job after the last decision that included it."""
        live = demo_job.attempts[-1] if demo_job.attempts and demo_job.attempts[-1].ended is None else None
        if ended_at is not None and ended_at <= END and (live is not None or outcome == "cancelled"):
            demo_job.finished = ended_at
            if live is not None:
                live.ended, live.ended_as = ended_at, _outcome(demo_job.request, outcome)
                if outcome != "ended":
                    live.stopped_at = ended_at - min(RELEASE_SECONDS, ended_at - live.placed)
                for holding in live.holdings:
                    holding.until = ended_at if holding.until is None else min(holding.until, ended_at)
            demo_job.status = (
                "CANCELLED" if outcome == "cancelled" else "SUCCEEDED" if _has_succeeded(demo_job) else "FAILED"
            )
        elif live is not None:
            demo_job.status = "RUNNING"
            left = (END + OVERRUN_SECONDS if ended_at is None else ended_at) - END
            demo_job.remaining_seconds = max(90.0, min(left, 240.0 + demo_job.request.number * 397 % 2400))


def _first_holdings(request: JobRequest, target: Mapping[int, int], now: float) -> list[GpuHolding]:
    """Return pieces as ``run_specs.host_placements`` does: an elastic job has its base and a piece per further GPU."""
    most_first = sorted(target.items(), key=lambda item: (-item[1], str(item[0])))
    if not request.pattern.elastic:
        return [GpuHolding(node, gpus, now) for node, gpus in most_first]
    (home, here), *others = most_first
    base = min(request.min_gpus, here)
    singles = [(home, here - base), *others]
    return [GpuHolding(home, base, now), *(GpuHolding(node, 1, now) for node, count in singles for _ in range(count))]


def _has_succeeded(demo_job: DemoJob) -> bool:
    return bool(demo_job.attempts) and demo_job.attempts[-1].ended_as == "succeeded"


def _outcome(request: JobRequest, outcome: str) -> str:
    if outcome == "cancelled":
        return "cancelled"
    if outcome == "timed out":
        return "timed_out"
    return "succeeded" if request.fate in ("", "cancelled", "time_limit") else "failed"


def _release_gpu(live: SimulatedAttempt, node: int, now: float) -> None:
    """Release one GPU of a node: that of the youngest piece, but not of the attempt's first."""
    for holding in reversed(live.holdings):
        if holding.node == node and holding.until is None and holding.gpus == 1 and holding is not live.holdings[0]:
            holding.release_requested, holding.until = now, now + RELEASE_SECONDS
            return
    raise ValueError(f"Nothing can be released on node {node}.")


def _by_node_number(placement: Placement) -> dict[int, int]:
    return {int(node): gpus for node, gpus in placement.items() if gpus}
