"""The month as rows: jobs, attempts, containers, allocations, rank groups and history, as the scheduler writes them."""

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from portal.accounts.models import AuditEntry
from portal.cluster.models import Gpu, Reservation
from portal.jobs import causes
from portal.jobs.container_ends import NodeWasSilent
from portal.jobs.models import Allocation, Attempt, Container, Job, JobState, Outcome
from portal.jobs.resize_timeline.models import RankGroup
from portal.ops.demo.people import PEOPLE, DemoLab
from portal.ops.demo.simulation import (
    BACK_AT,
    BOOKED_AHEAD_SECONDS,
    END,
    LOST_AT,
    POLICY_SWITCHES,
    DemoJob,
    GpuHolding,
    SimulatedAttempt,
)
from portal.ops.demo.workload import Fate
from portal.scheduler import overlay_networks, run_specs
from portal.scheduler.models import SchedulerConfig
from portal.usage.models import CapacitySpell
from runners.demo.programs import ENDINGS
from runners.spec import RunSpec
from scheduling import registry
from scheduling.share_factors import share_factor
from scheduling.version import version_of

GROW_SECONDS = 12.0
"""How long a running job takes from getting a GPU to training on it."""
SHRINK_SECONDS = 3.0
RESTART_SECONDS = 30.0
SIGTERM_EXIT_CODE = 143
"""The exit code of a program that was stopped by SIGTERM."""

Clock = Callable[[float], datetime]
"""Converts seconds since the start of the month to a moment."""


def month_clock(start: datetime) -> Clock:
    return lambda seconds: start + timedelta(seconds=round(seconds, 3))


class AttemptRecord(NamedTuple):
    """One attempt with all that belongs to it; logs, curves and readings are made from it."""

    demo_job: DemoJob
    job: Job
    number: int
    attempt: Attempt
    simulated: SimulatedAttempt
    hosts: list[Container]
    """In the order of ``simulated.holdings``."""
    driver: Container | None
    began: float | None
    """When it began to train; None for one that ended before."""


@dataclass(slots=True)
class MonthRows:
    """The rows of the whole month."""

    start: datetime
    demo_jobs: list[DemoJob]
    jobs: list[Job]
    attempt_records: list[AttemptRecord] = field(default_factory=list)
    gpus_of: dict[int, tuple[Gpu, ...]] = field(default_factory=dict)
    """By the identity of a piece (``id``), the GPUs it held."""

    @property
    def at(self) -> Clock:
        return month_clock(self.start)


# --- what an admin did ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PlannedReservation:
    """A reservation: seconds since the start of the month."""

    name: str
    node: int
    gpus: int
    since: float
    until: float
    group: str


def write_reservations(lab: DemoLab, planned: Sequence[PlannedReservation], at: Clock) -> None:
    admin = next(iter(lab.users.values()))
    for each in planned:
        asked = at(min(each.since, END) - BOOKED_AHEAD_SECONDS)
        row = Reservation.objects.create(
            name=each.name, node=lab.nodes[each.node], gpus=each.gpus, start=at(each.since), end=at(each.until),
            created_by=admin, created_at=asked,
        )  # fmt: skip
        row.groups.add(lab.groups[each.group])
        after = {
            "node": lab.nodes[each.node].name,
            "gpus": each.gpus,
            "start": at(each.since).isoformat(),
            "end": at(each.until).isoformat(),
            "for": [f"group {each.group}"],
        }
        AuditEntry.objects.create(at=asked, actor=admin, action="reservation.made", target=each.name, after=after)


def write_policies(lab: DemoLab, at: Clock) -> list[SchedulerConfig]:
    """Write the policies that were in force one after the other, and who switched them."""
    admin = next(iter(lab.users.values()))
    configs: list[SchedulerConfig] = []
    for since, key, given in POLICY_SWITCHES:
        config = SchedulerConfig.objects.create(
            policy=key, params=registry.complete(key, given), created_by=admin, created_at=at(since),
            version=version_of(registry.POLICIES[key]),
        )  # fmt: skip
        if configs:
            before, after = ({"policy": each.policy, "params": each.params} for each in (configs[-1], config))
            AuditEntry.objects.create(
                at=at(since), actor=admin, action="scheduler.policy_switched", target=registry.describe(key).title,
                before=before, after=after,
            )  # fmt: skip
        configs.append(config)
    return configs


