"""``manage.py simulate --history``: the lab's recent history in simulated time, and all that the command prints."""

import csv
import io
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import OperationalError
from django.utils import timezone

from portal.scheduler.services import switch_policy
from portal.usage.models import CapacitySpell
from portal.whatif import figures, history, simulation_runs
from scheduling import registry
from tests import month
from tests.portal.control_world import queue, ready_node

pytestmark = pytest.mark.django_db


@pytest.fixture
def lab() -> month.Month:
    return month.make(days=10, count=150, rolled=False)


def simulate(*words: str) -> str:
    out = io.StringIO()
    call_command("simulate", *words, stdout=out)
    return out.getvalue()


def test_policies_stand_beside_what_really_happened(lab: month.Month, tmp_path: Path) -> None:
    output = simulate(
        "--history", "7", "--policy", "fifo", "--policy", "tiresias", "--set", "threshold=3600",
        "--json", str(tmp_path / "out.json"), "--csv", str(tmp_path / "out.csv"), "--plot", str(tmp_path / "out.svg"),
    )  # fmt: skip
    rows = [line.split("|")[1].strip() for line in output.splitlines() if line.startswith("| ")]
    assert rows == ["policy", "what really happened", "fifo", "tiresias threshold=3600"]
    out = json.loads((tmp_path / "out.json").read_text())
    assert out["history"].startswith("of 7 days until") and out["in_force"] == "fifo"
    assert [run["name"] for run in out["runs"]] == rows[2:]
    assert out["runs"][1]["params"]["threshold"] == 3600.0
    jobs = {job["id"]: job for job in out["really"]["jobs"]}
    for run in out["runs"]:
        assert {job["id"]: job["compared"] for job in run["jobs"]} == {id: job["compared"] for id, job in jobs.items()}
        assert run["summary"]["jobs"] == run["summary"]["ended"] == out["compared"] < out["jobs"]
        assert run["summary"]["decision_ms"]["p50"] > 0
    assert {job["owner"] for job in jobs.values()} <= set(month.PEOPLE)
    found = list(csv.DictReader((tmp_path / "out.csv").open()))
    assert [row["run"] for row in found] == [name for name in rows[1:] for _ in jobs]
    drawn = (tmp_path / "out.svg").read_text()
    assert drawn.startswith("<svg") and all(name in drawn for name in rows[1:])


def test_its_figures_are_those_of_the_page(lab: month.Month) -> None:
    out = json.loads(simulate("--history", "7", "--policy", "srjf", "--json", "-"))
    end = timezone.now()
    world = history.read(end - timedelta(days=7), end)
    result = simulation_runs.simulate_world(world, registry.build("srjf", {}))
    pages = {
        "really": figures.summarise(world, figures.actual_outcomes(world))["total"],
        "srjf": figures.summarise(world, figures.simulated_outcomes(world, result))["total"],
    }
    for name, written in (("really", out["really"]), ("srjf", out["runs"][0])):
        page, mine = pages[name], written["summary"]
        for what in ("turnaround", "waiting", "fairness"):
            assert mine[what]["mean"] == pytest.approx(page[what]["mean"], rel=1e-3)
        for what in ("utilisation", "gpu_hours", "lost_gpu_hours"):
            assert mine[what] == pytest.approx(page[what], rel=1e-3)
        assert (mine["jobs"], mine["preemptions"], mine["resizes"]) == (
            page["compared"], page["preemptions"], page["resizes"],
        )  # fmt: skip
        compared = [job for job in written["jobs"] if job["compared"]]
        assert sum(job["turnaround"] for job in compared) / len(compared) == pytest.approx(mine["turnaround"]["mean"])
        assert sum(job["gpu_seconds"] for job in written["jobs"]) / 3600 == pytest.approx(mine["gpu_hours"])


def test_it_reports_how_far_the_policy_in_force_is_from_what_happened(lab: month.Month) -> None:
    output = simulate("--history", "7", "--policy", "fifo").splitlines()
    assert output[-1].startswith("fifo is in force: in the simulation a job took ")
    output = simulate("--history", "7", "--policy", "fifo", "--set", "strict=no").splitlines()
    assert output[-1].startswith("Add the policy in force")


def test_it_reports_a_shorter_history_and_a_switched_policy(lab: month.Month) -> None:
    switch_policy(None, "srjf", {})
    output = simulate("--history", "60", "--policy", "srjf")
    assert "The lab's history is shorter: its first node offered GPUs on " in output
    assert "The policy was switched in these days (1×), so what really happened" in output


def test_giving_back_may_take_longer(lab: month.Month) -> None:
    def lost(*words: str) -> float:
        out = json.loads(simulate("--history", "7", "--policy", "tiresias", "--json", "-", *words))
        found: float = out["runs"][0]["summary"]["lost_gpu_hours"]
        return found

    assert lost("--release", "600") > lost()


class TestMistakes:
    @pytest.mark.parametrize(
        ("words", "message"),
        [
            ([], "Give what to simulate"),
            (["--history", "7", "--trace", "lab.csv"], "either --trace or --history"),
            (["--history", "7", "--cluster", "4x4"], "--cluster works with --trace only"),
            (["--history", "7", "--lose", "0:5"], "--lose works with --trace only"),
            (["--history", "0"], "from 1 to 365"),
            (["--history", "400"], "from 1 to 365"),
        ],
    )
    def test_what_does_not_go_together(self, words: list[str], message: str) -> None:
        with pytest.raises(CommandError, match=message):
            simulate("--policy", "fifo", *words)

    def test_too_little_history(self) -> None:
        with pytest.raises(CommandError, match="No job ran or waited"):
            simulate("--history", "7", "--policy", "fifo")
        waits = queue(1)
        with pytest.raises(CommandError, match="No node offered GPUs"):
            simulate("--history", "7", "--policy", "fifo")
        node = ready_node("alpha", 2)
        since = timezone.now() - timedelta(days=1)
        CapacitySpell.objects.bulk_create(CapacitySpell(gpu=gpu, since=since) for gpu in node.gpus.all())
        assert waits.state == "QUEUED"
        with pytest.raises(CommandError, match="No job ended by itself"):
            simulate("--history", "365", "--policy", "fifo")

    def test_a_database_that_cannot_be_read(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def gone(*args: Any) -> None:
            raise OperationalError("no such table: jobs_job")

        monkeypatch.setattr(history, "read", gone)
        with pytest.raises(CommandError, match="cannot be read from the portal's database: no such table"):
            simulate("--history", "7", "--policy", "fifo")
