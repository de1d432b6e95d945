"""Which containers an elastic attempt over several nodes can lose and continue, as a table."""

from typing import Any

import pytest

from portal.jobs.models import Container
from portal.jobs.rules import attempt_outcome, reason_to_stop
from portal.jobs.survival import SurvivalRule, lacks_driver, remaining_containers

NAMES = {"driver": ("driver", 0), "h1": ("host", 1), "h2": ("host", 2), "h3": ("host", 3), "driver4": ("driver", 4)}
CONTINUES = SurvivalRule(spans_nodes=True, min_gpus=1, stop_requested=False)
TWO = SurvivalRule(spans_nodes=True, min_gpus=2, stop_requested=False)
THREE = SurvivalRule(spans_nodes=True, min_gpus=3, stop_requested=False)
ASKED_TO_STOP = SurvivalRule(spans_nodes=True, min_gpus=1, stop_requested=True)
ONE_NODE = SurvivalRule(spans_nodes=False, min_gpus=1, stop_requested=False)


def container(name: str, ends: str) -> Container:
    """Return a container; ``ends`` is ``exited:0``, ``lost``, ``drained`` (asked to stop and gone), ``ASSIGNED``, or empty for one that runs; before
    it how many GPUs it has, if not one: ``2 lost``."""
    role, index = NAMES[name]
    slots, ends = (int(ends[0]), ends[1:].strip()) if ends[:1].isdigit() else (int(role == "host"), ends)
    reason, _, code = ends.partition(":")
    fields: dict[str, Any] = {"state": "EXITED", "exit_reason": reason, "exit_code": int(code) if code else None}
    if ends in ("", "ASSIGNED"):
        fields = {"state": ends or "RUNNING"}
    if ends == "drained":
        fields |= {"exit_reason": "stopped", "wanted": "stop", "stop_reason": "drained"}
    return Container(role=role, index=index, spec={"slots": slots}, **fields)


def containers_with(**ends: str) -> list[Container]:
    return [container(name, words) for name, words in ends.items()]


@pytest.mark.parametrize(
    ("rule", "ends", "reason", "lacks"),
    [
        (CONTINUES, {"driver": "", "h1": "", "h2": ""}, None, False),
        # its first host is lost, its driver, and both
        (CONTINUES, {"driver": "", "h1": "lost", "h2": ""}, None, False),
        (CONTINUES, {"driver": "lost", "h1": "", "h2": ""}, None, True),
        (CONTINUES, {"driver": "lost", "h1": "lost", "h2": ""}, None, True),
        (CONTINUES, {"driver": "drained", "h1": "drained", "h2": ""}, None, True),
        (CONTINUES, {"driver": "lost", "h1": "lost", "h2": "", "driver4": ""}, None, False),
        (CONTINUES, {"driver": "lost", "h1": "lost", "h2": "", "driver4": "fenced"}, None, True),
        # the new driver decides
        (CONTINUES, {"driver": "lost", "h1": "lost", "h2": "", "driver4": "exited:0"}, "done", False),
        (CONTINUES, {"driver": "lost", "h1": "lost", "h2": "", "driver4": "create_error"}, "done", False),
        # it ended well before its driver was lost
        (CONTINUES, {"driver": "lost", "h1": "lost", "h2": "exited:0"}, "done", False),
        # nothing is left, too little is left, or no rank that holds the work
        (CONTINUES, {"driver": "lost", "h1": "lost", "h2": "lost"}, "done", False),
        (CONTINUES, {"driver": "fenced", "h1": "exited:1", "h2": "fenced"}, "done", False),
        (TWO, {"driver": "", "h1": "lost", "h2": ""}, "peer_lost", False),
        (TWO, {"driver": "", "h1": "lost", "h2": "", "h3": ""}, None, False),
        (TWO, {"driver": "", "h1": "2", "h2": "lost"}, None, False),  # the first host has as many as it needs
        # what it needs is on several nodes
        (THREE, {"driver": "", "h1": "2", "h2": "", "h3": ""}, None, False),
        (THREE, {"driver": "", "h1": "2", "h2": "lost", "h3": "lost"}, "peer_lost", False),
        (THREE, {"driver": "", "h1": "2", "h2": "drained", "h3": "drained"}, "drained", False),
        (THREE, {"driver": "", "h1": "2 lost", "h2": "drained", "h3": "drained"}, "peer_lost", False),
        (THREE, {"driver": "", "h1": "2", "h2": "lost", "h3": ""}, None, False),
        (THREE, {"driver": "", "h1": "2", "h2": "", "h3": "oom"}, None, False),
        (THREE, {"driver": "", "h1": "2", "h2": "oom", "h3": ""}, None, False),
        (THREE, {"driver": "", "h1": "2 lost", "h2": "", "h3": ""}, "peer_lost", False),
        (THREE, {"driver": "lost", "h1": "2", "h2": "lost", "h3": ""}, None, True),
        (THREE, {"driver": "lost", "h1": "2", "h2": "lost", "h3": "lost"}, "done", False),
        (TWO, {"driver": "", "h1": "", "h2": "oom"}, "peer_lost", False),
        (CONTINUES, {"driver": "", "h1": "lost", "h2": "ASSIGNED"}, "peer_lost", False),
        # an error of the code is not survived
        (CONTINUES, {"driver": "", "h1": "oom", "h2": ""}, "peer_lost", False),
        # asked to stop as a whole, or a rank group on one node
        (ASKED_TO_STOP, {"driver": "lost", "h1": "", "h2": ""}, "done", False),
        (ASKED_TO_STOP, {"h1": "", "h2": ""}, None, False),
        (ONE_NODE, {"driver": "", "h1": "lost", "h2": ""}, "peer_lost", False),
        (ONE_NODE, {"driver": "lost", "h1": "", "h2": ""}, "done", False),
    ],
)
def test_whether_it_continues(rule: SurvivalRule, ends: dict[str, str], reason: str | None, lacks: bool) -> None:
    containers = containers_with(**ends)
    assert (reason_to_stop(True, containers, rule), lacks_driver(rule, containers)) == (reason, lacks)


