"""The month as rows: jobs, attempts, containers, allocations, rank groups and history, as the scheduler writes them."""

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from portal.accounts.models import AuditEntry
from portal.cluster.models import Gpu, Reservation
from portal.jobs import causes, events
from portal.jobs.container_ends import NodeWasSilent
from portal.jobs.events import Event, NodeShare
from portal.jobs.models import Allocation, Attempt, Container, Job, JobEvent, JobState, Outcome
from portal.jobs.resize_timeline.models import RankGroup
from portal.ops.demo.people import PEOPLE, Made
from portal.ops.demo.play import BACK_AT, END, KNOWN_BEFORE, LOST_AT, SWITCHES, Piece, SimulatedAttempt, Story
from portal.ops.demo.workload import Fate
from portal.scheduler import overlay_networks, run_specs
from portal.scheduler.events import Resized
from portal.scheduler.models import SchedulerConfig
from portal.usage.models import CapacitySpell
from runners.demo.programs import ENDINGS
from runners.spec import RunSpec
from scheduling import registry
from scheduling.version import version_of

GROWS_SECONDS = 12.0
"""How long a running job takes from getting a GPU to training on it."""
SHRINKS_SECONDS = 3.0
RESTARTS_SECONDS = 30.0
STOPPED = 143
"""The exit code of a program that was stopped by SIGTERM."""

Clock = Callable[[float], datetime]
"""Converts seconds since the start of the month to a moment."""


def clock_of(start: datetime) -> Clock:
    return lambda seconds: start + timedelta(seconds=round(seconds, 3))


class Ran(NamedTuple):
    """One attempt with all that belongs to it; logs, curves and readings are made from it."""

    story: Story
    job: Job
    number: int
    attempt: Attempt
    simulated: SimulatedAttempt
    hosts: list[Container]
    """In the order of ``simulated.pieces``."""
    driver: Container | None
    began: float | None
    """When it began to train; None for one that ended before."""


@dataclass(slots=True)
class Written:
    """The rows of the whole month."""

    start: datetime
    stories: list[Story]
    jobs: list[Job]
    ran: list[Ran] = field(default_factory=list)
    gpus_of: dict[int, tuple[Gpu, ...]] = field(default_factory=dict)
    """By the identity of a piece (``id``), the GPUs it held."""

    @property
    def at(self) -> Clock:
        return clock_of(self.start)


# --- what an admin did ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Planned:
    """A reservation: seconds since the start of the month."""

    name: str
    node: int
    gpus: int
    since: float
    until: float
    group: str


def write_reservations(made: Made, planned: Sequence[Planned], at: Clock) -> None:
    admin = next(iter(made.users.values()))
    for each in planned:
        asked = at(min(each.since, END) - KNOWN_BEFORE)
        row = Reservation.objects.create(
            name=each.name, node=made.nodes[each.node], gpus=each.gpus, start=at(each.since), end=at(each.until),
            created_by=admin, created_at=asked,
        )  # fmt: skip
        row.groups.add(made.groups[each.group])
        after = {
            "node": made.nodes[each.node].name,
            "gpus": each.gpus,
            "start": at(each.since).isoformat(),
            "end": at(each.until).isoformat(),
            "for": [f"group {each.group}"],
        }
        AuditEntry.objects.create(at=asked, actor=admin, action="reservation.made", target=each.name, after=after)


def write_policies(made: Made, at: Clock) -> list[SchedulerConfig]:
    """Write the policies that were in force one after the other, and who switched them."""
    admin = next(iter(made.users.values()))
    configs: list[SchedulerConfig] = []
    for since, key, given in SWITCHES:
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


def write_offers(made: Made, at: Clock) -> None:
    """Write when each node offered its GPUs."""
    last = len(made.nodes) - 1
    CapacitySpell.objects.bulk_create(
        CapacitySpell(gpu=gpu, since=at(since), until=None if until is None else at(until))
        for number, gpus in made.gpus.items()
        for gpu in gpus
        for since, until in ([(0.0, LOST_AT), (BACK_AT, None)] if last and number == last else [(0.0, None)])
    )


# --- jobs and what they held -----------------------------------------------------------------------------------------


