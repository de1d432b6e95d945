"""What needs a user's attention, each with the action to take: their jobs, and for admins the machines of the lab."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import QuerySet
from django.urls import reverse
from django.utils import timezone

from portal.accounts.models import User
from portal.cluster.attention import MAX_OF_A_KIND, Item, lab_attention
from portal.cluster.models import LIVE_NODE, Node
from portal.cluster.services import is_online
from portal.environments.attention import failed_environments
from portal.home.models import SeenFailures
from portal.home.runs import LiveAttempt
from portal.jobs import silence
from portal.jobs.models import FINISHED_STATES, Attempt, CheckpointSet, Container, Job, JobState
from portal.jobs.time_extensions.attention import open_time_extensions
from portal.ui import duration

FAILURES_SHOWN_FOR = timedelta(days=7)
"""How long a failure is shown that is not marked as seen."""
NEAR_LIMIT_PART = 0.1
NEAR_LIMIT = timedelta(minutes=15)
"""A job is near its time limit when less than this is left, or less than that part of it."""
NO_CHECKPOINT_AFTER = timedelta(minutes=30)
FILES_EXPECTED_FOR = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Attention:
    items: list[Item]
    seen_until: datetime | None
    """Until when failures are marked as seen with the button; None when none is shown."""


def attention_of(user: User, live: Mapping[int, LiveAttempt], now: datetime) -> Attention:
    """Return what needs the attention of a user. The number of queries does not depend on how much there is."""
    mine = Job.objects.visible_to(user).filter(submitted_by=user)
    failed = _failed(user, mine, now)
    items = [
        *((*lab_attention(now), *failed_environments(), *open_time_extensions()) if user.is_admin else ()),
        *failed,
        *_silent(user, live, now),
        *_near_limit(live),
        *_held(mine),
        *_without_checkpoint(live, now),
        *_arriving(mine, now),
    ]
    return Attention(items, max((item.at for item in failed if item.at is not None), default=None))


def mark_seen(user: User, until: datetime) -> None:
    """Mark the failures until a moment as seen. A later moment that is stored already stays."""
    until = max(until, timezone.now() - FAILURES_SHOWN_FOR)  # databases cannot store the first and last days of all
    row, created = SeenFailures.objects.get_or_create(user=user, defaults={"until": until})
    if not created and row.until < until:
        SeenFailures.objects.filter(user=user, until__lt=until).update(until=until)


def _name(job: Job) -> str:
    return f"{job.name} #{job.pk}"


def _job_path(job: int) -> str:
    return reverse("jobs:detail", args=[job])


# --- jobs --------------------------------------------------------------------------------------------------------


def _failed(user: User, mine: QuerySet[Job], now: datetime) -> list[Item]:
    seen = SeenFailures.objects.filter(user=user).values_list("until", flat=True).first()
    since = max(now - FAILURES_SHOWN_FOR, seen or now - FAILURES_SHOWN_FOR)
    failed = mine.filter(state=JobState.FAILED, finished_at__gt=since).order_by("-finished_at")
    found = list(failed.only("name", "finished_at")[: MAX_OF_A_KIND + 1])
    rows = found[:MAX_OF_A_KIND]
    last = {each.job_id: each for each in Attempt.objects.filter(job__in=rows).order_by("number")}
    items = []
    for job in rows:
        why = last[job.pk].explanation if job.pk in last else {}
        text = f"{_name(job)} failed"
        about = (why.get("title", ""), "See the log", _job_path(job.pk))
        items.append(Item("failed", "cross", "red", text, *about, at=job.finished_at))
    if len(found) > len(rows):
        path = f"{reverse('jobs:list')}?mine=1&state=failed"
        items.append(Item("failed", "cross", "red", "More of your jobs failed", "", "See all", path))
    return items


def _silent(user: User, live: Mapping[int, LiveAttempt], now: datetime) -> Iterator[Item]:
    if not live:
        return
    for quiet in silence.silences(now, submitted_by=user.pk).values():
        job = live.get(quiet.job)
        if job is not None:
            text = f"{_name(job.attempt.job)} is silent"
            yield Item("silent", "clock", "amber", text, quiet.text(now), "See the log", _job_path(quiet.job))


def _near_limit(live: Mapping[int, LiveAttempt]) -> Iterator[Item]:
    for pk, each in live.items():
        job, progress = each.attempt.job, each.progress
        if progress is None or job.intent != Job.Intent.RUN:
            continue
        left, needed = progress.limit_left, progress.work_left
        near = left < max(NEAR_LIMIT, timedelta(seconds=NEAR_LIMIT_PART * job.time_limit_seconds))
        if not near and not progress.exceeds_limit:
            continue
        if needed is not None and progress.exceeds_limit:
            detail = f"At this speed its training needs {_in_words(needed)} more, and {_in_words(left)} is left."
            text = f"{_name(job)} will reach its time limit before it is done"
        else:
            text, detail = f"{_name(job)} reaches its time limit in {_in_words(left)}", "It is stopped then."
        path = reverse("forecast:more-time", args=[pk])
        yield Item("limit", "clock", "amber", text, detail, "Ask for more time", path)


def _in_words(left: timedelta) -> str:
    return duration(max(0.0, left.total_seconds()) // 60 * 60) if left >= timedelta(minutes=1) else "a minute"


def _held(mine: QuerySet[Job]) -> Iterator[Item]:
    held = mine.filter(state=JobState.HELD, finished_at=None)
    rows = list(held.only("name")[: MAX_OF_A_KIND + 1])
    for job in rows[:MAX_OF_A_KIND]:
        detail, path = "It does not run until it is released.", reverse("jobs:act", args=[job.pk, "release"])
        yield Item("held", "pause", "violet", f"{_name(job)} is on hold", detail, "Release", path, posts=True)
    if len(rows) > MAX_OF_A_KIND:
        path = f"{reverse('jobs:list')}?mine=1&state=held"
        yield Item("held", "pause", "violet", "More jobs are on hold", "", "See all", path)


def _without_checkpoint(live: Mapping[int, LiveAttempt], now: datetime) -> Iterator[Item]:
    """Yield jobs that should be able to restart and have no checkpoint in the portal, unless all nodes share a folder."""
    old = {
        pk: each.attempt
        for pk, each in live.items()
        if each.attempt.job.resumable
        and each.attempt.started_at
        and now - each.attempt.started_at >= NO_CHECKPOINT_AFTER
    }
    if not old:
        return
    nodes = Node.objects.filter(LIVE_NODE, approved_at__isnull=False)
    shared = set(nodes.order_by().values_list("facts__shared", flat=True).distinct())
    if len(shared) == 1 and all(isinstance(folder, str) and folder for folder in shared):
        return
    stored = set(CheckpointSet.objects.filter(job__in=old).values_list("job", flat=True))
    for pk, attempt in old.items():
        if pk not in stored and attempt.started_at is not None:
            ran = _in_words(now - attempt.started_at)
            detail = f"It has run for {ran} and would restart from the beginning. Does its code save to /checkpoints?"
            text = f"{_name(attempt.job)} has stored no checkpoint"
            yield Item("checkpoint", "alert", "amber", text, detail, "See the job", _job_path(pk))


def _arriving(mine: QuerySet[Job], now: datetime) -> Iterator[Item]:
    finished = mine.filter(state__in=FINISHED_STATES, finished_at__gt=now - FILES_EXPECTED_FOR).order_by()
    rows = Container.objects.filter(attempt__job__in=finished, collected_at=None, node__removed_at=None)
    parts = rows.exclude(exit_reason="lost").select_related("attempt__job", "node").defer("spec", "node__facts")
    nodes: dict[int, list[Node]] = {}
    jobs: dict[int, Job] = {}
    for part in parts.order_by("-attempt__job", "index")[:50]:
        jobs[part.attempt.job_id] = part.attempt.job
        nodes.setdefault(part.attempt.job_id, []).append(part.node)
    for pk in list(jobs)[:MAX_OF_A_KIND]:
        names = ", ".join(dict.fromkeys(node.name for node in nodes[pk]))
        away = [node.name for node in nodes[pk] if not is_online(node, now)]
        detail = f"{away[0]} does not report: they come when it does." if away else "The last of its log and outputs."
        text = f"Files of {_name(jobs[pk])} are still arriving from {names}"
        yield Item("arriving", "download", "blue", text, detail, "See the job", _job_path(pk))


# --- machines, for admins ----------------------------------------------------------------------------------------
