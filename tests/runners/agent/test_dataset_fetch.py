"""The files of a dataset arrive complete and checked, over connections that break, in an agent that is killed, and once."""

from pathlib import Path
from typing import Any

import pytest

from runners.agent import dataset_fetch
from runners.agent.dataset_fetch import DatasetFetch, FetchStoppedError, ManifestLine, lines_of
from runners.agent.portal_client import PortalRefusedError, PortalUnavailableError
from tests.datasets import DatasetGiver, MadeDataset, content_of

SMALL = MadeDataset(
    {"a.txt": b"one", "a/b c.txt": b"", "a/run.sh": b"#!/bin/sh\n", "z": b"9" * 3000}, frozenset({"a/run.sh"})
)
MANY = MadeDataset({f"images/{number % 7}/{number}.png": b"%d" % number * 50 for number in range(1500)})
LARGE = MadeDataset({"large.bin": bytes(range(256)) * 1000, "small": b"1"})


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset_fetch, "PAUSE_SECONDS", 0.0)


def fetched(made: MadeDataset, giver: DatasetGiver, part: Path, **more: Any) -> list[int]:
    """Fetch; return the progress in bytes."""
    part.mkdir(exist_ok=True)
    seen: list[int] = []
    fetch = DatasetFetch(giver, "sl-1-a1-0", made.sha256, part, seen.append, more.pop("is_wanted", lambda: True))
    assert fetch.run(len(made.manifest), **more) == len(made.files)
    return seen


@pytest.mark.parametrize("made", [SMALL, MANY, LARGE, MadeDataset({"empty": b""})])
def test_all_files_arrive_read_only_with_their_executable_bits(made: MadeDataset, tmp_path: Path) -> None:
    seen = fetched(made, DatasetGiver.of(made), tmp_path / "part")
    assert content_of(tmp_path / "part" / "files") == made.files
    assert sorted(path.name for path in (tmp_path / "part").iterdir()) == ["files", "manifest"]
    for path in (tmp_path / "part" / "files").rglob("*"):
        mode = 0o755 if path.is_dir() else 0o555 if path.name == "run.sh" else 0o444
        assert path.stat().st_mode & 0o777 == mode, path
    assert max(seen, default=0) == made.size


def test_small_files_come_together_and_large_ones_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset_fetch, "BATCH_BYTES", 100_000)
    giver = DatasetGiver.of(MANY)
    fetched(MANY, giver, tmp_path / "part")
    assert len(giver.requests) < 10
    assert sum(at["count"] for part, at in giver.requests if part == "contents") == 1500
    giver = DatasetGiver.of(LARGE)
    fetched(LARGE, giver, tmp_path / "large")
    assert [at["count"] for part, at in giver.requests if part == "contents"] == [1, 1]


