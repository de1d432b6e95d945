"""A folder of a node is given to the job that it was made for, and to no other job of the same number."""

import fcntl
import json
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runners.agent import claims
from runners.agent.claims import ASIDE_MARK, IDENTITY_FILE, Claim, Claims
from runners.agent.journal import ContainerJournal, delete_tree
from runners.agent.leftovers import KEEP_SECONDS, MIN_AGE_SECONDS, tidy
from runners.agent.portal_client import PortalRefusedError, PortalUnavailableError
from runners.agent.reconcile import JournalEntry
from runners.host.exclusive import BusyError
from runners.host.node_files import NodeFiles
from runners.spec import JobIdentity, RunSpec
from tests.runners.agent_bench import spec_of

LAB = "1" * 32
OURS, THEIRS = JobIdentity(LAB, "a" * 32), JobIdentity(LAB, "b" * 32)
SPEC = spec_of("0" * 64, "sl-41-a2-0a0a0a0a0a0a-c0ffee-0", job=41, identity=OURS)
FIRST = "sl-41-a1-0"
"""An earlier container of the job, in an agent's entry of the release before."""


class Portal:
    """Answers what is known of a container's job."""

    def __init__(self, *names: str, submitted_at: float = 1000.0, error: Exception | None = None) -> None:
        self.answer: dict[str, Any] = {"containers": list(names), "submitted_at": submitted_at}
        self.error = error
        self.asked: list[str] = []

    def identity(self, container: str) -> dict[str, Any]:
        self.asked.append(container)
        if self.error:
            raise self.error
        return self.answer


@pytest.fixture
def files(tmp_path: Path) -> NodeFiles:
    files = NodeFiles(tmp_path / "agent")
    files.make()
    return files


def claims_of(files: NodeFiles, portal: Portal | None = None) -> Claims:
    return Claims(files, ContainerJournal(files), portal or Portal())


def leave(files: NodeFiles, identity: JobIdentity | None = None, users: tuple[str, ...] = (FIRST,)) -> None:
    """Weights in the folder of job 41; without an identity as an agent of the release before left them."""
    files.checkpoints(41).mkdir(parents=True)
    (files.checkpoints(41) / "weights").write_bytes(b"secret")
    kept = {"version": 3, "files": {}, "users": list(users)}
    (files.job(41) / "kept.json").write_text(json.dumps(kept))
    if identity:
        Claim(identity.installation, identity.job).write(files.job(41))


def weights(folder: Path) -> bytes:
    return (folder / "checkpoints/weights").read_bytes()


def aside(top: Path) -> list[str]:
    return sorted(folder.name for folder in top.iterdir() if ASIDE_MARK in folder.name)


def test_a_new_folder_records_its_owner(files: NodeFiles) -> None:
    claims = claims_of(files)
    claims.claim(SPEC)
    assert json.loads((files.job(41) / IDENTITY_FILE).read_text()) == {
        "installation": LAB,
        "job": "a" * 32,
        "attempt": "",
    }
    attempt = json.loads((files.attempt(SPEC.attempt) / IDENTITY_FILE).read_text())
    assert attempt == {"installation": LAB, "job": "a" * 32, "attempt": "sl-41-a2-0a0a0a0a0a0a"}
    assert claims.problems() == []


@pytest.mark.parametrize(
    "content",
    [
        '{"installation": "a", "job": 5, "attempt": ""}',
        '{"installation": null, "job": null}',
        '{"installation": "a", "job": "../../x"}',
        '{"installation": "a", "job": ""}',
        '{"installation": "a", "job": "a\\u0000b"}',
        '["a"]',
        "[" * 100_000,
        "{",
        "",
    ],
)
def test_a_folder_with_a_damaged_identity_is_set_aside(files: NodeFiles, content: str) -> None:
    leave(files, users=("sl-7-a1-0",))
    (files.job(41) / IDENTITY_FILE).write_text(content)
    claims_of(files, Portal(FIRST)).claim(SPEC)
    assert not (files.checkpoints(41) / "weights").exists()
    [kept] = aside(files.jobs)
    assert weights(files.jobs / kept) == b"secret"


def test_whatever_lies_in_the_place_of_a_folder_is_set_aside(files: NodeFiles, tmp_path: Path) -> None:
    files.job(41).write_text("a file")
    files.attempt(SPEC.attempt).symlink_to(tmp_path / "gone")
    claims_of(files).claim(SPEC)
    assert [(files.jobs / each).read_text() for each in aside(files.jobs)] == ["a file"]
    assert len(aside(files.attempts)) == 1 and not (tmp_path / "gone").exists()
    assert claims_of(files).owns_job_folder(SPEC) and claims_of(files).owns_attempt_folder(SPEC)


