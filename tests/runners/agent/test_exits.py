"""How an end is judged. exit.json is written where users' code can write, so it is believed only within bounds."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runners.agent.exits import SUPERVISOR_REASONS, judge, read_exit
from runners.agent.reconcile import ControlMessage, DesiredContainer, Exit, JournalEntry
from runners.runtime import Observed
from tests.runners.agent.test_reconcile import spec

STARTED = JournalEntry(1, 1, 1, created=True, started=True)
RUN = DesiredContainer(spec(), "run")


def ended(code: int | None = 0, *, oom: bool = False, detail: str = "") -> Observed:
    return Observed("c", 1, 1, 1, "exited", code, oom, detail)


@pytest.mark.parametrize(
    ("entry", "seen", "exit_file", "code", "reason"),
    [
        # a valid report of the supervisor
        (STARTED, ended(0), {"code": 0, "reason": "exited"}, 0, "exited"),
        (STARTED, ended(1), {"code": 3, "reason": "exited"}, 3, "exited"),
        (STARTED, ended(143), {"code": 143, "reason": "stopped"}, 143, "stopped"),
        (STARTED, ended(143), {"code": 143, "reason": "fenced"}, 143, "fenced"),
        (STARTED, ended(1), {"code": 1, "reason": "launch_error"}, 1, "launch_error"),
        (STARTED, None, {"code": 0, "reason": "exited"}, 0, "exited"),
        (STARTED, ended(None), {"code": 0, "reason": "exited"}, 0, "exited"),
        # memory: a rank was killed, or a helper of one that did well all the same
        (STARTED, ended(137, oom=True), {"code": 137, "reason": "exited"}, 137, "oom"),
        (STARTED, ended(0, oom=True), {"code": 0, "reason": "exited"}, 0, "exited"),
        (STARTED, ended(137, oom=True), {}, 137, "oom"),
        # no report, or an invalid one
        (STARTED, ended(1), {}, 1, "launch_error"),
        (STARTED, ended(137), {}, 137, "lost"),
        (STARTED, ended(255), {}, 255, "lost"),
        (STARTED, ended(255), {"code": 255, "reason": "exited"}, 255, "exited"),
        (STARTED, ended(None), {}, None, "lost"),
        (STARTED, None, {}, None, "lost"),
        (STARTED, ended(2), {"code": 0, "reason": "oom"}, 2, "launch_error"),
        (STARTED, ended(2), {"code": "0", "reason": "exited"}, 2, "launch_error"),
        (STARTED, ended(2), {"code": True, "reason": "exited"}, 2, "launch_error"),
        (STARTED, ended(2), {"code": 10**9, "reason": "exited"}, 2, "launch_error"),
        # killed after its stop was sent
        (JournalEntry(1, 1, 1, started=True, control=ControlMessage("cancelled")), ended(137), {}, 137, "stopped"),
        (JournalEntry(1, 1, 1, started=True, control=ControlMessage("cancelled")), None, {}, None, "stopped"),
        # ended by the agent itself
        (
            JournalEntry(1, 1, 1, started=True, halted="disk"),
            ended(143),
            {"code": 143, "reason": "stopped"},
            143,
            "disk",
        ),
        (JournalEntry(1, 1, 1, started=True, halted="lost"), None, {}, None, "lost"),
    ],
)
def test_an_end_is_judged(
    entry: JournalEntry, seen: Observed | None, exit_file: dict[str, Any], code: int | None, reason: str
) -> None:
    found = judge(RUN, seen, entry, exit_file)
    assert (found.code, found.reason) == (code, reason)


def test_what_never_started_was_stopped_or_is_unknown() -> None:
    assert judge(DesiredContainer(spec(), "stop", ControlMessage("cancelled")), None, None, {}).reason == "stopped"
    assert judge(DesiredContainer(spec(), "collect"), None, None, {}).reason == "lost"
    prepared_for_long = JournalEntry(1, 1, 1)
    assert (
        judge(DesiredContainer(spec(), "collect", ControlMessage("cancelled")), None, prepared_for_long, {}).reason
        == "stopped"
    )
    created = JournalEntry(1, 1, 1, created=True)
    assert (
        judge(DesiredContainer(spec(), "stop"), ended(), created, {"code": 0, "reason": "exited"}).reason == "stopped"
    )


def test_a_supervisor_that_crashed_is_quoted() -> None:
    found = judge(RUN, ended(1), STARTED, {}, b"Traceback\nImportError: no module \xff\n")
    assert "ImportError: no module" in found.detail


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(sorted(SUPERVISOR_REASONS)),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from(["code", "reason", "detail", "x"]), anything))
def test_no_exit_json_breaks_the_agent_or_decides_more_than_a_supervisor_may(exit_file: dict[str, Any]) -> None:
    reported = read_exit(exit_file)
    if reported is not None:
        assert reported.reason in SUPERVISOR_REASONS and type(reported.code) is int and len(reported.detail) <= 1000
    assert isinstance(judge(RUN, ended(0), STARTED, exit_file), Exit)