@pytest.mark.parametrize("made", [SMALL, MANY, LARGE])
def test_connections_that_break_are_continued_where_they_broke(made: MadeDataset, tmp_path: Path) -> None:
    giver = DatasetGiver.of(made)
    giver.harm = lambda part, number, content: content if number % 3 == 2 else content[: len(content) * 2 // 3]
    fetched(made, giver, tmp_path / "part")
    assert content_of(tmp_path / "part" / "files") == made.files
    assert giver.sent == made.size + len(made.manifest), "no byte came twice"


def test_a_portal_that_sends_nothing_is_given_up_and_what_arrived_is_kept(tmp_path: Path) -> None:
    giver = DatasetGiver.of(LARGE)
    giver.harm = lambda part, number, content: (
        content[: 100_000 if number == 1 else 0] if part == "contents" else content
    )
    with pytest.raises(PortalUnavailableError, match="the connection broke"):
        fetched(LARGE, giver, tmp_path / "part")
    assert len(giver.requests) < 15
    giver.harm = lambda part, number, content: content
    before = giver.sent
    seen = fetched(LARGE, giver, tmp_path / "part")
    assert content_of(tmp_path / "part" / "files") == LARGE.files
    assert giver.sent == LARGE.size + len(LARGE.manifest) and before > 100_000
    assert seen[0] >= 100_000 and seen[-1] == LARGE.size, "the progress counts what was there"


@pytest.mark.parametrize("left", [1, 50, 100, 101])
def test_a_part_of_a_file_in_the_middle_of_others_is_fetched_with_them(tmp_path: Path, left: int) -> None:
    made = MadeDataset({name: name.encode() * 100 for name in "abc"})
    incoming = tmp_path / "part" / "incoming"
    incoming.mkdir(parents=True)
    (incoming / str(len(made.line("a")))).write_bytes((made.files["b"] * 2)[:left])
    giver = DatasetGiver.of(made)
    seen = fetched(made, giver, tmp_path / "part")
    assert content_of(tmp_path / "part" / "files") == made.files
    assert seen[-1] == made.size and len(giver.requests) == 2


def test_damaged_bytes_are_fetched_again_and_given_up_in_the_end(tmp_path: Path) -> None:
    giver = DatasetGiver.of(LARGE)
    broken = {1}
    giver.harm = lambda part, number, content: b"!" + content[1:] if number in broken else content
    fetched(LARGE, giver, tmp_path / "part")
    assert content_of(tmp_path / "part" / "files") == LARGE.files
    giver = DatasetGiver.of(LARGE)
    giver.harm = lambda part, number, content: b"!" + content[1:] if part == "contents" else content
    with pytest.raises(PortalUnavailableError, match="SHA-256 differs"):
        fetched(LARGE, giver, tmp_path / "other")
    assert len(giver.requests) < 15
    giver.harm = lambda part, number, content: b"!" + content[1:]
    with pytest.raises(PortalUnavailableError, match="SHA-256 differs"):
        fetched(LARGE, giver, tmp_path / "third")


def test_files_of_an_earlier_start_of_the_machine_are_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    giver = DatasetGiver.of(SMALL)
    giver.harm = lambda part, number, content: content[:3] if part == "contents" else content
    monkeypatch.setattr(dataset_fetch, "TRIES", 1)
    stop = iter([True] * 6)
    with pytest.raises(FetchStoppedError):
        fetched(SMALL, giver, tmp_path / "part", is_wanted=lambda: next(stop, False))
    (tmp_path / "part" / "files" / "a.txt").unlink(missing_ok=True)
    (tmp_path / "part" / "files" / "a.txt").write_bytes(b"0" * 3)  # as a loss of power may leave it
    (tmp_path / "part" / "boot").write_text("another")
    giver.harm = lambda part, number, content: content
    fetched(SMALL, giver, tmp_path / "part")
    assert content_of(tmp_path / "part" / "files") == SMALL.files


def test_files_that_another_version_has_are_linked_and_not_fetched(tmp_path: Path) -> None:
    changed = {**MANY.files, "images/3/3.png": b"new", "images/a": b"added"}
    del changed["images/0/0.png"]
    newer = MadeDataset(changed, frozenset({"images/1/1.png"}))
    giver = DatasetGiver.of(MANY, newer)
    fetched(MANY, giver, tmp_path / "old")
    before = giver.sent
    seen = fetched(newer, giver, tmp_path / "new", others=[tmp_path / "old"])
    assert content_of(tmp_path / "new" / "files") == newer.files
    assert giver.sent - before == len(newer.manifest) + len(b"new") + len(b"added") + len(newer.files["images/1/1.png"])
    same = "images/2/2.png"
    assert (tmp_path / "new" / "files" / same).samefile(tmp_path / "old" / "files" / same)
    assert (tmp_path / "new" / "files" / "images/1/1.png").stat().st_mode & 0o777 == 0o555
    assert seen[-1] == newer.size


def test_a_fetch_that_no_one_wants_any_more_stops_and_is_continued_later(tmp_path: Path) -> None:
    giver = DatasetGiver.of(MANY)
    wanted = iter([True] * 20)
    with pytest.raises(FetchStoppedError):
        fetched(MANY, giver, tmp_path / "part", is_wanted=lambda: next(wanted, False))
    fetched(MANY, giver, tmp_path / "part")
    assert content_of(tmp_path / "part" / "files") == MANY.files


def test_a_refusal_of_the_portal_is_passed_on(tmp_path: Path) -> None:
    giver = DatasetGiver.of(SMALL)
    giver.refusal = "The dataset was archived."
    with pytest.raises(PortalRefusedError, match="archived"):
        fetched(SMALL, giver, tmp_path / "part")


@pytest.mark.parametrize(
    "line",
    [
        b"0" * 64 + b" 1 - ../escape\n",
        b"0" * 64 + b" 1 - /etc/passwd\n",
        b"0" * 64 + b" 1 - a//b\n",
        b"0" * 64 + b" 1 - a/./b\n",
        b"0" * 64 + b" 1 - a\x00b\n",
        b"0" * 64 + b" -1 - a\n",
        b"0" * 64 + b" 1 y a\n",
        b"0" * 63 + b" 1 - a\n",
        b"0" * 64 + b" 1 -\n",
        b"\xff\n",
        b"\n",
    ],
)
def test_a_manifest_that_names_no_file_beneath_its_folder_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError):
        ManifestLine.parse(0, line)


def test_names_of_all_scripts_and_spaces_are_files(tmp_path: Path) -> None:
    made = MadeDataset({"ä b/文 .txt": b"1", "-": b"2", "a b": b"3"})
    (tmp_path / "manifest").write_bytes(made.manifest)
    assert [line.path for line in lines_of(tmp_path / "manifest")] == made.order
    fetched(made, DatasetGiver.of(made), tmp_path / "part")
    assert content_of(tmp_path / "part" / "files") == made.files