def test_the_next_attempt_of_a_job_gets_what_the_last_one_left(files: NodeFiles) -> None:
    leave(files, OURS)
    portal = Portal()
    claims_of(files, portal).claim(SPEC)
    assert weights(files.job(41)) == b"secret" and aside(files.jobs) == [] and portal.asked == []


@pytest.mark.parametrize(
    "other", [THEIRS, JobIdentity("2" * 32, "a" * 32)], ids=["another job", "another installation"]
)
def test_a_folder_of_another_job_with_the_same_number_is_set_aside(files: NodeFiles, other: JobIdentity) -> None:
    leave(files, other)
    claims = claims_of(files, Portal(FIRST))
    assert not claims.owns_job_folder(SPEC)
    claims.claim(SPEC)
    assert [path.name for path in files.job(41).iterdir()] == [IDENTITY_FILE] and claims.owns_job_folder(SPEC)
    name = f"41{ASIDE_MARK}{other.job[:8]}"
    assert aside(files.jobs) == [name] and weights(files.jobs / name) == b"secret"
    (problem,) = claims.problems()
    assert f"jobs/{name}" in problem["text"] and not problem["blocking"]
    later = claims_of(files)
    later.find_set_aside()
    assert later.problems() == [problem], "the next agent does not report it"


def test_two_that_are_set_aside_are_both_kept(files: NodeFiles) -> None:
    for _ in range(2):
        leave(files, THEIRS)
        claims_of(files).claim(SPEC)
        delete_tree(files.job(41))
    assert aside(files.jobs) == [f"41{ASIDE_MARK}bbbbbbbb", f"41{ASIDE_MARK}bbbbbbbb-2"]


def test_many_are_counted_and_a_few_named(files: NodeFiles) -> None:
    for number in range(5):
        (files.jobs / f"{number}{ASIDE_MARK}cccccccc/checkpoints").mkdir(parents=True)
        (files.jobs / f"{number}{ASIDE_MARK}cccccccc/checkpoints/step").touch()
    (files.jobs / f"9{ASIDE_MARK}dddddddd/checkpoints").mkdir(parents=True)
    claims = claims_of(files)
    claims.find_set_aside()
    text = claims.problems()[0]["text"]
    assert text.startswith("5 folders") and "and 2 more" in text and "dddddddd" not in text, "an empty one is no news"


