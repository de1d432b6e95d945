"""Checkpoints in the portal: one node sends those of its job, and another one gets them."""

import hashlib
import json
import os
import time
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.conf import LazySettings
from django.test import Client
from django.utils import timezone

from portal.cluster.models import Gpu, Node
from portal.jobs import checkpoints, lifecycle
from portal.jobs.models import Attempt, CheckpointSet, Container, Job, StopReason
from portal.scheduler import tasks
from runners.agent.checkpoints import JobCheckpoints
from runners.agent.portal_client import PortalRefusedError
from runners.messages.portal import CheckpointsComing
from tests.portal.agents_world import Agent
from tests.portal.jobs_world import exit, make_job, make_project, make_user, place, run

pytestmark = [pytest.mark.django_db, pytest.mark.both_databases]
PIECE = checkpoints.PIECE_BYTES


class Lab:
    """A job that runs on one of two nodes."""

    def __init__(self) -> None:
        self.one, self.two = Agent("one"), Agent("two")
        self.one.sync()
        self.two.sync()
        self.job: Job = make_job(make_project(make_user("alice")), launcher="command", resumable=True)
        self.part = self.placed_on(self.one)

    def placed_on(self, *agents: Agent) -> Container:
        """The first host of a new attempt, on these nodes."""
        gpus = [Gpu.objects.filter(node=agent.node).first() for agent in agents]
        attempt = place(Job.objects.get(pk=self.job.pk), gpus)  # type: ignore[arg-type]
        return attempt.containers.select_related("attempt").order_by("index")[0]

    def stopped(self, *, collected: bool = True) -> None:
        """The live attempt is preempted and gone."""
        attempt = Attempt.objects.get(job=self.job, ended_at=None)
        lifecycle.stop_attempt(attempt, StopReason.PREEMPTED)
        for part in attempt.containers.all():
            exit(part, None, "stopped")
            if collected:
                lifecycle.record_collected(part)


@pytest.fixture
def lab(settings: LazySettings, tmp_path: Path) -> Lab:
    settings.HOME = tmp_path  # jobs of other tests have the same numbers
    return Lab()


def entry(content: bytes, at: int = 1) -> list[Any]:
    """Return the entry of a file as an agent reports it, modified at ``at`` seconds."""
    parts = [content[start : start + PIECE] for start in range(0, len(content), PIECE)]
    return [len(content), at * 10**9, [hashlib.sha256(part).hexdigest() for part in parts]]


def ask(agent: Agent, part: Container, sha256: str = "") -> Any:
    path = f"/agent/v1/containers/{part.name}/checkpoints"
    return agent.http.get(f"{path}/{sha256}" if sha256 else path, headers=agent.headers)


def report(agent: Agent, part: Container, changed: object, deleted: object = None) -> Any:
    return agent.post(f"containers/{part.name}/checkpoints", {"changed": changed, "deleted": deleted or {}})


def put(agent: Agent, part: Container, content: bytes, sha256: str = "") -> Any:
    return agent.http.put(
        f"/agent/v1/containers/{part.name}/checkpoints/{sha256 or hashlib.sha256(content).hexdigest()}",
        content,
        content_type="application/octet-stream",
        headers=agent.headers,
    )


def keep(agent: Agent, part: Container, files: Mapping[str, bytes], at: int = 1) -> int:
    """Sends them as an agent does; the version they are part of then."""
    files_now = {path: entry(content, at) for path, content in files.items()}
    first = report(agent, part, files_now)
    assert first.status_code == 200, first.content
    missing = first.json()["missing"]
    for content in files.values():
        for start in range(0, len(content), PIECE):
            piece = content[start : start + PIECE]
            if hashlib.sha256(piece).hexdigest() in missing:
                assert put(agent, part, piece).status_code == 201
    answer = report(agent, part, files_now).json()
    assert answer["missing"] == []
    return int(answer["version"])


