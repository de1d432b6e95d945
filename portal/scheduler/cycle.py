"""One turn of the scheduler's loop.

1. In a transaction, take the lock (busy means: somebody else turns) and check that we still lead.
2. Do what time alone demands (``moves.turn``, ``lifecycle.sweep``, ``drivers.replace``) and what GPUs
   that failed do (``suspects.leave``), whatever the policy does afterwards.
3. In a second transaction, lock and check again, and take the snapshot.
4. Ask the policy, within a time limit. An exception or a timeout keeps everything as it is.
5. Check the plan. One violation, and none of it is applied.
6. Apply it, line by line; tell each waiting job why it waits.
7. Record the turn if it did, found or reasons_changed anything new. On commit, nodes and browsers are woken.
8. In a third transaction, keep what a recorded turn saw and planned, so that it can be decided again.

The lock is for quiet, the re-check in ``apply`` for correctness, the unique indexes for bugs.
"""

import gc
import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

from django.db import Error as DatabaseTrouble
from django.db import connection, transaction
from django.db.models import QuerySet
from django.utils import timezone

from portal.cluster.slots import CPU_SLOT_MODEL, in_cpu_slots
from portal.jobs import gpu_failures, lifecycle
from portal.jobs.models import Job, JobState
from portal.scheduler import batch_sizes, drain_migration, driver_failover, recording
from portal.scheduler import snapshot as snapshots
from portal.scheduler.apply import ApplyResult, apply
from portal.scheduler.job_history import History
from portal.scheduler.models import Cycle, Leader, PolicyState, SchedulerConfig
from portal.scheduler.queue_order import queue_entries
from portal.scheduler.services import config_in_force, policy_name
from scheduling import registry
from scheduling.check import violations
from scheduling.decide import decide
from scheduling.types import Plan, Policy, Snapshot
from scheduling.version import version_of
from scheduling.wire import snapshot_to_text

logger = logging.getLogger(__name__)

LOCK = 0x5C4ED_1EA4
"""PostgreSQL's advisory lock of a turn; any number that nobody else uses."""
POLICY_SECONDS = 5.0
"""Policies decide in milliseconds; one that thinks longer holds up everybody."""
CYCLES_KEPT = 100_000
"""Without what they saw; that is kept for ``settings.RECORDED_TURNS`` of them."""
CANNOT_DECIDE = "The scheduler cannot decide at the moment. Admins see why on the policy page."


class LeadershipLostError(Exception):
    """Another scheduler leads now: nothing was written."""


class NoPlanError(Exception):
    """The policy gave no plan that may be applied; the message says why."""


@dataclass
class CycleResult:
    """What a turn did."""

    busy: bool = False
    applied: ApplyResult = field(default_factory=ApplyResult)
    waiting: int = 0
    error: str = ""
    seen: Snapshot | None = None
    plan: Plan | None = None
    """None when there was none that may be applied."""
    plan_ms: float = 0.0
    text: str = ""
    """Of the snapshot, when the turn was recorded."""
    recorded: Cycle | None = None