class TestFoldersOfTheReleaseBefore:
    def test_one_whose_containers_the_portal_knows_is_adopted(self, files: NodeFiles) -> None:
        leave(files)
        portal = Portal(FIRST, SPEC.name)
        claims_of(files, portal).claim(SPEC)
        assert weights(files.job(41)) == b"secret" and portal.asked == [SPEC.name]
        assert Claim.read(files.job(41)) == Claim(LAB, OURS.job)
        claims_of(files, portal).claim(SPEC)
        assert portal.asked == [SPEC.name], "it is asked once"

    @pytest.mark.parametrize(
        "portal",
        [
            Portal(SPEC.name),
            Portal(),
            Portal(FIRST, submitted_at=time.time() + 7 * 24 * 3600),
            Portal(FIRST, error=PortalRefusedError(404, "There is nothing here.")),
        ],
        ids=["containers of another job", "nothing known", "older than the job", "a portal that cannot be asked"],
    )
    def test_one_that_may_be_of_another_job_is_set_aside(self, files: NodeFiles, portal: Portal) -> None:
        leave(files)
        claims_of(files, portal).claim(SPEC)
        assert not files.checkpoints(41).exists()
        assert (
            aside(files.jobs) == [f"41{ASIDE_MARK}unknown"]
            and weights(files.jobs / f"41{ASIDE_MARK}unknown") == b"secret"
        )

    @pytest.mark.parametrize("users", [(), (FIRST, "sl-41-a9-0")], ids=["none named", "one that is not known"])
    def test_all_that_used_it_must_be_known(self, files: NodeFiles, users: tuple[str, ...]) -> None:
        leave(files, users=users)
        claims_of(files, Portal(FIRST)).claim(SPEC)
        assert aside(files.jobs) == [f"41{ASIDE_MARK}unknown"]

    def test_an_empty_one_is_taken_without_asking(self, files: NodeFiles) -> None:
        files.checkpoints(41).mkdir(parents=True)
        portal = Portal()
        claims_of(files, portal).claim(SPEC)
        assert aside(files.jobs) == [] and portal.asked == [] and Claim.read(files.job(41)) is not None

    @pytest.mark.parametrize("error", [PortalUnavailableError("away"), PortalRefusedError(401, "unknown")])
    def test_nothing_is_decided_while_the_portal_is_away(self, files: NodeFiles, error: Exception) -> None:
        leave(files)
        with pytest.raises(type(error)):
            claims_of(files, Portal(error=error)).claim(SPEC)
        assert weights(files.job(41)) == b"secret" and aside(files.jobs) == []

    def test_one_of_a_container_that_runs_is_marked(self, files: NodeFiles) -> None:
        leave(files)
        files.outputs(SPEC.attempt).mkdir(parents=True)
        claims = claims_of(files)
        claims.mark_folders(SPEC)
        assert Claim.read(files.job(41)) == Claim(LAB, OURS.job)
        assert Claim.read(files.attempt(SPEC.attempt)) == Claim(LAB, OURS.job, SPEC.group)
        claims.mark_folders(replace(SPEC, identity=THEIRS))
        assert Claim.read(files.job(41)) == Claim(LAB, OURS.job), "a mark was replaced"

    def test_outputs_of_an_attempt_go_with_its_other_container(self, files: NodeFiles) -> None:
        files.outputs(SPEC.attempt).mkdir(parents=True)
        (files.outputs(SPEC.attempt) / "model").touch()
        claims = Claims(files, journal := ContainerJournal(files), Portal())
        journal.begin("sl-41-a2-0a0a0a0a0a0a-decade-1", JournalEntry(41, SPEC.attempt, 2, started=True))
        claims.claim(SPEC)
        assert (files.outputs(SPEC.attempt) / "model").exists() and aside(files.attempts) == []

    def test_outputs_of_an_attempt_that_is_not_known_are_set_aside(self, files: NodeFiles) -> None:
        files.outputs(SPEC.attempt).mkdir(parents=True)
        (files.outputs(SPEC.attempt) / "model").touch()
        claims = Claims(files, journal := ContainerJournal(files), Portal())
        journal.begin("sl-41-a2-0", JournalEntry(41, SPEC.attempt, 2, started=True))
        claims.claim(SPEC)
        assert not files.outputs(SPEC.attempt).exists()
        assert aside(files.attempts) == [f"{SPEC.attempt}{ASIDE_MARK}unknown"]

    def test_a_portal_of_the_release_before_changes_nothing(self, files: NodeFiles) -> None:
        leave(files)
        old = replace(SPEC, identity=None)
        claims = claims_of(files)
        claims.claim(old)
        claims.mark_folders(old)
        assert claims.owns_job_folder(old) and claims.owns_attempt_folder(old)
        assert sorted(path.name for path in files.job(41).iterdir()) == ["checkpoints", "kept.json"]


def test_an_attempt_of_the_same_job_and_number_gets_no_outputs_of_the_lost_one(files: NodeFiles) -> None:
    """The job was in the backup, the attempt was not."""
    lost = replace(SPEC, name="sl-41-a2-0b0b0b0b0b0b-c0ffee-0")
    claims = claims_of(files)
    claims.claim(lost)
    files.outputs(lost.attempt).mkdir()
    (files.outputs(lost.attempt) / "model").touch()
    claims.claim(SPEC)
    assert (
        not files.outputs(SPEC.attempt).exists()
        and claims.owns_attempt_folder(SPEC)
        and not claims.owns_attempt_folder(lost)
    )
    assert aside(files.attempts) == [f"{SPEC.attempt}{ASIDE_MARK}aaaaaaaa"] and aside(files.jobs) == []


