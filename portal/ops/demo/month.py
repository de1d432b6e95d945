"""Fill a new demo lab: people, nodes and a month that ends now."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from django.db import connection, transaction

from portal.jobs.models import JobState
from portal.ops.demo import chains, files, history, monitoring, more_time, notices, people, rows, schedules
from portal.ops.demo.people import GROUPS, PEOPLE
from portal.ops.demo.rows import MonthRows, PlannedReservation
from portal.ops.demo.simulation import END, DemoJob, simulate_month
from portal.ops.demo.workload import DAY, DAYS, HOUR, LabSize, submissions
from portal.usage.rollups import roll_up
from scheduling.types import Reservation

SEED = 7
PRACTICAL_HOURS = 4


def fill(now: datetime, size: LabSize, url: str, seed: int = SEED) -> MonthRows:
    """Make everything, in a migrated and empty database. The same for the same arguments, apart from secrets."""
    now = now.replace(microsecond=0)
    start = now - timedelta(days=DAYS)
    planned = reservations(start, size)
    demo_jobs = simulate_jobs(start, size, seed, planned)
    with transaction.atomic():
        lab = people.create_lab(start, size, url)
        at = rows.month_clock(start)
        configs = rows.write_policies(lab, at)
        rows.write_reservations(lab, planned, at)
        rows.write_capacity(lab, at)
        written = rows.write_jobs(lab, demo_jobs, configs, start)
        found = files.trajectories(written)
        files.write_logs(written, found)
        files.write_curves(written, found)
        files.write_outputs(written, found)
        rows.find_causes(written)
        more = {**schedules.write_schedule(written, now), **chains.chain_past(written)}
        histories = list(history.history_lines(written, more))
        history.write_history(written, histories)
        notices.write_notices(written, histories)
        monitoring.write_readings(lab, written, now, seed)
        files.hand_over_running_jobs(written, found, now)
        people.mark_nodes_seen(lab, now)
        chains.submit_waiting(written, now)
        more_time.ask_for_more(next(iter(lab.users.values())), now)
        notices.show_notices(now)
        _update_statistics()
        roll_up(now)
    return written


def _update_statistics() -> None:
    """Update PostgreSQL's statistics, by which it plans queries: it would do so itself only a minute later."""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE")


def simulate_jobs(start: datetime, size: LabSize, seed: int, planned: Sequence[PlannedReservation]) -> list[DemoJob]:
    """Return what everyone submitted and what became of it. Pure."""
    owners = {name: frozenset(who for who, group in PEOPLE.items() if group == name) for name in GROUPS}
    kept = [Reservation(r.name, str(r.node), r.gpus, r.since, r.until, owners[r.group]) for r in planned]
    return simulate_month(submissions(start, size, seed, planned[0].since), size, PEOPLE, GROUPS, kept)


def reservations(start: datetime, size: LabSize) -> list[PlannedReservation]:
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
        PlannedReservation(
            "Deep learning course, practical 4", node, gpus, past, past + PRACTICAL_HOURS * HOUR, "course"
        ),
        PlannedReservation(
            "Deep learning course, practical 5", node, gpus, coming, coming + PRACTICAL_HOURS * HOUR, "course"
        ),
        PlannedReservation("Visit of the robotics partners", 0, size.gpus, visit, visit + 2 * HOUR, "robotics"),
    ]


def summary(written: MonthRows, size: LabSize) -> str:
    """Describe in one line what was made."""
    states = [demo_job.status for demo_job in written.demo_jobs]
    used = sum(
        holding.gpus * ((END if holding.until is None else holding.until) - holding.since)
        for demo_job in written.demo_jobs
        for simulated in demo_job.attempts
        for holding in simulated.holdings
    )
    load = round(100 * used / (size.total * DAYS * DAY))
    return (
        f"{size.nodes} nodes with {size.total} GPUs, {len(PEOPLE)} people, {len(states)} jobs of the last {DAYS} days "
        f"(GPUs {load} % in use), {states.count(JobState.RUNNING)} running, {states.count(JobState.QUEUED)} waiting."
    )
