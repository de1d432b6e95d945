"""Tiers around any policy: premium before standard before basic, and spare GPUs for preemptible jobs.

The jobs are divided into layers. The policy decides each layer as if those below did not exist; only what it leaves
free goes to the next one. A layer with too few GPUs to start a job takes them from the layers below: first what
elastic jobs have above their minimum, then whole jobs that can restart from a checkpoint, those that lose the least
work first. No job is disturbed while the GPUs that are free, or being released, suffice.

No job waits for ever: of the jobs that have waited longer than the patience of the lab, the one that came first forms a
layer above all others. GPUs are kept for it as they become free, and once it runs it is not stopped again before it has
run for as long as that patience.

The lowest layer is *spare*: opportunistic jobs, and the jobs of owners beyond a soft limit. Tiers follow Singularity
(Shukla et al. 2022), spare capacity follows BFTrainer (Liu et al. 2021); the rules of both are reconstructions.
"""

from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from math import inf
from typing import Any, ClassVar

from scheduling import damping
from scheduling.gpu_requests import fit_on_machine, machines_of_several_kinds, may_use_whole_machine
from scheduling.messages import Message
from scheduling.toolkit import reasons, resources
from scheduling.toolkit.capacity import Capacity
from scheduling.toolkit.resources import Amount
from scheduling.types import Account, Job, JobId, Limit, Node, NodeId, Placement, Plan, Policy, Snapshot

LAYERS = ("patient", "premium", "standard", "basic", "spare")
MAIN_LAYER = "standard"
"""The layer whose state is stored as the policy's own; the states of the others are stored under ``OTHER_LAYERS_KEY``."""
OTHER_LAYERS_KEY = "other layers"


def plan(policy: Policy, snapshot: Snapshot) -> Plan:
    """Return the plan for all layers together. With one layer it is the policy's own plan, unchanged."""
    snapshot = _protect_overdue_jobs(snapshot)
    layer_of = layer_by_job(snapshot)
    soft = any(limit.soft for limit in snapshot.limits)
    snapshot = damping.protect_young_jobs(snapshot)
    if len(set(layer_of.values())) <= 1 and not soft:
        return _decide_again_when_overdue(policy.plan(snapshot), snapshot)
    layered = _LayeredPlan(snapshot, layer_of)
    for name in LAYERS:
        if name == "patient" and name in layer_of.values():
            layered.decide_patient_layer()
        elif any(layer == name for layer in layer_of.values()):
            layered.decide_layer(policy, name)
    return _decide_again_when_overdue(layered.result(), snapshot)


def _decide_again_when_overdue(plan: Plan, snapshot: Snapshot) -> Plan:
    """Set ``again_at`` to the moment when the patience of the next job ends."""
    if snapshot.patience_seconds == inf:
        return plan
    ends = (job.submitted_at + job.run_seconds + snapshot.patience_seconds for job in snapshot.jobs if job.waiting)
    again_at = min((at for at in ends if at >= snapshot.now), default=None)
    if again_at is None or (plan.again_at is not None and plan.again_at <= again_at):
        return plan
    return replace(plan, again_at=again_at + 1)


def _waiting_seconds(job: Job, now: float) -> float:
    return now - job.submitted_at - job.run_seconds


def _most_overdue_job(snapshot: Snapshot) -> Job | None:
    """Return the first job that has waited longer than the lab's patience and could start if it were alone."""
    if snapshot.patience_seconds == inf:
        return None
    late = [
        job
        for job in snapshot.jobs
        if job.waiting and not job.opportunistic and _waiting_seconds(job, snapshot.now) > snapshot.patience_seconds
    ]
    if not late:
        return None
    capacity = Capacity(snapshot)
    able = (job for job in late if _could_start_alone(job, capacity, snapshot) and not reasons.limited(job, capacity))
    return min(able, key=lambda job: (job.submitted_at, job.id), default=None)


def _could_start_alone(job: Job, capacity: Capacity, snapshot: Snapshot) -> bool:
    return not reasons.impossible(job, capacity) or may_use_whole_machine(job, snapshot)


def _protect_overdue_jobs(snapshot: Snapshot) -> Snapshot:
    """Mark jobs that started overdue as not preemptible until they have run for as long as the patience."""
    patience, now = snapshot.patience_seconds, snapshot.now
    if patience == inf:
        return snapshot
    late = {
        job.id
        for job in snapshot.jobs
        if job.running
        and job.preemptible
        and _waiting_seconds(job, now) > patience
        and now - (job.started_at if job.started_at is not None else now) < patience
    }
    if not late:
        return snapshot
    jobs = tuple(replace(job, preemptible=False) if job.id in late else job for job in snapshot.jobs)
    return replace(snapshot, jobs=jobs)