@contextmanager
def garbage_collection_paused() -> Iterator[None]:
    """The garbage collector waits: in the middle of a turn it would queryset through the whole process several times."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@garbage_collection_paused()
def run(epoch: int, now: datetime | None = None, history: History | None = None) -> CycleResult:
    """Turns once as the leader of ``epoch``. Raises LeadershipLostError when that is not the leader any more.

    ``history`` is the leader's own of the turns before; without it each turn reads all anew.
    """
    began = time.monotonic()
    with transaction.atomic():
        if not take_lock():
            return CycleResult(busy=True)
        lead(epoch)
        lifecycle.sweep(now, drain_migration.migrate(now))
        gpu_failures.leave()
        driver_failover.replace(now)
    try:
        with transaction.atomic():
            if not take_lock():
                return CycleResult(busy=True)
            lead(epoch)
            turn = _decide_and_apply(epoch, now or timezone.now(), began, history)
    except (DatabaseTrouble, LeadershipLostError):
        raise
    except Exception as error:
        # Nothing of the turn is kept but the trace that it failed.
        logger.exception("the turn failed")
        turn = CycleResult(error=f"The turn failed: {type(error).__name__}: {error}")
        with transaction.atomic():
            lead(epoch)
            _record(turn, config_in_force(), epoch, began, reasons_changed=False)
        return turn
    if turn.recorded is not None and turn.seen is not None:
        try:
            with transaction.atomic():
                lead(epoch)
                recording.keep(turn.recorded, turn.text, turn.plan)
        except LeadershipLostError:
            logger.info("turn %s is not kept whole: another scheduler leads now", turn.recorded)
    return turn


def take_lock() -> bool:
    """Held until the transaction ends. SQLite lets only one transaction write anyway."""
    if connection.vendor != "postgresql":
        return True
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_xact_lock(%s)", [LOCK])
        return bool(cursor.fetchone()[0])


def lead(epoch: int) -> None:
    """Keeps the epoch from changing until the transaction ends; raises LeadershipLostError when it has changed."""
    share = " FOR SHARE" if connection.vendor == "postgresql" else ""
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT epoch FROM {Leader._meta.db_table} WHERE id = 1{share}")  # noqa: S608
        row = cursor.fetchone()
    if row is None or row[0] != epoch:
        raise LeadershipLostError(f"epoch {epoch} is over; the leader's is {row[0] if row else 'unknown'}")


def _decide_and_apply(epoch: int, now: datetime, began: float, history: History | None) -> CycleResult:
    turn = CycleResult()
    config = config_in_force()
    kept = PolicyState.objects.filter(config=config.pk).first()
    turn.seen = snapshots.take(now, kept.state if kept else {}, history)
    try:
        policy = registry.build(config.policy, config.params)
        asked = time.monotonic()
        plan = plan_within(policy, turn.seen, POLICY_SECONDS)
        turn.plan_ms = (time.monotonic() - asked) * 1000
        if wrong := violations(turn.seen, plan):
            raise NoPlanError(f"The plan was refused: {' '.join(wrong[:10])}")
    except (ValueError, NoPlanError) as error:
        turn.error = str(error)
        reasons = {int(job.id): CANNOT_DECIDE for job in turn.seen.jobs if job.waiting}
    else:
        turn.plan = plan
        turn.applied = apply(turn.seen, plan, policy_name(config), now)
        batch_sizes.keep(plan.batches)
        if plan.state != turn.seen.state:
            PolicyState.objects.update_or_create(config=config, defaults={"state": dict(plan.state)})
        reasons = {int(job): reason for job, reason in plan.reasons.items()}
        for job, why in turn.applied.dropped.items():
            reasons.setdefault(job, f"It was about to start, but then: {why} The scheduler tries again.")
    if {node.kind for node in turn.seen.nodes} - {""} == {CPU_SLOT_MODEL}:
        reasons = {job: in_cpu_slots(reason) for job, reason in reasons.items()}
    reasons_changed = _update_reasons(turn.seen, reasons)
    turn.waiting = len(reasons)
    _record(turn, config, epoch, began, reasons_changed)
    return turn


def plan_within(policy: Policy, snapshot: Snapshot, seconds: float) -> Plan:
    """The policy's plan. Raises NoPlanError when it fails or takes longer; a thread cannot be ended, but left behind."""
    if any(thread.is_alive() for thread in _abandoned):
        raise NoPlanError(
            "The policy still thinks about an earlier turn. Switch to another, then restart the scheduler."
        )
    answer: list[Plan] = []
    failures: list[Exception] = []

    def run_policy() -> None:
        try:
            answer.append(decide(policy, snapshot))
        except Exception as error:
            logger.exception("the policy failed")
            failures.append(error)

    thread = threading.Thread(target=run_policy, name="policy", daemon=True)
    thread.start()
    thread.join(seconds)
    if failures:
        raise NoPlanError(f"The policy failed: {type(failures[0]).__name__}: {failures[0]}")
    if not answer:
        _abandoned.append(thread)
        raise NoPlanError(f"The policy did not decide within {seconds:g} seconds.")
    return answer[0]


_abandoned: list[threading.Thread] = []
"""Planners that ran out of time: while one still thinks, no other is started."""


