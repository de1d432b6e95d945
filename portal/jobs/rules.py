"""The rules about containers, attempts, jobs and time: pure functions, whose results ``lifecycle`` carries out."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal, NamedTuple

from django.conf import settings

from portal.jobs.models import Attempt, Container, ContainerState, Job, JobState, Outcome, StopReason
from portal.jobs.survival import (
    FIXED_SIZE,
    LOST_REASONS,
    AnyContainer,
    ContainerFacts,
    SurvivalRule,
    base_containers,
    continues_without_drained,
    ended_well,
    remaining_containers,
    survival_rule,
    was_stopped_alone,
)

ASSIGNED, PREPARING, RUNNING, STOPPING, EXITED = (
    ContainerState.ASSIGNED,
    ContainerState.PREPARING,
    ContainerState.RUNNING,
    ContainerState.STOPPING,
    ContainerState.EXITED,
)

TRANSITIONS: dict[str, frozenset[str]] = {
    ASSIGNED: frozenset(
        {
            PREPARING,  # its agent fetches the code and the image
            RUNNING,  # both were there already; a report every few seconds may miss a state
            STOPPING,  # asked to stop before the agent reported a start
            EXITED,  # could not be created, was stopped before it was created, or its node was lost
        }
    ),
    PREPARING: frozenset(
        {
            RUNNING,  # the supervisor started
            STOPPING,  # asked to stop while it was being created
            EXITED,  # could not be created, ended between two reports, or its node was lost
        }
    ),
    RUNNING: frozenset(
        {
            STOPPING,  # asked to stop; its ranks have the grace period
            EXITED,  # ended by itself, was killed, fenced, or its node was lost
        }
    ),
    STOPPING: frozenset({EXITED}),  # with or without the rest of its grace period
    EXITED: frozenset(),  # final: its GPUs are free
}

ASSIGNED_SECONDS = 300
"""Agents start containers within seconds; this allows for some minutes of trouble with the engine."""
PREPARING_SECONDS = 1800
"""Images are prepared before jobs are placed, so only fetching the code and creating the container remain."""
DATASET_BYTES_PER_SECOND = 5_000_000
"""A node that fetches datasets, and makes copies of them, gets the time that these take at this pace in addition: less than half
of what a network of 100 Mbit/s carries."""
STATE_TIMEOUTS: dict[str, timedelta] = {
    ASSIGNED: timedelta(seconds=ASSIGNED_SECONDS),
    PREPARING: timedelta(seconds=PREPARING_SECONDS),
}
"""The maximum time in these states. A running container has the time limit of its job, a stopping one STOP_SECONDS."""
STOP_SECONDS = 120
"""Far longer than any grace period. After it the portal no longer lists the container, so its lease runs out."""
DRIVER_REACTION_SECONDS = 60
"""The time in which a driver must notice that a container that it needs has ended."""
NO_CONTAINERS_SECONDS = 60
"""An attempt gets its containers in the transaction that creates it; one without any is the result of a bug."""

ERRORS_IN_A_ROW = 3
"""After this many attempts in a row that ended by an error of the portal, another is expected to fail as well."""
LOSSES_IN_A_ROW = 10
"""A job that loses every node on which it runs may itself be the cause."""

OUTCOMES_BY_STOP_REASON: dict[str, Outcome] = {
    StopReason.TIMED_OUT: Outcome.TIMED_OUT,
    StopReason.PREEMPTED: Outcome.PREEMPTED,
    StopReason.DRAINED: Outcome.PREEMPTED,
    StopReason.HELD: Outcome.HELD,
    StopReason.GPU_FAULT: Outcome.LOST,
}


class AttemptFacts(NamedTuple):
    """The fields of a live attempt and its job that the rules of time read."""

    id: int
    job_id: int
    created_at: datetime
    started_at: datetime | None
    wanted: str
    stop_reason: str
    counted_seconds: int
    overlay_network: int | None
    intent: str
    elastic: bool
    min_gpus: int
    time_limit_seconds: int
    dataset_bytes: int = 0
    """Of the datasets that its job reads; read for attempts only that are being prepared."""

    @property
    def survival_rule(self) -> SurvivalRule:
        return survival_rule(self.elastic, self.overlay_network, self.min_gpus, self.stop_reason)


def deciding_containers(containers: Sequence[AnyContainer]) -> list[AnyContainer]:
    """Return the driver, or all hosts where there is none: when these have ended, so has the work of the attempt."""
    return [container for container in containers if container.role == Container.Role.DRIVER] or list(containers)


def needed_containers(
    elastic: bool, containers: Sequence[AnyContainer], rule: SurvivalRule = FIXED_SIZE
) -> list[AnyContainer]:
    """Return the containers that the attempt needs to continue: all, or driver and base if it is elastic."""
    if not elastic:
        return list(containers)
    needed = base_containers(rule, containers)
    return [container for container in containers if container.role == Container.Role.DRIVER or container in needed]


def judged_containers(
    elastic: bool, containers: Sequence[AnyContainer], rule: SurvivalRule = FIXED_SIZE
) -> list[AnyContainer]:
    """Return the containers whose ends decide the outcome of the attempt.

    Ranks may end by themselves after their driver was put aside and before the next one has begun: then their hosts count.
    """
    needed = needed_containers(elastic, remaining_containers(rule, containers), rule)
    others = [container for container in containers if not was_stopped_alone(container)]
    return others if rule.spans_nodes and others and all(map(was_stopped_alone, needed)) else needed


def work_is_done(containers: Sequence[Container], rule: SurvivalRule = FIXED_SIZE) -> bool:
    """Return whether the deciding containers have ended well; the others may still run."""
    deciders = deciding_containers(remaining_containers(rule, containers))
    return bool(deciders) and all(ended_well(container) for container in deciders)


def reason_to_stop(
    elastic: bool, containers: Sequence[AnyContainer], rule: SurvivalRule = FIXED_SIZE
) -> StopReason | None:
    """Return why an attempt must stop, judged by the containers that have ended; None while it may continue.

    Ranks that end by themselves under a driver are judged by the driver; any other end stops the attempt that needs them.
    """
    containers = remaining_containers(rule, containers)
    deciders = deciding_containers(containers)
    if deciders and all(container.state == EXITED for container in deciders):
        return StopReason.DONE
    with_driver = any(container.role == Container.Role.DRIVER for container in containers)
    broken = [
        container
        for container in needed_containers(elastic, containers, rule)
        if container.state == EXITED
        and not ended_well(container)
        and not (with_driver and container.exit_reason == "exited")
    ]
    if not broken:
        return None
    drained = all(
        container.exit_reason == "stopped" and container.stop_reason == StopReason.DRAINED for container in broken
    )
    return StopReason.DRAINED if drained else StopReason.PEER_LOST


def attempt_outcome(
    stop_reason: str, elastic: bool, containers: Sequence[Container], rule: SurvivalRule = FIXED_SIZE
) -> Outcome:
    """Return the outcome of an attempt whose containers have all exited.

    An attempt that finished before it received the request to stop has succeeded, unless a user cancelled it.
    Of several causes, one outside the user's code counts, because the others often follow from it.
    """
    if stop_reason == StopReason.CANCELLED:
        return Outcome.CANCELLED
    if work_is_done(containers, rule):
        return Outcome.SUCCEEDED
    if stop_reason in OUTCOMES_BY_STOP_REASON:
        return OUTCOMES_BY_STOP_REASON[stop_reason]
    deciders = judged_containers(elastic, containers, rule)
    reasons = {container.exit_reason for container in deciders}
    if reasons & LOST_REASONS:
        return Outcome.LOST
    if "create_error" in reasons or not deciders:
        return Outcome.ERROR
    if any(
        container.exit_reason in ("oom", "disk") or (container.exit_reason == "exited" and container.exit_code != 0)
        for container in deciders
    ):
        return Outcome.FAILED
    if "launch_error" in reasons or stop_reason == StopReason.STUCK:
        return Outcome.ERROR
    return Outcome.LOST


def job_state(intent: str, retries: int, outcomes: Sequence[str], fails_alike: bool = False) -> JobState:
    """Return the state of a job from its intent and the outcomes of its attempts; ``""`` stands for a live attempt.

    ``fails_alike``: the last attempts failed in the same way at once, so another would as well (``retries.fail_alike``).
    """
    last = outcomes[-1] if outcomes else None
    if last == "":
        return JobState.RUNNING
    if last == Outcome.SUCCEEDED:
        return JobState.SUCCEEDED
    if intent == Job.Intent.CANCEL or last == Outcome.CANCELLED:
        return JobState.CANCELLED
    if last == Outcome.TIMED_OUT or (
        last == Outcome.FAILED and (fails_alike or outcomes.count(Outcome.FAILED) > retries)
    ):
        return JobState.FAILED
    ours = 0
    errors = 0
    for outcome in reversed(outcomes):
        if outcome not in (Outcome.ERROR, Outcome.LOST):
            break
        ours += 1
        errors += outcome == Outcome.ERROR
    if errors >= ERRORS_IN_A_ROW or ours >= LOSSES_IN_A_ROW:
        return JobState.FAILED
    return JobState.HELD if intent == Job.Intent.HOLD else JobState.QUEUED


# --- time --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DueAction:
    """An action on an attempt that is due."""

    what: Literal["silent", "unstoppable", "stop", "stop_container", "settle"]
    container: ContainerFacts | None = None
    reason: str = ""


CHECKPOINTED_OUTCOMES = frozenset({Outcome.PREEMPTED, Outcome.HELD})
"""Attempts with these outcomes wrote checkpoints until their end, from which the next one restarts if it can."""


def seconds_counted(resumable: bool, before: Iterable[tuple[str, datetime | None, datetime | None]]) -> int:
    """Return the seconds that earlier attempts (outcome, started, ended) used of the time limit of a new one.

    Waiting does not count, and a job that restarts from the beginning has its whole time limit again.
    """
    ran = (
        (ended - started).total_seconds()
        for outcome, started, ended in before
        if outcome in CHECKPOINTED_OUTCOMES and started and ended
    )
    return int(sum(ran)) if resumable else 0


def time_left(attempt: AttemptFacts) -> timedelta:
    """Return how long an attempt may run from its start."""
    return timedelta(seconds=max(0, attempt.time_limit_seconds - attempt.counted_seconds))


def max_silence() -> timedelta:
    return timedelta(seconds=settings.FENCE_SECONDS + settings.FENCE_MARGIN_SECONDS)


def is_silent(last_seen_at: datetime | None, now: datetime) -> bool:
    """Return whether a node has been silent for so long that its supervisors have stopped their ranks."""
    return last_seen_at is None or now - last_seen_at > max_silence()


def due_actions(attempt: AttemptFacts, containers: Sequence[ContainerFacts], now: datetime) -> Iterator[DueAction]:
    """Yield the actions that are due on a live attempt."""
    live = [container for container in containers if container.state != EXITED]
    for container in live:
        if is_silent(container.last_seen_at, now):
            yield DueAction("silent", container)
        elif (
            container.stop_requested_at
            and now - container.stop_requested_at > timedelta(seconds=STOP_SECONDS) + max_silence()
        ):
            yield DueAction("unstoppable", container)
    if not containers:
        if now - attempt.created_at > timedelta(seconds=NO_CONTAINERS_SECONDS):
            yield DueAction("stop", reason=StopReason.STUCK)
        return
    if not live:
        yield DueAction("settle")
        return
    if reason := _stop_reason_by_time(attempt, containers, live, now):
        yield DueAction("stop", reason=reason)
    elif attempt.wanted == Attempt.Wanted.RUN and not all(map(_is_at_work, live)):
        needed = needed_containers(
            attempt.elastic, remaining_containers(attempt.survival_rule, containers), attempt.survival_rule
        )
        continues = continues_without_drained(attempt.survival_rule, containers)
        for container in live:
            if container.wanted == Container.Wanted.STOP:
                continue
            if container.draining and (container not in needed or (continues and _may_stop_now(container, live))):
                yield DueAction("stop_container", container, StopReason.DRAINED)
            elif container not in needed and _is_stuck(attempt, container, now):
                yield DueAction("stop_container", container, StopReason.STUCK)


def last_contact(live: Sequence[ContainerFacts], now: datetime) -> datetime:
    """Return until when an attempt certainly ran: while the portal was away, the fence may have ended it before its limit."""
    return min(now, max((container.last_seen_at for container in live if container.last_seen_at), default=now))


def _may_stop_now(container: ContainerFacts, live: Sequence[ContainerFacts]) -> bool:
    """Return whether a container may be stopped now: the driver is the last, since it removes the hosts from the group."""
    return container.role == Container.Role.HOST or not any(
        other.draining and other.role == Container.Role.HOST for other in live
    )


def _stop_reason_by_time(
    attempt: AttemptFacts, containers: Sequence[ContainerFacts], live: Sequence[ContainerFacts], now: datetime
) -> StopReason | None:
    if attempt.intent == Job.Intent.CANCEL and attempt.stop_reason not in (StopReason.CANCELLED, StopReason.DONE):
        return StopReason.CANCELLED
    if attempt.wanted == Attempt.Wanted.STOP:
        return None
    if attempt.intent == Job.Intent.HOLD:
        return StopReason.HELD
    if attempt.started_at and last_contact(live, now) - attempt.started_at > time_left(attempt):
        return StopReason.TIMED_OUT
    if all(map(_is_at_work, containers)):
        return None
    needed = needed_containers(
        attempt.elastic, remaining_containers(attempt.survival_rule, containers), attempt.survival_rule
    )
    if any(container.draining for container in live if container in needed) and not continues_without_drained(
        attempt.survival_rule, containers
    ):
        return StopReason.DRAINED
    if reason := reason_to_stop(attempt.elastic, containers, attempt.survival_rule):
        return reason
    gone = [
        container
        for container in needed
        if container.exited_at and now - container.exited_at > timedelta(seconds=DRIVER_REACTION_SECONDS)
    ]
    hosts_live = any(container.role == Container.Role.HOST for container in live)
    if gone and not (hosts_live and all(ended_well(container) for container in gone)):
        return StopReason.PEER_LOST
    if any(_is_stuck(attempt, container, now) for container in needed):
        return StopReason.STUCK
    return None


def _is_at_work(container: ContainerFacts) -> bool:
    """Return whether a container runs undisturbed, as nearly all do: then no further rule applies to it."""
    return container.state == RUNNING and not container.draining


def _is_stuck(attempt: AttemptFacts, container: ContainerFacts, now: datetime) -> bool:
    timeout = STATE_TIMEOUTS.get(container.state, timedelta.max)
    if container.state == PREPARING:
        timeout += timedelta(seconds=attempt.dataset_bytes / DATASET_BYTES_PER_SECOND)
    return now - container.state_since > timeout
