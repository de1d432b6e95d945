"""Running jobs without output: which ranks are silent, since when, and the first clues.

Everything that comes from ranks is a stream of their container, lines of log as well as metrics, or a checkpoint. A rank that
is alive and silent may compute, wait or hang: it is reported, and never stopped for this.

A silent rank among others that print is often normal: in most trainings only rank 0 prints. It is reported only if it
printed all the time before and has now been silent for much longer than ever.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from django.conf import settings
from django.db.models import F, Max, Q
from django.db.models.functions import Coalesce
from django.utils import timezone

from portal.cluster.slots import are_cpu_slots
from portal.jobs import logs
from portal.jobs.events import Silent
from portal.jobs.models import (
    METRICS_STREAM,
    Allocation,
    Attempt,
    CheckpointSet,
    Container,
    ContainerState,
    Job,
    JobEvent,
    LogStream,
)
from portal.sentences import events as sentences
from portal.sentences import mails

SETUP_STREAM = "setup"
"""The streams of supervisors and drivers, which print whether or not the ranks are alive."""
MIN_GAP_RATIO = 3
"""A rank counts as silent when its silence is this many times as long as its longest one before."""


class SilentRank(NamedTuple):
    """A rank that is silent while others print, e.g. ``rank 3 on gpu-2``."""

    label: str
    node: str

    def __str__(self) -> str:
        return sentences.rank_on_node(*self)


@dataclass(frozen=True, slots=True)
class Silence:
    """A silence: ranks of a running attempt have had no output for longer than the limit of the job."""

    attempt: int
    job: int
    since: datetime
    ranks: tuple[SilentRank, ...] = ()
    """The ranks that are silent while others print; empty: all are silent."""
    containers: tuple[int, ...] = ()
    """The hosts of these ranks; all hosts of the attempt when all are silent."""

    def text(self, now: datetime | None = None) -> str:
        """Return a sentence for the job's owner."""
        return sentences.silence(self.seconds(now or timezone.now()), self.ranks)

    def seconds(self, now: datetime) -> int:
        return round((now - self.since).total_seconds())

    @property
    def rank_names(self) -> list[list[str]]:
        """Return the label and the node of each silent rank, for a message."""
        return [list(rank) for rank in self.ranks]


class Utilisation(NamedTuple):
    """What the GPUs of a job do, in percent."""

    gpus: int
    cpu_slots: bool
    """They are CPU slots."""
    lowest: int
    highest: int

    def __str__(self) -> str:
        return mails.utilisation(*self)


@dataclass(frozen=True, slots=True)
class Clues:
    """What a user checks first; each is empty if it is unknown."""

    last_line: str
    gpus: Utilisation | None


class _Host(NamedTuple):
    """A host of a live attempt that was not asked to stop."""

    attempt: int
    job: int
    elastic: bool
    own_minutes: int | None
    started_at: datetime | None
    pk: int
    state: str
    running_at: datetime | None
    node_seen_at: datetime | None

    @property
    def limit(self) -> timedelta:
        return limit_of(self.own_minutes)


def limit_of(own_minutes: int | None) -> timedelta:
    """Return the limit of a job with ``own_minutes``; zero means that its silences are never reported."""
    return timedelta(minutes=settings.SILENT_RANK_MINUTES if own_minutes is None else own_minutes)


def silences(now: datetime, job: int | None = None, *, submitted_by: int | None = None) -> dict[int, Silence]:
    """Return the silences of all running attempts, of one job's or of a user's, by attempt: at most four queries."""
    hosts = _candidates(now, job, submitted_by)
    latest, printed = _latest_output(hosts)
    found, others = {}, {}
    for attempt, parts in hosts.items():
        since, limit = max(_could_print_since(parts), latest.get(attempt, _could_print_since(parts))), parts[0].limit
        if now - since >= limit:
            pks = tuple(part.pk for part in parts)
            found[attempt] = Silence(attempt, parts[0].job, since, containers=pks)
        elif attempt in printed and now - printed[attempt] < limit:
            others[attempt] = parts
    return found | _single_ranks(others, now)


def was_reported(attempt: Attempt) -> bool:
    """Return whether a silence of this attempt has been reported, whether or not it has ended."""
    return JobEvent.objects.filter(job=attempt.job_id, kind=Silent.kind, data__attempt=attempt.number).exists()


def job_silence(job: Job) -> Silence | None:
    return next(iter(silences(timezone.now(), job.pk).values()), None)


def _candidates(now: datetime, job: int | None, submitted_by: int | None) -> dict[int, list[_Host]]:
    """Return the attempts whose ranks have been alive for longer than the limit, and whose nodes are online."""
    rows = Container.objects.filter(
        role=Container.Role.HOST,
        attempt__ended_at=None,
        attempt__wanted=Attempt.Wanted.RUN,
        wanted=Container.Wanted.RUN,
    ).exclude(state=ContainerState.EXITED)
    if job is not None:
        rows = rows.filter(attempt__job=job)
    if submitted_by is not None:
        rows = rows.filter(attempt__job__submitted_by=submitted_by, attempt__job__finished_at=None)
    hosts: dict[int, list[_Host]] = {}
    for row in rows.order_by("attempt", "index").values_list(
        "attempt", "attempt__job", "attempt__job__elastic", "attempt__job__silent_rank_minutes", "attempt__started_at",
        "pk", "state", "running_at", "node__last_seen_at",
    ):  # fmt: skip
        hosts.setdefault(row[0], []).append(_Host(*row))
    return {attempt: parts for attempt, parts in hosts.items() if _can_be_silent(parts, now)}


