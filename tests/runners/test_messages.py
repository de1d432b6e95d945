"""What agents report in words is data: it survives JSON, and a message that does not fit is refused."""

import json
import typing
from dataclasses import FrozenInstanceError, fields
from typing import Any

import pytest

from runners.messages import CLASSES, MAX_TEXT_CHARACTERS, Message, Quotation, message_from
from runners.messages.containers import CheckpointsNotKept, GpuInUse, PortalRefused
from runners.messages.environment_failures import Stage
from runners.messages.environments import CompilingHorovod
from runners.messages.gpus import LostAt, Process, Processes, UncorrectedErrors, XidError
from runners.messages.launch import (
    AskedToStop,
    DriverCannotListen,
    HostsDidNotCome,
    LacksHosts,
    LacksRanks,
    RankInSlotEnded,
    RestartedWithoutCommit,
)
from runners.messages.outputs import (
    BadPath,
    FileNotKept,
    NameNotUtf8,
    OnlyFirstFiles,
    OutputsNotKept,
    TooLarge,
    TooManyFiles,
    Unreadable,
)
from runners.messages.portal import CheckpointsTooLarge, CodeLost
from runners.messages.problems import FoldersSetAside, NoEngine, NoLimits, OldRunc, Problem

SAMPLES: dict[Any, Any] = {
    bool: True,
    int: 2,
    int | None: 65,
    float: 1.5,
    str: "x 1",
    tuple[str, ...]: ("a", "b"),
    tuple[Message, ...]: (Quotation("It failed."), OldRunc("1.1.5")),
    Message: Quotation("It failed."),
    Message | None: Quotation("It failed."),
    Stage: Stage("building", "job:1"),
}


def sample(kind: type[Message]) -> Message:
    hints = typing.get_type_hints(kind)
    return kind(**{field.name: SAMPLES[hints[field.name]] for field in fields(kind)})  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", CLASSES.values(), ids=lambda kind: kind.code)
def test_each_message_has_a_sentence_and_survives_json(kind: type[Message]) -> None:
    message = sample(kind)
    assert message.text and "None" not in message.text
    assert message_from(json.loads(json.dumps(message.data()))) == message
    if isinstance(message, Problem):
        report = message.to_json()
        assert message_from(json.loads(json.dumps(report))) == message, "what else a report has is ignored"
        assert report["fix"] == report["mend"] == message.fix and report["blocking"] is message.blocking
    if fields(message):  # type: ignore[arg-type]
        with pytest.raises(FrozenInstanceError):
            setattr(message, fields(message)[0].name, "")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "content",
    [
        None,
        [],
        {},
        {"code": ["problem.old_runc"]},
        {"code": "problem.of_a_later_release"},
        {"code": "problem.old_runc"},
        {"code": "problem.old_runc", "version": 1},
        {"code": "problem.no_limits", "missing": "memory"},
        {"code": "problem.no_limits", "missing": ["memory", 1]},
        {"code": "output.not_kept", "first": [{"code": "of.a_later_release"}], "more": 0},
        {"code": "output.not_kept", "first": {}, "more": 0},
        {"code": "problem.small_disk", "free_gib": True, "folder": "/"},
        {"code": "problem.no_engine", "error": {"code": "problem.old_runc"}},
    ],
)
def test_what_does_not_fit_is_refused(content: Any) -> None:
    with pytest.raises(TypeError):
        message_from(content)


def test_a_text_of_an_earlier_release_is_shown_as_it_is() -> None:
    assert message_from("It failed.") == Quotation("It failed.")
    assert message_from({"code": "problem.no_engine", "error": "Away."}) == NoEngine(Quotation("Away."))


def test_two_messages_cannot_have_the_same_code() -> None:
    with pytest.raises(TypeError, match="has the code"):
        type("Another", (Message,), {"code": OldRunc.code})


def test_long_parameters_are_cut() -> None:
    assert OldRunc("x" * (MAX_TEXT_CHARACTERS + 1)).data()["version"] == "x" * MAX_TEXT_CHARACTERS


