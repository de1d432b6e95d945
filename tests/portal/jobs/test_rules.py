"""The outcomes of attempts and the states of jobs that follow from the facts, as a table."""

import pytest
from django.db.models import Field

from portal.jobs.models import Attempt, Container
from portal.jobs.rules import attempt_outcome, job_state, reason_to_stop

DRIVER, BASE, MORE = ("driver", 9), ("host", 0), ("host", 1)


def container(what: tuple[str, int], ends: str) -> Container:
    """Return a container; ``ends`` is ``exited:0``, ``oom``, or empty for one that still runs."""
    reason, _, code = ends.partition(":")
    role, index = what
    state = "EXITED" if ends else "RUNNING"
    return Container(role=role, index=index, state=state, exit_reason=reason, exit_code=int(code) if code else None)


def containers_with(**ends: str) -> list[Container]:
    names = {"driver": DRIVER, "base": BASE, "more": MORE}
    return [container(names[name], words) for name, words in ends.items()]


@pytest.mark.parametrize(
    ("stop_reason", "elastic", "ends", "outcome"),
    [
        # by themselves
        ("", False, {"base": "exited:0"}, "succeeded"),
        ("", False, {"base": "exited:1"}, "failed"),
        ("", False, {"base": "exited:0", "more": "exited:1"}, "failed"),
        ("done", True, {"driver": "exited:0", "base": "stopped", "more": "lost"}, "succeeded"),
        ("done", False, {"driver": "exited:1", "base": "stopped"}, "failed"),
        ("", False, {"base": "oom"}, "failed"),
        ("", False, {"base": "disk"}, "failed"),
        ("", False, {"base": "create_error"}, "error"),
        ("", False, {"base": "launch_error"}, "error"),
        ("", False, {"base": "fenced"}, "lost"),
        ("", False, {"base": "stopped"}, "lost"),  # by an unknown cause
        # an error of a rank explains why the rank group did not form
        ("done", False, {"driver": "launch_error", "base": "exited:1"}, "failed"),
        # a node's trouble explains why the others gave up
        ("peer_lost", False, {"base": "create_error", "more": "exited:1"}, "error"),
        ("peer_lost", False, {"base": "lost", "more": "exited:1"}, "lost"),
        ("done", False, {"driver": "exited:1", "base": "stopped", "more": "lost"}, "lost"),
        # an elastic attempt can lose what it can do without, and is then judged by the rest
        ("done", True, {"driver": "exited:1", "base": "stopped", "more": "lost"}, "failed"),
        ("peer_lost", True, {"driver": "stopped", "base": "lost", "more": "stopped"}, "lost"),
        # asked to stop
        ("cancelled", False, {"base": "exited:0"}, "cancelled"),
        ("cancelled", False, {"base": "lost"}, "cancelled"),
        ("timed_out", False, {"base": "stopped"}, "timed_out"),
        ("preempted", False, {"base": "stopped"}, "preempted"),
        ("drained", False, {"base": "stopped"}, "preempted"),
        ("held", False, {"base": "stopped"}, "held"),
        ("stuck", False, {"base": "stopped"}, "error"),
        # finished before it heard of it
        ("preempted", False, {"base": "exited:0"}, "succeeded"),
        ("timed_out", True, {"driver": "exited:0", "base": "stopped"}, "succeeded"),
        ("held", False, {"base": "exited:0"}, "succeeded"),
        ("stuck", False, {}, "error"),
    ],
)
def test_how_an_attempt_ended(stop_reason: str, elastic: bool, ends: dict[str, str], outcome: str) -> None:
    assert attempt_outcome(stop_reason, elastic, containers_with(**ends)) == outcome


@pytest.mark.parametrize(
    ("elastic", "ends", "reason"),
    [
        (False, {"base": "", "more": ""}, None),
        (False, {"base": "exited:0", "more": ""}, None),  # its ranks were done first
        (False, {"base": "exited:1", "more": ""}, "peer_lost"),
        (False, {"base": "lost", "more": ""}, "peer_lost"),
        (False, {"driver": "", "base": "", "more": "lost"}, "peer_lost"),
        (False, {"driver": "", "base": "exited:1", "more": ""}, None),  # the driver's to judge
        (False, {"driver": "exited:0", "base": ""}, "done"),
        (True, {"driver": "", "base": "", "more": "lost"}, None),
        (True, {"driver": "", "base": "lost", "more": ""}, "peer_lost"),
        (True, {"driver": "lost", "base": "", "more": ""}, "done"),
    ],
)
def test_when_the_rest_must_stop(elastic: bool, ends: dict[str, str], reason: str | None) -> None:
    assert reason_to_stop(elastic, containers_with(**ends)) == reason


@pytest.mark.parametrize(
    ("intent", "retries", "outcomes", "state"),
    [
        ("run", 0, [], "QUEUED"),
        ("hold", 0, [], "HELD"),
        ("cancel", 0, [], "CANCELLED"),
        ("run", 0, [""], "RUNNING"),
        ("cancel", 0, [""], "RUNNING"),  # until its containers have stopped
        ("hold", 0, ["held", ""], "RUNNING"),
        ("run", 0, ["succeeded"], "SUCCEEDED"),
        ("cancel", 0, ["succeeded"], "SUCCEEDED"),  # it had finished first
        ("hold", 0, ["succeeded"], "SUCCEEDED"),
        ("run", 0, ["failed"], "FAILED"),
        ("run", 1, ["failed"], "QUEUED"),
        ("run", 1, ["failed", "lost", "preempted", "error", "failed"], "FAILED"),
        ("hold", 1, ["failed"], "HELD"),
        ("cancel", 1, ["failed"], "CANCELLED"),
        ("run", 5, ["timed_out"], "FAILED"),
        ("run", 0, ["cancelled"], "CANCELLED"),
        ("run", 0, ["lost"], "QUEUED"),
        ("run", 0, ["preempted"], "QUEUED"),
        ("run", 0, ["held"], "QUEUED"),
        ("run", 0, ["error", "error"], "QUEUED"),
        ("run", 0, ["error", "error", "error"], "FAILED"),
        ("run", 0, ["error", "lost", "error", "error"], "FAILED"),
        ("run", 0, ["error", "error", "preempted", "error"], "QUEUED"),
        ("run", 0, ["lost"] * 9, "QUEUED"),
        ("run", 0, ["lost"] * 10, "FAILED"),
    ],
)
def test_what_a_job_is(intent: str, retries: int, outcomes: list[str], state: str) -> None:
    assert job_state(intent, retries, outcomes) == state


def test_every_stop_reason_fits_its_column() -> None:
    for model, name in ((Attempt, "outcome"), (Attempt, "stop_reason"), (Container, "stop_reason")):
        column = model._meta.get_field(name)
        assert isinstance(column, Field)
        assert all(len(value) <= (column.max_length or 0) for value, _ in column.flatchoices)
