"""Makes and stores forecasts of all waiting jobs, and scores them when the jobs start."""

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import ClassVar

from django.conf import settings
from django.db import transaction
from django.db.models import Count, Q
from django.utils import timezone

from portal.forecast import words
from portal.forecast.futures import NEVER, Futures, simulate_futures
from portal.forecast.messages import AfterAnotherJob, NotByItself, TooFarBack
from portal.forecast.models import Forecast, Score
from portal.jobs import dependencies
from portal.jobs.models import Attempt, Job, JobState
from portal.scheduler import snapshot as snapshots
from portal.scheduler.failures import violation_sentences
from portal.scheduler.job_history import History
from portal.scheduler.models import PolicyState
from portal.scheduler.services import current_config
from portal.sentences import sentence_of
from portal.sentences.spans import nearest_duration, rough_duration, wait_range
from scheduling import registry
from scheduling.gpu_requests import may_use_whole_machine, with_accepted_nodes
from scheduling.messages import Message
from scheduling.simulate import InvalidPlanError
from scheduling.toolkit import reasons
from scheduling.toolkit.capacity import Capacity, in_queue_order
from scheduling.types import JobId, Policy, Snapshot

logger = logging.getLogger(__name__)

SIMULATION_SECONDS = 20.0 if settings.LAB else 6.0
"""Seconds of every half minute. The lab size has a worker for it; the small size shares its machine with the jobs."""
MAX_JOBS = 500
"""Forecasts are made for so many waiting jobs, the first in the queue."""
MAX_KINDS = 3
SCORED_DAYS = 30
SCORES_KEPT = timedelta(days=90)
MIN_SCORES = 20
"""Below this number a percentage means nothing."""
TRAIL_INTERVAL = timedelta(minutes=4)
TRAIL_KEPT = timedelta(minutes=75)
LEADS = {Score.Made.HOUR: timedelta(hours=1), Score.Made.TEN_MINUTES: timedelta(minutes=10)}
LEAD_SLACK = timedelta(minutes=10)
"""The forecast "an hour before" is the last one made then or up to this much earlier."""
STALE_AFTER = timedelta(minutes=5)


def policy_and_snapshot(now: datetime | None = None, history: History | None = None) -> tuple[Policy, Snapshot]:
    """Return the policy in force and the snapshot that its next cycle would get.

    ``history`` is one that the caller has used before; without it everything is read. Raises ValueError when the policy
    is no longer in the code.
    """
    config = current_config()
    policy = registry.build(config.policy, config.params)
    kept = PolicyState.objects.filter(config=config.pk).first()
    return policy, snapshots.take(now, kept.state if kept else {}, history)


# --- making ------------------------------------------------------------------------------------------------------


def refresh(now: datetime | None = None, history: History | None = None) -> int:
    """Score the jobs that have started, forecast those that wait; return how many got a forecast. May be repeated."""
    now = now or timezone.now()
    close_forecasts(now)
    try:
        policy, seen = policy_and_snapshot(now, history)
        ranges, notes, futures = forecast_ranges(policy, seen)
        waiting = {str(job): AfterAnotherJob(why.after) for job, why in dependencies.reasons().items()}
    except InvalidPlanError as error:
        logger.warning("no forecast: a plan breaks a rule: %s", violation_sentences(error.violations))
        return 0
    except ValueError as error:
        logger.warning("no forecast: the policy does not decide: %s", error)
        return 0
    _store(seen, ranges, {**notes, **waiting}, futures)
    return len(ranges)


def forecast_ranges(
    policy: Policy, seen: Snapshot
) -> tuple[Mapping[JobId, tuple[float, float]], Mapping[JobId, Message], Futures]:
    """Return by waiting job its range, or why there is none, and the futures."""
    line, notes, simulated = line_to_simulate(seen, MAX_JOBS)
    futures = simulate_futures(policy, simulated, line, seconds=SIMULATION_SECONDS)
    return {job: futures.range_of(job) for job in line}, notes, futures


def line_to_simulate(seen: Snapshot, max_jobs: int) -> tuple[list[JobId], dict[JobId, Message], Snapshot]:
    """Return the first waiting jobs that can start, why others are not simulated, and the snapshot without these."""
    accepted = with_accepted_nodes(seen)
    waiting = in_queue_order(job for job in accepted.jobs if job.waiting)
    capacity = Capacity(accepted)
    notes: dict[JobId, Message] = {
        job.id: NotByItself()
        for job in waiting
        if reasons.impossible(job, capacity) and not may_use_whole_machine(job, accepted)
    }
    line = [job.id for job in waiting if job.id not in notes]
    notes |= dict.fromkeys(line[max_jobs:], TooFarBack(max_jobs))
    return line[:max_jobs], notes, replace(seen, jobs=tuple(job for job in seen.jobs if job.id not in notes))


