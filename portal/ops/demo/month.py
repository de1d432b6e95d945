"""Fill a new demo lab: people, nodes and a month that ends now."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from django.db import connection, transaction

from portal.jobs.models import JobState
from portal.ops.demo import files, monitoring, people, rows
from portal.ops.demo.people import GROUPS, PEOPLE
from portal.ops.demo.play import END, Story, play
from portal.ops.demo.rows import Planned, Written
from portal.ops.demo.workload import DAY, DAYS, HOUR, Size, submissions
from portal.usage.rollups import roll_up
from scheduling.types import Reservation

SEED = 7
PRACTICAL_HOURS = 4


def fill(now: datetime, size: Size, url: str, seed: int = SEED) -> Written:
    """Make everything, in a migrated and empty database. The same for the same arguments, apart from secrets."""
    now = now.replace(microsecond=0)
    start = now - timedelta(days=DAYS)
    planned = reservations(start, size)
    stories = decide(start, size, seed, planned)
    with transaction.atomic():
        made = people.fill(start, size, url)
        at = rows.clock_of(start)
        configs = rows.write_policies(made, at)
        rows.write_reservations(made, planned, at)
        rows.write_offers(made, at)
        written = rows.write_jobs(made, stories, configs, start)
        found = files.trajectories(written)
        files.write_logs(written, found)
        files.write_curves(written, found)
        files.write_outputs(written, found)
        rows.explain(written)
        rows.write_history(written)
        monitoring.write(made, written, now, seed)
        files.hand_over(written, found, now)
        people.be_seen(made, now)
        _update_statistics()
        roll_up(now)
    return written


def _update_statistics() -> None:
    """Update PostgreSQL's statistics, by which it plans queries: it would do so itself only a minute later."""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE")


def decide(start: datetime, size: Size, seed: int, planned: Sequence[Planned]) -> list[Story]:
    """Return what everyone submitted and what became of it. Pure."""
    owners = {name: frozenset(who for who, group in PEOPLE.items() if group == name) for name in GROUPS}
    kept = [Reservation(r.name, str(r.node), r.gpus, r.since, r.until, owners[r.group]) for r in planned]
    return play(submissions(start, size, seed, planned[0].since), size, PEOPLE, GROUPS, kept)


def reservations(start: datetime, size: Size) -> list[Planned]:
    """Return a practical of the course on a working day of the last week, the next practical, and a visit."""
    node, gpus = (1 if size.nodes > 1 else 0), max(1, size.gpus // 2)

    def afternoon(day: datetime) -> float:
        while day.weekday() >= 5:
            day += timedelta(days=1)
        return (day.replace(hour=13, minute=0, second=0, microsecond=0) - start).total_seconds()

    past = afternoon(start + timedelta(days=DAYS - 6))
    coming = afternoon(start + timedelta(days=DAYS + 1))
    visit = afternoon(start + timedelta(days=DAYS + 3))
    return [
        Planned("Deep learning course, practical 4", node, gpus, past, past + PRACTICAL_HOURS * HOUR, "course"),
        Planned("Deep learning course, practical 5", node, gpus, coming, coming + PRACTICAL_HOURS * HOUR, "course"),
        Planned("Visit of the robotics partners", 0, size.gpus, visit, visit + 2 * HOUR, "robotics"),
    ]


def summary(written: Written, size: Size) -> str:
    """Describe in one line what was made."""
    states = [story.status for story in written.stories]
    used = sum(
        piece.gpus * ((END if piece.until is None else piece.until) - piece.since)
        for story in written.stories
        for simulated in story.simulated_attempts
        for piece in simulated.pieces
    )
    load = round(100 * used / (size.total * DAYS * DAY))
    return (
        f"{size.nodes} nodes with {size.total} GPUs, {len(PEOPLE)} people, {len(states)} jobs of the last {DAYS} days "
        f"(GPUs {load} % in use), {states.count(JobState.RUNNING)} running, {states.count(JobState.QUEUED)} waiting."
    )
