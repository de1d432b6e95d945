"""How an end is judged. exit.json is written where users' code can write, so it is believed only within bounds."""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from portal.agents import protocol
from runners.agent.exits import SUPERVISOR_REASONS, determine_exit, read_exit
from runners.agent.reconcile import ControlMessage, DesiredContainer, Exit, JournalEntry
from runners.agent.report import read_phase
from runners.host.node_files import read_json_beneath
from runners.launch.host_worker import Verdict
from runners.messages import CLASSES, Quotation
from runners.messages.launch import AwaitingOtherHosts, ContainerNotRun, RankEnded
from runners.runtime import ObservedContainer
from tests.runners.agent.test_reconcile import spec

STARTED = JournalEntry(1, 1, 1, created=True, started=True)
RUN = DesiredContainer(spec(), "run")
PARAMETERS = sorted({"code", *(field.name for kind in CLASSES.values() for field in fields(kind))})  # type: ignore[arg-type]


def ended(code: int | None = 0, *, oom: bool = False, detail: str = "") -> ObservedContainer:
    return ObservedContainer("c", 1, 1, 1, "exited", code, oom, detail)


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
    entry: JournalEntry, seen: ObservedContainer | None, exit_file: dict[str, Any], code: int | None, reason: str
) -> None:
    found = determine_exit(RUN, seen, entry, exit_file)
    assert (found.code, found.reason) == (code, reason)


def test_what_never_started_was_stopped_or_is_unknown() -> None:
    assert (
        determine_exit(DesiredContainer(spec(), "stop", ControlMessage("cancelled")), None, None, {}).reason
        == "stopped"
    )
    assert determine_exit(DesiredContainer(spec(), "collect"), None, None, {}).reason == "lost"
    prepared_for_long = JournalEntry(1, 1, 1)
    assert (
        determine_exit(
            DesiredContainer(spec(), "collect", ControlMessage("cancelled")), None, prepared_for_long, {}
        ).reason
        == "stopped"
    )
    created = JournalEntry(1, 1, 1, created=True)
    assert (
        determine_exit(DesiredContainer(spec(), "stop"), ended(), created, {"code": 0, "reason": "exited"}).reason
        == "stopped"
    )


def test_a_supervisor_that_crashed_is_quoted() -> None:
    found = determine_exit(RUN, ended(1), STARTED, {}, b"Traceback\nImportError: no module \xff\n")
    assert "ImportError: no module" in found.detail


FAILED = {"code": 7, "reason": "exited"}


def test_what_a_supervisor_writes_is_a_message() -> None:
    written = Verdict(7, "exited", RankEnded(1, "h2", 7)).to_json()
    assert read_exit(json.loads(json.dumps(written))) == Exit(7, "exited", RankEnded(1, "h2", 7))
    assert read_exit(Verdict(0, "exited").to_json()) == Exit(0, "exited")


@pytest.mark.parametrize(
    "written", [{}, {"message": None}, {"message": {"code": "launch.too_loud", "decibels": 90}}], ids=str
)
def test_a_supervisor_of_another_release_is_quoted(written: dict[str, Any]) -> None:
    written |= FAILED | {"detail": "Rank 1 on h2 ended with exit code 7"}
    assert read_exit(written) == Exit(7, "exited", Quotation("Rank 1 on h2 ended with exit code 7"))


def nested(depth: int) -> Any:
    value: Any = "deep"
    for _ in range(depth):
        value = {"code": "container.with_remark", "end": value, "remark": value if depth < 5 else ""}
    return value