def _store(
    seen: Snapshot, ranges: Mapping[JobId, tuple[float, float]], notes: Mapping[JobId, Message], futures: Futures
) -> None:
    made_at, snapshot_at, until = timezone.now(), _to_datetime(seen.now), _to_datetime(futures.until)
    with transaction.atomic():
        rows = Job.objects.filter(pk__in=[int(job) for job in (*ranges, *notes)], state=JobState.QUEUED)
        waiting = set(rows.values_list("pk", flat=True))
        before = Forecast.objects.in_bulk(waiting)
        new = []
        for job in waiting:
            low, high = _rounded_range(ranges.get(str(job)), until)
            trail = before[job].trail if job in before else []
            note = notes.get(str(job))
            row = Forecast(
                job_id=job, snapshot_at=snapshot_at, made_at=made_at, low=low, high=high, until=until,
                kinds=list(futures.kinds.get(str(job), ()))[:MAX_KINDS],
                draws=futures.draws, note=note.data() if note else "", lengths_known=str(job) not in futures.bounds,
            )  # fmt: skip
            row.trail = trail if row.note else _extended_trail(trail, row)
            new.append(row)
        changing = [
            "snapshot_at",
            "made_at",
            "low",
            "high",
            "until",
            "draws",
            "note",
            "kinds",
            "lengths_known",
            "trail",
        ]
        Forecast.objects.bulk_create(
            new, batch_size=200, update_conflicts=True, unique_fields=["job"], update_fields=changing
        )


def _rounded_range(found: tuple[float, float] | None, until: datetime) -> tuple[datetime | None, datetime | None]:
    if found is None or found[0] == NEVER:
        return None, None
    return words.round_outwards(_to_datetime(found[0]), _to_datetime(found[1]) if found[1] != NEVER else None)


def _extended_trail(trail: list[list[float | None]], row: Forecast) -> list[list[float | None]]:
    """Return the trail with this range, unless its last one is recent. The first stays; others stay for an hour."""
    made, least = row.made_at.timestamp(), (row.low or row.until).timestamp()
    entry = [made, least, row.high.timestamp() if row.high else None, float(row.lengths_known)]
    if not trail:
        return [entry]
    if made - (trail[-1][0] or 0) < TRAIL_INTERVAL.total_seconds():
        return trail
    kept = [one for one in trail[1:] if made - (one[0] or 0) < TRAIL_KEPT.total_seconds()]
    return [trail[0], *kept, entry]


