"""Apply a plan to the database, checking each step again: what the policy saw may have changed since.

Locks are taken in one order, jobs before GPUs, each by id. A step is applied whole or dropped with its reason;
the next scheduling cycle decides again.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import ClassVar, Literal

from django.db import IntegrityError, transaction
from django.utils import timezone

from portal.cluster.models import Gpu, Node
from portal.cluster.pools import PoolId, model_of, node_of, pool_id
from portal.cluster.slots import are_cpu_slots
from portal.jobs import gpu_choice, lifecycle
from portal.jobs.events import DataIsThere, NodeShare
from portal.jobs.models import Allocation, Attempt, Container, ContainerState, Job, StopReason
from portal.scheduler import overlay_networks, run_specs
from portal.scheduler.availability import USABLE_GPU, is_open
from portal.scheduler.dataset_places import names_with_all_of
from portal.scheduler.events import Resized
from portal.scheduler.resource_use import fitting_gpus
from portal.scheduler.run_specs import ContainerPlacement
from portal.wake import wake_node
from runners.spec import RunSpec
from scheduling.messages import Message
from scheduling.share_factors import share_factor
from scheduling.types import Placement, Plan, Snapshot


@dataclass(frozen=True, slots=True)
class PlanStep:
    """What a plan changes for one job, as a difference to the snapshot that the policy saw."""

    job: int
    kind: Literal["stop", "start", "resize"]
    before: Placement
    add: Placement
    drop: Placement


@dataclass
class ApplyResult:
    started: list[int] = field(default_factory=list)
    resized: list[int] = field(default_factory=list)
    stopped: list[int] = field(default_factory=list)
    dropped: dict[int, Message] = field(default_factory=dict)
    """Why the step of a job was dropped."""


@dataclass(frozen=True)
class StepDropped(Message):
    """A step that does not fit the lab as it is by now."""

    code: ClassVar[str] = "step_dropped"
    why: str
    """A key of ``portal.sentences.reasons.DROPPED``."""
    node: str = ""
    count: int = 0


class PlanStaleError(Exception):
    """A step no longer fits the state of the lab."""

    def __init__(self, why: str, node: str = "", count: int = 0) -> None:
        super().__init__(why)
        self.dropped = StepDropped(why, node, count)


def plan_steps(snapshot: Snapshot, plan: Plan) -> list[PlanStep]:
    """Return the steps of a plan in the order in which they are applied: stops, then shrinking, starts, growing."""
    found = []
    for job in snapshot.jobs:
        wanted = plan.target.get(job.id, {})
        if wanted == job.now_on:
            continue  # true for most jobs of most plans
        target = {node: gpus for node, gpus in wanted.items() if gpus}
        add, drop = _difference(target, job.now_on), _difference(job.now_on, target)
        if job.stopping or not (add or drop):
            continue
        kind: Literal["stop", "start", "resize"] = "stop" if not target else "resize" if job.now_on else "start"
        found.append((job.queue_key, PlanStep(int(job.id), kind, job.now_on, add, drop)))
    # In queue order; check.violations has made sure that all steps are possible.
    return [step for _, step in sorted(found, key=lambda each: (_rank(each[1]), each[0]))]


def _rank(step: PlanStep) -> int:
    return {"stop": 0, "start": 2}.get(step.kind, 1 if step.drop else 3)


def _difference(one: Placement, other: Placement) -> dict[PoolId, int]:
    """Return the GPUs that ``one`` has of each pool beyond those of ``other``."""
    more = {node: gpus - other.get(node, 0) for node, gpus in one.items()}
    return {node: gpus for node, gpus in more.items() if gpus > 0}


def apply(snapshot: Snapshot, plan: Plan, policy: str, now: datetime | None = None) -> ApplyResult:
    """Apply the plan inside the caller's transaction. ``policy`` is the name to record, e.g. ``elastic_fifo v3``."""
    steps = plan_steps(snapshot, plan)
    done = ApplyResult()
    if not steps:
        return done
    applier = _PlanApplier(steps, policy, now or timezone.now())
    for step in steps:
        try:
            with transaction.atomic():
                applier.apply_step(step)
        except PlanStaleError as error:
            done.dropped[step.job] = error.dropped
        except lifecycle.JobChangedError:
            done.dropped[step.job] = StepDropped("no_longer_waits")
        except IntegrityError:
            # A unique index refused it: a process without the lock holds one of these GPUs or has started this job.
            done.dropped[step.job] = StepDropped("another_scheduler")
        else:
            {"start": done.started, "resize": done.resized, "stop": done.stopped}[step.kind].append(step.job)
            continue
        applier.reload_free_gpus()
    return done


