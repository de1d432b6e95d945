"""The portal's database is restored, and a job gets the number of one that a node still has: agents and a fake portal."""

from typing import Any

import pytest

from runners.agent.claims import ASIDE_MARK, Claim
from runners.spec import RunSpec
from tests.fake_portal import FakePortal
from tests.runners.agent_bench import FOREVER, NAME, Bench, entry, give_code, spec_of, starts

pytestmark = pytest.mark.usefixtures("quick_agent")
LAB = "1" * 32
OLD = {"installation": LAB, "job": "a" * 32}
NEW = {"installation": LAB, "job": "b" * 32}
OLD_NAME, NEW_NAME = "sl-1-a1-0a0a0a0a0a0a-c0ffee-0", "sl-1-a1-0b0b0b0b0b0b-c0ffee-0"


@pytest.fixture(autouse=True)
def quick_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runners.agent.program.CHECKPOINTS_SECONDS", 0.1)


def runs(portal: FakePortal, name: str) -> None:
    portal.until(lambda: portal.container(name).get("state") == "RUNNING", what=f"{name} runs")


def lost_job(bench: Bench, portal: FakePortal, env: dict[str, str]) -> RunSpec:
    """Another member's job that runs here and has left files."""
    spec = spec_of(give_code(portal), OLD_NAME, env={**env, "FAKE_OUTPUT": "their line\n"})
    portal.want(entry(spec, identity=OLD))
    bench.start()
    runs(portal, OLD_NAME)
    (bench.files.checkpoints(1) / "weights").write_bytes(b"secret")
    (bench.files.outputs(spec.attempt) / "model").write_bytes(b"secret")
    return spec


def restore(portal: FakePortal, *entries: dict[str, Any]) -> None:
    """The portal knows nothing of the job, nor of what it kept of it."""
    with portal.lock:
        portal.checkpoints, portal.checkpoint_version, portal.pieces = {}, 0, {}
        portal.outputs.clear()
    portal.want(*entries)


def names_in(bench: Bench, spec: RunSpec) -> list[str]:
    """What a container of it sees."""
    folders = (bench.files.checkpoints(spec.job), bench.files.outputs(spec.attempt), bench.files.workspace(spec.name))
    return sorted(path.name for folder in folders for path in folder.iterdir())


def test_a_job_sees_nothing_of_one_that_ran_when_the_backup_was_restored(bench: Bench, portal: FakePortal) -> None:
    lost = lost_job(bench, portal, FOREVER)
    ours = spec_of(lost.code_sha256, NEW_NAME, env=FOREVER)
    restore(portal, entry(ours, identity=NEW))
    runs(portal, NEW_NAME)
    assert names_in(bench, ours) == ["train.py"]
    calls = [call for call in bench.runtime.calls if call[0] in ("create", "remove")]  # type: ignore[attr-defined]
    assert calls.index(("remove", OLD_NAME)) < calls.index(("create", NEW_NAME)), "both had the folder for a while"
    portal.until_reports(3)
    assert portal.checkpoints == {} and portal.outputs == {}, "files of the lost job were sent for the new one"
    assert b"their line" not in portal.log(NEW_NAME)


def test_a_job_sees_nothing_of_one_that_had_ended(bench: Bench, portal: FakePortal) -> None:
    lost = lost_job(bench, portal, {"FAKE_RUN_SECONDS": "50"})
    bench.pass_time(60)
    portal.until(lambda: not portal.desired, what="it is collected")
    portal.until(lambda: not bench.files.container(OLD_NAME).exists(), what="it is forgotten")
    ours = spec_of(lost.code_sha256, NEW_NAME, env={"FAKE_RUN_SECONDS": "0.3"})
    restore(portal, entry(ours, identity=NEW))
    portal.until(lambda: portal.container(NEW_NAME).get("collected"), what="the new one is collected")
    assert portal.container(NEW_NAME)["exit_code"] == 0 and starts(bench.runtime) == [OLD_NAME, NEW_NAME]
    assert portal.checkpoints == {} and portal.outputs == {}
    aside = next(folder for folder in bench.files.jobs.iterdir() if ASIDE_MARK in folder.name)
    assert (aside / "checkpoints/weights").read_bytes() == b"secret"
    portal.until_reports(2)
    assert any(aside.name in problem["text"] for problem in portal.reports[-1]["problems"]), (
        "it is not on the page of the node"
    )


