"""One scheduling cycle.

1. In a transaction, take the lock (if it is taken, another cycle is running) and check that we still lead.
2. Do what time alone requires (``drain_migration.migrate``, ``lifecycle.sweep``, ``driver_failover.replace``), and
   leave GPUs that failed (``gpu_failures.move_jobs_off_faulty_gpus``), whatever the policy does afterwards. Queue the jobs
   whose earlier job has succeeded (``dependencies.settle``).
3. In a second transaction, lock and check again, and take the snapshot.
4. Run the policy within a time limit. After an exception or a timeout everything stays as it is.
5. Check the plan. A single violation rejects all of it.
6. Apply it step by step; store with each waiting job why it waits.
7. Record the cycle if it changed something, failed or changed a reason. On commit, nodes and browsers are notified.
8. In a third transaction, store the snapshot and the plan of a recorded cycle, so that it can be replayed.

The lock avoids useless work, the second check in ``apply`` makes the result correct, the unique indexes catch bugs.
"""

import gc
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, ClassVar, NamedTuple

from django.db import Error as DatabaseTrouble
from django.db import connection, transaction
from django.db.models import QuerySet
from django.utils import timezone

from portal.cluster.slots import CPU_SLOT_MODEL
from portal.jobs import dependencies, gpu_failures, lifecycle
from portal.jobs.models import Job, JobState
from portal.scheduler import batch_sizes, drain_migration, driver_failover, recording
from portal.scheduler import snapshot as snapshots
from portal.scheduler.apply import ApplyResult, apply
from portal.scheduler.failures import CycleFailed, ParametersRefused, UnknownPolicy
from portal.scheduler.job_history import History
from portal.scheduler.models import Cycle, Leader, PolicyState, SchedulerConfig
from portal.scheduler.policy_thread import NoPlanError, policy_thread
from portal.scheduler.queue_order import queue_entries
from portal.scheduler.services import config_in_force, policy_name
from scheduling import registry
from scheduling.check import violations
from scheduling.failures import PlanRefused
from scheduling.messages import Message
from scheduling.types import Plan, Policy, Snapshot
from scheduling.version import version_of
from scheduling.wire import snapshot_to_text

logger = logging.getLogger(__name__)

LOCK = 0x5C4ED_1EA4
"""PostgreSQL's advisory lock of a cycle: a number that nothing else uses."""
POLICY_SECONDS = 5.0
"""Policies decide in milliseconds; one that takes longer delays every job."""
CYCLES_KEPT = 100_000
"""Rows without their snapshots, of which ``settings.RECORDED_TURNS`` are kept."""


class LeadershipLostError(Exception):
    """Another scheduler leads now; this one has written nothing."""


@dataclass(frozen=True)
class CannotDecide(Message):
    """The policy failed, took too long, or made a plan that is not allowed."""

    code: ClassVar[str] = "cannot_decide"


@dataclass(frozen=True)
class NotStarted(Message):
    """It was about to start, but the lab had changed meanwhile; the scheduler tries again."""

    code: ClassVar[str] = "not_started"
    why: Message


@dataclass(frozen=True)
class InCpuSlots(Message):
    """The reason, in a lab that has CPU slots and no GPUs."""

    code: ClassVar[str] = "in_cpu_slots"
    reason: Message


def in_units_of_lab(message: Message, seen: Snapshot) -> Message:
    """Return the message as this lab reads it: in CPU slots where there are no GPUs."""
    kinds = {node.kind for node in seen.nodes} - {""}
    return InCpuSlots(message) if kinds == {CPU_SLOT_MODEL} else message


@dataclass
class CycleResult:
    """What a scheduling cycle did."""

    busy: bool = False
    applied: ApplyResult = field(default_factory=ApplyResult)
    waiting: int = 0
    error: Message | None = None
    """Why there was no plan."""
    seen: Snapshot | None = None
    plan: Plan | None = None
    """None when there was no plan that may be applied."""
    plan_ms: float = 0.0
    text: str = ""
    """The snapshot as text, when the cycle was recorded."""
    recorded: Cycle | None = None