def _update_reasons(seen: Snapshot, reasons: Mapping[int, str]) -> bool:
    """Keeps each waiting job's reason and place in the queue; True when any reason is another now."""
    standing_of = queue_entries(seen.jobs, reasons)

    def news(rows: QuerySet[Job]) -> Iterator[_ReasonUpdate]:
        updates = rows.values_list("pk", "state", "intent", "waiting_reason", "queue_position")
        for job, state, intent, before, number in updates:
            standing = standing_of.get(job) if state == JobState.QUEUED and intent == Job.Intent.RUN else None
            truth = (standing.reason, standing.place) if standing else ("", None)
            if (before, number) != truth:
                yield _ReasonUpdate(job, state, intent, before, *truth)

    # Three questions, each with an index: all who ever failed are more and more.
    left = Job.objects.filter(queue_position__isnull=False)
    querysets = (
        Job.objects.filter(state=JobState.QUEUED),
        left.filter(state__in=(JobState.HELD, JobState.RUNNING)),
        left.filter(state__in=(JobState.CANCELLED, JobState.FAILED), finished_at__gt=timezone.now() - LEFT_QUEUE),
    )
    outdated = [each for queryset in querysets for each in news(queryset.order_by())]
    if outdated:
        _write_reasons(outdated)
    return any(each.before != each.reason for each in outdated)


class _ReasonUpdate(NamedTuple):
    """What a job should be updates, and what it was updates; true as long as its state and intent are these."""

    job: int
    state: str
    intent: str
    before: str
    reason: str
    place: int | None


def _write_reasons(updates: Sequence[_ReasonUpdate]) -> None:
    """One start moves everybody behind it up: too many small updates for ``bulk_update``.

    Somebody else's lock is not waited for: it is only a sentence, and the next turn comes soon.
    """
    table = Job._meta.db_table
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            columns = [
                [getattr(each, name) for each in updates] for name in ("job", "state", "intent", "reason", "place")
            ]
            cursor.execute(
                "WITH updates AS (SELECT * FROM unnest(%s::bigint[], %s::text[], %s::text[], %s::text[], %s::integer[])"  # noqa: S608
                " AS updates(job, state, intent, reason, place)), "
                f"ours AS (SELECT updates.* FROM updates JOIN {table} AS job ON job.id = updates.job"
                " AND job.state = updates.state AND job.intent = updates.intent FOR NO KEY UPDATE OF job SKIP LOCKED) "
                f"UPDATE {table} SET waiting_reason = ours.reason, queue_position = ours.place"
                f" FROM ours WHERE {table}.id = ours.job",
                columns,
            )
        else:
            cursor.executemany(
                f"UPDATE {table} SET waiting_reason = %s, queue_position = %s"  # noqa: S608
                " WHERE id = %s AND state = %s AND intent = %s",
                [(each.reason, each.place, each.job, each.state, each.intent) for each in updates],
            )


LEFT_QUEUE = timedelta(days=7)
"""A job that ended in the queue carries its place there until the next turn; no scheduler is away for longer."""


def _record(turn: CycleResult, config: SchedulerConfig, epoch: int, began: float, reasons_changed: bool) -> None:
    """A row for a turn worth looking at: one every few seconds would bury those."""
    done = turn.applied
    last = Cycle.objects.order_by("-id").values("error", "config").first() or {"error": "", "config": None}
    news = turn.error and (turn.error, config.pk) != (last["error"], last["config"])
    recovered = last["error"] and not turn.error and last["config"] == config.pk
    if not (done.started or done.resized or done.stopped or done.dropped or reasons_changed or news or recovered):
        return
    if turn.seen is not None:
        turn.text = snapshot_to_text(turn.seen)
    row = turn.recorded = Cycle.objects.create(
        config=config,
        epoch=epoch,
        version=version_of(registry.POLICIES[config.policy]) if config.policy in registry.POLICIES else "",
        snapshot_sha256=recording.sha256_of(turn.text) if turn.text else "",
        duration_ms=(time.monotonic() - began) * 1000,
        plan_ms=turn.plan_ms,
        jobs_seen=len(turn.seen.jobs) if turn.seen else 0,
        started=len(done.started),
        resized=len(done.resized),
        stopped=len(done.stopped),
        waiting=turn.waiting,
        dropped=[{"job": job, "why": why} for job, why in done.dropped.items()],
        error=turn.error,
    )
    if row.pk % 100 == 0:
        Cycle.objects.filter(pk__lte=row.pk - CYCLES_KEPT).delete()