def test_the_exit_of_the_lost_job_is_not_that_of_the_new_one(bench: Bench, portal: FakePortal) -> None:
    """It failed, and the portal is restored before it has heard so."""
    spec = spec_of(give_code(portal), OLD_NAME, env={"FAKE_RUN_SECONDS": "0.3", "FAKE_EXIT_CODE": "7"})
    portal.want(entry(spec, identity=OLD))
    bench.start()
    runs(portal, OLD_NAME)
    ours = spec_of(spec.code_sha256, NEW_NAME, env=FOREVER)
    restore(portal, entry(ours, identity=NEW))
    runs(portal, NEW_NAME)
    assert portal.states(NEW_NAME)[-1] == "RUNNING" and portal.container(NEW_NAME)["exit_code"] is None


def test_outputs_of_a_lost_job_are_kept(bench: Bench, portal: FakePortal) -> None:
    lost = lost_job(bench, portal, FOREVER)
    restore(portal)
    portal.until(lambda: not bench.files.container(OLD_NAME).exists(), what="its container is forgotten")
    portal.until(lambda: not bench.files.attempt(lost.attempt).exists())
    (aside,) = [folder for folder in bench.files.attempts.iterdir() if ASIDE_MARK in folder.name]
    assert (aside / "outputs/model").read_bytes() == b"secret"


def ended_job(bench: Bench, portal: FakePortal) -> RunSpec:
    """A job without an identity, as portals of the release before have it, that ran and was collected."""
    spec = spec_of(give_code(portal), env={"FAKE_RUN_SECONDS": "0.3"})
    portal.want(entry(spec))
    bench.start()
    runs(portal, NAME)
    portal.until(lambda: not portal.desired)
    return spec


class TestUpgrade:
    def test_a_job_that_runs_while_the_portal_is_upgraded_runs_on(self, bench: Bench, portal: FakePortal) -> None:
        spec = spec_of(give_code(portal), env=FOREVER)
        portal.want(entry(spec))
        bench.start()
        runs(portal, NAME)
        (bench.files.checkpoints(1) / "step").write_bytes(b"41")
        assert Claim.read(bench.files.job(1)) is None
        portal.want(entry(spec, identity=OLD))
        portal.until(lambda: Claim.read(bench.files.job(1)) == Claim(LAB, OLD["job"]), what="its folder is marked")
        assert Claim.read(bench.files.attempt(spec.attempt)) == Claim(LAB, OLD["job"], "sl-1-a1")
        assert portal.states(NAME)[-1] == "RUNNING" and starts(bench.runtime) == [NAME]

    def test_the_next_attempt_goes_on_in_the_folder_of_the_release_before(
        self, bench: Bench, portal: FakePortal
    ) -> None:
        """As that release left it, the agent's restart for the upgrade in between."""
        spec = ended_job(bench, portal)
        bench.stop()
        (bench.files.checkpoints(1) / "step").write_bytes(b"41")
        second = spec_of(spec.code_sha256, "sl-1-a2-0a0a0a0a0a0a-c0ffee-0", number=2, attempt=12, env=FOREVER)
        portal.lineages[second.name] = {"containers": [NAME, second.name], "submitted_at": 0.0}
        portal.want(entry(second, identity=OLD))
        bench.start()
        runs(portal, second.name)
        assert (bench.files.checkpoints(1) / "step").read_bytes() == b"41"

    def test_a_folder_of_that_release_is_not_given_to_a_job_it_does_not_fit(
        self, bench: Bench, portal: FakePortal
    ) -> None:
        spec = ended_job(bench, portal)
        (bench.files.checkpoints(1) / "step").write_bytes(b"41")
        ours = spec_of(spec.code_sha256, NEW_NAME, env=FOREVER)
        portal.lineages[NEW_NAME] = {"containers": [NEW_NAME], "submitted_at": 0.0}
        restore(portal, entry(ours, identity=NEW))
        runs(portal, NEW_NAME)
        assert names_in(bench, ours) == ["train.py"]