def write_capacity(lab: DemoLab, at: Clock) -> None:
    """Write when each node offered its GPUs."""
    last = len(lab.nodes) - 1
    CapacitySpell.objects.bulk_create(
        CapacitySpell(gpu=gpu, since=at(since), until=None if until is None else at(until))
        for number, gpus in lab.gpus.items()
        for gpu in gpus
        for since, until in ([(0.0, LOST_AT), (BACK_AT, None)] if last and number == last else [(0.0, None)])
    )


# --- jobs and what they held -----------------------------------------------------------------------------------------


def write_jobs(
    lab: DemoLab, demo_jobs: list[DemoJob], configs: Sequence[SchedulerConfig], start: datetime
) -> MonthRows:
    at = month_clock(start)
    jobs = Job.objects.bulk_create(_job(lab, demo_job, at) for demo_job in demo_jobs)
    written = MonthRows(start, demo_jobs, jobs)
    written.gpus_of = _gpus_of(lab, demo_jobs)
    simulated_attempts = [
        (demo_job, job, number, simulated)
        for demo_job, job in zip(demo_jobs, written.jobs, strict=True)
        for number, simulated in enumerate(demo_job.attempts, start=1)
    ]
    numbers = iter(range(overlay_networks.network_count() * 1000))
    attempts = Attempt.objects.bulk_create(
        _attempt(
            job,
            number,
            simulated,
            demo_job,
            lab,
            configs,
            _network(lab, demo_job, simulated, numbers),
            at,
        )
        for demo_job, job, number, simulated in simulated_attempts
    )
    for (demo_job, job, number, simulated), attempt in zip(simulated_attempts, attempts, strict=True):
        attempt.job = job
        drivers, hosts = _containers(lab, written, demo_job, attempt, simulated, at)
        began = _training_start(demo_job, number, simulated)
        written.attempt_records.append(
            AttemptRecord(demo_job, job, number, attempt, simulated, hosts, next(iter(drivers), None), began)
        )
    Container.objects.bulk_create(
        [
            part
            for record in written.attempt_records
            for part in (*([record.driver] if record.driver else []), *record.hosts)
        ],
        batch_size=500,
    )
    Allocation.objects.bulk_create(
        (
            Allocation(
                gpu=gpu, attempt=record.attempt, container=host, allocated_at=at(holding.since),
                requested_back_at=None if holding.release_requested is None else at(holding.release_requested),
                released_at=None if holding.until is None else at(holding.until),
            )
            for record in written.attempt_records
            for holding, host in zip(record.simulated.holdings, record.hosts, strict=True)
            for gpu in written.gpus_of[id(holding)]
        ),
        batch_size=500,
    )  # fmt: skip
    RankGroup.objects.bulk_create(_rank_groups(written), batch_size=500)
    return written


def _job(lab: DemoLab, demo_job: DemoJob, at: Clock) -> Job:
    request, pattern = demo_job.request, demo_job.request.pattern
    begins = [
        began
        for number, simulated in enumerate(demo_job.attempts, 1)
        if (began := _training_start(demo_job, number, simulated)) is not None
    ]
    user, submitted = lab.users[request.owner], at(request.submitted)
    return Job(
        project=lab.projects[pattern.project],
        code=[each for each in lab.codes[pattern.project] if each.created_at <= submitted][-1],
        environment=lab.environment,
        submitted_by=user,
        group=lab.groups[PEOPLE[request.owner]],
        submitted_at=submitted,
        name=request.name,
        launcher=pattern.launcher,
        elastic=pattern.elastic,
        entry="python train.py" if pattern.launcher == "command" else "train.py",
        arguments=list(request.arguments),
        min_gpus=request.min_gpus,
        max_gpus=request.max_gpus,
        time_limit_seconds=request.limit_seconds,
        priority=request.priority,
        resumable=pattern.resumable,
        gpu_memory_mib=request.gpu_request.memory_mib or None,
        gpu_models=list(request.gpu_request.kinds),
        same_gpu_model=request.gpu_request.same_kind,
        deadline=None if request.deadline is None else at(request.deadline),
        intent=Job.Intent.CANCEL if demo_job.status == JobState.CANCELLED else Job.Intent.RUN,
        state=demo_job.status,
        started_at=at(min(begins)) if begins else None,
        finished_at=None if demo_job.finished is None else at(demo_job.finished),
        waiting_reason=demo_job.reason.data() if demo_job.reason and demo_job.status == JobState.QUEUED else "",
    )


def _training_start(demo_job: DemoJob, number: int, simulated: SimulatedAttempt) -> float | None:
    """Return when an attempt began to train; None when it ended before."""
    began = simulated.placed + (demo_job.startup_seconds if number == 1 else RESTART_SECONDS)
    over = simulated.stopped_at if simulated.stopped_at is not None else simulated.ended
    return began if began < (END if over is None else over) else None