@contextmanager
def garbage_collection_paused() -> Iterator[None]:
    """Pause garbage collection: in the middle of a cycle it would search the whole process several times."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@garbage_collection_paused()
def run(epoch: int, now: datetime | None = None, history: History | None = None) -> CycleResult:
    """Run one cycle as the leader of ``epoch``. Raises LeadershipLostError when another scheduler leads.

    ``history`` is kept by the leader from cycle to cycle; without it the whole history is read each time.
    """
    began = time.monotonic()
    with transaction.atomic():
        if not take_lock():
            return CycleResult(busy=True)
        require_leadership(epoch)
        lifecycle.sweep(now, drain_migration.migrate(now))
        gpu_failures.move_jobs_off_faulty_gpus()
        driver_failover.replace(now)
        dependencies.settle(now)
    try:
        with transaction.atomic():
            if not take_lock():
                return CycleResult(busy=True)
            require_leadership(epoch)
            result = _decide_and_apply(epoch, now or timezone.now(), began, history)
    except (DatabaseTrouble, LeadershipLostError):
        raise
    except Exception as error:
        # Nothing of the cycle is kept except the record that it failed.
        logger.exception("the scheduling cycle failed")
        result = CycleResult(error=CycleFailed(f"{type(error).__name__}: {error}"))
        with transaction.atomic():
            require_leadership(epoch)
            _record(result, config_in_force(), epoch, began, reasons_changed=False)
        return result
    if result.recorded is not None and result.seen is not None:
        try:
            with transaction.atomic():
                require_leadership(epoch)
                recording.keep(result.recorded, result.text, result.plan)
        except LeadershipLostError:
            logger.info("the snapshot of cycle %s is not stored: another scheduler leads now", result.recorded)
    return result


def take_lock() -> bool:
    """Try to take the cycle's lock until the transaction ends. SQLite lets only one transaction write anyway."""
    if connection.vendor != "postgresql":
        return True
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_xact_lock(%s)", [LOCK])
        return bool(cursor.fetchone()[0])


def require_leadership(epoch: int) -> None:
    """Keep the epoch from changing until the transaction ends. Raises LeadershipLostError when it has changed."""
    share = " FOR SHARE" if connection.vendor == "postgresql" else ""
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT epoch FROM {Leader._meta.db_table} WHERE id = 1{share}")  # noqa: S608
        row = cursor.fetchone()
    if row is None or row[0] != epoch:
        raise LeadershipLostError(f"epoch {epoch} is over; the leader's is {row[0] if row else 'unknown'}")


def _decide_and_apply(epoch: int, now: datetime, began: float, history: History | None) -> CycleResult:
    result = CycleResult()
    config = config_in_force()
    kept = PolicyState.objects.filter(config=config.pk).first()
    result.seen = snapshots.take(now, kept.state if kept else {}, history)
    try:
        policy = _build_policy(config)
        asked = time.monotonic()
        plan = policy_thread.plan(policy, result.seen, POLICY_SECONDS)
        result.plan_ms = (time.monotonic() - asked) * 1000
        if wrong := violations(result.seen, plan):
            raise NoPlanError(PlanRefused.from_violations(wrong))
    except NoPlanError as error:
        result.error = error.why
        reasons: dict[int, Message] = {int(job.id): CannotDecide() for job in result.seen.jobs if job.waiting}
    else:
        result.plan = plan
        result.applied = apply(result.seen, plan, policy_name(config), now)
        batch_sizes.keep(plan.batches)
        if plan.state != result.seen.state:
            PolicyState.objects.update_or_create(config=config, defaults={"state": dict(plan.state)})
        reasons = {int(job): reason for job, reason in plan.reasons.items()}
        for job, why in result.applied.dropped.items():
            reasons.setdefault(job, NotStarted(why))
    reasons = {job: in_units_of_lab(reason, result.seen) for job, reason in reasons.items()}
    reasons_changed = _update_reasons(result.seen, reasons, dependencies.reasons())
    result.waiting = len(reasons)
    _record(result, config, epoch, began, reasons_changed)
    return result


def _build_policy(config: SchedulerConfig) -> Policy:
    """Return the policy in force. Raises NoPlanError when it, or a parameter of it, is no longer in the code."""
    if config.policy not in registry.POLICIES:
        raise NoPlanError(UnknownPolicy(config.policy, list(registry.POLICIES)))
    try:
        return registry.build(config.policy, config.params)
    except ValueError as error:
        raise NoPlanError(ParametersRefused(str(error))) from error