@dataclass(frozen=True)
class _SingleJobPolicy:
    """A minimal policy for a layer of one job: it starts every job that fits."""

    title: ClassVar[str] = ""
    explanation: ClassVar[str] = ""

    def plan(self, snapshot: Snapshot) -> Plan:
        capacity, why = Capacity(snapshot), {}
        for job in snapshot.jobs:
            if not job.waiting:
                continue
            where = capacity.best_fit(job, job.asked)
            if where is None and may_use_whole_machine(job, snapshot):
                where = fit_on_machine(job, capacity, machines_of_several_kinds(snapshot))
            if where:
                capacity.give(job, where)
            else:
                why[job.id] = reasons.shortage(job, capacity, 0)
        return Plan(capacity.held, why)


@dataclass(frozen=True)
class Overdue(Message):
    """It has waited longer than the lab's patience: GPUs are kept for it."""

    code: ClassVar[str] = "overdue"
    patience: int


@dataclass(frozen=True)
class BehindTier(Message):
    """Jobs of a higher tier wait, under a policy that starts jobs strictly in order."""

    code: ClassVar[str] = "behind_tier"
    tier: str


def layer_by_job(snapshot: Snapshot) -> dict[JobId, str]:
    """Return the layer of each job, one of ``LAYERS``."""
    found: dict[JobId, str] = {job.id: "spare" if job.opportunistic else job.tier for job in snapshot.jobs}
    if patient := _most_overdue_job(snapshot):
        found[patient.id] = "patient"
    soft = [limit for limit in snapshot.limits if limit.soft]
    known = {job.id: job for job in snapshot.jobs} if soft else {}
    for limit in soft:
        left = limit.max_gpus
        for job in sorted(
            (known[id] for id in limit.jobs if id in known), key=lambda job: (not job.now_on, job.queue_key)
        ):
            minimum = job.gpus if job.running and not job.elastic else job.min_gpus
            if minimum <= left or not (job.preemptible or job.elastic):
                left -= minimum
            else:
                found[job.id] = "spare"
    return found