def _network(lab: DemoLab, demo_job: DemoJob, simulated: SimulatedAttempt, numbers: Iterator[int]) -> int | None:
    """Return the number of the attempt's overlay network, as ``apply`` chooses it."""
    several = len({lab.parts[holding.node].node for holding in simulated.holdings}) > 1
    return (
        next(numbers) % overlay_networks.network_count()
        if several or (demo_job.request.pattern.elastic and len(lab.nodes) > 1)
        else None
    )


def _attempt(
    job: Job,
    number: int,
    simulated: SimulatedAttempt,
    demo_job: DemoJob,
    lab: DemoLab,
    configs: Sequence[SchedulerConfig],
    network: int | None,
    at: Clock,
) -> Attempt:
    config, began = configs[simulated.policy], _training_start(demo_job, number, simulated)
    used = max(lab.parts[each.node].model.used_mib(demo_job.request.gpu_memory_mib) for each in simulated.holdings)
    stop = ""
    if simulated.ended_as in (Outcome.PREEMPTED, Outcome.CANCELLED, Outcome.TIMED_OUT):
        stop = simulated.ended_as
    elif simulated.ended_as == Outcome.LOST and simulated.stopped_at is not None:
        stop = "peer_lost"
    return Attempt(
        job=job,
        number=number,
        created_at=at(simulated.placed),
        started_at=None if began is None else at(began),
        ended_at=None if simulated.ended is None else at(simulated.ended),
        wanted=Attempt.Wanted.STOP if stop else Attempt.Wanted.RUN,
        stop_reason=stop,
        outcome=simulated.ended_as if simulated.ended is not None else "",
        secret=f"{job.pk:032x}{number:032x}",
        policy=f"{config.policy} v{config.pk}",
        overlay_network=network,
        share_factor=share_factor(job.priority),
        peak_gpu_memory_mib=None if began is None or simulated.ended is None else used,
    )


def _gpus_of(lab: DemoLab, demo_jobs: Sequence[DemoJob]) -> dict[int, tuple[Gpu, ...]]:
    """Give each piece the GPUs with the lowest indexes that are free on its part of a node at that time."""
    holdings: dict[int, list[GpuHolding]] = {number: [] for number in lab.gpus}
    for demo_job in demo_jobs:
        for simulated in demo_job.attempts:
            for holding in simulated.holdings:
                holdings[holding.node].append(holding)
    found: dict[int, tuple[Gpu, ...]] = {}
    for number, here in holdings.items():
        free = list(range(len(lab.gpus[number])))
        busy: list[tuple[float, int, tuple[int, ...]]] = []
        for order, holding in enumerate(sorted(here, key=lambda holding: holding.since)):
            while busy and busy[0][0] <= holding.since:
                for index in heapq.heappop(busy)[2]:
                    heapq.heappush(free, index)
            taken = tuple(heapq.heappop(free) for _ in range(holding.gpus))
            found[id(holding)] = tuple(lab.gpus[number][index] for index in taken)
            heapq.heappush(busy, (float("inf") if holding.until is None else holding.until, order, taken))
    return found


def _containers(
    lab: DemoLab,
    written: MonthRows,
    demo_job: DemoJob,
    attempt: Attempt,
    simulated: SimulatedAttempt,
    at: Clock,
) -> tuple[list[Container], list[Container]]:
    """Return an attempt's driver, if it has one, and its hosts; they are not saved yet."""
    job, first, fate = attempt.job, simulated.holdings[0], demo_job.request.fate
    began = _training_start(demo_job, attempt.number, simulated)
    ranks = sum(holding.gpus for holding in simulated.holdings if holding.since == simulated.placed)
    at_first = sum(holding.since == simulated.placed for holding in simulated.holdings)
    drivers, hosts = [], []
    if run_specs.has_driver(job):
        spec = run_specs.driver_spec(attempt, 0, lab.node_of(first.node), ranks)
        whole = GpuHolding(first.node, 0, simulated.placed, None, simulated.ended)
        drivers.append(_container(lab, attempt, simulated, whole, 0, spec, began, fate, at, base=False))
    for index, holding in enumerate(simulated.holdings, start=len(drivers)):
        part = run_specs.ContainerPlacement(lab.node_of(holding.node), written.gpus_of[id(holding)])
        node_gpus = len(lab.gpus_of_node(lab.parts[holding.node].node))
        spec = run_specs.host_spec(attempt, index, part, ranks, node_gpus, at_first)
        runs = began if holding.since == simulated.placed else holding.since + GROW_SECONDS
        hosts.append(_container(lab, attempt, simulated, holding, index, spec, runs, fate, at, base=holding is first))
    return drivers, hosts


