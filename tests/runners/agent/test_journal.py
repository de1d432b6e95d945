"""What the agent remembers, and that it can delete what jobs leave."""

import json
import os
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from runners.agent.journal import ContainerJournal, delete_tree
from runners.agent.reconcile import ControlMessage, Exit, JournalEntry
from runners.host.node_files import NodeFiles
from runners.messages import Quotation
from runners.messages.containers import FilesOverLimit, TooManyFiles
from tests.runners.conftest import as_nobody

ENTRY = JournalEntry(
    1, 11, 1, created=True, control=ControlMessage("cancelled", 5, (("h0", 1),)), exit=Exit(0, "exited")
)


@pytest.fixture
def files(tmp_path: Path) -> NodeFiles:
    files = NodeFiles(tmp_path / "agent")
    files.make()
    return files


def test_the_next_agent_knows_what_this_one_did(files: NodeFiles) -> None:
    journal = ContainerJournal(files)
    assert journal.begin("sl-1-a1-0", ENTRY) == ENTRY
    assert journal.begin("sl-1-a1-0", JournalEntry(1, 11, 1)) == ENTRY, "an entry is begun once"
    changed = journal.change("sl-1-a1-0", started=True)
    assert ContainerJournal(files).get("sl-1-a1-0") == changed and changed.started


def test_messages_are_kept_as_data_and_texts_of_the_previous_release_are_read(files: NodeFiles) -> None:
    journal, name = ContainerJournal(files), "sl-1-a1-0"
    ended = replace(ENTRY, halted="disk", halted_detail=TooManyFiles(), exit=Exit(1, "disk", FilesOverLimit(7, 5)))
    journal.begin(name, ended)
    assert ContainerJournal(files).get(name) == ended
    stored = json.loads(files.state(name).read_text())
    assert stored["exit"]["detail"] == {
        "code": "container.files_over_limit",
        "used_mib": 7,
        "limit_mib": 5,
        "temporary": False,
    }
    of_previous = {key: value for key, value in stored["exit"]["detail"].items() if key != "temporary"}
    files.state(name).write_text(json.dumps({**stored, "exit": {**stored["exit"], "detail": of_previous}}))
    assert ContainerJournal(files).get(name) == ended
    for text, read in (("It filled the disk.", Quotation("It filled the disk.")), ("", None)):
        former = {**stored, "halted_detail": text, "exit": {"code": 1, "reason": "disk", "detail": text}}
        files.state(name).write_text(json.dumps(former))
        found = ContainerJournal(files).get(name)
        assert found is not None and found.halted_detail == read and found.exit == Exit(1, "disk", read)
    later = {"code": "container.of_a_later_release", "files": 7}
    files.state(name).write_text(json.dumps({**stored, "exit": {"code": 1, "reason": "disk", "detail": later}}))
    found = ContainerJournal(files).get(name)
    assert found is not None and found.exit == Exit(1, "disk", Quotation(str(later)))


def test_an_attempts_folder_goes_with_its_last_container(files: NodeFiles) -> None:
    journal = ContainerJournal(files)
    files.outputs(11).mkdir(parents=True)
    for name in ("sl-1-a1-0", "sl-1-a1-1"):
        journal.begin(name, ENTRY)
    journal.forget("sl-1-a1-0")
    assert files.attempt(11).exists() and not files.container("sl-1-a1-0").exists()
    journal.forget("sl-1-a1-1")
    assert not files.attempt(11).exists()
    assert ContainerJournal(files).entries(["sl-1-a1-0"])["sl-1-a1-0"].exit is not None, "an old reply starts it again"


def test_a_container_that_begins_during_the_deletion_keeps_its_folders(
    files: NodeFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An elastic job grows again on a node from which its last container is just being deleted."""
    journal, result = ContainerJournal(files), files.outputs(11) / "result.txt"
    files.outputs(11).mkdir(parents=True)
    journal.begin("sl-1-a1-3", ENTRY)

    def grow_meanwhile(folder: Path) -> None:
        if folder.parent == files.attempts:
            journal.begin("sl-1-a1-4", JournalEntry(1, 11, 1))
            files.outputs(11).mkdir(parents=True, exist_ok=True)
            result.write_text("of the new container")
        delete_tree(folder)

    monkeypatch.setattr("runners.agent.journal.delete_tree", grow_meanwhile)
    journal.forget("sl-1-a1-3")
    assert result.read_text() == "of the new container"
    assert [path.name for path in files.attempts.iterdir()] == ["11"], "the old folder is left"


@pytest.mark.parametrize(
    "junk", ["", "{", "[]", '["told"]', '{"job": 1}', '{"told": 7, "exit": null}', '{"control": 7, "exit": null}']
)
def test_an_entry_that_was_cut_short_is_no_entry(files: NodeFiles, junk: str) -> None:
    files.container("sl-1-a1-0").mkdir()
    files.state("sl-1-a1-0").write_text(junk)
    assert ContainerJournal(files).entries() == {}


def test_a_note_of_an_earlier_release_is_read_and_renamed(files: NodeFiles) -> None:
    """Its file and its control message had other names."""
    folder = files.container("sl-1-a1-0")
    folder.mkdir()
    data = asdict(ENTRY)
    (folder / "note.json").write_text(
        json.dumps({"told" if key == "control" else key: value for key, value in data.items()})
    )
    assert ContainerJournal(files).get("sl-1-a1-0") == ENTRY
    assert ContainerJournal(files).get("sl-1-a1-0") == ENTRY, "it is not found a second time"
    assert [path.name for path in folder.iterdir()] == ["state.json"]


def test_folders_that_a_job_has_closed_are_deleted_all_the_same(tmp_path: Path) -> None:
    with as_nobody(tmp_path) as home:
        kept, gone = home / "kept", home / "gone"
        kept.mkdir()
        (kept / "file").touch()
        (gone / "outer/inner").mkdir(parents=True)
        (gone / "outer/inner/file").touch()
        (gone / "link").symlink_to(kept)
        for folder in (gone / "outer/inner", gone / "outer", gone, kept):
            folder.chmod(0o500 if folder in (gone, kept) else 0o000)
        delete_tree(gone)
        assert not gone.exists()
        assert kept.stat().st_mode & 0o777 == 0o500 and (kept / "file").exists(), "it followed a link"
        kept.chmod(0o700)


def test_folders_nested_deeper_than_python_recurses_are_deleted(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    handle = os.open(gone, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=handle)
        beneath = os.open("d", os.O_RDONLY, dir_fd=handle)
        os.close(handle)
        handle = beneath
    os.close(os.open("file", os.O_WRONLY | os.O_CREAT, dir_fd=handle))
    os.close(handle)
    delete_tree(gone)
    assert not gone.exists()


def test_what_is_not_there_is_deleted(tmp_path: Path) -> None:
    delete_tree(tmp_path / "absent")
    assert list(tmp_path.iterdir()) == []