@pytest.mark.parametrize(
    ("stop_reason", "ends", "outcome"),
    [
        ("done", {"driver": "lost", "h1": "lost", "h2": "exited:0", "driver4": "exited:0"}, "succeeded"),
        ("done", {"driver": "lost", "h1": "lost", "h2": "exited:0"}, "succeeded"),
        ("done", {"driver": "drained", "h1": "drained", "h2": "exited:1", "driver4": "exited:1"}, "failed"),
        ("done", {"driver": "drained", "h1": "drained", "h2": "exited:1"}, "failed"),  # before another driver began
        ("done", {"driver": "drained", "h1": "drained", "h2": "oom"}, "failed"),
        ("done", {"driver": "drained", "h1": "drained", "h2": "exited:1", "h3": "lost"}, "lost"),
        ("done", {"driver": "lost", "h1": "lost", "h2": "lost"}, "lost"),
        ("done", {"driver": "fenced:1", "h1": "exited:1", "h2": "fenced:1"}, "lost"),
        ("peer_lost", {"driver": "lost", "h1": "lost", "h2": "stopped", "driver4": "create_error"}, "error"),
        ("preempted", {"driver": "lost", "h1": "lost", "h2": "stopped", "driver4": "stopped"}, "preempted"),
        ("preempted", {"driver": "lost", "h1": "lost", "h2": "exited:0"}, "preempted"),
        ("preempted", {"driver": "lost", "h1": "lost", "h2": "stopped", "driver4": "exited:0"}, "succeeded"),
        ("cancelled", {"driver": "lost", "h1": "lost", "h2": "exited:0"}, "cancelled"),
    ],
)
def test_how_it_ended(stop_reason: str, ends: dict[str, str], outcome: str) -> None:
    rule = SurvivalRule(spans_nodes=True, min_gpus=1, stop_requested=stop_reason != "done")
    assert attempt_outcome(stop_reason, True, containers_with(**ends), rule) == outcome


def test_what_stays_on_one_node_is_judged_by_all_its_parts() -> None:
    containers = containers_with(driver="lost", h1="lost", h2="")
    assert remaining_containers(ONE_NODE, containers) == containers
    assert [each.index for each in remaining_containers(CONTINUES, containers)] == [2]