def test_a_set_is_kept_whole_and_read_on_another_node(lab: Lab) -> None:
    large = os.urandom(PIECE + 5)
    assert ask(lab.one, lab.part).json() == {"version": 0, "files": {}, "through_portal": True}
    files_now = {"model.pt": entry(large), "deep/meta.json": entry(b"{}"), "empty": entry(b"")}
    first = report(lab.one, lab.part, files_now).json()
    assert (first["version"], len(first["missing"])) == (0, 3)
    assert not CheckpointSet.objects.exists(), "nothing is kept before all of it is here"
    assert keep(lab.one, lab.part, {"model.pt": large, "deep/meta.json": b"{}", "empty": b""}) > 0
    lab.stopped()
    part = lab.placed_on(lab.two)
    found = ask(lab.two, part).json()
    version = CheckpointSet.objects.get().version
    assert found == {"version": version, "files": files_now, "through_portal": True}
    pieces = [b"".join(ask(lab.two, part, sha256).streaming_content) for sha256 in found["files"]["model.pt"][2]]
    assert b"".join(pieces) == large
    ask(lab.two, part)
    news = lab.job.events.get(kind="checkpoint").sentence
    assert news == "Attempt 2 restarts from the checkpoint of 01 Jan 00:00:01 UTC, 16.0 MiB."
    row = CheckpointSet.objects.get()
    assert row.size == len(large) + 2 and b"".join(checkpoints.read_file(lab.job, row.files["model.pt"])) == large


def test_only_pieces_that_are_not_there_travel_and_old_ones_go(
    lab: Lab, django_capture_on_commit_callbacks: Any
) -> None:
    first = keep(lab.one, lab.part, {"a": b"a", "b": b"b"})
    files_now = {"a": entry(b"a2", 2)}
    assert report(lab.one, lab.part, files_now).json()["missing"] == [hashlib.sha256(b"a2").hexdigest()]
    with django_capture_on_commit_callbacks(execute=True):
        second = keep(lab.one, lab.part, {"a": b"a2"}, 2)
    kept = {path.name for path in checkpoints.folder_of(lab.job).iterdir()}
    assert kept == {hashlib.sha256(content).hexdigest() for content in (b"a2", b"b")}
    again = report(lab.one, lab.part, files_now).json()
    assert first < again["before"] == again["version"] == second, "the same once more changes nothing"


def test_versions_after_a_restored_backup_are_newer_than_any_before(lab: Lab) -> None:
    """A node that has a later set than the backup takes none of these for its own."""
    saved = keep(lab.one, lab.part, {"a": b"a"})
    lost = [keep(lab.one, lab.part, {"a": b"%d" % number}, number) for number in (2, 3)]
    with pytest.MonkeyPatch.context() as later:
        now = timezone.now() + timedelta(minutes=5)
        later.setattr("portal.jobs.checkpoints.timezone.now", lambda: now)
        CheckpointSet.objects.update(version=saved, files={"a": entry(b"a")})
        assert saved < lost[0] < lost[1] < keep(lab.one, lab.part, {"a": b"4"}, 4)


def test_what_was_deleted_goes_unless_it_was_written_again(lab: Lab) -> None:
    keep(lab.one, lab.part, {"old": b"1", "new": b"2", "other": b"3"})
    keep(lab.one, lab.part, {"other": b"4"}, 5)
    report(lab.one, lab.part, {}, {"old": 10**9, "other": 10**9, "never": 10**9})
    assert set(CheckpointSet.objects.get().files) == {"new", "other"}


def test_of_two_nodes_of_an_attempt_the_one_that_wrote_last_counts(lab: Lab) -> None:
    lab.stopped()
    first = lab.placed_on(lab.one, lab.two)
    second = first.attempt.containers.get(node=lab.two.node)
    keep(lab.one, first, {"shared": b"new", "one": b"1"}, 9)
    keep(lab.two, second, {"shared": b"old", "two": b"2"}, 3)
    files = CheckpointSet.objects.get().files
    assert set(files) == {"shared", "one", "two"} and files["shared"] == entry(b"new", 9)


