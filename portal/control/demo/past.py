"""A past of some days for the demo lab: who ran what where, first come, first served. Written whole; it never moves.

Decided by a small play over the lab's GPUs, so that no GPU is held twice and waiting follows from load.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from portal.cluster.models import Environment, Gpu, Node
from portal.gauges import sampling
from portal.gauges.models import Hour, Sample
from portal.gauges.rollups import HOUR, hour_of, summary
from portal.gauges.sampling import Reading
from portal.jobs.models import Allocation, Attempt, Container, Job, JobEvent
from portal.projects.models import CodeVersion
from portal.usage.rollups import roll_up

NAMES = ("resnet on digits", "sweep of learning rates", "keyword spotting", "larger batch", "ablation", "baseline")
PER_GPU_AND_DAY = 3
FAILS = 0.12


@dataclass(slots=True)
class Ask:
    """One job of the past."""

    submitted: datetime
    length: timedelta
    gpus: int
    code: CodeVersion
    fails: bool
    name: str
    start: datetime | None = None
    held: tuple[Gpu, ...] = ()

    @property
    def begun(self) -> datetime:
        assert self.start is not None  # noqa: S101  # only asked of those that ran
        return self.start

    @property
    def end(self) -> datetime:
        return self.begun + self.length


def write(now: datetime, since: datetime, nodes: Sequence[Node], codes: Sequence[CodeVersion], seed: int = 1) -> int:
    """How many jobs the lab has had."""
    chance = random.Random(seed)  # noqa: S311  # nothing secret hangs on it
    gpus = {node.pk: list(Gpu.objects.filter(node=node).order_by("index")) for node in nodes}
    most = min(len(each) for each in gpus.values())
    asks = _asks(chance, now, since, sum(len(each) for each in gpus.values()), most, codes)
    ran = play(asks, gpus, now)
    _rows(ran)
    _hours(chance, ran, [gpu for each in gpus.values() for gpu in each], since, now)
    roll_up(now)
    return len(ran)


def _asks(
    chance: random.Random, now: datetime, since: datetime, gpus: int, most: int, codes: Sequence[CodeVersion]
) -> list[Ask]:
    span = now - since
    asks = []
    for _ in range(int(gpus * span.days * PER_GPU_AND_DAY / 2)):
        length = timedelta(minutes=min(720.0, max(4.0, chance.lognormvariate(4.2, 1.0))))
        wanted = min(most, chance.choice((1, 1, 1, 2, 2, 4)))
        fails = chance.random() < FAILS
        asks.append(
            Ask(since + span * chance.random(), length / 5 if fails else length, wanted, chance.choice(codes), fails,
                chance.choice(NAMES))
        )  # fmt: skip
    return sorted(asks, key=lambda ask: ask.submitted)


def play(asks: Sequence[Ask], gpus: dict[int, list[Gpu]], now: datetime) -> list[Ask]:
    """First come, first served, each on one node. Only those are kept that have ended by now."""
    free_at = {gpu.pk: asks[0].submitted for each in gpus.values() for gpu in each} if asks else {}
    ran, earliest = [], asks[0].submitted if asks else now
    for ask in asks:
        best: tuple[datetime, list[Gpu]] | None = None
        for each in gpus.values():
            soonest = sorted(each, key=lambda gpu: free_at[gpu.pk])[: ask.gpus]
            start = max(ask.submitted, earliest, *(free_at[gpu.pk] for gpu in soonest))
            if best is None or start < best[0]:
                best = start, soonest
        if best is None or best[0] + ask.length >= now - timedelta(minutes=1):
            continue
        ask.start, ask.held = best[0], tuple(best[1])
        earliest = ask.start
        for gpu in ask.held:
            free_at[gpu.pk] = ask.end
        ran.append(ask)
    return ran


def _rows(ran: Sequence[Ask]) -> None:
    environment = Environment.objects.filter(retired=False).order_by("position", "key")[0]
    jobs = Job.objects.bulk_create(
        Job(
            project=ask.code.project, code=ask.code, environment=environment, submitted_by=ask.code.created_by,
            submitted_at=ask.submitted, name=ask.name, launcher="torchrun", entry="train.py", min_gpus=ask.gpus,
            max_gpus=ask.gpus, time_limit_seconds=24 * 3600, state="FAILED" if ask.fails else "SUCCEEDED",
            started_at=ask.begun, finished_at=ask.end,
        )
        for ask in ran
    )  # fmt: skip
    attempts = Attempt.objects.bulk_create(
        Attempt(
            job=job, number=1, created_at=ask.begun, started_at=ask.begun, ended_at=ask.end,
            outcome="failed" if ask.fails else "succeeded", policy="fifo", secret="past",  # noqa: S106
        )
        for job, ask in zip(jobs, ran, strict=True)
    )  # fmt: skip
    parts = Container.objects.bulk_create(
        Container(
            attempt=attempt, node=ask.held[0].node, index=0, role="host", name=f"sl-{attempt.job_id}-a1-0", spec={},
            assigned_at=ask.begun, state="EXITED", state_since=ask.end, running_at=ask.begun, exited_at=ask.end,
            exit_code=int(ask.fails), exit_reason="exited", collected_at=ask.end,
        )
        for attempt, ask in zip(attempts, ran, strict=True)
    )  # fmt: skip
    Allocation.objects.bulk_create(
        Allocation(gpu=gpu, attempt=part.attempt, container=part, allocated_at=ask.begun, released_at=ask.end)
        for part, ask in zip(parts, ran, strict=True)
        for gpu in ask.held
    )
    JobEvent.objects.bulk_create(
        JobEvent(job=job, seq=seq, at=at, kind=kind, text=text)
        for job, ask in zip(jobs, ran, strict=True)
        for seq, (at, kind, text) in enumerate(
            (
                (ask.submitted, "submitted", f"Submitted by {job.submitted_by}."),
                (ask.begun, "started", "Attempt 1 started."),
                (ask.end, "ended", f"Attempt 1 ended: {'failed' if ask.fails else 'succeeded'}."),
            ),
            start=1,
        )
    )


def _hours(chance: random.Random, ran: Sequence[Ask], gpus: Sequence[Gpu], since: datetime, now: datetime) -> None:
    """What the GPUs did, minute by minute: whole hours, and samples of the last one."""
    by_gpu: dict[int, list[Ask]] = {gpu.pk: [] for gpu in gpus}
    for ask in ran:
        for gpu in ask.held:
            by_gpu[gpu.pk].append(ask)
    hours: list[Hour] = []
    latest: dict[tuple[int, datetime], list[Reading]] = {}
    for gpu in gpus:
        hour = hour_of(since) + HOUR
        while hour + HOUR <= now:
            hours.append(_hour(chance, gpu, hour, by_gpu[gpu.pk]))
            hour += HOUR
        for minute in range(int(HOUR.total_seconds() / 60), 0, -1):
            at = sampling.slot_of(now - timedelta(minutes=minute))
            latest.setdefault((gpu.node_id, at), []).append(_reading(chance, gpu, at, by_gpu[gpu.pk]))
    Hour.objects.bulk_create(hours, batch_size=500)
    Sample.objects.bulk_create(
        Sample(node_id=node, at=at, readings=sampling.sample_of(readings)) for (node, at), readings in latest.items()
    )


def _hour(chance: random.Random, gpu: Gpu, hour: datetime, asks: Sequence[Ask]) -> Hour:
    near = [ask for ask in asks if ask.begun < hour + HOUR and ask.end > hour]
    minutes = [hour + timedelta(minutes=minute) for minute in range(60)]
    return summary(gpu.pk, hour, [(at, _reading(chance, gpu, at, near)) for at in minutes])


def _reading(chance: random.Random, gpu: Gpu, at: datetime, asks: Sequence[Ask]) -> Reading:
    works = any(ask.begun <= at < ask.end for ask in asks)
    percent = min(100, max(0, round(chance.gauss(78, 9)))) if works else 0
    return Reading(gpu.pk, percent, 22_000 if works else 450, 34 + round(0.44 * percent))