def _can_be_silent(parts: list[_Host], now: datetime) -> bool:
    running = [part for part in parts if part.state == ContainerState.RUNNING and part.running_at is not None]
    if not parts[0].limit or not running or (len(running) < len(parts) and not parts[0].elastic):
        return False
    contact = now - timedelta(seconds=settings.NODE_LOST_AFTER_SECONDS)
    if any(part.node_seen_at is None or part.node_seen_at < contact for part in parts):
        return False  # its output may still be on the node
    return now - _could_print_since(parts) >= parts[0].limit


def _could_print_since(parts: list[_Host]) -> datetime:
    """Return the first time at which ranks could print. Hosts that join an elastic attempt later do not count."""
    started = [part.running_at for part in parts if part.running_at is not None]
    return parts[0].started_at if parts[0].elastic and parts[0].started_at else max(started)


def _latest_output(attempts: Iterable[int]) -> tuple[dict[int, datetime], dict[int, datetime]]:
    """Return the times of the latest output of each attempt: of any kind, and of a rank."""
    if not attempts:
        return {}, {}
    latest, printed = {}, {}
    at = Coalesce("last_at", "first_at")
    streams = LogStream.objects.filter(container__attempt__in=attempts).exclude(name=SETUP_STREAM).order_by()
    by_attempt = streams.values_list("container__attempt")
    for attempt, any_kind, line in by_attempt.annotate(any=Max(at), line=Max(at, filter=~Q(name=METRICS_STREAM))):
        if any_kind is not None:
            latest[attempt] = any_kind
        if line is not None:
            printed[attempt] = line
    stored = CheckpointSet.objects.filter(attempt__in=attempts)
    for attempt, at_portal in stored.values_list("attempt", "stored_at"):
        latest[attempt] = max(at_portal, latest.get(attempt, at_portal))
    return latest, printed


def _single_ranks(attempts: Mapping[int, list[_Host]], now: datetime) -> dict[int, Silence]:
    """Return the silences of single ranks in attempts in which others print."""
    if not attempts:
        return {}
    limits = {part.pk: part.limit for parts in attempts.values() for part in parts}
    shortest = min(limits.values())
    rows = LogStream.printed.filter(
        container__in=limits, closed=False, last_at__lte=now - shortest, last_at__gte=F("first_at") + shortest
    ).exclude(name=SETUP_STREAM)
    silent: dict[int, list[LogStream]] = {}
    for stream in rows.select_related("container__node").defer("container__spec").order_by("container__index", "name"):
        if _has_gone_silent(stream, limits[stream.container_id], now):
            silent.setdefault(stream.container.attempt_id, []).append(stream)
    return {attempt: _silence_of_streams(attempts[attempt][0], streams) for attempt, streams in silent.items()}


def _has_gone_silent(stream: LogStream, limit: timedelta, now: datetime) -> bool:
    """Return whether a stream printed for at least the limit, and never paused for nearly as long as now."""
    if stream.first_at is None or stream.last_at is None:
        return False
    quiet, usual = now - stream.last_at, timedelta(seconds=stream.longest_gap_seconds or 0.0)
    return quiet >= max(limit, MIN_GAP_RATIO * usual) and stream.last_at - stream.first_at >= limit


def _silence_of_streams(host: _Host, streams: list[LogStream]) -> Silence:
    ranks = tuple(SilentRank(logs.label_of(stream), stream.container.node.name) for stream in streams)
    pks = tuple(dict.fromkeys(stream.container_id for stream in streams))
    since = min(stream.last_at for stream in streams if stream.last_at is not None)
    return Silence(host.attempt, host.job, since, ranks, pks)


# --- clues -------------------------------------------------------------------------------------------------------


def clues(silence: Silence) -> Clues:
    """Return the clues about a silence, from two queries and the end of one log."""
    streams = LogStream.printed.filter(container__in=silence.containers).exclude(name=SETUP_STREAM)
    newest = streams.order_by(F("last_at").desc(nulls_last=True)).first()
    return Clues(logs.last_line(newest) if newest else "", _gpu_utilisation(silence))


def _gpu_utilisation(silence: Silence) -> Utilisation | None:
    held = Allocation.objects.filter(container__in=silence.containers, released_at=None)
    rows = list(held.values_list("gpu__kind", "gpu__utilisation_percent"))
    percents = [percent for _, percent in rows if percent is not None]
    if not percents:
        return None
    cpu_slots = are_cpu_slots(kind for kind, _ in rows)
    return Utilisation(len(percents), cpu_slots, min(percents), max(percents))
