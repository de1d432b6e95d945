"""``manage.py simulate`` and ``manage.py decide``. No test here may touch a database: pytest-django would fail it."""

import csv
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from portal.scheduler.management.commands.decide import answer
from scheduling import registry
from scheduling.policies.fifo import Fifo
from scheduling.simulate.filter import Filter
from scheduling.types import Plan, Snapshot

TRACE = """id,submitted,seconds,gpus,owner,preemptible
long,0,5000,4,alice,yes
short,10,50,4,bob,yes
"""
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    (tmp_path / "lab.csv").write_text(TRACE)
    return tmp_path / "lab.csv"


def simulate(*words: str) -> str:
    out = io.StringIO()
    call_command("simulate", *words, stdout=out)
    return out.getvalue()


def test_policies_stand_side_by_side_each_with_its_own_parameters(trace: Path, tmp_path: Path) -> None:
    output = simulate(
        "--policy", "tiresias", "--set", "threshold=3600", "--set", "knob=0", "--policy", "fifo",
        "--trace", str(trace), "--cluster", "1x4", "--json", str(tmp_path / "out.json"), "--csv", str(tmp_path / "out.csv"),
        "--plot", str(tmp_path / "out.svg"),
    )  # fmt: skip
    assert "tiresias threshold=3600 knob=0" in output
    out = json.loads((tmp_path / "out.json").read_text())
    tiresias, fifo = out["runs"]
    assert (tiresias["params"]["threshold"], tiresias["params"]["queues"]) == (3600.0, 2)
    assert {job["id"]: job["turnaround"] for job in fifo["jobs"]} == {"long": 5000, "short": 5040}
    # After 900 s the long one has had its hour of GPU time; what it gives back is free ten seconds later.
    assert {job["id"]: job["turnaround"] for job in tiresias["jobs"]}["short"] == 900 + 10 + 50 - 10
    assert tiresias["summary"]["preemptions"] == 1
    rows = list(csv.DictReader((tmp_path / "out.csv").open()))
    assert [(row["run"], row["id"]) for row in rows][2:] == [("fifo", "long"), ("fifo", "short")]
    assert (tmp_path / "out.svg").read_text().startswith("<svg")


def test_json_on_the_standard_output_is_nothing_else(trace: Path) -> None:
    output = simulate("--policy", "fifo", "--trace", str(trace), "--cluster", "1x4", "--json", "-")
    assert json.loads(output)["runs"][0]["summary"]["ended"] == 2


def test_rounds_decide_at_multiples_only(trace: Path) -> None:
    output = simulate("--policy", "fifo", "--trace", str(trace), "--cluster", "1x4", "--rounds", "60", "--json", "-")
    jobs = {job["id"]: job for job in json.loads(output)["runs"][0]["jobs"]}
    assert jobs["short"]["first_started_at"] == 5040


def test_a_lost_node_sends_its_jobs_back(trace: Path) -> None:
    output = simulate(
        "--policy", "fifo", "--trace", str(trace), "--cluster", "1x4", "--lose", "0:100:200", "--json", "-"
    )
    jobs = {job["id"]: job for job in json.loads(output)["runs"][0]["jobs"]}
    assert jobs["long"]["turnaround"] == 200 + 30 + 5000
    assert jobs["long"]["restarts"] == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--policy", "unknown"], "no policy 'unknown'"),
        (["--policy", "fifo", "--set", "strict=perhaps"], "yes or no"),
        (["--policy", "tiresias", "--set", "threshold=many"], "a number"),
        (["--policy", "fifo", "--set", "speed=1"], "no parameter speed"),
        (["--set", "strict=no", "--policy", "fifo"], "--set must follow"),
        (["--policy", "fifo", "--set", "strict"], "NAME=VALUE"),
        (["--policy", "fifo", "--cluster", "big"], "not a cluster"),
        (["--policy", "fifo", "--rounds", "0"], "above 0"),
        (["--policy", "fifo", "--lose", "7:5"], "--lose needs"),
        (["--policy", "fifo", "--json", "/nowhere/out.json"], "cannot be written"),
    ],
)
def test_mistakes_are_reported_in_a_sentence(trace: Path, words: list[str], message: str) -> None:
    with pytest.raises(CommandError, match=message):
        simulate("--trace", str(trace), "--cluster", "1x4", *words)


def test_a_trace_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="cannot be read"):
        simulate("--policy", "fifo", "--trace", str(tmp_path / "none.csv"))


def snapshot(now: float, **jobs: dict[str, Any]) -> dict[str, Any]:
    rows = [
        {"id": id, "submitted": 0, "asked_gpus": 2, "min_gpus": 2, "max_gpus": 2, "batch": 1, "model": "m",
         "served_gpu_s": 0, "restarts": 0, "remaining_fraction": None, "speedup": None, "now_on": {}, **facts}
        for id, facts in jobs.items()
    ]  # fmt: skip
    return {"v": 1, "now": now, "nodes": [{"id": "0", "gpus": 4}], "jobs": rows}


def test_decide_answers_line_by_line_while_its_input_stays_open_and_survives_nonsense() -> None:
    with subprocess.Popen(
        [sys.executable, "manage.py", "decide", "--policy", "tiresias", "--set", "threshold=100"],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdin is not None and process.stdout is not None

        def ask(line: str) -> Any:
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write(line + "\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        assert ask(json.dumps(snapshot(0, x={}, y={}, z={}))) == {"alloc": {"x": {"0": 2}, "y": {"0": 2}}}
        assert "not JSON" in ask("{")["error"]
        assert "must be a list" in ask('{"v": 1, "now": 1, "nodes": 3, "jobs": []}')["error"]
        held = {"now_on": {"0": 2}, "served_gpu_s": 200}
        assert ask(json.dumps(snapshot(100, x=held, y={**held, "served_gpu_s": 20}, z={}))) == {
            "alloc": {"y": {"0": 2}, "z": {"0": 2}}
        }
        process.stdin.close()
        assert process.wait(20) == 0


class TooMany(Fifo):
    """Gives every job more GPUs than there are."""

    def plan(self, snapshot: Snapshot) -> Plan:
        return Plan({job.id: {"0": 99} for job in snapshot.jobs})


def test_the_rules_that_a_plan_breaks_are_named_as_sentences(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = "Job {} is given 99 GPUs, but runs on {} to {}."
    line = json.dumps(snapshot(0, x={}))
    assert answer(Filter(TooMany()), line)["error"].startswith(
        f"The policy made a plan that breaks a rule: {broken.format('x', 2, 2)} Node 0 has 4 free GPUs, but 99"
    )
    monkeypatch.setitem(registry.POLICIES, "too_many", TooMany)
    with pytest.raises(CommandError, match=f"A plan breaks a rule: {broken.format('long', 4, 4)}"):
        simulate("--trace", str(trace), "--cluster", "1x4", "--policy", "too_many")
