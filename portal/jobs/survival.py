"""Which containers an elastic attempt over several nodes can lose and continue: pure functions.

Each rank holds the work in memory, so such an attempt survives the loss of any node, that of its first host or its driver
included, as long as enough GPUs are left and none of the containers failed by itself; a new driver takes over
(``scheduler.driver_failover``). Any other attempt depends on its driver and its base.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple, TypeVar

from portal.jobs.models import Attempt, Container, ContainerState, Job, StopReason

LOST_REASONS = frozenset({"lost", "fenced"})
SINGLE_STOP_REASONS = frozenset({StopReason.PREEMPTED, StopReason.DRAINED, StopReason.STUCK, StopReason.GPU_FAULT})
"""Reasons to stop one container of an attempt."""


class ContainerFacts(NamedTuple):
    """The fields of a container that the rules of time read.

    A large lab has thousands of containers, and each scheduling cycle reads all of them.
    """

    id: int
    attempt_id: int
    role: str
    index: int  # type: ignore[assignment]  # replaces the method of tuples, as in Container
    state: str
    state_since: datetime
    wanted: str
    stop_reason: str
    stop_requested_at: datetime | None
    exited_at: datetime | None
    exit_code: int | None
    exit_reason: str
    slots: int
    draining: bool
    """A field of its node, like the next."""
    last_seen_at: datetime | None


class SurvivalRule(NamedTuple):
    """What decides whether an attempt continues without some of its containers."""

    spans_nodes: bool
    """The attempt is elastic and its rank group may span several nodes."""
    min_gpus: int
    """The number of GPUs that it needs, on any nodes."""
    stop_requested: bool
    """The attempt was requested to stop, for another reason than that its work is done."""


FIXED_SIZE = SurvivalRule(spans_nodes=False, min_gpus=1, stop_requested=False)
AnyContainer = TypeVar("AnyContainer", Container, ContainerFacts)


def survival_rule(elastic: bool, overlay_network: int | None, min_gpus: int, stop_reason: str) -> SurvivalRule:
    return SurvivalRule(
        spans_nodes=elastic and overlay_network is not None,
        min_gpus=min_gpus,
        stop_requested=stop_reason not in ("", StopReason.DONE),
    )


def survival_rule_for(job: Job, attempt: Attempt) -> SurvivalRule:
    return survival_rule(job.elastic, attempt.overlay_network, job.min_gpus, attempt.stop_reason)


def remaining_containers(rule: SurvivalRule, containers: Sequence[AnyContainer]) -> list[AnyContainer]:
    """Return the containers by which an attempt is judged: those left, or all if it cannot continue with these."""
    if not rule.spans_nodes:
        return list(containers)
    left = [container for container in containers if not _is_expendable(container)]
    hosts = hosts_of(left)
    # A driver also reports "fenced" when its rank group broke for that reason; then its hosts end too, and none ends well.
    led = _drivers(left) or any(host.state != ContainerState.EXITED or ended_well(host) for host in hosts)
    if not led or not _is_enough(rule, left) or (rule.stop_requested and not _drivers(left)):
        return list(containers)
    return left


def continues_without_drained(rule: SurvivalRule, containers: Sequence[ContainerFacts]) -> bool:
    """Return whether enough of an attempt runs on nodes that are not being drained.

    Hosts that have ended by themselves are judged by the driver, which therefore stays until then.
    """
    staying = [
        container
        for container in containers
        if container.state != ContainerState.EXITED
        and not container.draining
        and container.wanted == Container.Wanted.RUN
    ]
    return rule.spans_nodes and _is_enough(rule, staying)


def lacks_driver(rule: SurvivalRule, containers: Sequence[AnyContainer]) -> bool:
    """Return whether an attempt continues but has lost its driver."""
    left = remaining_containers(rule, containers)
    live = any(host.state == ContainerState.RUNNING for host in hosts_of(left))
    return rule.spans_nodes and not rule.stop_requested and live and not _drivers(left)


def ended_well(container: Container | ContainerFacts) -> bool:
    exited = container.state == ContainerState.EXITED and container.exit_reason == "exited"
    return exited and container.exit_code == 0


def hosts_of(containers: Sequence[AnyContainer]) -> list[AnyContainer]:
    return [container for container in containers if container.role == Container.Role.HOST]


def _drivers(containers: Sequence[AnyContainer]) -> list[AnyContainer]:
    return [container for container in containers if container.role == Container.Role.DRIVER]


def was_stopped_alone(container: Container | ContainerFacts) -> bool:
    """Return whether a container was stopped alone, while its attempt was to continue."""
    stopped = container.state == ContainerState.EXITED and container.exit_reason == "stopped"
    return stopped and container.stop_reason in SINGLE_STOP_REASONS


def _is_expendable(container: Container | ContainerFacts) -> bool:
    """Return whether a container left without a fault of the user's code."""
    lost = container.state == ContainerState.EXITED and container.exit_reason in LOST_REASONS
    return was_stopped_alone(container) or lost


def _is_enough(rule: SurvivalRule, left: Sequence[AnyContainer]) -> bool:
    """Return whether at least one rank that holds the work is left, and as many GPUs as the attempt needs."""
    hosts = hosts_of(left)
    began = any(host.state not in (ContainerState.ASSIGNED, ContainerState.PREPARING) for host in hosts)
    return began and sum(host.slots for host in hosts) >= rule.min_gpus


def base_containers(rule: SurvivalRule, containers: Sequence[AnyContainer]) -> list[AnyContainer]:
    """Return the first host and as many others as have the GPUs that the attempt needs, running ones first."""
    hosts: list[AnyContainer] = sorted(hosts_of(containers), key=lambda host: host.index)
    others: list[AnyContainer] = sorted(hosts[1:], key=lambda host: (host.state != ContainerState.RUNNING, host.index))
    ordered: list[AnyContainer] = hosts[:1] + others
    count = gpus = 0
    for host in ordered:
        if count and gpus >= rule.min_gpus:
            break
        count, gpus = count + 1, gpus + host.slots
    return ordered[:count]
