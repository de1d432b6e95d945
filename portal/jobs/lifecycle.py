"""Writes the states of containers, attempts and jobs, as the only module; ``rules`` decides what to write.

``advance`` takes reports of agents; ``start_attempt``, ``stop_attempt`` and ``stop_container`` carry out decisions of the
scheduler and of users; ``settle`` derives the consequences in the same transaction; ``sweep`` applies the rules of time.
Every call may be repeated. Locks are taken in one order: job, attempt, node, container.
"""

import logging
import secrets
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from itertools import starmap
from typing import Any

from django.db import DatabaseError, transaction
from django.db.models import F, Max
from django.db.models.functions import Greatest
from django.dispatch import Signal
from django.utils import timezone

from portal.accounts.models import User
from portal.cluster.models import Node
from portal.cluster.quarantine import was_quarantined_for_fault_since
from portal.environments.hosts import rules_for
from portal.jobs import causes, clock_steps, container_ends, events
from portal.jobs.clock import wall_clock
from portal.jobs.dataset_use import dataset_bytes
from portal.jobs.events import Event, NodeShare
from portal.jobs.models import (
    FINISHED_STATES,
    Allocation,
    Attempt,
    Container,
    ContainerState,
    Job,
    JobEvent,
    JobState,
    Outcome,
    StopReason,
)
from portal.jobs.retries import fail_alike
from portal.jobs.rules import (
    CHECKPOINTED_OUTCOMES,
    TRANSITIONS,
    AttemptFacts,
    DueAction,
    attempt_outcome,
    due_actions,
    is_silent,
    job_state,
    max_silence,
    reason_to_stop,
    seconds_counted,
)
from portal.jobs.survival import LOST_REASONS, ContainerFacts, survival_rule_for
from portal.wake import wake_job_viewers, wake_lab_viewers, wake_node, wake_scheduler

logger = logging.getLogger(__name__)

ATTEMPT_LOOKUPS = {name: f"job__{name}" for name in ("intent", "elastic", "min_gpus", "time_limit_seconds")}
CONTAINER_LOOKUPS = {"slots": "spec__slots", "draining": "node__draining", "last_seen_at": "node__last_seen_at"}
"""Where to look up the fields of ``AttemptFacts`` and ``ContainerFacts`` that are columns of other tables."""
RUNNING, EXITED = ContainerState.RUNNING, ContainerState.EXITED
recorded = Signal()
"""Sent with the ``job`` and the ``event`` in the transaction that adds a line to a job's history, while the job is locked."""


class JobChangedError(Exception):
    """The job has changed since it was read, before it was locked. Nothing was written."""


# --- history -----------------------------------------------------------------------------------------------------


def get_locked(job_id: int) -> Job:
    """Return the row of a job, locked until the transaction ends. Attempts and containers change only under this lock."""
    return Job.objects.select_for_update(no_key=True).get(pk=job_id)


def lock(job_id: int) -> None:
    """Lock a job without reading its row, which takes longer than the lock."""
    Job.objects.select_for_update(no_key=True).values_list("pk").get(pk=job_id)


def record(job: Job, event: Event, actor: User | None = None) -> JobEvent:
    """Add a line to the history of a job, in the transaction of the change that it describes."""
    with transaction.atomic(savepoint=False):
        lock(job.pk)
        last = JobEvent.objects.filter(job=job).aggregate(last=Max("seq"))["last"] or 0
        row = JobEvent.objects.create(job=job, seq=last + 1, kind=event.kind, actor=actor, data=event.data())
        recorded.send(sender=JobEvent, job=job, event=event)
        wake_job_viewers(job.pk)
        wake_lab_viewers(job.submitted_by_id)
        return row


# --- reports -----------------------------------------------------------------------------------------------------


@transaction.atomic
def advance(
    container: Container,
    state: str,
    *,
    at: datetime | None = None,
    exit_code: int | None = None,
    exit_reason: str = "",
    detail: Any = "",
) -> bool:
    """Move a container to a later state and settle its job; return whether it moved.

    A report of the present state only updates ``detail``; a report of an earlier state is logged and changes nothing.
    ``at`` is the time of the change by the clock of the node, limited to the times that are possible.
    """
    job = get_locked(container.attempt.job_id)
    row = Container.objects.select_for_update(no_key=True).get(pk=container.pk)
    now = timezone.now()
    if state == row.state:
        if state != EXITED and detail != row.detail:
            Container.objects.filter(pk=row.pk).update(detail=detail)
            wake_job_viewers(job.pk)
        return False
    if state not in TRANSITIONS[row.state]:
        logger.info("ignored a late report: %s is %s, not %s", row.name, row.state, state)
        return False
    when = min(max(at or now, row.assigned_at), now)
    row.state, row.state_since, row.detail = state, now, detail
    changed = ["state", "state_since", "detail"]
    if state == RUNNING:
        row.running_at = when
        changed.append("running_at")
        _record_start(job, row, when)
    if state == EXITED:
        # A clock that was just set back must not make it end before it began.
        row.exited_at = max(now, row.running_at or row.assigned_at)
        row.exit_code, row.exit_reason = exit_code, exit_reason or "exited"
        if row.exit_reason == "exited" and exit_code and (fault := _gpu_fault(row)):
            row.exit_reason, row.detail = "lost", container_ends.HeldFailedGpu(fault).data()
        changed += ["exited_at", "exit_code", "exit_reason"]
        _release_gpus(row, now)
        _record_loss(job, row)
    row.save(update_fields=changed)
    for field in changed:
        setattr(container, field, getattr(row, field))
    settle(job)
    wake_job_viewers(job.pk)
    return True


