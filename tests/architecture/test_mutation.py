"""The list of seeded faults stays true to the source, and the tool that judges them judges right."""

import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from coverage import CoverageData

from tests.mutation import catalogue, report
from tests.mutation.catalogue import CatalogueError, Mutant, Sources, by_subject, load
from tests.mutation.runner import Copy, Layer, Verdict, confirm, judge_all
from tests.mutation.selection import Covered

SUBJECTS = {
    "lifecycle",
    "rules",
    "services",
    "projects",
    "unpacking",
    "permissions",
    "apply",
    "check",
    "reconcile",
    "log_shipper",
    "agent_protocol",
    "sampler",
}
CODE = '''LIMIT = 3


def half(number: int) -> int:
    """Return half of it."""
    return number // 2


class Counter:
    def add(self, number: int) -> int:
        if number > LIMIT:
            raise ValueError(number)
        return number + 1
'''
CONFTEST = """import tempfile

from django.conf import settings

settings.configure(HOME=tempfile.mkdtemp())
"""
TESTS = """from scheduling.numbers import Counter, half


def test_half() -> None:
    assert half(4) == 2


def test_a_number_above_zero_is_counted() -> None:
    assert Counter().add(1) == 2
"""


def mutant(
    function: str, find: str, replace: str, *, runs_in: str = "", tests: tuple[str, ...] = ("test_numbers",)
) -> Mutant:
    return Mutant("wrong", "numbers", "Numbers are wrong.", function, find, replace, runs_in, tests)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A small repository with one module and its tests."""
    for folder in ("portal", "scheduling", "runners", "tests/scheduling"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "scheduling" / "numbers.py").write_text(CODE)
    (tmp_path / "tests" / "__init__.py").touch()
    (tmp_path / "tests" / "conftest.py").write_text(CONFTEST)
    (tmp_path / "tests" / "scheduling" / "test_numbers.py").write_text(TESTS)
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    return tmp_path


def test_every_seeded_fault_can_be_applied() -> None:
    sources = Sources()
    problems = []
    for each in load():
        try:
            sources.place(each)
            sources.coverage_path(each)
        except CatalogueError as error:
            problems.append(str(error))
    assert not problems


def test_all_subjects_have_enough_seeded_faults() -> None:
    mutants = load()
    groups = by_subject(mutants)
    assert len({each.name for each in mutants}) == len(mutants) >= 60
    assert groups.keys() == SUBJECTS
    assert all(len(group) >= 5 for group in groups.values())


def test_the_test_modules_that_a_fault_names_are_there() -> None:
    paths = list((catalogue.ROOT / "tests").rglob("test_*.py"))
    modules = {path.stem for path in paths} | {f"{path.parent.name}/{path.stem}" for path in paths}
    assert {name for each in load() for name in each.tests} <= modules


def test_a_function_is_found_by_its_name_after_its_module_was_moved(tree: Path) -> None:
    changed = mutant("numbers.Counter.add", "> LIMIT", ">= LIMIT")
    (tree / "runners" / "deep").mkdir()
    (tree / "scheduling" / "numbers.py").rename(tree / "runners" / "deep" / "counting.py")
    place = Sources(tree).place(changed)
    assert place.path == tree / "runners" / "deep" / "counting.py"
    assert place.source == CODE.replace("> LIMIT", ">= LIMIT") and place.lines == (11,)


def test_of_two_functions_with_one_name_the_modules_name_decides(tree: Path) -> None:
    (tree / "portal" / "other.py").write_text(CODE)
    assert Sources(tree).find("other.half").path == tree / "portal" / "other.py"
    with pytest.raises(CatalogueError, match="several modules"):
        Sources(tree).find("half")


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (mutant("half", "number", "0"), "is 2 times in half"),
        (mutant("half", "number + 1", "number"), "is 0 times in half"),
        (mutant("third", "number", "0"), "There is no third"),
        (mutant("half", "return number // 2", "return ("), "does not parse"),
        (mutant("half", "number // 2", "(number // 2)"), "changes nothing"),
    ],
)
def test_a_mutant_that_cannot_be_applied_is_refused_with_the_reason(tree: Path, wrong: Mutant, sentence: str) -> None:
    with pytest.raises(CatalogueError, match=sentence):
        Sources(tree).place(wrong)


def test_a_constant_is_judged_by_the_function_that_uses_it(tree: Path) -> None:
    place = Sources(tree).place(mutant("LIMIT", "3", "4", runs_in="Counter.add"))
    assert place.lines == (11, 12, 13)


def test_the_tests_of_a_line_come_in_the_order_of_how_specific_they_are(tmp_path: Path) -> None:
    data = CoverageData(basename=str(tmp_path / "coverage"))
    ran = {
        "tests/test_wide.py::test_all": {"/old/portal/rules.py": [1, 2], "/old/portal/other.py": [1, 2, 3, 4]},
        "tests/test_close.py::test_half": {"/old/portal/rules.py": [1], "/old/portal/other.py": [1]},
        "tests/test_job_rules.py::test_own": {"/old/portal/rules.py": [1], "/old/portal/other.py": [1, 2, 3]},
        "tests/test_elsewhere.py::test_no": {"/old/portal/rules.py": [2]},
    }
    for test, lines in ran.items():
        data.set_context(f"{test}|run")
        data.add_lines(lines)
    data.write()
    covered = Covered(tmp_path / "coverage")
    assert [test.rpartition(":")[2] for test in covered.tests("portal/rules.py", [1])] == [
        "test_own",
        "test_half",
        "test_all",
    ]
    assert covered.tests("portal/rules.py", [9]) == covered.tests("portal/unknown.py", [1]) == []


@pytest.mark.parametrize("in_forks", [True, False])
@pytest.mark.thorough
def test_a_fault_is_caught_by_the_test_that_fails_and_survives_where_none_does(tree: Path, in_forks: bool) -> None:
    own = "tests/scheduling/test_numbers.py"
    data = CoverageData(basename=str(tree / "coverage"))
    for test, line in (("test_half", 6), ("test_a_number_above_zero_is_counted", 11)):
        data.set_context(f"{own}::{test}|run")
        data.add_lines({"/old/scheduling/numbers.py": [line]})
    data.write()
    covered = Covered(tree / "coverage") if in_forks else None
    layer = Layer("fast", ("tests/scheduling",), ("-p", "no:django", "-p", "no:xdist"), covered=covered)
    tests = () if in_forks else ("test_numbers",)
    mutants = [
        Mutant("wrong-half", "numbers", "", "half", "// 2", "// 3", tests=tests),
        Mutant("lower-limit", "numbers", "", "LIMIT", "3", "0", runs_in="Counter.add", tests=tests),
        Mutant("survivor", "numbers", "", "Counter.add", "> LIMIT", ">= LIMIT", tests=tests),
        Mutant("unseen", "numbers", "", "Counter.add", "raise ValueError(number)", "pass"),
    ]
    found: dict[str, Verdict] = {}
    with ExitStack() as stack:
        copy = Copy(stack, tree, sys.executable)
        judge_all(mutants, copy, [layer], seconds=60, jobs=1, note=found.__setitem__)
        checked = confirm(found, copy, [layer])
        assert (copy.root / "scheduling" / "numbers.py").read_text() == CODE
    assert {name: verdict.outcome for name, verdict in found.items()} == {
        "wrong-half": "caught",
        "lower-limit": "caught",
        "survivor": "survived",
        "unseen": "not covered",
    }
    assert found["wrong-half"].test == f"{own}::test_half" and "assert 1 == 2" in found["wrong-half"].message
    assert found["lower-limit"].test == f"{own}::test_a_number_above_zero_is_counted"
    assert checked["wrong-half"].confirmed and checked["survivor"].confirmed is None
    assert not copy.root.exists()


def test_a_fault_is_lost_when_no_layer_catches_it_any_more(tmp_path: Path) -> None:
    before = {name: Verdict("caught", "portal", f"tests/{name}") for name in ("kept", "moved", "gone", "flaky")}
    before["never"] = Verdict("survived")
    after = {
        "kept": Verdict("caught", "portal"),
        "moved": Verdict("caught", "nightly"),
        "gone": Verdict("survived"),
        "flaky": Verdict("caught", "portal", confirmed=False),
    }
    assert report.lost(before, after) == ["flaky", "gone"]
    assert report.lost(before, after, {"portal"}) == ["flaky", "gone", "moved"]
    report.write(tmp_path / "results.json", before)
    assert report.read(tmp_path / "results.json") == before
