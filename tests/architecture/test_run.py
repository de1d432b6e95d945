"""The test runner: every test has a layer, every layer a budget, and nothing of this machine reaches a test."""

import contextlib
import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from _pytest.mark.expression import Expression

from tests.run import execution
from tests.run.__main__ import chosen, main
from tests.run.execution import Run
from tests.run.isolation import hiding, plain_environment
from tests.run.layers import ELSEWHERE, LAYERS, Layer, Level, layers_of, named
from tests.run.lint import Linter, lint, run_linter
from tests.run.pace import USUAL_SECONDS, Pace, measured_pace
from tests.run.packages import Need
from tests.run.report import Result, budget_of, failures, over_budget, slowest, table

TESTS = Path(__file__).resolve().parents[1]


def test_every_folder_of_tests_is_in_a_layer_of_the_whole_suite() -> None:
    folders = {f"tests/{path.relative_to(TESTS).parts[0]}" for path in TESTS.rglob("test_*.py")}
    assert folders == {"/".join(Path(path).parts[:2]) for layer in layers_of(Level.ALL) for path in layer.paths}


def test_every_marker_of_a_special_need_has_a_layer() -> None:
    selected = " ".join(layer.marks for layer in layers_of(Level.ALL) if "not (" not in layer.marks)
    assert all(marker in selected for marker in ELSEWHERE.split(" or ") if marker != "postgres")
    assert named("databases").database


def matches(expression: str, marks: set[str]) -> bool:
    """Whether pytest would select a test with these markers."""

    def is_marked(name: str, /, **_: str | int | bool | None) -> bool:
        return name in marks

    return Expression.compile(expression).evaluate(is_marked)


COLLECT = """
import json, sys, pytest

class Collector:
    def pytest_collection_finish(self, session):
        found = [[item.nodeid, sorted({mark.name for mark in item.iter_markers()})] for item in session.items]
        print("FOUND", json.dumps(found))

sys.exit(pytest.main(["--collect-only", "-q", "tests"], plugins=[Collector()]))
"""


@pytest.mark.thorough
@pytest.mark.timeout(600)  # it collects all tests
def test_every_test_is_in_exactly_one_layer_of_the_whole_suite() -> None:
    """But for those that run on both databases."""
    layers = [layer for layer in layers_of(Level.ALL) if not layer.database]
    done = subprocess.run([sys.executable, "-c", COLLECT], capture_output=True, text=True, check=True, cwd=TESTS.parent)
    found = json.loads(done.stdout.split("FOUND ")[1].splitlines()[0])
    assert len(found) > 3_000
    wrong = {}
    for name, marks in found:
        inside = [
            layer.name
            for layer in layers
            if name.startswith(tuple(f"{path}/" for path in layer.paths)) and matches(layer.marks, set(marks))
        ]
        if len(inside) != 1:
            wrong[name] = inside
    assert not wrong


@pytest.mark.parametrize("level", list(Level))
def test_every_layer_has_a_budget(level: Level) -> None:
    assert set(budget_of(level)) == {"lint", *(layer.name for layer in layers_of(level))}


@pytest.mark.parametrize(("level", "minutes"), [(Level.CHECK, 1.5), (Level.TEST, 15), (Level.ALL, 75)])
def test_the_budgets_stay_within_what_the_commands_may_take(level: Level, minutes: float) -> None:
    """Layers that wait run beside those that compute; a GPU is no part of an ordinary machine."""
    budget = budget_of(level)
    waiting = {layer.name for layer in LAYERS if layer.waits}
    assert sum(each for name, each in budget.items() if name not in waiting) <= minutes
    assert sum(each for name, each in budget.items() if name in waiting - {"gpu"}) <= minutes


def test_a_layer_may_take_twice_its_budget() -> None:
    results = {"portal": Result(seconds=119), "browser": Result(seconds=121), "new": Result(seconds=900)}
    budget = {"portal": 1.0, "browser": 1.0}
    assert over_budget(results, budget) == ["browser"]
    lines = table(results, budget, "test").splitlines()
    assert "OVER BUDGET" in lines[2] and "OVER BUDGET" not in lines[1] + lines[3]


def test_a_slower_machine_has_more_time() -> None:
    results = {"browser": Result(seconds=200)}
    budget = {"browser": 1.0}
    assert over_budget(results, budget, slowness=1.6) == ["browser"]
    assert over_budget(results, budget, slowness=1.7) == []
    assert "OVER BUDGET" not in table(results, budget, "test", slowness=1.7)


def test_waiting_for_a_processor_does_not_count_against_a_layer_of_low_priority() -> None:
    results = {
        "portal": Result(seconds=900, processor_seconds=239, aside=True),
        "runners": Result(seconds=900, processor_seconds=241, aside=True),
        "horovod": Result(seconds=125, processor_seconds=230),
        "system": Result(seconds=125, processor_seconds=5),
    }
    assert over_budget(results, dict.fromkeys(results, 1.0)) == ["runners", "system"]