def _update_reasons(seen: Snapshot, reasons: Mapping[int, Message], unready: Mapping[int, Message]) -> bool:
    """Store each waiting job's reason and place in the queue; return whether any reason changed.

    ``unready``: jobs that wait for another one, which have no place.
    """
    entries: dict[int, tuple[Message, int | None]] = {
        job: (each.reason, each.place) for job, each in queue_entries(seen.jobs, reasons).items()
    }
    entries |= {job: (reason, None) for job, reason in unready.items()}

    def changed(rows: QuerySet[Job]) -> Iterator[_ReasonUpdate]:
        stored = rows.values_list("pk", "state", "intent", "waiting_reason", "queue_position")
        for job, state, intent, before, number in stored:
            entry = entries.get(job) if state == JobState.QUEUED and intent == Job.Intent.RUN else None
            current = (entry[0].data(), entry[1]) if entry else ("", None)
            if (before, number) != current:
                yield _ReasonUpdate(job, state, intent, before, *current)

    # Three queries, each with an index: the jobs that ever failed become more and more.
    left = Job.objects.filter(queue_position__isnull=False)
    querysets = (
        Job.objects.filter(state=JobState.QUEUED),
        left.filter(state__in=(JobState.HELD, JobState.RUNNING)),
        left.filter(
            state__in=(JobState.CANCELLED, JobState.FAILED), finished_at__gt=timezone.now() - QUEUE_EXIT_WINDOW
        ),
    )
    outdated = [each for queryset in querysets for each in changed(queryset.order_by())]
    if outdated:
        _write_reasons(outdated)
    return any(each.before != each.reason for each in outdated)


class _ReasonUpdate(NamedTuple):
    """The new and the previous reason of a job, valid as long as its state and intent are these."""

    job: int
    state: str
    intent: str
    before: dict[str, Any] | str
    reason: dict[str, Any] | str
    place: int | None

    @property
    def stored(self) -> str:
        return str(Job._meta.get_field("waiting_reason").get_prep_value(self.reason))


def _write_reasons(updates: Sequence[_ReasonUpdate]) -> None:
    """Write the reasons and places. One start moves up every job behind it: too many small updates for ``bulk_update``.

    A row that another transaction has locked is skipped: it is only a reason, and the next cycle comes soon.
    """
    table = Job._meta.db_table
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            columns = [
                [getattr(each, name) for each in updates] for name in ("job", "state", "intent", "stored", "place")
            ]
            cursor.execute(
                "WITH updates AS (SELECT * FROM unnest(%s::bigint[], %s::text[], %s::text[], %s::text[], %s::integer[])"  # noqa: S608
                " AS updates(job, state, intent, stored, place)), "
                f"ours AS (SELECT updates.* FROM updates JOIN {table} AS job ON job.id = updates.job"
                " AND job.state = updates.state AND job.intent = updates.intent FOR NO KEY UPDATE OF job SKIP LOCKED) "
                f"UPDATE {table} SET waiting_reason = ours.stored, queue_position = ours.place"
                f" FROM ours WHERE {table}.id = ours.job",
                columns,
            )
        else:
            cursor.executemany(
                f"UPDATE {table} SET waiting_reason = %s, queue_position = %s"  # noqa: S608
                " WHERE id = %s AND state = %s AND intent = %s",
                [(each.stored, each.place, each.job, each.state, each.intent) for each in updates],
            )


QUEUE_EXIT_WINDOW = timedelta(days=7)
"""A job that ended in the queue keeps its place until the next cycle; no scheduler is away for longer."""


def _record(result: CycleResult, config: SchedulerConfig, epoch: int, began: float, reasons_changed: bool) -> None:
    """Add a row for a cycle that changed something: one every few seconds would bury those."""
    done = result.applied
    last = Cycle.objects.order_by("-id").values("error", "config").first() or {"error": "", "config": None}
    error = result.error.data() if result.error else ""
    new_error = error and (error, config.pk) != (last["error"], last["config"])
    recovered = last["error"] and not error and last["config"] == config.pk
    if not (done.started or done.resized or done.stopped or done.dropped or reasons_changed or new_error or recovered):
        return
    if result.seen is not None:
        result.text = snapshot_to_text(result.seen)
    row = result.recorded = Cycle.objects.create(
        config=config,
        epoch=epoch,
        version=version_of(registry.POLICIES[config.policy]) if config.policy in registry.POLICIES else "",
        snapshot_sha256=recording.sha256_of(result.text) if result.text else "",
        duration_ms=(time.monotonic() - began) * 1000,
        plan_ms=result.plan_ms,
        jobs_seen=len(result.seen.jobs) if result.seen else 0,
        started=len(done.started),
        resized=len(done.resized),
        stopped=len(done.stopped),
        waiting=result.waiting,
        dropped=[{"job": job, "why": why.data()} for job, why in done.dropped.items()],
        error=error,
    )
    if row.pk % 100 == 0:
        Cycle.objects.filter(pk__lte=row.pk - CYCLES_KEPT).delete()