def write_jobs(made: Made, stories: list[Story], configs: Sequence[SchedulerConfig], start: datetime) -> Written:
    at = clock_of(start)
    written = Written(start, stories, Job.objects.bulk_create(_job(made, story, at) for story in stories))
    written.gpus_of = _gpus_of(made, stories)
    simulated_attempts = [
        (story, job, number, simulated)
        for story, job in zip(stories, written.jobs, strict=True)
        for number, simulated in enumerate(story.simulated_attempts, start=1)
    ]
    numbers = iter(range(overlay_networks.network_count() * 1000))
    attempts = Attempt.objects.bulk_create(
        _attempt(job, number, simulated, story, configs, _network(len(made.nodes), story, simulated, numbers), at)
        for story, job, number, simulated in simulated_attempts
    )
    for (story, job, number, simulated), attempt in zip(simulated_attempts, attempts, strict=True):
        attempt.job = job
        drivers, hosts = _containers(made, written, story, attempt, simulated, at)
        began = _began(story, number, simulated)
        written.ran.append(Ran(story, job, number, attempt, simulated, hosts, next(iter(drivers), None), began))
    Container.objects.bulk_create(
        [part for ran in written.ran for part in (*([ran.driver] if ran.driver else []), *ran.hosts)], batch_size=500
    )
    Allocation.objects.bulk_create(
        (
            Allocation(
                gpu=gpu, attempt=ran.attempt, container=host, allocated_at=at(piece.since),
                requested_back_at=None if piece.asked_back is None else at(piece.asked_back),
                released_at=None if piece.until is None else at(piece.until),
            )
            for ran in written.ran
            for piece, host in zip(ran.simulated.pieces, ran.hosts, strict=True)
            for gpu in written.gpus_of[id(piece)]
        ),
        batch_size=500,
    )  # fmt: skip
    RankGroup.objects.bulk_create(_rank_groups(written), batch_size=500)
    return written


def _job(made: Made, story: Story, at: Clock) -> Job:
    ask, habit = story.ask, story.ask.habit
    begins = [
        began
        for number, simulated in enumerate(story.simulated_attempts, 1)
        if (began := _began(story, number, simulated)) is not None
    ]
    user = made.users[ask.owner]
    return Job(
        project=made.projects[habit.project],
        code=made.codes[habit.project],
        environment=made.environment,
        submitted_by=user,
        group=made.groups[PEOPLE[ask.owner]],
        submitted_at=at(ask.submitted),
        name=ask.name,
        launcher=habit.launcher,
        elastic=habit.elastic,
        entry="python train.py" if habit.launcher == "command" else "train.py",
        arguments=list(ask.arguments),
        min_gpus=ask.min_gpus,
        max_gpus=ask.max_gpus,
        time_limit_seconds=ask.limit_seconds,
        priority=ask.priority,
        resumable=habit.resumable,
        deadline=None if ask.deadline is None else at(ask.deadline),
        intent=Job.Intent.CANCEL if story.status == JobState.CANCELLED else Job.Intent.RUN,
        state=story.status,
        started_at=at(min(begins)) if begins else None,
        finished_at=None if story.finished is None else at(story.finished),
        waiting_reason=story.reason.data() if story.reason and story.status == JobState.QUEUED else "",
    )


def _began(story: Story, number: int, simulated: SimulatedAttempt) -> float | None:
    """Return when an attempt began to train; None when it ended before."""
    began = simulated.placed + (story.starts_after if number == 1 else RESTARTS_SECONDS)
    over = simulated.stopped_at if simulated.stopped_at is not None else simulated.ended
    return began if began < (END if over is None else over) else None


def _network(nodes: int, story: Story, simulated: SimulatedAttempt, numbers: Iterator[int]) -> int | None:
    """Return the number of the attempt's overlay network, as ``apply`` chooses it."""
    several = len({piece.node for piece in simulated.pieces}) > 1
    return (
        next(numbers) % overlay_networks.network_count() if several or (story.ask.habit.elastic and nodes > 1) else None
    )


def _attempt(
    job: Job,
    number: int,
    simulated: SimulatedAttempt,
    story: Story,
    configs: Sequence[SchedulerConfig],
    network: int | None,
    at: Clock,
) -> Attempt:
    config, began = configs[simulated.policy], _began(story, number, simulated)
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
    )


def _gpus_of(made: Made, stories: Sequence[Story]) -> dict[int, tuple[Gpu, ...]]:
    """Give each piece the GPUs with the lowest indexes that are free on its node at that time."""
    pieces: dict[int, list[Piece]] = {number: [] for number in made.gpus}
    for story in stories:
        for simulated in story.simulated_attempts:
            for piece in simulated.pieces:
                pieces[piece.node].append(piece)
    found: dict[int, tuple[Gpu, ...]] = {}
    for number, here in pieces.items():
        free = [gpu.index for gpu in made.gpus[number]]
        busy: list[tuple[float, int, tuple[int, ...]]] = []
        for order, piece in enumerate(sorted(here, key=lambda piece: piece.since)):
            while busy and busy[0][0] <= piece.since:
                for index in heapq.heappop(busy)[2]:
                    heapq.heappush(free, index)
            taken = tuple(heapq.heappop(free) for _ in range(piece.gpus))
            found[id(piece)] = tuple(made.gpus[number][index] for index in taken)
            heapq.heappush(busy, (float("inf") if piece.until is None else piece.until, order, taken))
    return found


