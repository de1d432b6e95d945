"""What an elastic ring over several nodes goes on without, as a table of the parts it has lost."""

from typing import Any

import pytest

from portal.jobs.models import Container
from portal.jobs.rules import attempt_outcome, reason_to_stop
from portal.jobs.survival import SurvivalRule, counting, lacks_driver

NAMES = {"driver": ("driver", 0), "h1": ("host", 1), "h2": ("host", 2), "h3": ("host", 3), "driver4": ("driver", 4)}
GOES = SurvivalRule(spans_nodes=True, min_gpus=1, stop_requested=False)
TWO = SurvivalRule(spans_nodes=True, min_gpus=2, stop_requested=False)
THREE = SurvivalRule(spans_nodes=True, min_gpus=3, stop_requested=False)
ASKED = SurvivalRule(spans_nodes=True, min_gpus=1, stop_requested=True)
STAYS = SurvivalRule(spans_nodes=False, min_gpus=1, stop_requested=False)


def part(name: str, said: str) -> Container:
    """``said``: ``exited:0``, ``lost``, ``drained`` (told to go and gone), ``ASSIGNED``, or empty for one that runs; before
    it how many GPUs it has, if not one: ``2 lost``."""
    role, index = NAMES[name]
    slots, said = (int(said[0]), said[1:].strip()) if said[:1].isdigit() else (int(role == "host"), said)
    reason, _, code = said.partition(":")
    fields: dict[str, Any] = {"state": "EXITED", "exit_reason": reason, "exit_code": int(code) if code else None}
    if said in ("", "ASSIGNED"):
        fields = {"state": said or "RUNNING"}
    if said == "drained":
        fields |= {"exit_reason": "stopped", "wanted": "stop", "stop_reason": "drained"}
    return Container(role=role, index=index, spec={"slots": slots}, **fields)


def parts(**said: str) -> list[Container]:
    return [part(name, words) for name, words in said.items()]


@pytest.mark.parametrize(
    ("rule", "said", "reason", "lacks"),
    [
        (GOES, {"driver": "", "h1": "", "h2": ""}, None, False),
        # its first host is lost, its driver, and both
        (GOES, {"driver": "", "h1": "lost", "h2": ""}, None, False),
        (GOES, {"driver": "lost", "h1": "", "h2": ""}, None, True),
        (GOES, {"driver": "lost", "h1": "lost", "h2": ""}, None, True),
        (GOES, {"driver": "drained", "h1": "drained", "h2": ""}, None, True),
        (GOES, {"driver": "lost", "h1": "lost", "h2": "", "driver4": ""}, None, False),
        (GOES, {"driver": "lost", "h1": "lost", "h2": "", "driver4": "fenced"}, None, True),
        # the new driver decides
        (GOES, {"driver": "lost", "h1": "lost", "h2": "", "driver4": "exited:0"}, "done", False),
        (GOES, {"driver": "lost", "h1": "lost", "h2": "", "driver4": "create_error"}, "done", False),
        # it ended well before its driver was lost
        (GOES, {"driver": "lost", "h1": "lost", "h2": "exited:0"}, "done", False),
        # nothing is left, too little is left, or nobody who holds the work
        (GOES, {"driver": "lost", "h1": "lost", "h2": "lost"}, "done", False),
        (GOES, {"driver": "fenced", "h1": "exited:1", "h2": "fenced"}, "done", False),
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
        (GOES, {"driver": "", "h1": "lost", "h2": "ASSIGNED"}, "peer_lost", False),
        # somebody's fault is nobody's to go on without
        (GOES, {"driver": "", "h1": "oom", "h2": ""}, "peer_lost", False),
        # told to stop as a whole, or a ring on one node: as it always was
        (ASKED, {"driver": "lost", "h1": "", "h2": ""}, "done", False),
        (ASKED, {"h1": "", "h2": ""}, None, False),
        (STAYS, {"driver": "", "h1": "lost", "h2": ""}, "peer_lost", False),
        (STAYS, {"driver": "lost", "h1": "", "h2": ""}, "done", False),
    ],
)
def test_whether_it_goes_on(rule: SurvivalRule, said: dict[str, str], reason: str | None, lacks: bool) -> None:
    containers = parts(**said)
    assert (reason_to_stop(True, containers, rule), lacks_driver(rule, containers)) == (reason, lacks)


@pytest.mark.parametrize(
    ("stop_reason", "said", "outcome"),
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
def test_how_it_ended(stop_reason: str, said: dict[str, str], outcome: str) -> None:
    rule = SurvivalRule(spans_nodes=True, min_gpus=1, stop_requested=stop_reason != "done")
    assert attempt_outcome(stop_reason, True, parts(**said), rule) == outcome


def test_what_stays_on_one_node_is_judged_by_all_its_parts() -> None:
    containers = parts(driver="lost", h1="lost", h2="")
    assert counting(STAYS, containers) == containers
    assert [each.index for each in counting(GOES, containers)] == [2]