def test_the_pace_is_the_usual_sample_beside_the_reference() -> None:
    pace = Pace()
    assert pace.slowness == 1.0
    pace.samples = [USUAL_SECONDS / 2] * 3
    assert pace.slowness == 1.0
    pace.samples = [USUAL_SECONDS * 2, USUAL_SECONDS * 2.5, USUAL_SECONDS * 90]
    assert pace.slowness == 2.5


def test_samples_end_with_the_run() -> None:
    with measured_pace(pause_seconds=600) as pace:
        pass
    assert len(pace.samples) == 1 and pace.samples[0] > 0


def test_a_sample_that_fails_counts_for_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    def fails() -> float:
        raise OSError("Cannot allocate memory")

    with measured_pace(fails, pause_seconds=600) as pace:
        pass
    assert pace.samples == [] and pace.slowness == 1.0
    assert "Cannot allocate memory" in capsys.readouterr().out
    assert "pace" not in [thread.name for thread in threading.enumerate()]


@pytest.mark.parametrize(("what", "status"), [("check", 0), ("test", 1), ("all", 1), ("portal", 0)])
def test_a_slow_layer_fails_the_commands_that_keep_budgets(
    what: str, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = {"lint": Result(passed=5, seconds=3600)}
    monkeypatch.setattr("tests.run.__main__.announce", lambda layers, may_install: None)
    monkeypatch.setattr(Run, "carry_out", lambda *_: slow)
    assert main([what]) == status
    assert ("Too slow: lint" in capsys.readouterr().out) == (status == 1)


@pytest.mark.parametrize(("install", "status"), [("yes", 1), ("no", 0)])
def test_a_layer_that_could_not_run_is_a_failure(install: str, status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    results = {"lint": Result(passed=5), "docker": Result(not_run="no engine starts"), "gpu": Result(not_run="none")}
    monkeypatch.setattr("tests.run.__main__.announce", lambda layers, may_install: None)
    monkeypatch.setattr(Run, "carry_out", lambda *_: results)
    monkeypatch.setenv("INSTALL", install)
    monkeypatch.delenv("CI", raising=False)
    assert main(["test"]) == status


def test_a_budget_that_is_no_number_is_reported_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "budget.toml").write_text('[check]\nlint = "abc"\n')
    monkeypatch.setattr("tests.run.report.BUDGETS", tmp_path / "budget.toml")
    with pytest.raises(SystemExit, match="2"):
        main(["check"])
    assert "[check] has no number of minutes for lint" in capsys.readouterr().err


def test_after_an_interrupt_no_other_layer_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(Level.CHECK, may_install=False)
    ran: list[str] = []

    def interrupted(layer: Layer, aside: bool = False) -> Result:
        ran.append(layer.name)
        run.interrupted = True
        return Result()

    monkeypatch.setattr(run, "_pytest", interrupted)
    run._compute([named("core"), named("pure")], with_lint=False, beside_others=False)
    assert ran == ["core"]


@pytest.mark.parametrize(("level", "alone"), [(Level.TEST, False), (Level.ALL, True)])
def test_long_tests_do_not_share_the_processors(
    level: Level, alone: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A layer that computes and one that waits meet at the barrier only when they run beside each other."""
    run, meeting = Run(level, may_install=False), threading.Barrier(2)
    order: list[str] = []

    def layer_that_meets(name: str) -> None:
        order.append(name)
        with contextlib.suppress(threading.BrokenBarrierError):
            meeting.wait(0 if alone else 60)
            order.append("met")

    monkeypatch.setattr("tests.run.execution.REPORTS", tmp_path)
    monkeypatch.setattr("tests.run.execution.isolated", lambda: contextlib.nullcontext([]))
    monkeypatch.setattr(run, "_provided", list)
    monkeypatch.setattr(run, "_compute", lambda *_: layer_that_meets("computing"))
    monkeypatch.setattr(run, "_wait_for_machines", lambda *_: layer_that_meets("waiting"))
    run.carry_out([named("pure"), named("docker")], with_lint=False)
    if alone:
        assert order == ["computing", "waiting"]
    else:
        assert order.count("met") == 2


def test_the_whole_suite_continues_at_a_layer() -> None:
    layers, with_lint, level = chosen(["all"], "system", None)
    assert [layer.name for layer in layers] == ["system", "horovod", "gpu"]
    assert level == Level.ALL and not with_lint
    with pytest.raises(ValueError, match="core is not part of this run"):
        chosen(["all"], "core", None)


def test_only_the_whole_suite_runs_thorough_tests() -> None:
    layer = named("portal")
    assert "not thorough" in layer.arguments(Level.TEST)[1]
    assert "thorough" not in layer.arguments(Level.ALL)[1]


def test_a_misspelt_layer_is_refused() -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["systen"])


def test_variables_that_configure_services_do_not_reach_tests() -> None:
    foreign = {
        "https_proxy": "http://proxy:3128",
        "NO_PROXY": "*",
        "PGHOST": "db",
        "DATABASE_URL": "postgres://db/lab",
        "SECRET_KEY_FILE": "/etc/key",
        "DOCKER_HOST": "tcp://engine:2375",
        "SCHEDULEARN_HOME": "/srv/lab",
        "LC_ALL": "tr_TR.UTF-8",
        "TZ": "Pacific/Chatham",
        "LAB": "true",
    }
    kept = {"PATH": "/usr/bin", "HOME": "/root", "SCHEDULEARN_CACHE": "/cache", "CI": "true"}
    assert plain_environment(foreign | kept) == kept | {"LANG": "C.UTF-8", "DOCKER_CONFIG": "/nonexistent"}


def test_nor_do_they_reach_linters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some of them load the portal's settings."""
    monkeypatch.setenv("REDIS_URL", "redis://elsewhere")
    seen = run_linter([sys.executable, "-c", "import os; print(sorted(os.environ))"]).output
    assert "'SCHEDULEARN_HOME'" in seen and "REDIS_URL" not in seen


def test_a_linter_that_fails_prints_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = Linter("spelling", [sys.executable, "-c", "raise SystemExit('a mistake')"], "Run make spelling.")
    good = Linter("layout", [sys.executable, "-c", ""], "Run make layout.")
    monkeypatch.setattr("tests.run.lint.LINTERS", (bad, good))
    assert lint().failed == 1
    shown = capsys.readouterr().out
    assert "a mistake" in shown and "lint: spelling: Run make spelling." in shown and "Run make layout" not in shown


def test_what_is_not_there_is_not_hidden(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "socket").touch()
    steps = hiding(tuple(str(tmp_path / name) for name in ("folder", "socket", "absent")))
    assert f"mount -t tmpfs none {tmp_path}/folder" in steps
    assert f"mount --bind /dev/null {tmp_path}/socket" in steps
    assert "absent" not in steps


ABSENT = Layer("absent", "", (), "", needs=frozenset({Need.CHROMIUM}))
ENGINE = Layer("engine", "", (), "", needs=frozenset({Need.ENGINE}))
PLAIN = Layer("plain", "", (), "")


def test_without_installing_it_reports_layers_that_lack_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        execution, "missing_packages", lambda needs: ["chromium", "nodejs"] if Need.CHROMIUM in needs else []
    )
    monkeypatch.setattr(execution, "install", lambda packages: pytest.fail("it installs"))
    run = Run(Level.TEST, may_install=False)
    assert run._provided([ABSENT, ENGINE, PLAIN]) == [PLAIN]
    assert "chromium nodejs" in run.results["absent"].not_run
    assert "Docker Engine" in run.results["engine"].not_run


def test_packages_of_all_layers_are_installed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    installed: list[list[str]] = []
    monkeypatch.setattr(execution, "missing_packages", lambda needs: sorted(needs))
    monkeypatch.setattr(execution, "install", installed.append)
    assert Run(Level.TEST)._provided([ABSENT, ENGINE, PLAIN]) == [ABSENT, ENGINE, PLAIN]
    assert installed == [["chromium", "engine"]]


def test_the_tests_that_failed_are_named_with_the_beginning_of_why(tmp_path: Path) -> None:
    lines = "&#10;".join(f"line {number}" for number in range(40))
    (tmp_path / "portal.xml").write_text(
        '<testsuites><testsuite><testcase classname="a.b" name="good"/>'
        f'<testcase classname="a.b" name="bad"><failure message="{lines}">its trace</failure></testcase>'
        '<testcase classname="a.c" name="worse"><error>no fixture</error></testcase></testsuite></testsuites>'
    )
    shown = failures(tmp_path.glob("*.xml")).splitlines()
    assert shown[:2] == ["portal: a.b::bad", "    line 0"] and "    line 20" not in shown
    assert shown[-2:] == ["portal: a.c::worse", "    no fixture"]


def test_the_slowest_tests_of_a_run_are_named(tmp_path: Path) -> None:
    (tmp_path / "portal.xml").write_text(
        '<testsuites><testsuite><testcase classname="a.b" name="quick" time="0.1"/>'
        '<testcase classname="a.b" name="slow" time="7.25"/></testsuite></testsuites>'
    )
    assert slowest(tmp_path.glob("*.xml"), 1).splitlines()[-1] == "| 7.2 | portal | `a.b::slow` |"