def _record_start(job: Job, container: Container, when: datetime) -> None:
    if Attempt.objects.filter(pk=container.attempt_id, started_at__isnull=True).update(started_at=when):
        Job.objects.filter(pk=job.pk, started_at__isnull=True).update(started_at=when)
        record(job, events.Started(container.attempt.number))


def _gpu_fault(container: Container) -> Any:
    """Return the fault that the driver of a GPU reported while the container held it: then the code is not to blame."""
    held = Allocation.objects.filter(container=container, released_at__isnull=True).select_related("gpu")
    return next((row.gpu.fault for row in held if was_quarantined_for_fault_since(row.gpu, row.allocated_at)), "")


def _release_gpus(container: Container, now: datetime) -> None:
    ended = Greatest(F("allocated_at"), now)
    if Allocation.objects.filter(container=container, released_at__isnull=True).update(released_at=ended):
        wake_scheduler()


def _record_loss(job: Job, container: Container) -> None:
    if container.exit_reason in LOST_REASONS:
        record(job, events.ContainerLost(container.name, container.node.name, container.exit_reason))


# --- decisions of the scheduler and of users ---------------------------------------------------------------------


@transaction.atomic
def start_attempt(
    job: Job,
    policy: str,
    nodes: Sequence[NodeShare] = (),
    overlay_network: int | None = None,
    share_factor: int = 1,
) -> Attempt:
    """Create a live attempt, to which the caller adds containers and GPUs in the same transaction.

    ``nodes`` is for the history; ``overlay_network`` is the number of the network between the nodes, or None for an
    attempt on one node. Raises JobChangedError when the job is no longer waiting.
    """
    row = get_locked(job.pk)
    waits_for_another = row.after_id is not None and row.ready_at is None
    if row.state != JobState.QUEUED or row.intent != Job.Intent.RUN or waits_for_another:
        raise JobChangedError(f"job {job.pk} no longer waits: it is {row.get_state_display()}")
    before = list(row.attempts.order_by("number").values_list("outcome", "started_at", "ended_at", "number"))
    last = before[-1][3] if before else 0
    counted = seconds_counted(row.resumable, (each[:3] for each in before))
    attempt = Attempt.objects.create(
        job=row,
        number=last + 1,
        policy=policy,
        secret=secrets.token_hex(32),
        counted_seconds=counted,
        overlay_network=overlay_network,
        share_factor=share_factor,
        allowed_hosts=rules_for(row.project_id, row.environment),
    )
    record(row, events.Placed(attempt.number, policy, list(nodes)))
    _set_state(row)
    _copy_state(row, job)
    return attempt


def add_container(attempt: Attempt, node: Node, index: int, role: str, name: str, spec: dict[str, Any]) -> Container:
    """Add a container to a live attempt, for its node to create."""
    now = timezone.now()
    container = Container.objects.create(
        attempt=attempt,
        node=node,
        index=index,
        role=role,
        name=name,
        spec=spec,
        assigned_at=now,
        state_since=now,
    )
    wake_node(node.pk)
    return container


@transaction.atomic
def stop_attempt(attempt: Attempt, reason: str) -> None:
    """Request all containers of an attempt to stop. The first reason is kept, but a user's cancel replaces it."""
    job = get_locked(attempt.job_id)
    row = Attempt.objects.select_for_update(no_key=True).get(pk=attempt.pk)
    if row.ended_at is not None:
        return
    if row.wanted == Attempt.Wanted.STOP:
        overrides = reason == StopReason.CANCELLED and row.stop_reason not in (StopReason.CANCELLED, StopReason.DONE)
        if not overrides:
            return
    row.wanted, row.stop_reason = Attempt.Wanted.STOP, reason
    row.save(update_fields=["wanted", "stop_reason"])
    attempt.wanted, attempt.stop_reason = row.wanted, row.stop_reason
    if reason != StopReason.DONE:
        record(job, events.Stopping(row.number, str(reason), job.resumable))
    for container in row.containers.exclude(state=EXITED):
        stop_container(container, reason)
    settle(job)