@dataclass
class _LayeredPlan:
    """The GPUs that remain for the next layer, and the plans of the layers so far."""

    snapshot: Snapshot
    layer_of: Mapping[JobId, str]

    def __post_init__(self) -> None:
        self.free = {node.id: node.free for node in self.snapshot.nodes}
        self.leaving = {node.id: node.leaving for node in self.snapshot.nodes}
        self.kept = Counter({node.id: node.kept for node in self.snapshot.nodes if node.kept})
        self.nodes = {node.id: node for node in self.snapshot.nodes}
        self.counts_resources = resources.matter(self.snapshot)
        """Whether processors and memory count; ``extra`` and ``leaving_extra`` change with them only."""
        self.extra = {id: resources.extra_of(node) for id, node in self.nodes.items()}
        self.soon_extra = {id: resources.extra_of(node, coming=True) for id, node in self.nodes.items()}
        self.jobs = {job.id: job for job in self.snapshot.jobs}
        self.held = {job.id: job.gpus if job.running else 0 for job in self.snapshot.jobs}
        self.gone: set[JobId] = set()
        self.target: dict[JobId, Placement] = {job.id: job.now_on for job in self.snapshot.jobs if job.running}
        self.reasons: dict[JobId, Message] = {}
        self.batches: dict[JobId, int] = {}
        self.states: dict[str, Mapping[str, Any]] = {}
        self.again_at: list[float] = []
        self.blocking_layer: str = ""

    def result(self) -> Plan:
        state = dict(self.states.pop(MAIN_LAYER, {}))
        if others := {name: dict(kept) for name, kept in self.states.items() if kept}:
            state[OTHER_LAYERS_KEY] = others
        target = {job: where for job, where in self.target.items() if where}
        again_at = min(self.again_at, default=None)
        kept = {id: more for id, node in self.nodes.items() if (more := self.kept[id] - node.kept) > 0}
        return Plan(target, self.reasons, state, self.batches, again_at, kept)

    def decide_layer(self, policy: Policy, name: str) -> dict[JobId, Placement]:
        """Decide one layer and take what it needs from those below; return the GPUs that its waiting jobs will start on."""
        view = self._layer_snapshot(name, self.free, self.leaving)
        meant: dict[JobId, Placement] = {}
        done = self._plan_preemptible_only(policy, view) if self.blocking_layer else policy.plan(view)
        if done.reasons and not self.blocking_layer:
            meant, lacking = self._required_gpus(policy, name)
            if self._take_from_lower_layers(lacking, name):
                view = self._layer_snapshot(name, self.free, self.leaving)
                done = policy.plan(view)
        self._adopt_plan(name, done, meant)
        if getattr(policy, "strict", False) and self._has_queue(view, done):
            self.blocking_layer = name
        return meant

    def decide_patient_layer(self) -> None:
        """Decide the layer of the overdue job: GPUs that it lacks are kept for it as they become free."""
        meant = self.decide_layer(_SingleJobPolicy(), "patient")
        job = self._patient_job()
        if self.target.get(job.id) or meant:
            return
        nodes = [node for node in self.snapshot.nodes if node.open and (job.nodes is None or node.id in job.nodes)]
        totals = {node.id: resources.gpus_when_empty(node, job) for node in nodes}
        missing = job.min_gpus
        for node in self._nodes_to_keep_on(job, totals):
            take = min(missing, totals[node])
            at_once = min(take, max(0, self.free[node]))
            self.free[node] -= at_once
            self.kept[node] += at_once
            self.leaving[node] -= min(take - at_once, max(0, self.leaving[node]))
            missing -= take
            self._take_extra(job, {node: take})
        self.reasons[job.id] = Overdue(reasons.rounded_seconds(self.snapshot.patience_seconds))

    def _nodes_to_keep_on(self, job: Job, totals: Mapping[NodeId, int]) -> list[NodeId]:
        """Return the nodes on which GPUs are kept for the overdue job, those with the most free first.

        ``totals`` has the GPUs that it could take on each of its nodes if it were alone there.
        """
        soon = {node: self.free[node] + self.leaving[node] for node in totals}
        fullest = sorted(totals, key=lambda node: (-soon[node], node))
        if job.spread:
            return fullest
        if alone := next((node for node in fullest if totals[node] >= job.min_gpus), None):
            return [alone]
        machines = [
            [node.id for node in nodes if node.id in totals] for nodes in machines_of_several_kinds(self.snapshot)
        ]
        enough = [nodes for nodes in machines if sum(totals[node] for node in nodes) >= job.min_gpus]
        chosen = max(enough, key=lambda nodes: sum(soon[node] for node in nodes), default=[])
        return [node for node in fullest if node in chosen]

    def _layer_snapshot(
        self,
        name: str,
        free: Mapping[NodeId, int],
        leaving: Mapping[NodeId, int],
        extra: Mapping[NodeId, Amount] | None = None,
    ) -> Snapshot:
        """Return the snapshot of one layer: its own jobs, and the GPUs that no job above it holds or waits for.

        ``extra`` is what is free in addition to the shares of ``free``, if it is not what is so now.
        """
        jobs = tuple(job for id, job in self.jobs.items() if self.layer_of[id] == name and id not in self.gone)
        gpus = {job.id: job.gpus for job in jobs}
        states = self.snapshot.state
        state = (
            states.get(OTHER_LAYERS_KEY, {}).get(name, {})
            if name != MAIN_LAYER
            else {k: v for k, v in states.items() if k != OTHER_LAYERS_KEY}
        )
        nodes = tuple(
            replace(node, free=max(0, free[node.id]), leaving=max(0, leaving[node.id]), kept=self.kept[node.id])
            for node in self.snapshot.nodes
        )
        if self.counts_resources:
            nodes = tuple(self._with_extra(node, extra) for node in nodes)
        return replace(
            self.snapshot,
            nodes=nodes,
            jobs=jobs,
            limits=tuple(self._limit_of_layer(limit, gpus.keys()) for limit in self.snapshot.limits if not limit.soft),
            state=state,
            accounts=tuple(self._account_of_layer(account, gpus) for account in self.snapshot.accounts),
        )

    def _with_extra(self, node: Node, extra: Mapping[NodeId, Amount] | None) -> Node:
        if extra is not None:
            return resources.with_extra(node, extra[node.id])
        now, soon = self.extra[node.id], self.soon_extra[node.id]
        return resources.with_more(resources.with_extra(node, now), leaving=soon.plus(now, -1))

    def _take_extra(self, job: Job, where: Placement, *, at_once: bool = True, times: int = 1) -> None:
        """Count what the job needs with these GPUs in addition to their shares; ``at_once`` or when they are released."""
        for node, gpus in where.items() if self.counts_resources and job.has_demands else ():
            if node in self.nodes:
                each = resources.beyond_share(job, self.nodes[node])
                self.soon_extra[node] = self.soon_extra[node].plus(each, -times * gpus)
                if at_once:
                    self.extra[node] = self.extra[node].plus(each, -times * gpus)

    def _account_of_layer(self, account: Account, gpus: Mapping[JobId, int]) -> Account:
        """Return the account with the GPUs that its jobs hold in addition to ``gpus``; only reasons use them."""
        if not self.snapshot.explain:
            return account
        return replace(account, elsewhere=sum(self.held.get(id, 0) - gpus.get(id, 0) for id in account.jobs))

    def _limit_of_layer(self, limit: Limit, here: Set[JobId]) -> Limit:
        """Count GPUs of jobs in other layers as used, also those that jobs were just asked to release, until they are free."""
        elsewhere = leaving = 0
        for id in limit.jobs & self.jobs.keys():
            if id in here:
                leaving += self.held[id] - self.jobs[id].gpus
            else:
                elsewhere += max(self.held[id], sum(self.target.get(id, {}).values()))
        return replace(
            limit, jobs=limit.jobs & here, leaving=limit.leaving + leaving, elsewhere=limit.elsewhere + elsewhere
        )

    def _required_gpus(self, policy: Policy, name: str) -> tuple[dict[JobId, Placement], "Counter[NodeId]"]:
        """Return the GPUs that its waiting jobs will start on, and by node those that lower layers must release first."""
        soon = {node: self.free[node] + self.leaving[node] for node in self.free}
        nothing = dict.fromkeys(soon, 0)
        patient = policy.plan(self._layer_snapshot(name, soon, nothing, self.soon_extra))
        spare, extra = self._obtainable_gpus(name)
        everything = {node: soon[node] + spare[node] for node in soon}
        greedy = policy.plan(self._layer_snapshot(name, everything, nothing, extra)) if any(spare.values()) else patient
        meant: dict[JobId, Placement] = {}
        in_time: Counter[NodeId] = Counter()
        more: Counter[NodeId] = Counter()
        for id, job in self.jobs.items():
            if self.layer_of[id] != name or not job.waiting:
                continue
            if where := patient.target.get(id):
                in_time.update(where)
            elif where := greedy.target.get(id):
                more.update(where)
            if where:
                meant[id] = where
        lacking = Counter({node: need - max(0, soon[node] - in_time[node]) for node, need in more.items()})
        if self.counts_resources:
            for node in more:
                lacking[node] = max(lacking[node], self._gpus_with_lacking_shares(node, soon[node], meant))
        return meant, +lacking

    def _gpus_with_lacking_shares(self, node: NodeId, free: int, meant: Mapping[JobId, Placement]) -> int:
        """Return the GPUs of a node whose shares of processors and memory its jobs lack, as if their GPUs were free."""
        counts = {id: where.get(node, 0) for id, where in meant.items()}
        beyond = resources.NOTHING
        for id, gpus in counts.items():
            beyond = beyond.plus(resources.beyond_share(self.jobs[id], self.nodes[node]), gpus)
        lacks = [0]
        for share, taken, extra in zip(
            resources.share_of(self.nodes[node]), beyond, self.soon_extra[node], strict=True
        ):
            missing = taken - extra + (sum(counts.values()) - max(0, free)) * share
            lacks.append(-(-missing // share) if share else 0)
        return max(lacks)

    def _patient_job(self) -> Job:
        """Return the job of the layer ``patient``."""
        return next(job for id, job in self.jobs.items() if self.layer_of[id] == "patient")

    def _running_jobs_below(self, name: str) -> list[Job]:
        lower = LAYERS[LAYERS.index(name) + 1 :]
        if name == "patient":  # it does not come before premium jobs that run, unless it is one
            lower = lower if self._patient_job().tier == "premium" else lower[1:]
        return [
            job for id, job in self.jobs.items() if self.layer_of[id] in lower and job.running and id not in self.gone
        ]

    def _obtainable_gpus(self, name: str) -> "tuple[Counter[NodeId], dict[NodeId, Amount]]":
        """Return the GPUs that lower layers can release, and what would then be free in addition to the shares of all."""
        found: Counter[NodeId] = Counter()
        extra = dict(self.soon_extra)
        for job in self._running_jobs_below(name):
            where = job.now_on if job.preemptible else _spare_gpus(job)
            found.update(where)
            for node in where.keys() & self.nodes.keys() if job.has_demands else ():
                extra[node] = extra[node].plus(resources.beyond_share(job, self.nodes[node]), where[node])
        return found, extra

    def _take_from_lower_layers(self, need: "Counter[NodeId]", name: str) -> bool:
        """Shrink and stop jobs of lower layers until each node has what is needed; return whether any job gave GPUs."""
        gave = False
        order = sorted(
            self._running_jobs_below(name),
            key=lambda job: (-LAYERS.index(self.layer_of[job.id]), job.lost_gpu_seconds_if_stopped, job.id),
        )
        for job in order:
            give = {node: min(gpus, need[node]) for node, gpus in _spare_gpus(job).items() if need[node] > 0}
            if give:
                self._release(job, give)
                need -= Counter(give)
                gave = True
        for job in order:
            held = self.jobs[job.id].now_on
            if job.preemptible and any(need[node] > 0 for node in held):
                self._release(self.jobs[job.id], held)
                need -= Counter(held)
                gave = True
        return gave

    def _release(self, job: Job, give: Placement) -> None:
        left = {node: gpus - give.get(node, 0) for node, gpus in job.now_on.items()}
        left = {node: gpus for node, gpus in left.items() if gpus}
        self._take_extra(job, give, at_once=False, times=-1)
        for node, gpus in give.items():
            self.leaving[node] += gpus
        self.target[job.id] = left
        self.jobs[job.id] = replace(job, now_on=left)
        if not left:
            self.gone.add(job.id)

    def _adopt_plan(self, name: str, done: Plan, meant: Mapping[JobId, Placement]) -> None:
        """Adopt the plan of a layer; layers below do not get what its waiting jobs will start on."""
        given: Counter[NodeId] = Counter()
        for id, job in self.jobs.items():
            if self.layer_of[id] != name or id in self.gone:
                continue
            where = done.target.get(id, {})
            self.target[id] = where
            more = {node: gpus - job.now_on.get(node, 0) for node, gpus in where.items()}
            more = {node: gpus for node, gpus in more.items() if gpus > 0}
            given.update(more)
            self._take_extra(job, more)
            if not where and job.waiting and id in done.reasons:
                self.reasons[id] = done.reasons[id]
        promised: Counter[NodeId] = Counter()
        for id, where in meant.items():
            if done.target.get(id):
                continue  # it starts
            promised.update(where)
            self._take_extra(self.jobs[id], where)
            missing = sum(max(0, gpus - max(0, self.free[node])) for node, gpus in where.items())
            if id in self.reasons and missing:
                self.reasons[id] = reasons.Promised(missing)
        for node in self.free:
            held_back = max(0, promised[node] - given[node])
            self.free[node] -= given[node]
            at_once = min(max(self.free[node], 0), max(held_back, done.kept.get(node, 0)))
            self.free[node] -= at_once
            self.kept[node] += at_once
            self.leaving[node] -= min(max(self.leaving[node], 0), max(0, held_back - at_once))
        self.batches.update(done.batches)
        self.states[name] = done.state
        if done.again_at is not None:
            self.again_at.append(done.again_at)

    def _plan_preemptible_only(self, policy: Policy, view: Snapshot) -> Plan:
        """Decide a layer while jobs of a higher layer wait in strict order: only jobs that can be stopped start.

        An elastic job that cannot be stopped never releases its minimum.
        """
        held = [job for job in view.jobs if job.waiting and not job.preemptible]
        others = tuple(job for job in view.jobs if not job.waiting or job.preemptible)
        done = policy.plan(replace(view, jobs=others))
        capacity = Capacity(view)
        behind = BehindTier(self.blocking_layer)
        why = {job.id: reasons.impossible(job, capacity) or reasons.limited(job, capacity) or behind for job in held}
        return replace(done, reasons={**done.reasons, **why})

    def _has_queue(self, view: Snapshot, done: Plan) -> bool:
        """Whether any of its jobs waits for GPUs that others hold, and not for a reason that concerns only itself."""
        capacity = Capacity(view)
        return any(
            job.waiting
            and job.id in done.reasons
            and not (reasons.impossible(job, capacity) or reasons.limited(job, capacity))
            for job in view.jobs
        )


def _spare_gpus(job: Job) -> dict[NodeId, int]:
    """Return the GPUs that an elastic job can release without a restart, by node."""
    if not job.elastic:
        return {}
    above = job.gpus - job.min_gpus
    found: dict[NodeId, int] = {}
    for node, gpus in sorted(job.now_on.items()):
        outside = min(above, gpus - job.base.get(node, 0))
        if outside > 0:
            found[node] = outside
            above -= outside
    return found
