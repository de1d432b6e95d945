"""The judge catches each thing that must never be, and finds nothing where all is well."""

from dataclasses import replace
from typing import Any

import pytest

from tests.cluster.judge import SHELL_REMARK, Asked, RingAsked, Rules, Run, judged, judged_rings
from tests.cluster.witness_job import lines
from tests.stalls import StallWatch, Try


def run(**changes: Any) -> Run:
    given: dict[str, Any] = {"machine": "n1", "began": 10.0, "job": 1, "number": 1, "gpus": ("cpu-0",)}
    return Run(**{**given, "wrote": 30, "code": 0, "ended": 20.0, **changes})


def asked(**changes: Any) -> Asked:
    return Asked(**{"key": "a-1", "job": 1, "answers": [201], **changes})


def log(count: int, number: int = 1) -> bytes:
    return lines(1, number, 0, count)


def complaints(what: Asked, *runs: Run, final: str = "SUCCEEDED", logs: Any = None, **rules: Any) -> str:
    given = {(each.job, each.number): log(each.wrote, each.number) for each in runs} if logs is None else logs
    return "; ".join(judged([what], runs, {what.job or 0: final} if what.job else {}, given, Rules(**rules)))


def test_a_job_that_ran_once_and_well_gives_no_complaint() -> None:
    assert complaints(asked(), run()) == ""
    assert complaints(asked(code=3), run(code=3), final="FAILED") == ""
    assert complaints(asked(cancelled_at=11.0), run(code=None, ended=14.0), final="CANCELLED") == ""
    assert complaints(asked(answers=[503, 0, 200]), run()) == ""


@pytest.mark.parametrize(
    ("expected", "what", "runs", "final"),
    [
        ("never accepted", asked(job=None, answers=[503]), [], ""),
        ("answered 500", asked(answers=[500, 201]), [run()], "SUCCEEDED"),
        ("is lost", asked(), [run()], "RUNNING"),
        ("is lost", asked(), [], "gone"),
        ("it should be SUCCEEDED", asked(), [run()], "FAILED"),
        ("it should be FAILED", asked(code=1), [run(code=1)], "SUCCEEDED"),
        ("it should be FAILED", asked(own_fault=True), [run()], "SUCCEEDED"),
        ("without having run to its end", asked(), [run(code=None)], "SUCCEEDED"),
        ("which was in use", asked(), [run(taken="cpu-0")], "SUCCEEDED"),
        ("still runs", asked(), [run(ended=None)], "SUCCEEDED"),
        ("twice at once", asked(), [run(code=None), run(number=2, began=19.9, ended=30)], "SUCCEEDED"),
        ("run 2 times", asked(), [run(code=None), run(number=2, began=21, ended=30)], "SUCCEEDED"),
        ("ran on for 18.0 s", asked(cancelled_at=2.0), [run(code=None)], "CANCELLED"),
        ("never submitted", asked(), [run(), run(job=7)], "SUCCEEDED"),
    ],
)
def test_each_thing_that_must_never_be_is_found(expected: str, what: Asked, runs: list[Run], final: str) -> None:
    assert expected in complaints(what, *runs, final=final)


def test_a_second_run_is_well_where_the_fault_allows_it_and_they_do_not_overlap() -> None:
    runs = [run(code=None), run(number=2, began=21, ended=30)]
    assert complaints(asked(), *runs, calm=False) == ""
    assert "twice at once" in complaints(asked(), runs[0], replace(runs[1], began=19), calm=False)


@pytest.mark.parametrize(
    ("kept", "found"),
    [
        (log(30)[:-1], "has 899 bytes"),
        (log(31), "written were"),
        (log(10) + log(30)[len(log(11)) :], "another from byte"),
        (b"", "has 0 bytes"),
    ],
)
def test_a_log_of_a_finished_run_is_what_it_wrote_to_the_byte(kept: bytes, found: str) -> None:
    assert found in complaints(asked(), run(), logs={(1, 1): kept})


def test_a_log_of_a_killed_run_may_lack_its_end_and_nothing_else() -> None:
    killed = run(code=None, wrote=5000)
    allowed: dict[str, Any] = {"calm": False, "final": "CANCELLED"}
    what = asked(cancelled_at=19.0)
    assert complaints(what, killed, logs={(1, 1): log(4000)}, **allowed) == ""
    assert complaints(what, killed, logs={(1, 1): log(5001)[:-3]}, **allowed) == ""
    assert "lacks" in complaints(what, killed, logs={(1, 1): log(100)}, **allowed)
    assert "lacks" in complaints(what, killed, logs={(1, 1): log(4999)}, whole_logs=True, **allowed)
    assert complaints(what, killed, logs={(1, 1): log(5000)}, whole_logs=True, **allowed) == ""
    assert "is not what was written" in complaints(what, killed, logs={(1, 1): log(4000)[7:]}, **allowed)