@pytest.mark.parametrize(("before", "after"), [("a", "a/b"), ("a/b", "a")])
def test_a_file_in_the_place_of_a_folder_replaces_it(lab: Lab, before: str, after: str) -> None:
    keep(lab.one, lab.part, {before: b"1", "c": b"c"})
    keep(lab.one, lab.part, {after: b"2"}, 2)
    assert set(CheckpointSet.objects.get().files) == {after, "c"}


def test_a_later_attempt_that_runs_is_not_disturbed_by_an_earlier_one(lab: Lab) -> None:
    keep(lab.one, lab.part, {"a": b"1"})
    lab.stopped(collected=False)
    part = lab.placed_on(lab.two)
    taken = keep(lab.one, lab.part, {"a": b"2"}, 2)
    run(part)
    assert report(lab.one, lab.part, {"a": entry(b"3", 3)}).json()["version"] == taken
    assert CheckpointSet.objects.get().files["a"] == entry(b"2", 2)


def test_a_start_elsewhere_waits_for_what_is_still_coming(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    run(lab.part)
    lab.stopped(collected=False)
    part = lab.placed_on(lab.two)
    waits = ask(lab.two, part)
    assert waits.status_code == 425 and waits.json()["error"]["reason"] == CheckpointsComing("one").data()
    old = Container.objects.get(pk=lab.part.pk)
    Node.objects.filter(pk=lab.one.node.pk).update(last_seen_at=timezone.now() - timedelta(minutes=1))
    assert ask(lab.two, part).status_code == 200, "not for a node that is away"
    lab.one.sync()
    assert ask(lab.two, part).status_code == 425
    with monkeypatch.context() as later:
        later.setattr(checkpoints, "UPLOAD_WAIT", timedelta())
        assert ask(lab.two, part).status_code == 200, "not for ever"
    lifecycle.record_collected(old)
    assert ask(lab.two, part).status_code == 200


def test_a_start_on_the_same_node_waits_for_nothing(lab: Lab) -> None:
    run(lab.part)
    lab.stopped(collected=False)
    assert ask(lab.one, lab.placed_on(lab.one)).status_code == 200


def test_nodes_that_share_a_folder_need_no_portal(lab: Lab) -> None:
    for agent, token in ((lab.one, "x"), (lab.two, "y")):
        agent.report["facts"] = {"shared": token}
        agent.sync()
    assert ask(lab.one, lab.part).json()["through_portal"]
    lab.two.report["facts"] = {"shared": "x"}
    lab.two.sync()
    assert not ask(lab.one, lab.part).json()["through_portal"]
    assert not report(lab.one, lab.part, {}).json()["through_portal"]
    run(lab.part)
    lab.stopped(collected=False)
    assert ask(lab.two, lab.placed_on(lab.two)).status_code == 200, "there is nothing to wait for"


def test_another_node_reaches_nothing(lab: Lab) -> None:
    keep(lab.one, lab.part, {"a": b"1"})
    sha256 = hashlib.sha256(b"1").hexdigest()
    assert ask(lab.two, lab.part).status_code == ask(lab.two, lab.part, sha256).status_code == 404
    assert (
        report(lab.two, lab.part, {"a": entry(b"", 2)}).status_code == put(lab.two, lab.part, b"x").status_code == 404
    )


def test_a_node_reaches_nothing_once_its_part_is_over(lab: Lab) -> None:
    keep(lab.one, lab.part, {"a": b"1"})
    sha256 = hashlib.sha256(b"1").hexdigest()
    lab.stopped(collected=False)
    assert ask(lab.one, lab.part).status_code == ask(lab.one, lab.part, sha256).status_code == 404
    assert put(lab.one, lab.part, b"last words").status_code == 201
    lifecycle.record_collected(Container.objects.get(pk=lab.part.pk))
    assert report(lab.one, lab.part, {}).status_code == put(lab.one, lab.part, b"x").status_code == 404


@pytest.mark.parametrize("sha256", ["d" * 64, "x", "..", "A" * 64])
def test_a_piece_that_is_not_there_is_not_found(lab: Lab, sha256: str) -> None:
    keep(lab.one, lab.part, {"a": b"1"})
    assert ask(lab.one, lab.part, sha256).status_code == 404


def test_a_piece_must_have_the_hash_in_its_name(lab: Lab) -> None:
    assert put(lab.one, lab.part, b"x", "d" * 64).status_code == 400
    assert put(lab.one, lab.part, b"x", "short").status_code == 400
    assert put(lab.one, lab.part, b"x" * (PIECE + 1)).status_code == 413
    assert not list(checkpoints.folder_of(lab.job).iterdir())


@pytest.mark.parametrize(
    "changed",
    [
        [],
        {"../a": entry(b"x")},
        {"/a": entry(b"x")},
        {"a//b": entry(b"x")},
        {"a\nb": entry(b"x")},
        {"a": entry(b"x")[:2]},
        {"a": [1, 1, []]},
        {"a": [-1, 1, []]},
        {"a": [1, 1, ["x"]]},
        {"a": [True, 1, ["d" * 64]]},
        {"a": [1, 1 << 62 | 1, ["d" * 64]]},
        {"a": None},
    ],
)
def test_a_description_that_makes_no_sense_is_refused(lab: Lab, changed: object) -> None:
    assert report(lab.one, lab.part, changed).status_code == 400
    assert not CheckpointSet.objects.exists()


@pytest.mark.parametrize("deleted", [["a"], {"a": "x"}, {"..": 1}])
def test_a_wrong_list_of_deleted_files_is_refused(lab: Lab, deleted: object) -> None:
    assert report(lab.one, lab.part, {}, deleted).status_code == 400


def test_more_than_the_portal_keeps_is_refused_with_a_sentence(lab: Lab, settings: LazySettings) -> None:
    settings.MAX_CHECKPOINTS_MIB = 1
    assert report(lab.one, lab.part, {}).json()["most_bytes"] == 1 << 20
    keep(lab.one, lab.part, {"a": b"1"})
    refused = report(lab.one, lab.part, {"b": entry(b"x" * (1 << 20))})
    assert refused.status_code == 413 and "they stay on their node" in refused.json()["error"]["message"]
    assert set(CheckpointSet.objects.get().files) == {"a"}
    settings.CHECKPOINTS_LEAVE_FREE_MIB = 1 << 40
    assert "too full" in put(lab.one, lab.part, b"y").json()["error"]["message"]


def test_pieces_that_never_became_a_set_do_not_pile_up(lab: Lab, settings: LazySettings) -> None:
    settings.MAX_CHECKPOINTS_MIB = 1
    answers = [put(lab.one, lab.part, bytes([number]) * (1 << 20)).status_code for number in range(3)]
    assert answers == [201, 201, 201]
    assert put(lab.one, lab.part, b"x").status_code == 413


def test_they_are_deleted_a_month_after_the_end(lab: Lab) -> None:
    keep(lab.one, lab.part, {"a": b"1"})
    put(lab.one, lab.part, b"never named")
    tasks.tidy()
    folder = checkpoints.folder_of(lab.job)
    assert len(list(folder.iterdir())) == 2
    long_ago = time.time() - 2 * checkpoints.ORPHAN_PIECE_SECONDS
    for path in folder.iterdir():
        os.utime(path, (long_ago, long_ago))
    tasks.tidy()
    assert [path.name for path in folder.iterdir()] == [hashlib.sha256(b"1").hexdigest()]
    exit(Container.objects.get(pk=lab.part.pk))
    before = timezone.now() - checkpoints.RETENTION - timedelta(days=1)
    CheckpointSet.objects.update(stored_at=before)
    tasks.tidy()
    assert CheckpointSet.objects.exists(), "its job has only just ended"
    CheckpointSet.objects.all().delete()  # a finished job's row cannot be made older
    tasks.tidy()
    assert not folder.exists()


def test_members_see_and_download_them(lab: Lab, client: Client) -> None:
    large = os.urandom(PIECE + 5)
    client.force_login(lab.job.submitted_by)
    page = f"/jobs/{lab.job.pk}/"
    assert "Checkpoints" not in client.get(f"{page}files/").content.decode()
    keep(lab.one, lab.part, {"deep/model <1>.pt": large})
    shown = client.get(f"{page}files/").content.decode()
    assert "deep/model &lt;1&gt;.pt" in shown and "After a stop, the job restarts from here" in shown
    answer = client.get(f"{page}checkpoints/deep/model <1>.pt")
    assert b"".join(answer.streaming_content) == large  # type: ignore[attr-defined]
    assert "attachment" in answer["Content-Disposition"]
    about = client.get(f"/api/v1/jobs/{lab.job.pk}/checkpoints/").json()
    assert about["files"] == [{"path": "deep/model <1>.pt", "size": PIECE + 5, "modified_at": "1970-01-01T00:00:01Z"}]
    (checkpoints.folder_of(lab.job) / hashlib.sha256(large[:PIECE]).hexdigest()).unlink()
    assert client.get(f"{page}checkpoints/deep/model <1>.pt").status_code == 404
    client.force_login(make_user("charlie"))
    assert client.get(f"{page}checkpoints/deep/model <1>.pt").status_code == 404


class Wire:
    """The agent's client, with Django's in the place of a network."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent

    def _ask(self, method: str, container: str, sha256: str = "", body: bytes = b"", kind: str = "") -> Any:
        path = f"/agent/v1/containers/{container}/checkpoints" + (f"/{sha256}" if sha256 else "")
        answer = self.agent.http.generic(method, path, body, kind or "application/json", headers=self.agent.headers)
        if answer.status_code >= 400:
            raise PortalRefusedError(answer.status_code, answer.json()["error"]["message"])
        return answer

    def checkpoints(self, container: str) -> dict[str, Any]:
        return dict(self._ask("GET", container).json())

    def change_checkpoints(self, container: str, changed: dict[str, Any], deleted: dict[str, int]) -> dict[str, Any]:
        body = json.dumps({"changed": changed, "deleted": deleted}).encode()
        return dict(self._ask("POST", container, body=body).json())

    def put_checkpoint(self, container: str, sha256: str, content: bytes) -> None:
        self._ask("PUT", container, sha256, content, "application/octet-stream")

    def fetch_checkpoint(self, container: str, sha256: str) -> bytes:
        return b"".join(self._ask("GET", container, sha256).streaming_content)


def test_agent_and_portal_understand_each_other(
    lab: Lab, tmp_path: Path, django_capture_on_commit_callbacks: Any
) -> None:
    """Two nodes, one after the other, with the code of agents."""
    folders = {agent: tmp_path / agent.node.name / "checkpoints" for agent in (lab.one, lab.two)}
    jobs = {agent: JobCheckpoints(folder.parent, Wire(agent)) for agent, folder in folders.items()}
    expected: dict[str, bytes] = {}
    agent, part = lab.one, lab.part
    for number in range(4):
        folder = folders[agent]
        folder.mkdir(parents=True, exist_ok=True)
        jobs[agent].fetch(part.name, lambda user: False, lambda words: None)
        found = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        assert found == expected
        (folder / "deep").mkdir(exist_ok=True)
        expected = {"deep/last.pt": os.urandom(PIECE + 7), f"step-{number}.pt": os.urandom(9), "first": b"1"}
        for path in (path for path in found if path not in expected):
            (folder / path).unlink()
        for path, content in expected.items():
            (folder / path).write_bytes(content)
        with django_capture_on_commit_callbacks(execute=True):
            jobs[agent].send(part.name, ended=True)
        assert jobs[agent].complaint is None
        run(part)
        lab.stopped()
        agent = lab.two if agent is lab.one else lab.one
        part = lab.placed_on(agent)
    assert len(list(checkpoints.folder_of(lab.job).iterdir())) == 4, "of the last set alone"
