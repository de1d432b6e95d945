"""Messages are data: stored, read again, and sentences of another release or of a lab's own policy are kept."""

import json
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest

from scheduling.decide import decide
from scheduling.messages import Message, Text, Unknown, message_from
from scheduling.toolkit.reasons import InLine, InTurns, NoneFree, Outserved, rounded_seconds
from scheduling.types import Plan, Reservation, Snapshot
from tests.scheduling.sentences import reasons_of
from tests.scheduling.worlds import draw, waiting

BEHIND = NoneFree(2, 4, everywhere=True, kept=False)


@pytest.mark.parametrize("message", [BEHIND, InTurns(Outserved(BEHIND, 1.5), 10), Text("It waits.")])
def test_a_message_comes_back_as_it_went(message: Message) -> None:
    assert message_from(json.loads(json.dumps(message.data()))) == message


@pytest.mark.parametrize(
    "content",
    [{"code": "phase_of_the_moon", "degrees": 12}, {"code": "in_line", "ahead": 1}, {**InLine(1, 4).data(), "more": 2}],
)
def test_a_message_of_another_release_is_kept_as_it_is(content: dict[str, object]) -> None:
    message = message_from(content)
    assert isinstance(message, Unknown) and message.data() == content


def test_two_messages_have_no_code_in_common() -> None:
    with pytest.raises(TypeError, match="has the code 'in_line' of InLine"):

        class Another(Message):
            code: ClassVar[str] = "in_line"


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.4, 0), (119.0, 119), (130.0, 120), (7_100.0, 7_080), (7_300.0, 7_200), (400_000.0, 432_000)],
)
def test_a_duration_is_stored_as_it_is_shown(seconds: float, shown: int) -> None:
    assert rounded_seconds(seconds) == shown == rounded_seconds(shown)


@dataclass(frozen=True)
class InItsOwnWords:
    """A policy of a lab, which starts no job."""

    title: ClassVar[str] = ""
    explanation: ClassVar[str] = ""

    def plan(self, snapshot: Snapshot) -> Plan:
        return Plan({}, {job.id: "It is Sunday." for job in snapshot.jobs})  # type: ignore[misc]


def test_a_policy_of_a_lab_may_give_plain_sentences() -> None:
    lab = draw({"a": 2}, waiting("1", nodes=frozenset({"a"})))
    assert decide(InItsOwnWords(), lab).reasons == {"1": Text("It is Sunday.")}
    course = Reservation("the course", "a", 2, lab.now, lab.now + 3600.0, frozenset({"eve"}))
    reserved = decide(InItsOwnWords(), replace(lab, reservations=(course,)))
    assert reserved.reasons["1"].reason == Text("It is Sunday.")  # type: ignore[attr-defined]
    assert reasons_of(reserved) == {
        "1": "It is Sunday. 2 GPUs of node a are reserved for the course for another 60 minutes."
    }


@dataclass(frozen=True)
class OfALab(Message):
    code: ClassVar[str] = "tests.of_a_lab"
    parts: object


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        (np.int64(3), 3),
        (np.float32(0.5), 0.5),
        ((1, "a"), [1, "a"]),
        ([BEHIND], [BEHIND.data()]),
        ({1: (2,)}, {"1": [2]}),
        (float("nan"), "nan"),
        ({7}, "{7}"),
        ("half a pair \ud800", "half a pair ?"),
    ],
)
def test_whatever_a_policy_puts_into_a_message_can_be_stored(given: object, stored: object) -> None:
    assert json.loads(json.dumps(OfALab(given).data()))["parts"] == stored