@pytest.mark.parametrize(
    "message",
    [
        "The text of a job.",
        7,
        ["launch.running"],
        {},
        {"code": ["launch.running"]},
        {"code": {"code": "launch.running"}},
        {"code": "launch.rank_ended"},
        {"code": "launch.rank_ended", "rank": "1", "host": "h2", "exit_code": 7},
        {"code": "launch.rank_ended", "rank": True, "host": "h2", "exit_code": 7},
        {"code": "launch.rank_ended", "rank": 2**63, "host": "h2", "exit_code": 7},
        {"code": "launch.rank_ended", "rank": float("nan"), "host": "h2", "exit_code": 7},
        {"code": "launch.rank_ended", "rank": 1, "host": nested(900), "exit_code": 7},
        {"code": "launch.hosts_did_not_come", "missing": [""] * 5000, "more": 0, "seconds": 1},
        {"code": "launch.hosts_did_not_come", "missing": ["x" * 5000], "more": 0, "seconds": 1},
        {"code": "launch.container_not_run", "error": nested(3)},
        {"code": "container.node_switched_off"},
        {"code": "agent.quotation", "quoted": "x" * 5000},
        nested(3),
        nested(900),
    ],
    ids=lambda message: str(message)[:60],
)
def test_what_no_supervisor_writes_is_not_read_as_a_message(message: Any, tmp_path: Path) -> None:
    (tmp_path / "exit.json").write_text(json.dumps(FAILED | {"message": message, "detail": "So it ended."}))
    assert read_exit(read_json_beneath(tmp_path, "exit.json")) == Exit(7, "exited", Quotation("So it ended."))
    (tmp_path / "status.json").write_text(json.dumps({"message": message, "phase": "waiting"}))
    assert read_phase(tmp_path) == Quotation("waiting")
    (tmp_path / "status.json").write_text(json.dumps({"message": message, "phase": message}))
    assert read_phase(tmp_path) == (Quotation(message) if isinstance(message, str) else None)


def test_what_cannot_be_parsed_ends_like_a_crash(tmp_path: Path) -> None:
    for content in (
        "[" * 60_000,
        '{"code": 7, "reason": "exited", "message": ' + '{"a":' * 9_000,
        "9" * 5000,
        "\ud800",
    ):
        for name in ("exit.json", "status.json"):
            (tmp_path / name).write_text(content, errors="surrogatepass")
        assert read_exit(read_json_beneath(tmp_path, "exit.json")) is None and read_phase(tmp_path) is None


def test_long_texts_are_cut(tmp_path: Path) -> None:
    written = Verdict(1, "launch_error", ContainerNotRun("x" * 5000)).to_json()
    found = read_exit(written)
    assert found == Exit(1, "launch_error", Quotation(ContainerNotRun("x" * 5000).text[:1000]))
    assert read_exit(FAILED | {"detail": "x" * 5000}) == Exit(7, "exited", Quotation("x" * 1000))
    (tmp_path / "status.json").write_text(json.dumps({"phase": "x" * 5000}))
    assert read_phase(tmp_path) == Quotation("x" * 200)


def test_what_a_container_does_is_read_from_status_json(tmp_path: Path) -> None:
    assert read_phase(tmp_path) is None
    phase = AwaitingOtherHosts()
    for status in ({"message": phase.data(), "phase": phase.text}, {"message": phase.data()}):
        (tmp_path / "status.json").write_text(json.dumps(status))
        assert read_phase(tmp_path) == phase
    (tmp_path / "status.json").write_text('{"phase": "waiting for the other hosts"}')
    assert read_phase(tmp_path) == Quotation("waiting for the other hosts")


anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from(sorted({*SUPERVISOR_REASONS, *CLASSES})),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.sampled_from(PARAMETERS), inner),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from(["code", "reason", "detail", "message", "x"]), anything))
def test_no_exit_json_breaks_the_agent_or_decides_more_than_a_supervisor_may(exit_file: dict[str, Any]) -> None:
    reported = read_exit(exit_file)
    if reported is not None:
        assert reported.reason in SUPERVISOR_REASONS and type(reported.code) is int and len(reported.detail) <= 1000
    assert isinstance(determine_exit(RUN, ended(0), STARTED, exit_file), Exit)


@given(st.dictionaries(st.sampled_from(PARAMETERS), anything), st.sampled_from(sorted(CLASSES)))
def test_no_message_in_exit_json_makes_a_report_that_the_portal_refuses(parameters: dict[str, Any], code: str) -> None:
    reported = read_exit(FAILED | {"message": parameters | {"code": code}, "detail": "So it ended."})
    assert reported is not None and reported.message is not None and len(reported.detail) <= 1000
    content = json.dumps(reported.message.data(), allow_nan=False)
    assert protocol.parse_storable(content.encode()) and len(content) < 7000