@transaction.atomic
def stop_container(container: Container, reason: str) -> None:
    """Request one container to stop and its GPUs back."""
    lock(container.attempt.job_id)
    now = timezone.now()
    updated = (
        Container.objects.filter(pk=container.pk, wanted=Container.Wanted.RUN)
        .exclude(state=EXITED)
        .update(wanted=Container.Wanted.STOP, stop_reason=reason, stop_requested_at=now)
    )
    if not updated:
        return
    container.wanted, container.stop_reason, container.stop_requested_at = Container.Wanted.STOP, reason, now
    Allocation.objects.filter(container=container, released_at__isnull=True, requested_back_at__isnull=True).update(
        requested_back_at=now
    )
    for node_id in _nodes_to_notify(container):
        wake_node(node_id)
    wake_job_viewers(container.attempt.job_id)


def request_gpus_back(attempt: Attempt, now: datetime) -> None:
    """Request back the GPUs that an attempt holds on nodes that are being drained, while its containers there still run."""
    held = Allocation.objects.filter(attempt=attempt, released_at__isnull=True, requested_back_at__isnull=True)
    held.filter(container__node__draining=True).update(requested_back_at=now)


def withdraw_gpu_request(attempt: Attempt) -> None:
    """Undo ``request_gpus_back``, for containers that have not been asked to stop since."""
    asked = Allocation.objects.filter(attempt=attempt, released_at__isnull=True, requested_back_at__isnull=False)
    asked.filter(container__wanted=Container.Wanted.RUN).update(requested_back_at=None)


def _nodes_to_notify(container: Container) -> set[int]:
    """Return the node of a container and that of its driver, whose list of hosts has changed."""
    drivers = Container.objects.filter(attempt=container.attempt_id, role=Container.Role.DRIVER)
    return {container.node_id, *drivers.values_list("node_id", flat=True)}


# --- consequences ------------------------------------------------------------------------------------------------


@transaction.atomic
def settle(job: Job) -> None:
    """End the live attempt if its containers have all exited, stop it if it cannot continue, and set the job's state."""
    row = get_locked(job.pk)
    attempt = row.attempts.filter(ended_at__isnull=True).first()
    if attempt is not None:
        containers = list(attempt.containers.all())
        if all(container.state == EXITED for container in containers) and (
            containers or attempt.wanted == Attempt.Wanted.STOP
        ):
            _end_attempt(row, attempt, containers)
        elif attempt.wanted == Attempt.Wanted.RUN and (
            reason := reason_to_stop(row.elastic, containers, survival_rule_for(row, attempt))
        ):
            stop_attempt(attempt, reason)  # which settles the job
            row.refresh_from_db(fields=["state", "started_at", "finished_at"])
            _copy_state(row, job)
            return
    _set_state(row)
    _copy_state(row, job)


def _end_attempt(job: Job, attempt: Attempt, containers: Sequence[Container]) -> None:
    outcome = attempt_outcome(attempt.stop_reason, job.elastic, containers, survival_rule_for(job, attempt))
    attempt.ended_at, attempt.outcome = max(timezone.now(), attempt.started_at or attempt.created_at), outcome
    attempt.cause = causes.explain(job, attempt, containers, causes.QUICK_BYTES)  # with all of it once it has arrived
    attempt.save(update_fields=["ended_at", "outcome", "cause"])
    record(job, events.Ended(attempt.number, str(outcome), causes.without_detail(attempt.cause)))


def _set_state(job: Job) -> None:
    """Set the state of a job, which the caller has locked."""
    attempts = list(job.attempts.order_by("number"))
    outcomes, fails_alike = [attempt.outcome for attempt in attempts], fail_alike(attempts)
    state = job_state(job.intent, job.retries, outcomes, fails_alike)
    if state == job.state or job.state in FINISHED_STATES:
        return
    if state == JobState.FAILED and state != job_state(job.intent, job.retries, outcomes):
        record(job, events.NotRetried(*(attempt.number for attempt in attempts[-2:])))
    job.state = state
    job.finished_at = max(timezone.now(), job.started_at or job.submitted_at) if state in FINISHED_STATES else None
    job.save(update_fields=["state", "finished_at"])
    again = state == JobState.QUEUED and bool(outcomes)
    restarts = again and outcomes[-1] in CHECKPOINTED_OUTCOMES
    record(job, events.StateChanged(str(state), again, restarts, job.resumable))
    wake_scheduler()


def _copy_state(source: Job, target: Job) -> None:
    """Copy what was written to the object of the caller."""
    if source is not target:
        target.state, target.started_at, target.finished_at = source.state, source.started_at, source.finished_at