def _containers(
    made: Made, written: Written, story: Story, attempt: Attempt, simulated: SimulatedAttempt, at: Clock
) -> tuple[list[Container], list[Container]]:
    """Return an attempt's driver, if it has one, and its hosts; they are not saved yet."""
    job, first = attempt.job, simulated.pieces[0]
    began = _began(story, attempt.number, simulated)
    ranks = sum(piece.gpus for piece in simulated.pieces if piece.since == simulated.placed)
    at_first = sum(piece.since == simulated.placed for piece in simulated.pieces)
    drivers, hosts = [], []
    if run_specs.has_driver(job):
        spec = run_specs.driver_spec(attempt, 0, made.nodes[first.node], ranks)
        whole = Piece(first.node, 0, simulated.placed, None, simulated.ended)
        drivers.append(_container(made, attempt, simulated, whole, 0, spec, began, story.ask.fate, at, base=False))
    for index, piece in enumerate(simulated.pieces, start=len(drivers)):
        part = run_specs.ContainerPlacement(made.nodes[piece.node], written.gpus_of[id(piece)])
        node_gpus = len(made.gpus[piece.node])
        spec = run_specs.host_spec(attempt, index, part, ranks, node_gpus, at_first)
        runs = began if piece.since == simulated.placed else piece.since + GROWS_SECONDS
        hosts.append(
            _container(made, attempt, simulated, piece, index, spec, runs, story.ask.fate, at, base=piece is first)
        )
    return drivers, hosts


def _container(
    made: Made, attempt: Attempt, simulated: SimulatedAttempt, piece: Piece, index: int, spec: RunSpec, runs: float | None, fate: Fate,
    at: Clock, *, base: bool,
) -> Container:  # fmt: skip
    """Return a container that is not saved yet. ``base`` marks the first host, whose end explains the attempt's."""
    until = END if piece.until is None else piece.until
    runs = runs if runs is not None and runs < min(until, piece.asked_back or until) else None
    exited = piece.until is not None
    node = made.nodes[piece.node]
    asked_back = piece.asked_back if piece.asked_back is not None else simulated.stopped_at
    over = simulated.stopped_at if simulated.stopped_at is not None else simulated.ended
    stop = ""
    if asked_back is not None:
        shrinks = piece.asked_back is not None and (over is None or piece.asked_back < over)
        stop = "preempted" if shrinks else attempt.stop_reason
    code, reason, detail = _exit(fate, simulated, piece, node.name, base=base, stopped=bool(stop))
    return Container(
        attempt=attempt,
        node=node,
        index=index,
        role=Container.Role.HOST if piece.gpus else Container.Role.DRIVER,
        name=spec.name,
        spec=spec.to_json(),
        assigned_at=at(piece.since),
        wanted=Container.Wanted.STOP if stop else Container.Wanted.RUN,
        stop_reason=stop,
        stop_requested_at=at(asked_back) if stop and asked_back is not None else None,
        state="EXITED" if exited else "RUNNING" if runs is not None else "ASSIGNED",
        state_since=at(until if exited else runs if runs is not None else piece.since),
        running_at=None if runs is None else at(runs),
        exited_at=at(until) if exited else None,
        exit_code=code if exited else None,
        exit_reason=reason if exited else "",
        detail=detail if exited else "",
        collected_at=at(min(until + 4, END)) if exited else None,
    )


def _exit(
    fate: Fate, simulated: SimulatedAttempt, piece: Piece, node: str, *, base: bool, stopped: bool
) -> tuple[int | None, str, Any]:
    """Return exit code, reason and detail of a container that has ended."""
    if piece.until == LOST_AT:
        return None, "lost", NodeWasSilent(node).data()
    if stopped:
        return STOPPED, "stopped", ""
    if simulated.ended_as != Outcome.FAILED or fate not in ENDINGS:
        return 0, "exited", ""
    ending = ENDINGS[fate]
    if base:
        return ending.exit_code, ending.exit_reason, ending.detail
    return 1, "exited", ""