def _container(
    lab: DemoLab, attempt: Attempt, simulated: SimulatedAttempt, holding: GpuHolding, index: int, spec: RunSpec,
    runs: float | None, fate: Fate, at: Clock, *, base: bool,
) -> Container:  # fmt: skip
    """Return a container that is not saved yet. ``base`` marks the first host, whose end explains the attempt's."""
    until = END if holding.until is None else holding.until
    runs = runs if runs is not None and runs < min(until, holding.release_requested or until) else None
    exited = holding.until is not None
    node = lab.node_of(holding.node)
    release_requested = holding.release_requested if holding.release_requested is not None else simulated.stopped_at
    over = simulated.stopped_at if simulated.stopped_at is not None else simulated.ended
    stop = ""
    if release_requested is not None:
        shrinks = holding.release_requested is not None and (over is None or holding.release_requested < over)
        stop = "preempted" if shrinks else attempt.stop_reason
    code, reason, detail = _exit(fate, simulated, holding, node.name, base=base, stopped=bool(stop))
    return Container(
        attempt=attempt,
        node=node,
        index=index,
        role=Container.Role.HOST if holding.gpus else Container.Role.DRIVER,
        name=spec.name,
        spec=spec.to_json(),
        assigned_at=at(holding.since),
        wanted=Container.Wanted.STOP if stop else Container.Wanted.RUN,
        stop_reason=stop,
        stop_requested_at=at(release_requested) if stop and release_requested is not None else None,
        state="EXITED" if exited else "RUNNING" if runs is not None else "ASSIGNED",
        state_since=at(until if exited else runs if runs is not None else holding.since),
        running_at=None if runs is None else at(runs),
        exited_at=at(until) if exited else None,
        exit_code=code if exited else None,
        exit_reason=reason if exited else "",
        detail=detail if exited else "",
        collected_at=at(min(until + 4, END)) if exited else None,
    )


def _exit(
    fate: Fate, simulated: SimulatedAttempt, holding: GpuHolding, node: str, *, base: bool, stopped: bool
) -> tuple[int | None, str, Any]:
    """Return exit code, reason and detail of a container that has ended."""
    if holding.until == LOST_AT:
        return None, "lost", NodeWasSilent(node).data()
    if stopped:
        return SIGTERM_EXIT_CODE, "stopped", ""
    if simulated.ended_as != Outcome.FAILED or fate not in ENDINGS:
        return 0, "exited", ""
    ending = ENDINGS[fate]
    if base:
        return ending.exit_code, ending.exit_reason, ending.detail
    return 1, "exited", ""


def _rank_groups(written: MonthRows) -> Iterator[RankGroup]:
    """Yield what each driver reported about its rank group: at the start, and after each change."""
    for record in written.attempt_records:
        if record.driver is None or record.began is None:
            continue
        moments = [(record.began, 0.0)]
        over = record.simulated.ended if record.simulated.ended is not None else END
        for when, before, after in record.simulated.resizes:
            moments.append((when + (GROW_SECONDS if after > before else SHRINK_SECONDS), 1.4 + (when * 7) % 3))
        for number, (when, cost) in enumerate(moments, start=1):
            if not record.began <= when < over:
                continue
            hosts = [
                str(host.spec["hostname"])
                for holding, host in zip(record.simulated.holdings, record.hosts, strict=True)
                for _ in range(holding.gpus)
                if holding.since <= when and (holding.release_requested or holding.until or END + 1) > when
            ]
            cost_seconds = round(cost, 2) if number > 1 else None
            yield RankGroup(
                driver=record.driver, number=number, at=written.at(when), hosts=hosts, cost_seconds=cost_seconds
            )


# --- causes ----------------------------------------------------------------------------------------------------------


def find_causes(written: MonthRows) -> None:
    """Let the portal find the causes of attempts that did not succeed, in their rows and logs."""
    ended = [record for record in written.attempt_records if record.attempt.outcome not in ("", Outcome.SUCCEEDED)]
    for record in ended:
        parts = [*([record.driver] if record.driver else []), *record.hosts]
        record.attempt.cause = causes.explain(record.job, record.attempt, parts)
    Attempt.objects.bulk_update([record.attempt for record in ended], ["cause"], batch_size=200)