def record_collected(container: Container, complaint: Any = "") -> None:
    """Record that the log and outputs of a container are complete, and find the cause again with the last lines.

    ``complaint`` is the agent's message about outputs that it could not send.
    """
    now = timezone.now()
    if not Container.objects.filter(pk=container.pk, collected_at__isnull=True).update(collected_at=now):
        return
    container.collected_at = now
    attempt = Attempt.objects.select_related("job").get(pk=container.attempt_id)
    if attempt.ended_at is not None and attempt.outcome != Outcome.SUCCEEDED:
        cause = causes.explain(attempt.job, attempt, list(attempt.containers.all()))
        if cause != attempt.cause:
            Attempt.objects.filter(pk=attempt.pk).update(cause=cause)
            with transaction.atomic():
                _set_state(get_locked(attempt.job_id))  # it may have failed in the same way as the attempt before
    if complaint:
        with transaction.atomic():
            record(get_locked(attempt.job_id), events.OutputsNotSent(complaint))
    wake_job_viewers(attempt.job_id)


# --- time --------------------------------------------------------------------------------------------------------


def sweep(now: datetime | None = None, migrating: Collection[int] = ()) -> None:
    """Apply the rules of time: lost nodes, time limits, requests to stop, deadlines. Takes two queries when nothing is due.

    Attempts in ``migrating`` are not stopped by a drain: they leave the nodes by themselves, a little later.

    Without ``now``, the present time counts, and no container is declared lost for a while after the clock has jumped.
    """
    in_doubt = now is None and wall_clock.is_in_doubt(max_silence().total_seconds())
    if now is None:
        now = timezone.now()
        clock_steps.correct_times(wall_clock, now, in_doubt=in_doubt)
    for attempt, containers in _live_attempts():
        containers = (
            [container._replace(draining=False) for container in containers] if attempt.id in migrating else containers
        )
        for due in due_actions(attempt, containers, now):
            if in_doubt and due.what in ("silent", "unstoppable"):
                continue
            try:
                _carry_out(attempt, due, now)
            except DatabaseError:
                # An error of one attempt must not delay the others; the next sweep tries again.
                logger.exception("sweeping attempt %s", attempt.id)


def _live_attempts() -> list[tuple[AttemptFacts, list[ContainerFacts]]]:
    """Return the live attempts in the order of their jobs, with their containers, in three queries."""
    live = Attempt.objects.filter(ended_at__isnull=True).order_by("job_id")
    attempts = [AttemptFacts(*row) for row in live.values_list(*_lookups(AttemptFacts, ATTEMPT_LOOKUPS))]
    containers: dict[int, list[ContainerFacts]] = {attempt.id: [] for attempt in attempts}
    rows = Container.objects.filter(attempt__in=containers).order_by("attempt", "index")
    for container in starmap(ContainerFacts, rows.values_list(*_lookups(ContainerFacts, CONTAINER_LOOKUPS))):
        containers[container.attempt_id].append(container)
    preparing = [
        attempt.job_id
        for attempt in attempts
        if any(container.state == ContainerState.PREPARING for container in containers[attempt.id])
    ]
    bytes_of = dataset_bytes(preparing) if preparing else {}
    return [(each._replace(dataset_bytes=bytes_of.get(each.job_id, 0)), containers[each.id]) for each in attempts]


def _lookups(row: type[AttemptFacts | ContainerFacts], elsewhere: Mapping[str, str]) -> list[str]:
    """Return the lookup of each field of ``row``: its own name, or the one in ``elsewhere``; not of those with a default."""
    return [elsewhere.get(name, name) for name in row._fields if name not in row._field_defaults]


def _carry_out(attempt: AttemptFacts, due: DueAction, now: datetime) -> None:
    if due.what == "settle":
        settle(Job.objects.get(pk=attempt.job_id))
    elif due.what == "stop":
        stop_attempt(Attempt.objects.get(pk=attempt.id), due.reason)
    elif due.container is not None:
        container = Container.objects.select_related("attempt", "node").get(pk=due.container.id)
        if due.what == "stop_container":
            stop_container(container, due.reason)
        elif due.what == "silent":
            _declare_lost(container, now)
        else:
            advance(container, EXITED, exit_reason="lost", detail=container_ends.DidNotStop().data())


@transaction.atomic
def _declare_lost(container: Container, now: datetime) -> None:
    """Declare a container lost under the lock of its node: a report at the same time is seen here, or sees the loss."""
    get_locked(container.attempt.job_id)
    node = Node.objects.select_for_update(no_key=True).get(pk=container.node_id)
    if is_silent(node.last_seen_at, now):
        advance(container, EXITED, exit_reason="lost", detail=container_ends.NodeWasSilent(node.name).data())