def test_sentences_are_as_before() -> None:
    assert Processes((Process("python", 7),), 0).text == "python, process 7"
    some = Processes((Process("python", 7), Process("Xorg", 8)), 2)
    assert some.text == "python, process 7; Xorg, process 8 and 2 more"
    former = {"code": "container.gpu_in_use", "gpu": 1, "by": "python, process 7"}
    assert message_from(former) == GpuInUse(1, Quotation("python, process 7"))
    assert GpuInUse(1, some).text == f"GPU 1 of this node is in use outside the portal ({some.text})."
    former = {"code": "container.portal_refused", "error": CodeLost().text}
    assert message_from(former) == PortalRefused(Quotation(CodeLost().text))
    assert CheckpointsNotKept(CheckpointsTooLarge(2048)).text == (
        "Its checkpoints were not kept in the portal: they take more than 2,048 MiB, so they stay on their node. "
        "Delete old ones, or ask an admin for more."
    )
    refused = FileNotKept("a.pt", TooLarge(64))
    assert refused.text == (
        "a.pt was not kept: The job's outputs would take more than 64 MiB together. "
        "Write less, or ask an admin for more."
    )
    assert OutputsNotKept((refused, OnlyFirstFiles(10_000)), 2).text == (
        f"{refused.text} Only the first 10,000 files of /outputs are kept. 2 more files were not kept."
    )
    assert FileNotKept("a", NameNotUtf8()).text == "a was not kept: its name is not UTF-8."
    assert FileNotKept("a", Unreadable()).text == "a was not kept: it cannot be read."
    assert TooManyFiles(7).text == "A job keeps at most 7 output files. Put them into one archive."
    assert BadPath(500).text == (
        "An output's path is relative and has at most 500 characters, without '..' or control characters."
    )
    assert XidError(79, "2026-11-21T13:00:00+01:00").text == (
        "XID 79 (it has fallen off the bus) at 2026-11-21 12:00:00 UTC"
    )
    assert XidError(7, "noon").text == "XID 7 at noon"
    assert LostAt("2026-11-21T12:00:00+00:00").text == "The driver has lost it at 2026-11-21 12:00:00 UTC"
    assert UncorrectedErrors(1).text == "1 memory error that could not be corrected"
    assert UncorrectedErrors(3).text == "3 memory errors that could not be corrected"
    assert CompilingHorovod(seconds=190).text == "compiling Horovod: 3 min 10 s so far"
    assert (
        NoLimits(("memory", "processes")).text == "The Docker Engine cannot limit a container's memory and processes."
    )
    assert FoldersSetAside.among(("a", "b", "c", "d")).text == (
        "4 folders with files of jobs that the portal does not know: a, b, c and 1 more. No job gets them."
    )
    assert FoldersSetAside.among(("a",)).text == (
        "A folder with files of jobs that the portal does not know: a. No job gets them."
    )


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        (AskedToStop(), "The container was asked to stop"),
        (AskedToStop("moved"), "The container was asked to stop (moved)"),
        (RankInSlotEnded(1, "h2", 137), "The rank in slot 1 of h2 ended with exit code 137"),
        (RestartedWithoutCommit(1), "The ranks failed and were restarted once without a commit. Their logs show why"),
        (
            RestartedWithoutCommit(5),
            "The ranks failed and were restarted 5 times in a row without a commit. Their logs show why",
        ),
        (LacksHosts(1, 120), "The job needs 1 rank, but too few hosts were available for 120 s"),
        (LacksHosts(2, 6), "The job needs 2 ranks, but too few hosts were available for 6 s"),
        (LacksRanks(4, 120), "For 120 seconds the job had fewer than the 4 ranks that it needs"),
        (HostsDidNotCome.among([], 600), "Waiting for hosts took longer than 600 seconds"),
        (HostsDidNotCome.among(["h1", "h2"], 600), "Waiting for h1, h2 took longer than 600 seconds"),
        (
            HostsDidNotCome.among(["h1", "h2", "h3"], 9, maximum=1),
            "Waiting for h1 and 2 more took longer than 9 seconds",
        ),
        (DriverCannotListen(7, "Address in use"), "The driver cannot listen on port 7: Address in use"),
    ],
    ids=lambda value: value.code if isinstance(value, Message) else "",
)
def test_sentences_of_supervisors_and_drivers_are_as_before(message: Message, sentence: str) -> None:
    assert message.text == sentence
