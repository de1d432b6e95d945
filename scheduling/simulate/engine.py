"""A cluster with a virtual clock: the same policies, checks and rules for releasing GPUs as in the scheduler.

The scheduler decides every few seconds. Here nothing happens between two events, so the clock jumps: to the next
submission, end, release of a GPU, loss or return of a node, start or end of a reservation, or to the moment that the
policy asked for (``Plan.again_at``); a policy that lets jobs wait is asked at least every ``tick_seconds``. A cycle is
skipped when no plan could change anything: no job waits, and no running job may be resized or stopped.

With ``round_seconds``, decisions are made in rounds instead, as in the simulators of published policies: see
``rounds``.
"""

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from scheduling.check import violations
from scheduling.decide import decide
from scheduling.simulate.inputs import Interruption, Loss, Options, Submission
from scheduling.simulate.ledger import UsageLedger
from scheduling.simulate.live import SimulatedJob
from scheduling.simulate.result import JobResult, Outcome, Result
from scheduling.simulate.settle import InvalidPlanError
from scheduling.toolkit.job_updates import updated_job
from scheduling.toolkit.placement import minus, without_empty_nodes
from scheduling.toolkit.projected_state import base_of
from scheduling.toolkit.resources import NOTHING, Amount, beyond_share, extra_of
from scheduling.types import Account, Job, JobId, Limit, Node, NodeId, Placement, Plan, Policy, Reservation, Snapshot

IDLE_CYCLES = 300
"""After this many cycles in which nothing was under way, the waiting jobs would wait for ever."""
NEVER = float("inf")
MAX_TICK_SECONDS = 3600.0