def grow(job: Job, before: Placement, add: Placement, now: datetime) -> None:
    """Give a running job more GPUs, as a plan would, inside the caller's transaction.

    Raises PlanStaleError or JobChangedError.
    """
    step = PlanStep(job.pk, "resize", before, add, {})
    _PlanApplier([step], "", now).apply_step(step)


class _PlanApplier:
    """Applies the steps of a plan: holds the rows that they concern locked, and knows which GPUs are still free."""

    def __init__(self, steps: list[PlanStep], policy: str, now: datetime) -> None:
        self.policy = policy
        self.now = now
        wanted = sorted({step.job for step in steps})
        jobs = Job.objects.select_for_update(no_key=True, of=("self",)).select_related(
            "environment__base", "code", "project"
        )
        self.jobs = {job.pk: job for job in jobs.filter(pk__in=wanted).order_by("pk")}
        self.node_ids = sorted({node_of(pool) for step in steps for pool in (*step.add, *step.drop, *step.before)})
        gpus = Gpu.objects.select_for_update(no_key=True).filter(USABLE_GPU, node__in=self.node_ids)
        self.gpus = list(gpus.order_by("pk"))
        self.nodes = {node.pk: node for node in Node.objects.filter(pk__in=self.node_ids)}
        self.reload_free_gpus()

    def reload_free_gpus(self) -> None:
        """Read which of the locked GPUs are free."""
        ours = [gpu.pk for gpu in self.gpus]
        taken = set(Allocation.objects.filter(gpu__in=ours, released_at__isnull=True).values_list("gpu", flat=True))
        self.free: dict[int, list[Gpu]] = defaultdict(list)
        for gpu in sorted(self.gpus, key=lambda gpu: gpu.index):
            if gpu.pk not in taken:
                self.free[gpu.node_id].append(gpu)

    def apply_step(self, step: PlanStep) -> None:
        try:
            self._apply(step)
        except run_specs.LayerGoneError as error:
            raise PlanStaleError("environment_gone", error.node) from error
        except run_specs.HostsUnknownError as error:
            raise PlanStaleError("hosts_unknown", error.node) from error
        except run_specs.InputsUnknownError as error:
            raise PlanStaleError("inputs_unknown", error.node) from error
        except run_specs.SecretsUnknownError as error:
            raise PlanStaleError("secrets_unknown", error.node) from error
        except run_specs.DatasetsUnknownError as error:
            raise PlanStaleError("datasets_unknown", error.node) from error

    def _apply(self, step: PlanStep) -> None:
        job = self.jobs.get(step.job)
        if job is None:
            raise PlanStaleError("job_gone")
        if step.kind == "start":
            self._start(job, step)
            return
        attempt = self._unchanged_attempt(job, step)
        if step.kind == "stop":
            lifecycle.stop_attempt(attempt, StopReason.PREEMPTED)
            return
        self._require_driver(attempt)
        for pool, count in step.drop.items():
            self._request_back(attempt, pool, count)
        if step.add:
            self._grow(attempt, step)
        size = sum(step.before.values())
        size_after = size + sum(step.add.values()) - sum(step.drop.values())
        lifecycle.record(job, Resized(size, size_after, are_cpu_slots(gpu.kind for gpu in self.gpus)))

    # Starting

    def _start(self, job: Job, step: PlanStep) -> None:
        chosen = self._choose_gpus(job, step.add)
        hosts = run_specs.host_placements(job, job.elastic, chosen)
        network = _network_number_for(job, [part.node for part in hosts])
        nodes, factor = _node_shares(chosen), share_factor(job.priority)
        attempt = lifecycle.start_attempt(job, self.policy, nodes, network, factor)
        attempt.job = job  # the instance that has its environment and code loaded
        if there := names_with_all_of(job, [part.node for part in chosen]):
            lifecycle.record(job, DataIsThere(there))
        home, ranks = hosts[0].node, sum(len(part.gpus) for part in hosts)
        first = 0
        if run_specs.has_driver(job):
            self._add_container(
                attempt,
                0,
                Container.Role.DRIVER,
                ContainerPlacement(home, ()),
                run_specs.driver_spec(attempt, 0, home, ranks),
            )
            first = 1
        for index, part in enumerate(hosts, start=first):
            spec = run_specs.host_spec(attempt, index, part, ranks, self._count_gpus(part.node), len(hosts))
            self._add_container(attempt, index, Container.Role.HOST, part, spec)

    def _grow(self, attempt: Attempt, step: PlanStep) -> None:
        """Add one container for each additional GPU."""
        parts = list(attempt.containers.select_related("node").order_by("index"))
        live = [part for part in parts if part.state != ContainerState.EXITED]
        drivers = [part.index for part in live if part.role == Container.Role.DRIVER]
        here = {part.node_id for part in live}
        used, taken = [part.index for part in parts], [part.index for part in live]
        ranks = sum(step.before.values()) + sum(step.add.values())
        for part in self._choose_gpus(attempt.job, step.add, attempt):
            if part.node.pk not in here and (
                attempt.overlay_network is None or not overlay_networks.is_reachable(part.node)
            ):
                raise PlanStaleError("out_of_reach", part.node.name)
            for gpu in part.gpus:
                index = overlay_networks.next_index(used, taken)
                used.append(index)
                taken.append(index)
                single = ContainerPlacement(part.node, (gpu,))
                gpus = self._count_gpus(part.node)
                spec = run_specs.host_spec(attempt, index, single, ranks, gpus, ranks, drivers[-1])
                self._add_container(attempt, index, Container.Role.HOST, single, spec)
        for node in here:
            wake_node(node)  # the driver has a new host, and all containers have a new peer

    def _choose_gpus(self, job: Job, where: Placement, held: Attempt | None = None) -> list[ContainerPlacement]:
        """Choose the free GPUs with the lowest indexes of each pool, those of one node together.

        Raises PlanStaleError if there are too few, or none that the job accepts, beside those that the attempt holds.
        """
        wanted: Counter[int] = Counter()
        for pool, count in where.items():
            wanted[node_of(pool)] += count
        fitting = fitting_gpus(job, {node: len(self.free[node]) for node in wanted})
        chosen: dict[int, list[Gpu]] = defaultdict(list)
        for pool, count in sorted(where.items()):
            node_id = node_of(pool)
            node = self.nodes.get(node_id)
            if node is None or not is_open(node, self.now):
                raise PlanStaleError("node_closed", node.name if node else pool)
            free = [gpu for gpu in self.free[node_id] if gpu.model == (model_of(pool) or gpu.model)]
            accepted = [gpu for gpu in free if gpu_choice.accepts(job, gpu)]
            if len(accepted) < count:
                raise PlanStaleError("too_few_left", node.name, count)
            if fitting[node_id] < wanted[node_id]:
                raise PlanStaleError("too_little_left", node.name, wanted[node_id])
            chosen[node_id] += accepted[:count]
        if job.same_gpu_model and len({gpu.model for gpus in chosen.values() for gpu in gpus} | _models_of(held)) > 1:
            raise PlanStaleError("gpus_changed")
        return [
            ContainerPlacement(self.nodes[node], tuple(sorted(gpus, key=lambda gpu: gpu.index)))
            for node, gpus in sorted(chosen.items())
        ]

    def _add_container(
        self, attempt: Attempt, index: int, role: Container.Role, part: ContainerPlacement, spec: RunSpec
    ) -> None:
        container = lifecycle.add_container(attempt, part.node, index, role, spec.name, spec.to_json())
        # Held from now, not from the start of the cycle: a GPU released meanwhile must not seem to be held twice.
        held_since = container.assigned_at
        Allocation.objects.bulk_create(
            Allocation(gpu=gpu, attempt=attempt, container=container, allocated_at=held_since) for gpu in part.gpus
        )
        self.free[part.node.pk] = [gpu for gpu in self.free[part.node.pk] if gpu not in part.gpus]

    def _count_gpus(self, node: Node) -> int:
        return sum(gpu.node_id == node.pk for gpu in self.gpus)

    # Changing what runs

    def _unchanged_attempt(self, job: Job, step: PlanStep) -> Attempt:
        """Return the running attempt. Raises PlanStaleError if its GPUs are not those of the snapshot any more."""
        attempt = job.attempts.filter(ended_at__isnull=True, wanted=Attempt.Wanted.RUN).first()
        if attempt is None or job.intent != Job.Intent.RUN:
            raise PlanStaleError("no_longer_runs")
        attempt.job = job
        held = attempt.allocations.filter(released_at__isnull=True, requested_back_at__isnull=True)
        pools = (pool_id(node, model, step.before) for node, model in held.values_list("gpu__node", "gpu__model"))
        if Counter(pools) != Counter(step.before):
            raise PlanStaleError("gpus_changed")
        return attempt

    def _require_driver(self, attempt: Attempt) -> None:
        """Raise PlanStaleError while a rank group has no running driver: without one, a resize would break it."""
        if attempt.overlay_network is None:
            return
        drivers = attempt.containers.filter(role=Container.Role.DRIVER).exclude(state=ContainerState.EXITED)
        last = drivers.order_by("index").values_list("index", "state").last()
        if last is None or (last[0] > 0 and last[1] != ContainerState.RUNNING):
            raise PlanStaleError("driver_moving")

    def _request_back(self, attempt: Attempt, pool: PoolId, count: int) -> None:
        """Request GPUs of a pool back: stop whole single-GPU containers, the youngest first."""
        hosts = attempt.containers.filter(role=Container.Role.HOST, wanted=Container.Wanted.RUN)
        live = list(hosts.exclude(state=ContainerState.EXITED).order_by("index"))
        spare = [part for part in live[1:] if part.node_id == node_of(pool)]
        if model := model_of(pool):
            of_model = set(attempt.allocations.filter(gpu__model=model).values_list("container", flat=True))
            spare = [part for part in spare if part.pk in of_model]
        if len(spare) < count:
            raise PlanStaleError("nothing_to_release")
        for part in spare[-count:]:
            lifecycle.stop_container(part, StopReason.PREEMPTED)


def _network_number_for(job: Job, nodes: Sequence[Node]) -> int | None:
    """Return the number of the overlay network of a job that is on several nodes or may grow onto others."""
    several = len({node.pk for node in nodes}) > 1
    if not (several or (job.elastic and run_specs.has_driver(job))):
        return None
    network = overlay_networks.next_free_number() if all(map(overlay_networks.is_reachable, nodes)) else None
    if several and network is None:
        raise PlanStaleError("no_network")
    return network


def _models_of(attempt: Attempt | None) -> set[str]:
    """Return the models of the GPUs that an attempt holds."""
    held = attempt.allocations.filter(released_at__isnull=True) if attempt is not None else Allocation.objects.none()
    return set(held.values_list("gpu__model", flat=True))


def _node_shares(parts: Sequence[ContainerPlacement]) -> list[NodeShare]:
    """Return the placement as the job's history records it."""
    return [
        NodeShare(node=part.node.name, gpus=len(part.gpus), cpu_slots=are_cpu_slots(gpu.kind for gpu in part.gpus))
        for part in parts
    ]
