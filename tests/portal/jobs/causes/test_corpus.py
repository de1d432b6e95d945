"""Causes of failures that were really run: the fifty that were written without knowledge of the code, and all others."""

import re

import pytest

from tests.failures import cases
from tests.failures.cases import Case
from tests.failures.score import find_cause, verdict

BLIND, KNOWN = list(cases.blind()), list(cases.known())
MIN_RIGHT, MAX_WRONG = 0.97, 0.01


def test_there_are_as_many_as_promised_and_most_were_run() -> None:
    assert len(BLIND) == 50 and len(BLIND) + len(KNOWN) >= 150
    assert all(case.recorded.get("streams") for case in KNOWN)
    assert sum(bool(case.recorded.get("streams")) for case in BLIND) >= 45


def test_recordings_name_no_folder_of_the_machine_where_they_were_made() -> None:
    known = ("/workspace/", "/env/", "/usr/lib/", "/schedulearn/", "/build/")
    for case in [*BLIND, *KNOWN]:
        for stream in case.recorded.get("streams", ()):
            for path in re.findall(r'File "(/[^"]*)"', stream["text"]):
                assert path.startswith(known), (case.name, path)


@pytest.mark.parametrize("corpus", [BLIND, KNOWN], ids=["blind", "known"])
def test_nearly_all_causes_are_right_and_hardly_any_is_wrong(corpus: list[Case]) -> None:
    verdicts = {case.name: verdict(case.facts, find_cause(case)) for case in corpus}
    wrong = [name for name, found in verdicts.items() if found == "wrong"]
    right = [name for name, found in verdicts.items() if found == "right"]
    assert len(wrong) <= MAX_WRONG * len(corpus), wrong
    assert len(right) >= MIN_RIGHT * len(corpus), sorted(set(verdicts) - set(right))


@pytest.mark.parametrize("case", [case for case in KNOWN if case.facts["advice_has"]], ids=lambda case: case.name)
def test_the_advice_has_what_fixes_it(case: Case) -> None:
    assert case.facts["advice_has"] in find_cause(case)["advice"]


@pytest.mark.parametrize(
    "case", [case for case in [*BLIND, *KNOWN] if "streams" in case.recorded], ids=lambda case: case.name
)
def test_the_launchers_last_line_stands_below_the_programs_last_lines(case: Case) -> None:
    """Merged by time, as a page shows them, though not the lines about ranks that ended because of another."""
    last = {each["name"] == "setup": 0 for each in case.recorded["streams"]}
    for each in case.recorded["streams"]:
        if each["marks"]:
            setup = each["name"] == "setup"
            last[setup] = max(last[setup], each["marks"][-1][1])
    assert last.get(True, 0) >= last.get(False, 0)