class Engine:
    def __init__(
        self,
        policy: Policy,
        nodes: Iterable[Node],
        submissions: Iterable[Submission],
        *,
        now: float,
        limits: Iterable[Limit],
        accounts: Iterable[Account],
        reservations: Iterable[Reservation],
        options: Options,
        clock: Callable[[], float] | None,
        on_turn: Callable[[Snapshot, Plan], None] | None,
        on_progress: Callable[[float], None] | None,
    ) -> None:
        self.policy, self.options, self.clock = policy, options, clock
        self.on_turn, self.on_progress = on_turn, on_progress
        self.now = self.begun_at = now
        self.state: Mapping[str, Any] = options.state
        self.reservations = tuple(reservations)
        self.ledger = UsageLedger(now, limits, accounts, options.used_days)
        self.nodes: dict[NodeId, Node] = {}
        self.free: dict[NodeId, int] = {}
        self.leaving: dict[NodeId, int] = {}
        self.extra: dict[NodeId, Amount] = {}
        self.leaving_extra: dict[NodeId, Amount] = {}
        self.stale: set[NodeId] = set()
        self.jobs: dict[JobId, SimulatedJob] = {}
        self.events: list[tuple[float, int, int, str, Any]] = []
        self.count = 0
        self.results: list[JobResult] = []
        self.cycles = 0
        self.decision_ms: list[float] = []
        self.active_area = 0.0
        self.steps: list[tuple[float, int]] = []
        """The number of GPUs over time."""
        self.total = 0
        self.again_at = NEVER
        self.tick = options.tick_seconds
        for node in nodes:
            self.nodes[node.id] = node
            self.free[node.id], self.leaving[node.id] = node.total - node.leaving, node.leaving
            self.leaving_extra[node.id] = extra_of(node, coming=True).plus(extra_of(node), -1)
            self.extra[node.id] = NOTHING.plus(self.leaving_extra[node.id], -1)
            if node.leaving:
                self.push_event(now + options.release_seconds, "release", (None, {node.id: node.leaving}))
            self.stale.add(node.id)
        self.kinds = {node.id: node.kind for node in self.nodes.values()}
        self._record_capacity()
        for submission in submissions:
            self.total += 1
            self.push_event(max(now, submission.job.submitted_at), "come", submission)
        for loss in options.losses:
            self.push_event(loss.at, "loss", loss)
        for reservation in self.reservations:
            for edge in (reservation.start, reservation.end):
                if edge > now:
                    self.push_event(edge, "look", None)

    # --- the clock

    ORDER = {"notice": 0, "end": 0, "release": 1, "loss": 2, "back": 3, "cancel": 4, "come": 5, "look": 6}

    def push_event(self, at: float, kind: str, about: Any) -> None:
        self.count += 1
        heapq.heappush(self.events, (at, self.ORDER[kind], self.count, kind, about))

    def run(self) -> None:
        until = NEVER if self.options.until is None else self.options.until
        idle, due = 0, NEVER
        while self.events or (self.jobs and idle < IDLE_CYCLES):
            at = min(self.events[0][0] if self.events else NEVER, self.again_at, due)
            if at > until or at == NEVER:
                break
            idle = 0 if self.events else idle + 1
            self.advance_clock(at)
            happened = False
            while self.events and self.events[0][0] <= at:
                _, _, _, kind, about = heapq.heappop(self.events)
                happened = self.process_event(kind, about) or happened
            if happened and due == NEVER:
                due = at + max(self.options.window_seconds, self.batching_seconds())
            if at >= due or at >= self.again_at:
                self.run_cycle(happened=due < NEVER)
                due = NEVER
        if until < NEVER:
            self.advance_clock(max(until, self.now))

    def advance_clock(self, at: float) -> None:
        self.active_area += len(self.jobs) * (at - self.now)
        self.now = at

    def process_event(self, kind: str, about: Any) -> bool:
        """Process an event; return whether the state has changed."""
        if kind == "come":
            self.submit(about)
        elif kind == "end":
            live, version, outcome = about
            if live.version != version:
                return False
            self.update(live)
            self.end_job(live, outcome)
        elif kind == "notice":
            live, version = about
            if live.version == version:
                self.update(live)
                self.schedule_end(live)
            return False
        elif kind == "release":
            live, where = about
            self.finish_release(live, where)
        elif kind == "cancel":
            if about.job.id not in self.jobs:
                return False
            self.update(about)
            self.end_job(about, "cancelled")
        elif kind == "loss":
            self.lose_node(about)
        elif kind == "back":
            self.nodes[about] = replace(self.nodes[about], open=True)
            self.stale.add(about)
            self._record_capacity()
        return True

    def batching_seconds(self) -> float:
        """Return how many seconds of events are decided together at this distance from the start."""
        options = self.options
        return min(options.max_window_seconds, options.window_part * (self.now - self.begun_at))

    # --- one cycle

    def run_cycle(self, *, happened: bool = True) -> None:
        """Decide and apply the plan. ``happened`` is false when only time has passed."""
        self.again_at = NEVER
        if not self.could_change():
            return
        snapshot = self.snapshot()
        plan = self.decide(snapshot)
        if wrong := violations(snapshot, plan):
            raise InvalidPlanError(wrong)
        changed = self.apply(snapshot, plan) or plan.state != self.state
        self.state = plan.state
        if plan.again_at is not None and plan.again_at > self.now:
            self.again_at = max(plan.again_at, self.now + self.batching_seconds())
        else:
            self.tick = self.options.tick_seconds if changed or happened else min(2 * self.tick, MAX_TICK_SECONDS)
            self.again_at = self.now + self.tick

    def could_change(self) -> bool:
        """Whether a job waits, or a running job may be resized or stopped."""
        for live in self.jobs.values():
            job = live.job
            if not job.stopping and (not job.now_on or job.elastic or job.preemptible):
                return True
        return False

    def decide(self, snapshot: Snapshot) -> Plan:
        self.cycles += 1
        began = self.clock() if self.clock else 0.0
        plan = decide(self.policy, snapshot)
        if self.clock:
            self.decision_ms.append((self.clock() - began) * 1000)
        if self.on_turn:
            self.on_turn(snapshot, plan)
        if self.on_progress and self.cycles % 100 == 0:
            self.on_progress(len(self.results) / self.total if self.total else 1.0)
        return plan

    def snapshot(self) -> Snapshot:
        jobs = []
        for live in self.jobs.values():
            if live.at != self.now and (live.job.now_on or live.leaving):
                self.update(live)
            if not live.fresh:
                live.refresh()
            jobs.append(live.job)
        for id in self.stale:
            node = self.nodes[id]
            self.nodes[id] = Node(
                id, node.name, node.total, self.free[id], self.leaving[id], node.open, node.kind, 0,
                node.millicpus_per_gpu, node.memory_mib_per_gpu, *self.extra[id], *self.leaving_extra[id],
                node.gpu_memory_mib, node.parts_of_gpus, node.part_of,
            )  # fmt: skip
        self.stale.clear()
        return Snapshot(
            self.now, tuple(self.nodes.values()), tuple(jobs), self.ledger.limits(), self.state,
            self.ledger.accounts(self.now), self.reservations, self.options.patience_seconds,
            self.options.damping_seconds, explain=self.on_turn is not None and self.options.explain,
        )  # fmt: skip

    def apply(self, snapshot: Snapshot, plan: Plan) -> bool:
        """Apply the plan; return whether that changed anything."""
        changed = False
        for job in snapshot.jobs:
            target = plan.target.get(job.id)
            if not target and not job.now_on:
                continue
            live = self.jobs[job.id]
            if target is not job.now_on and (target := without_empty_nodes(target or {})) != job.now_on:
                changed = True
                if not target:
                    self.stop(live)
                    continue
                if job.now_on:
                    self.resize(live, target)
                else:
                    self.start(live, target)
            self.choose_batch(live, plan.batches.get(job.id, 0))
        return changed

    # --- what happens to a job

    def submit(self, submission: Submission) -> None:
        job = submission.job
        run = submission.truth.begin(job, self.kinds)
        live = SimulatedJob(
            submission, job, run, self.now, self.active_area,
            run_seconds=job.run_seconds, served_before=job.served_gpu_seconds,
            trains_from=self.now, saved=run.save(), saved_at=self.now,
            attempts=job.restarts + 1 if job.now_on or job.first_started_at is not None else 0,
        )  # fmt: skip
        self.jobs[job.id] = live
        self.ledger.add_job(job)
        if submission.cancelled_at is not None:
            self.push_event(max(self.now, submission.cancelled_at), "cancel", live)
        if job.now_on:
            self.take_gpus(job, job.now_on)
            self.schedule_end(live)
        elif job.stopping:
            self.push_event(self.now + self.options.release_seconds, "release", (live, {}))
        live.fresh = False

    def start(self, live: SimulatedJob, target: Placement, *, movable: bool = False) -> None:
        job = live.job
        self.update(live)
        first = job.first_started_at is None
        live.attempts += 1
        live.trains_from = self.now + (live.submission.start_seconds if first else job.restart_seconds)
        live.saved, live.saved_at, live.since_saved = live.run.save(), live.trains_from, 0.0
        live.job = updated_job(
            job,
            now_on=target,
            base=base_of(job, target, movable=movable or live.submission.movable),
            started_at=self.now,
            since=self.now,
            first_started_at=self.now if first else job.first_started_at,
            restarts=live.attempts - 1,
        )
        live.fresh = False
        self.take_gpus(job, target)
        self.schedule_end(live)

    def stop(self, live: SimulatedJob, *, at_once: bool = False) -> None:
        """Take all GPUs of a job on behalf of the policy; they are free when the job has released them."""
        self.update(live)
        live.preemptions += 1
        self.halt_training(live, saves=True)
        self.release_gpus(live, live.job.now_on, at_once=at_once)
        live.job = updated_job(live.job, now_on={}, base={}, stopping=live.leaving > 0, since=self.now, started_at=None)

    def resize(self, live: SimulatedJob, target: Placement, *, at_once: bool = False) -> None:
        self.update(live)
        job = live.job
        live.resizes += 1
        moved = not any(node in target for node in job.now_on)
        more = minus(target, job.now_on)
        changing = live.submission.growing if more else live.submission.shrinking
        live.interrupt(self.now, Interruption(still_seconds=job.restart_seconds) if moved else changing)
        self.release_gpus(live, minus(job.now_on, target), at_once=at_once)
        self.take_gpus(job, more)
        live.job = updated_job(job, now_on=target, since=self.now)
        live.fresh = False
        self.schedule_end(live)

    def choose_batch(self, live: SimulatedJob, batch: int) -> None:
        if batch != live.chosen:
            self.update(live)
            live.chosen = batch
            live.fresh = False
            self.schedule_end(live)

    def halt_training(self, live: SimulatedJob, *, saves: bool) -> None:
        """Stop the training of a job. The work since its last checkpoint is lost, unless it saves now."""
        live.version += 1
        live.fresh = False
        live.before, live.trained_at = {}, None
        if saves and live.submission.checkpoint_seconds is None:
            return
        live.lost += live.since_saved
        live.since_saved = 0.0
        live.run.restore(live.saved)

    def finish_release(self, live: SimulatedJob | None, where: Placement) -> None:
        if live is not None:
            self.update(live)
            live.leaving -= sum(where.values())
            live.fresh = False
            self.ledger.add_leaving(live.job.id, -sum(where.values()))
            if live.job.stopping and not live.leaving:
                live.job = updated_job(live.job, stopping=False)
            self._add_extra(self.extra, live.job, where)
            self._add_extra(self.leaving_extra, live.job, where, -1)
        for node, gpus in where.items():
            self.leaving[node] -= gpus
            self.free[node] += gpus
            if live is None:  # GPUs that were leaving from the start
                self.extra[node] = self.extra[node].plus(self.leaving_extra[node])
                self.leaving_extra[node] = NOTHING
            self.stale.add(node)

    def lose_node(self, loss: Loss) -> None:
        node = loss.node
        self.nodes[node] = replace(self.nodes[node], open=False)
        self.stale.add(node)
        self._record_capacity()
        if loss.back_at is not None:
            self.push_event(loss.back_at, "back", node)
        for live in list(self.jobs.values()):
            here = live.job.now_on.get(node, 0)
            if not here:
                continue
            self.update(live)
            rest = {where: gpus for where, gpus in live.job.now_on.items() if where != node}
            self.free[node] += here
            self._add_extra(self.extra, live.job, {node: here})
            if live.job.elastic and rest and node not in live.job.base:
                live.interrupt(self.now, Interruption())
                live.job = updated_job(live.job, now_on=rest, since=self.now)
                live.fresh = False
                self.schedule_end(live)
                continue
            self.halt_training(live, saves=False)
            self.release_gpus(live, rest)
            live.job = updated_job(
                live.job, now_on={}, base={}, stopping=live.leaving > 0, since=self.now, started_at=None
            )

    def end_job(self, live: SimulatedJob, outcome: Outcome) -> None:
        job = live.job
        live.version += 1
        self._add_extra(self.extra, job, job.now_on)
        for node, gpus in job.now_on.items():
            self.free[node] += gpus
            self.stale.add(node)
        del self.jobs[job.id]
        self.ledger.remove_job(job.id)
        self.results.append(self.job_result(live, outcome))

    # --- facts

    def update(self, live: SimulatedJob) -> None:
        """Bring a job up to date: the GPU time that it held, trained and saved."""
        seconds = self.now - live.at
        if seconds <= 0:
            return
        job = live.job
        gpus = sum(job.now_on.values())
        billed = (gpus + live.leaving) * seconds
        if billed:
            live.served += billed
            live.run_seconds += seconds
            self.ledger.add_usage(job.id, live.at, seconds, job.share_factor * (gpus + live.leaving))
            live.paused += billed - (live.train(self.now) if gpus else 0.0)
            live.fresh = False
        live.at = self.now

    def schedule_end(self, live: SimulatedJob) -> None:
        """Schedule the end of a job if nothing changes."""
        live.version += 1
        job = live.job
        if live.before:
            self.push_event(live.notices_at, "notice", (live, live.version))
        ends = live.ends_at(self.now)
        outcome: Outcome = "ended"
        if job.longest_seconds is not None and job.started_at is not None:
            limit = max(self.now, job.started_at + job.longest_seconds)
            if limit < ends:
                ends, outcome = limit, "timed out"
        if ends < NEVER:
            self.push_event(ends, "end", (live, live.version, outcome))

    def take_gpus(self, job: Job, where: Placement) -> None:
        self._add_extra(self.extra, job, where, -1)
        for node, gpus in where.items():
            self.free[node] -= gpus
            self.stale.add(node)

    def release_gpus(self, live: SimulatedJob, where: Placement, *, at_once: bool = False) -> None:
        if not where:
            return
        if at_once:
            self._add_extra(self.extra, live.job, where)
            for node, gpus in where.items():
                self.free[node] += gpus
                self.stale.add(node)
            return
        count = sum(where.values())
        live.leaving += count
        live.fresh = False
        self.ledger.add_leaving(live.job.id, count)
        self._add_extra(self.leaving_extra, live.job, where)
        for node, gpus in where.items():
            self.leaving[node] += gpus
            self.stale.add(node)
        self.push_event(self.now + self.options.release_seconds, "release", (live, where))

    def _add_extra(self, amounts: dict[NodeId, Amount], job: Job, where: Placement, times: int = 1) -> None:
        """Count what the job takes on these GPUs in addition to their shares of processors and memory."""
        for node, gpus in where.items() if job.has_demands else ():
            amounts[node] = amounts[node].plus(beyond_share(job, self.nodes[node]), times * gpus)

    def _record_capacity(self) -> None:
        self.steps.append((self.now, sum(node.total for node in self.nodes.values() if node.open)))

    # --- the end

    def job_result(self, live: SimulatedJob, outcome: Outcome) -> JobResult:
        job = live.job
        return JobResult(
            id=job.id,
            owner=job.owner,
            group=job.group,
            submitted_at=job.submitted_at,
            first_started_at=job.first_started_at,
            ended_at=None if outcome == "unfinished" else self.now,
            outcome=outcome,
            gpu_seconds=live.served,
            useful_gpu_seconds=max(0.0, live.served - live.paused - live.lost),
            preemptions=live.preemptions,
            resizes=live.resizes,
            restarts=max(0, live.attempts - 1),
            alone_seconds=None if outcome in ("unfinished", "cancelled") else self.alone_seconds(live),
        )

    def alone_seconds(self, live: SimulatedJob) -> float:
        """Return the duration of the job on 1/N of the cluster, where N is the average number of jobs during its life."""
        job = live.submission.job
        lasted = self.now - live.job.submitted_at
        jobs = max(1.0, (self.active_area - live.active_area) / lasted) if lasted > 0 else 1.0
        share = max(1e-9, sum(node.total for node in self.nodes.values()) / jobs)
        gpus = max(job.min_gpus, min(job.max_gpus, int(share))) if job.elastic else job.asked
        return live.submission.truth.seconds_alone(job, gpus) * max(1.0, gpus / share)

    def result(self) -> Result:
        for live in list(self.jobs.values()):
            self.update(live)
            self.results.append(self.job_result(live, "unfinished"))
        order = {id: number for number, id in enumerate(sorted(job.id for job in self.results))}
        rows = sorted(self.results, key=lambda job: (job.submitted_at, order[job.id]))
        ends = [row.ended_at for row in rows if row.ended_at is not None]
        first = min((row.submitted_at for row in rows), default=self.begun_at)
        capacity = _integrate(self.steps, max(first, self.begun_at), max(ends, default=self.now))
        return Result(rows, self.begun_at, self.now, capacity, self.cycles, self.decision_ms)


def _integrate(steps: Sequence[tuple[float, int]], start: float, end: float) -> float:
    area = 0.0
    for (at, gpus), (after, _) in zip(steps, [*steps[1:], (end, 0)], strict=True):
        area += gpus * max(0.0, min(after, end) - max(at, start))
    return area