def _rank_groups(written: Written) -> Iterator[RankGroup]:
    """Yield what each driver reported about its rank group: at the start, and after each change."""
    for ran in written.ran:
        if ran.driver is None or ran.began is None:
            continue
        moments = [(ran.began, 0.0)]
        over = ran.simulated.ended if ran.simulated.ended is not None else END
        for when, before, after in ran.simulated.resizes:
            moments.append((when + (GROWS_SECONDS if after > before else SHRINKS_SECONDS), 1.4 + (when * 7) % 3))
        for number, (when, cost) in enumerate(moments, start=1):
            if not ran.began <= when < over:
                continue
            hosts = [
                str(host.spec["hostname"])
                for piece, host in zip(ran.simulated.pieces, ran.hosts, strict=True)
                for _ in range(piece.gpus)
                if piece.since <= when and (piece.asked_back or piece.until or END + 1) > when
            ]
            cost_seconds = round(cost, 2) if number > 1 else None
            yield RankGroup(
                driver=ran.driver, number=number, at=written.at(when), hosts=hosts, cost_seconds=cost_seconds
            )


# --- causes and history ----------------------------------------------------------------------------------------------


def explain(written: Written) -> None:
    """Let the portal find the causes of attempts that did not succeed, in their rows and logs."""
    ended = [ran for ran in written.ran if ran.attempt.outcome not in ("", Outcome.SUCCEEDED)]
    for ran in ended:
        parts = [*([ran.driver] if ran.driver else []), *ran.hosts]
        ran.attempt.cause = causes.explain(ran.job, ran.attempt, parts)
    Attempt.objects.bulk_update([ran.attempt for ran in ended], ["cause"], batch_size=200)


def write_history(written: Written) -> None:
    """Write the jobs' histories. Call it after ``explain``, because the lines name the causes."""
    by_job: dict[int, list[Ran]] = {job.pk: [] for job in written.jobs}
    for ran in written.ran:
        by_job[ran.job.pk].append(ran)
    JobEvent.objects.bulk_create(
        (
            JobEvent(
                job=job, seq=seq, at=written.at(when), kind=event.kind, data=event.data(),
                actor=job.submitted_by if own else None,
            )
            for story, job in zip(written.stories, written.jobs, strict=True)
            for seq, (when, event, own) in enumerate(
                sorted(_lines(story, job, by_job[job.pk]), key=lambda line: line[0]), start=1
            )
        ),
        batch_size=500,
    )  # fmt: skip


HistoryLine = tuple[float, Event, bool]
"""(When, what happened, whether the owner did it)."""


def _lines(story: Story, job: Job, ran: Sequence[Ran]) -> Iterator[HistoryLine]:
    yield story.ask.submitted, events.Submitted(str(job.submitted_by)), True
    if story.status == JobState.CANCELLED and story.finished is not None:
        asked = min(story.finished, *(each.simulated.stopped_at or story.finished for each in ran), story.finished)
        yield asked, events.Cancelled(str(job.submitted_by)), True
    for each in ran:
        yield from _lines_of(each)
    if story.finished is not None:
        yield story.finished, events.StateChanged(str(story.status)), False


def _lines_of(ran: Ran) -> Iterator[HistoryLine]:
    attempt, simulated, number = ran.attempt, ran.simulated, ran.number
    shares = [
        NodeShare(node=node, gpus=count, cpu_slots=False) for node, count in sorted(_first_placement(ran).items())
    ]
    yield simulated.placed, events.Placed(number, attempt.policy, shares), False
    yield simulated.placed, events.StateChanged("RUNNING"), False
    if ran.began is not None:
        yield ran.began, events.Started(number), False
    for when, before, after in simulated.resizes:
        yield when, Resized(before, after, cpu_slots=False), False
    for host in ran.hosts:
        if host.exit_reason == "lost":
            yield LOST_AT, events.ContainerLost(host.name, host.node.name, "lost"), False
    if simulated.stopped_at is not None and attempt.stop_reason:
        yield simulated.stopped_at, events.Stopping(number, attempt.stop_reason, ran.job.resumable), False
    if simulated.ended is not None:
        outcome = attempt.outcome
        yield simulated.ended, events.Ended(number, outcome, causes.without_detail(attempt.cause)), False
        if outcome in (Outcome.PREEMPTED, Outcome.LOST) and number <= len(ran.story.simulated_attempts):
            restarts = outcome == Outcome.PREEMPTED
            yield simulated.ended, events.StateChanged("QUEUED", True, restarts, ran.job.resumable), False


def _first_placement(ran: Ran) -> dict[str, int]:
    found: dict[str, int] = {}
    for piece, host in zip(ran.simulated.pieces, ran.hosts, strict=True):
        if piece.since == ran.simulated.placed:
            found[host.node.name] = found.get(host.node.name, 0) + piece.gpus
    return found