def together(count: int, work: Callable[[], None]) -> None:
    barrier = threading.Barrier(count)

    def one() -> None:
        barrier.wait()
        work()

    threads = [threading.Thread(target=one) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_nodes_that_share_the_folder_set_it_aside_once(tmp_path: Path) -> None:
    shared = tmp_path / "nfs"
    shared.mkdir()
    nodes = [NodeFiles(tmp_path / name, None, shared) for name in ("one", "two", "three", "four")]
    for files in nodes:
        files.make()
    leave(nodes[0], THEIRS)
    waiting = iter([claims_of(files) for files in nodes])

    def claim() -> None:
        next(waiting).claim(SPEC)

    together(len(nodes), claim)
    assert (
        aside(nodes[0].jobs) == [f"41{ASIDE_MARK}bbbbbbbb"]
        and weights(nodes[0].jobs / f"41{ASIDE_MARK}bbbbbbbb") == b"secret"
    )
    assert Claim.read(nodes[3].job(41)) == Claim(LAB, OURS.job)


class KnowsNone:
    """A portal that has erased no job."""

    def erased_jobs(self, uids: Sequence[str]) -> list[str]:
        return []


def test_what_is_set_aside_is_kept_for_a_month(files: NodeFiles) -> None:
    leave(files, THEIRS)
    os.utime(files.job(41), (1, 1))
    claims_of(files).claim(SPEC)
    outputs = files.attempts / f"7{ASIDE_MARK}cccccccc"
    outputs.mkdir()
    hours_ago = time.time() - 2 * MIN_AGE_SECONDS
    os.utime(outputs, (hours_ago, hours_ago))
    tidy(files, KnowsNone(), jobs=[41], attempts=[SPEC.attempt])
    assert aside(files.jobs) == [f"41{ASIDE_MARK}bbbbbbbb"] and aside(files.attempts) == [outputs.name]
    long_ago = time.time() - KEEP_SECONDS - 60
    for folder in (outputs, files.jobs / f"41{ASIDE_MARK}bbbbbbbb"):
        os.utime(folder, (long_ago, long_ago))
    tidy(files, KnowsNone(), jobs=[41], attempts=[SPEC.attempt])
    assert aside(files.jobs) == aside(files.attempts) == [] and files.job(41).exists()


def test_outputs_that_were_never_collected_outlive_their_container(files: NodeFiles) -> None:
    claims = Claims(files, journal := ContainerJournal(files), Portal())
    names = [SPEC.name, "sl-41-a2-0a0a0a0a0a0a-decade-1"]
    claims.claim(SPEC)
    files.outputs(SPEC.attempt).mkdir()
    (files.outputs(SPEC.attempt) / "model").touch()
    for name in names:
        journal.begin(name, JournalEntry(41, SPEC.attempt, 2, started=True))
    claims.keep_uncollected(names[0], SPEC.attempt)
    assert aside(files.attempts) == [], "another container still uses them"
    journal.forget(names[0])
    claims.keep_uncollected(names[1], SPEC.attempt)
    journal.forget(names[1])
    assert (files.attempts / f"{SPEC.attempt}{ASIDE_MARK}aaaaaaaa/outputs/model").exists()


def test_forgetting_deletes_no_folder_of_an_attempt_that_has_just_begun(
    files: NodeFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lost attempt of the same number is forgotten at that very moment."""
    journal, deleted = ContainerJournal(files), []
    journal.begin("sl-41-a2-0", JournalEntry(41, SPEC.attempt, 2))
    files.outputs(SPEC.attempt).mkdir(parents=True)

    def slowly(folder: Path) -> None:
        if folder.parent == files.attempts:
            claims_of(files).claim(SPEC)  # meanwhile
        deleted.append(folder.name)

    monkeypatch.setattr("runners.agent.journal.delete_tree", slowly)
    journal.forget("sl-41-a2-0")
    assert str(SPEC.attempt) not in deleted and len(deleted) == 2
    assert Claim.read(files.attempt(SPEC.attempt)) is not None


class TestTheWire:
    def test_the_spec_is_that_of_the_release_before(self) -> None:
        """Its agents accept no key that they do not know; its images read it from job.json."""
        before = {
            *(
                "name",
                "job",
                "attempt",
                "number",
                "role",
                "hostname",
                "environment",
                "code_sha256",
                "launcher",
                "command",
            ),
            *("slots", "gpus", "gpu_kind", "elastic", "env", "ring", "resources", "grace_seconds"),
        }
        assert set(SPEC.to_json()) == before
        assert RunSpec.from_json(json.loads(json.dumps(SPEC.to_json()))) == replace(SPEC, identity=None)

    @pytest.mark.parametrize("text", ["", "a" * 31, "A" * 32, "../" + "a" * 29, "a" * 32 + "\n"])
    def test_what_is_no_identity_is_refused(self, text: str) -> None:
        with pytest.raises(ValueError, match="32 hexadecimal"):
            JobIdentity.from_json({"installation": LAB, "job": text})
        with pytest.raises(ValueError, match="32 hexadecimal"):
            JobIdentity.from_json({"installation": text, "job": "a" * 32})


def test_an_agent_that_holds_the_shared_folder_for_long_is_not_waited_for(
    files: NodeFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "LOCK_TIMEOUT_SECONDS", 0.05)
    with (files.jobs.parent / ".claims").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(BusyError):
            claims_of(files).claim(SPEC)
    claims_of(files).claim(SPEC)
    assert Claim.read(files.job(41)) == Claim(LAB, OURS.job)