def test_the_shell_of_a_killed_run_may_have_the_last_word() -> None:
    killed = run(code=None, wrote=5000)
    allowed: dict[str, Any] = {"calm": False, "final": "CANCELLED"}
    what = asked(cancelled_at=19.0)
    assert complaints(what, killed, logs={(1, 1): log(5000) + SHELL_REMARK}, whole_logs=True, **allowed) == ""
    assert "lacks" in complaints(what, killed, logs={(1, 1): log(4999) + SHELL_REMARK}, whole_logs=True, **allowed)
    assert "another from" in complaints(what, killed, logs={(1, 1): SHELL_REMARK + log(5000)}, **allowed)
    assert "has 911 bytes" in complaints(asked(), run(), logs={(1, 1): log(30) + SHELL_REMARK})


CUT = b"[schedulearn] From here on output is dropped by the full disk\n[schedulearn] 9 bytes dropped by the full disk\n"


@pytest.mark.parametrize(
    ("kept", "found"),
    [
        (log(10) + CUT + log(30)[-60:], ""),
        (log(10)[:-7] + b"\n" + CUT + log(30)[-60:], ""),
        (log(10)[3:] + CUT + log(30)[-60:], "does not begin"),
        (log(10) + CUT + log(30)[-60:-3], "does not end"),
    ],
)
def test_a_log_marked_as_cut_has_its_beginning_and_its_end(kept: bytes, found: str) -> None:
    result = complaints(asked(), run(), logs={(1, 1): kept}, cut_logs=True)
    assert found in result and bool(found) == bool(result)
    assert complaints(asked(), run(), logs={(1, 1): kept}), "only where the fault allows it"


@pytest.mark.parametrize(
    ("expected", "what", "ranks", "final"),
    [
        ("", {}, [run(), run(machine="n2", gpus=("cpu-1",))], "SUCCEEDED"),
        ("", {"again": True}, [run(), run(number=2, began=21, ended=30)], "SUCCEEDED"),
        ("it should be SUCCEEDED", {}, [run()], "FAILED"),
        ("it should be FAILED", {"may_become": ("FAILED",)}, [run()], "SUCCEEDED"),
        ("in use", {}, [run(taken="cpu-0")], "SUCCEEDED"),
        ("still has a rank on n1", {}, [run(ended=None)], "SUCCEEDED"),
        ("was run 2 times", {}, [run(), run(number=2, began=21, ended=30)], "SUCCEEDED"),
        ("twice at once", {"again": True}, [run(), run(number=2, began=19, ended=30)], "SUCCEEDED"),
    ],
)
def test_what_a_ring_must_never_do_is_found(expected: str, what: dict[str, Any], ranks: list[Run], final: str) -> None:
    result = "; ".join(judged_rings([RingAsked(1, **what)], ranks, {1: final}))
    assert expected in result and bool(expected) == bool(result)


def test_two_submits_that_became_one_job_are_found() -> None:
    history = [asked(), asked(key="a-2")]
    assert any(
        "became one job" in each for each in judged(history, [run()], {1: "SUCCEEDED"}, {(1, 1): log(30)}, Rules())
    )


def test_gpus_without_enough_living_ranks_are_found_after_the_limit() -> None:
    watch, ring, other = StallWatch(100), Try(1, 1), Try(2, 1)
    holding = {ring: 3, other: 1}
    assert watch.look(0, holding, {ring: 4, other: 1}) == []
    assert watch.look(10, holding, {ring: 2, other: 1}) == []
    assert watch.look(110, holding, {ring: 2, other: 1}) == []
    (stall,) = watch.look(111, holding, {ring: 2, other: 1})
    assert stall.startswith("job 1, attempt 1 holds GPUs without enough living ranks (2 of 3)")


def test_a_stall_is_timed_afresh_once_ranks_have_lived_or_gpus_were_released() -> None:
    watch, ring = StallWatch(100), Try(1, 1)
    for at, holding, ranks in ((0, 1, 0), (90, 1, 1), (100, 1, 0), (190, 0, 0), (195, 1, 0), (290, 1, 0)):
        assert watch.look(at, {ring: 1} if holding else {}, {ring: ranks}) == []
    assert watch.longest_seconds == 95
    watch.forget()
    assert watch.look(1000, {ring: 1}, {}) == []
