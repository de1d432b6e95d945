"""A job goes on with its checkpoints on whatever node: agents with two homes, one portal."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from runners.agent import shared_folders
from runners.agent.environment_keeper import FakeEnvironments
from runners.agent.portal_client import PortalClient
from runners.agent.program import Agent
from runners.agent.reconcile import Forget, JournalEntry
from runners.agent.settings import Settings
from runners.host.node_files import NodeFiles
from runners.runtime import SetupError
from tests.fake_portal import FakePortal
from tests.runners.agent_bench import FOREVER, NAME, Bench, entry, give_code, spec_of

pytestmark = pytest.mark.usefixtures("quick_agent")
SECOND = "sl-1-a2-0"


@pytest.fixture
def quick_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runners.agent.program.CHECKPOINTS_SECONDS", 0.2)


@pytest.fixture
def two(tmp_path: Path, portal: FakePortal) -> Iterator[Bench]:
    bench = Bench(tmp_path / "other", portal)
    yield bench
    bench.stop()


def run_until_it_runs(bench: Bench, portal: FakePortal, name: str = NAME, number: int = 1, **env: str) -> None:
    spec = spec_of(give_code(portal), name, number=number, attempt=10 + number, env=env or FOREVER)
    portal.want(entry(spec))
    bench.start()
    portal.until(lambda: portal.container(name).get("state") == "RUNNING")


def test_what_it_wrote_at_its_very_end_is_there_where_it_goes_on(bench: Bench, two: Bench, portal: FakePortal) -> None:
    run_until_it_runs(bench, portal, FAKE_RUN_SECONDS="0.5")
    (bench.files.checkpoints(1) / "step").write_bytes(b"41")
    portal.until(lambda: not portal.desired)
    bench.stop()
    assert portal.container(NAME)["collected"] and set(portal.checkpoints) == {"step"}
    run_until_it_runs(two, portal, SECOND, 2)
    assert (two.files.checkpoints(1) / "step").read_bytes() == b"41"


@pytest.mark.usefixtures("quick_checkpoints")
def test_it_is_sent_while_the_job_runs(bench: Bench, portal: FakePortal) -> None:
    """So that a power failure costs little."""
    run_until_it_runs(bench, portal)
    step = bench.files.checkpoints(1) / "step"
    step.write_bytes(b"7")
    os.utime(step, (time.time() - 60,) * 2)
    portal.until(lambda: set(portal.checkpoints) == {"step"})
    assert portal.container(NAME)["state"] == "RUNNING"


def test_a_start_waits_for_what_another_node_has_yet_to_send(bench: Bench, portal: FakePortal) -> None:
    portal.waiting_for = "gpu-2"
    portal.want(entry(spec_of(give_code(portal), env=FOREVER)))
    bench.start()
    portal.until(lambda: "from gpu-2" in portal.container(NAME).get("detail", ""))
    assert portal.container(NAME)["state"] == "PREPARING"
    portal.waiting_for = ""
    portal.until(lambda: portal.container(NAME).get("state") == "RUNNING")


def test_a_checkpoint_with_missing_parts_is_named_as_the_reason(bench: Bench, two: Bench, portal: FakePortal) -> None:
    """As after a backup of the database without the files of the same moment was restored."""
    run_until_it_runs(bench, portal, FAKE_RUN_SECONDS="0.5")
    (bench.files.checkpoints(1) / "step").write_bytes(b"41")
    portal.until(lambda: not portal.desired)
    bench.stop()
    portal.pieces.clear()
    portal.want(entry(spec_of(give_code(portal), SECOND, number=2, attempt=12, env=FOREVER)))
    two.start()
    portal.until(lambda: portal.container(SECOND).get("state") == "EXITED")
    assert portal.container(SECOND)["exit_reason"] == "create_error"
    assert portal.container(SECOND)["detail"].startswith("Parts of its checkpoint are missing in the portal.")


def test_a_driver_has_no_checkpoints_to_fetch(bench: Bench, portal: FakePortal) -> None:
    portal.waiting_for = "gpu-2"
    portal.want(entry(spec_of(give_code(portal), env=FOREVER, role="driver", slots=0)))
    bench.start()
    portal.until(lambda: portal.container(NAME).get("state") == "RUNNING")


def test_checkpoints_that_are_too_many_are_named(
    bench: Bench, portal: FakePortal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runners.agent.checkpoints.MAX_FILES", 1)
    run_until_it_runs(bench, portal, FAKE_RUN_SECONDS="0.5")
    for name in ("a", "b"):
        (bench.files.checkpoints(1) / name).write_bytes(b"x")
    portal.until(lambda: portal.container(NAME).get("collected"))
    assert "Its checkpoints were not kept in the portal" in portal.container(NAME)["detail"]


class TestSharedFolder:
    def test_nodes_agree_on_its_token(self, tmp_path: Path) -> None:
        folder = tmp_path / "nfs"
        folder.mkdir()
        nodes = [NodeFiles(tmp_path / name, None, folder) for name in ("one", "two")]
        for files in nodes:
            shared_folders.prepare(files)
        tokens = [shared_folders.facts(files)["shared"] for files in nodes]
        assert tokens[0] == tokens[1] and len(tokens[0]) == 32
        assert nodes[0].checkpoints(7) == nodes[1].checkpoints(7) == folder / "jobs/7/checkpoints"
        assert [path.name for path in folder.iterdir()] == [shared_folders.TOKEN]

    def test_one_that_is_taken_away_is_not_written_to(self, tmp_path: Path, bench: Bench, portal: FakePortal) -> None:
        folder = tmp_path / "nfs"
        folder.mkdir()
        bench.files = NodeFiles(bench.home, None, folder)
        bench.files.make()
        shared_folders.prepare(bench.files)
        (folder / shared_folders.TOKEN).rename(tmp_path / "token")
        assert "shared" not in shared_folders.facts(bench.files)
        portal.want(entry(spec_of(give_code(portal), env=FOREVER)))
        bench.start()
        portal.until(lambda: "folder that the nodes share" in portal.container(NAME).get("detail", ""))
        assert not bench.files.job(1).exists()
        (tmp_path / "token").rename(folder / shared_folders.TOKEN)
        portal.until(lambda: portal.container(NAME).get("state") == "RUNNING")
        assert (folder / "jobs/1/checkpoints").is_dir()

    def test_one_that_is_no_folder_is_refused(self, tmp_path: Path) -> None:
        env = {"SCHEDULEARN_SHARED": str(tmp_path / "nfs"), "SCHEDULEARN_URL": "https://x.example"}
        with pytest.raises(SetupError, match="Is it mounted"):
            Settings.read([], env)
        (tmp_path / "nfs").mkdir()
        assert Settings.read([], env).shared == (tmp_path / "nfs").resolve()

    def test_one_that_cannot_be_given_to_jobs_is_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def refused(*_: object) -> None:
            raise PermissionError(1, "Operation not permitted")

        monkeypatch.setattr(os, "chown", refused)
        with pytest.raises(SetupError, match="no_root_squash"):
            shared_folders.prepare(NodeFiles(tmp_path / "home", None, tmp_path))
        assert not list(tmp_path.glob(".probe-*"))

    def test_datasets_are_named(self, tmp_path: Path) -> None:
        (tmp_path / "data/imagenet").mkdir(parents=True)
        (tmp_path / "data/.hidden").touch()
        assert shared_folders.facts(NodeFiles(tmp_path, tmp_path / "data")) == {"datasets": ["imagenet"]}
        assert shared_folders.facts(NodeFiles(tmp_path, tmp_path / "gone")) == {"datasets": []}
        assert shared_folders.facts(NodeFiles(tmp_path)) == {}


def test_while_a_job_has_a_container_here_one_object_takes_care_of_its_checkpoints(
    bench: Bench, portal: FakePortal
) -> None:
    """Two would not exclude each other: the next attempt fetches while the last container of the first is forgotten."""
    agent = Agent(bench.files, PortalClient(portal.url, "sln_fake"), bench.runtime, FakeEnvironments())
    agent.journal.begin(NAME, JournalEntry(1, 11, 1))
    first, second = spec_of("0" * 64, NAME, attempt=11), spec_of("0" * 64, SECOND, attempt=12)
    kept, sender = agent.executor.job_checkpoints(first), agent.executor.output_sender(first)
    agent.journal.begin(SECOND, JournalEntry(1, 12, 2))
    agent.executor.execute(Forget(NAME), None, None)
    assert agent.executor.job_checkpoints(second) is kept and agent.executor.output_sender(first) is not sender
    agent.executor.execute(Forget(SECOND), None, None)
    assert agent.executor.job_checkpoints(second) is not kept