def _to_datetime(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


# --- scoring -----------------------------------------------------------------------------------------------------


def close_forecasts(now: datetime) -> None:
    """Score the forecasts of jobs that have GPUs now; delete all of jobs that no longer wait."""
    with transaction.atomic():
        rows = list(Forecast.objects.select_for_update(of=("self",)).select_related("job").order_by("job"))
        placed: dict[int, list[datetime]] = defaultdict(list)
        attempts = Attempt.objects.filter(job__in=[row.pk for row in rows]).order_by("created_at")
        for job, at in attempts.values_list("job", "created_at"):
            placed[job].append(at)
        scores: list[Score] = []
        over: list[int] = []
        for row in rows:
            start = next((at for at in placed[row.pk] if at > _first_made_at(row)), None)
            if start is not None:
                scores += scores_of(row, start)
                over.append(row.pk)
            elif row.job.state != JobState.QUEUED or row.job.intent != Job.Intent.RUN:
                over.append(row.pk)
        Score.objects.bulk_create(scores, ignore_conflicts=True)
        Forecast.objects.filter(pk__in=over).delete()
        Score.objects.filter(placed_at__lt=now - SCORES_KEPT).delete()


def _first_made_at(row: Forecast) -> datetime:
    return _to_datetime(row.trail[0][0]) if row.trail else row.made_at


def scores_of(row: Forecast, placed_at: datetime) -> Iterable[Score]:
    """Yield the scores of the first forecast shown, and of those an hour and ten minutes before the start."""
    chosen = {Score.Made.FIRST: row.trail[0]} if row.trail else {}
    for made, lead in LEADS.items():
        wanted = placed_at - lead
        for entry in reversed(row.trail):
            if wanted - LEAD_SLACK <= _to_datetime(entry[0]) <= wanted:
                chosen[made] = entry
                break
    for made, (at, low, high, *known) in chosen.items():
        least, most = _to_datetime(low), None if high is None else _to_datetime(high)
        yield Score(
            job_id=row.pk, made=made, made_at=_to_datetime(at), low=least, high=most, placed_at=placed_at,
            held=least <= placed_at and (most is None or placed_at <= most), lengths_known=bool(known[0]) if known else True,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Reliability:
    """How many of the first ranges shown were right, for jobs that started recently."""

    ranges: int
    held: int
    days: int = SCORED_DAYS
    lengths_known: bool = True
    """False: of the ranges whose lengths were unknown, of which the latest time is shown."""

    @property
    def percent(self) -> int | None:
        """None while there are too few ranges."""
        return round(100 * self.held / self.ranges) if self.ranges >= MIN_SCORES else None

    @property
    def sentence(self) -> str:
        if self.percent is not None:
            what = "ranges were right" if self.lengths_known else "such jobs started in time"
            return f"In the last {self.days} days, {self.percent} % of {self.ranges:,} {what}."
        what = "these ranges are" if self.lengths_known else "such times are"
        seen = f"only {self.ranges} were" if self.ranges > 1 else "only one was" if self.ranges else "none was"
        return f"How reliable {what} is not known yet: {seen} tested in the last {self.days} days."


def reliability(
    now: datetime | None = None, made: str = Score.Made.FIRST, *, lengths_known: bool = True
) -> Reliability:
    """Return how reliable recent forecasts were: ranges from history, or those made without."""
    since = (now or timezone.now()) - timedelta(days=SCORED_DAYS)
    rows = Score.objects.filter(made=made, placed_at__gte=since, lengths_known=lengths_known)
    found = rows.aggregate(ranges=Count("pk"), held=Count("pk", filter=Q(held=True)))
    return Reliability(found["ranges"], found["held"], lengths_known=lengths_known)


def reliability_of(row: Forecast | None) -> Reliability:
    """Return how reliable forecasts of the same kind were."""
    return reliability(lengths_known=row is None or row.lengths_known)


# --- reading -----------------------------------------------------------------------------------------------------


WHEN_OTHERS_END = "When the jobs ahead of it end. How long they run is not known: no similar job has succeeded here."


@dataclass(frozen=True, slots=True)
class ForecastText:
    """A forecast in words, as of now."""

    row: Forecast | None
    sentence: str
    short: str = ""
    """A short text for a list; empty when there is none."""
    span: str = ""
    """``in 20 to 100 minutes``, when there is a range that is not over."""
    stale: bool = False
    kinds: str = ""
    """``, on NVIDIA A100 or NVIDIA T4``, in a lab with several models; with a range only."""
    lead: ClassVar[str] = WHEN_OTHERS_END
    """What precedes the latest time, where lengths are not known."""


def is_stale(row: Forecast, now: datetime | None = None) -> bool:
    """Return whether a forecast is too old to be shown."""
    return (now or timezone.now()) - row.made_at > STALE_AFTER


def describe(row: Forecast | None, now: datetime | None = None) -> ForecastText:
    """Put a forecast into words."""
    now = now or timezone.now()
    if row is None:
        return ForecastText(None, "The first forecast comes within a minute.")
    stale = is_stale(row, now)
    if row.note:
        return ForecastText(row, sentence_of(row.note), stale=stale)
    if row.low is None:
        within = rough_duration((row.until - row.snapshot_at).total_seconds())
        return ForecastText(row, f"Not within {within}.", f"not within {words.abbreviate_units(within)}", stale=stale)
    low = (row.low - now).total_seconds()
    if row.high is None:
        before = words.clock(row.low, now, zone=True)
        within = rough_duration((row.until - row.snapshot_at).total_seconds())
        if not row.lengths_known:
            short = "when others end"
            return ForecastText(row, f"{WHEN_OTHERS_END} Perhaps not within {within}.", short, stale=stale)
        text = f"Not before {before}, perhaps not within {within}."
        return ForecastText(row, text, f"not before {before}", stale=stale)
    high = (row.high - now).total_seconds()
    if high < 0:
        text = f"It was expected to start by {words.clock(row.high, now, zone=True)}. The next forecast is under way."
        return ForecastText(row, text, "expected by now", stale=stale)
    within = wait_range(low, high)
    until = words.clock(row.high, now, zone=True)
    where = f", on {' or '.join(row.kinds)}" if row.kinds else ""
    if not row.lengths_known:
        latest = nearest_duration(high)
        text = f"{WHEN_OTHERS_END} At the latest by {until} (in {latest}){where}, when they reach their time limits."
        short = f"when others end, at the latest in {words.abbreviate_units(latest)}"
        return ForecastText(row, text, short, f"in {latest}", stale, where)
    between = f"between {words.clock(row.low, now)} and {until}" if low > 0 else f"by {until}"
    return ForecastText(
        row,
        f"Probably {between} ({within}){where}.",
        f"starts {words.abbreviate_units(within)}",
        within,
        stale,
        where,
    )


def forecasts_of(jobs: Iterable[Job]) -> Mapping[int, ForecastText]:
    """Return the forecasts of a list of jobs, in one query, or none when no job waits."""
    waiting = [job.pk for job in jobs if job.state == JobState.QUEUED]
    now = timezone.now()
    found = Forecast.objects.defer("trail").in_bulk(waiting) if waiting else {}
    return {pk: describe(row, now) for pk, row in found.items()}
