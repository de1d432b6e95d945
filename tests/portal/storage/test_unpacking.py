"""Archives of datasets are judged as those of code, in the same words; what the unpacker sends is not trusted."""

import io
import json
from pathlib import Path

import pytest

from portal import sandbox
from portal.projects import archive
from portal.projects.errors import BadArchiveError
from portal.projects.unpacking.common import BadUploadError
from portal.storage import unpacker, unpacking
from portal.storage.blobs import FolderStore, data_folder
from portal.storage.unpacker import DATA, END, FILE, HEAD, NOTES, REFUSED, TOTAL
from portal.storage.unpacking import Unpacked, unpacked
from portal.storage.uploads import ARCHIVE_ENDINGS
from tests import corpus
from tests.examples import every_fourth
from tests.portal.storage_world import tar_of

HOSTILE = [case for case in corpus.hostile() if case.name.endswith(ARCHIVE_ENDINGS)]
LARGER_LIMITS = {"zip-too-many-entries", "tar-too-many-entries", "targz-larger-than-allowed"}
"""More than code may have, and not too much for a dataset."""
OTHER_WORDS = {
    "zip-a-million-entries",
    "tar-too-many-headers",
    "zip-declared-as-2-gib",
    "zip-zip64-declared-as-an-exabyte",
}
"""Refused for something that comes after the limit of code."""
MAX_BYTES = 4 << 30


@pytest.fixture(autouse=True)
def folders(own_home: Path) -> None:
    FolderStore(data_folder())


def unpack(data: bytes, name: str, max_bytes: int = MAX_BYTES) -> tuple[dict[str, bytes], list[str]]:
    path = data_folder() / "incoming" / "archive"
    path.write_bytes(data)
    with path.open("rb") as file, unpacked(file, name, max_bytes) as found:
        files = {each.path: b"".join(each.pieces) for each in found}
    return files, found.notes


def refusal_of(case: corpus.Case) -> str:
    with pytest.raises(BadUploadError) as refused:
        unpack(case.make(), case.name)
    return str(refused.value)


@pytest.mark.parametrize("case", every_fourth(HOSTILE), ids=lambda case: case.id)
def test_a_hostile_archive_is_refused_in_the_words_for_code(case: corpus.Case) -> None:
    if case.id in LARGER_LIMITS:
        assert unpack(case.make(), case.name)[0]
        return
    words = refusal_of(case)
    assert words.endswith((".", "?", ")")) and words.isprintable()
    if case.id not in OTHER_WORDS:
        with pytest.raises(BadArchiveError) as as_code:
            archive.store_upload([(case.name, io.BytesIO(case.make()))])
        assert words == as_code.value.message


def test_links_become_copies_and_files_keep_their_mark() -> None:
    files, notes = unpack(tar_of({"a.sh": b"#!/bin/sh\n", "d/b": b"x" * 3_000_000}), "x.tar.gz")
    assert files == {"a.sh": b"#!/bin/sh\n", "d/b": b"x" * 3_000_000} and notes == []


def test_the_size_is_limited_before_and_while_it_is_unpacked() -> None:
    with pytest.raises(BadUploadError, match="unpacks to more than"):
        unpack(tar_of({"a": b"x" * 3000, "b": b"y" * 3000}, "w"), "x.tar", 5000)


def test_a_program_that_fails_gives_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpacking, "MAX_MEMORY_BYTES", 8 << 20)
    with pytest.raises((sandbox.NoAnswerError, BadUploadError)):
        unpack(tar_of({"a": b"1"}), "x.tar.gz")


def frame(kind: bytes, data: bytes = b"") -> bytes:
    return HEAD.pack(kind, len(data)) + data


def about(path: str, size: object = 1) -> bytes:
    return frame(FILE, json.dumps({"path": path, "size": size, "executable": False}).encode())


GOOD = about("a") + frame(DATA, b"x") + frame(END)


@pytest.mark.parametrize(
    "stream",
    [
        b"",
        frame(FILE, b"{}"),
        frame(TOTAL, b"1" * 30),
        frame(TOTAL, b"1"),
        frame(TOTAL, b"1") + frame(NOTES, b"[]")[:-1],
        frame(TOTAL, b"1") + about("../a"),
        frame(TOTAL, b"1") + about("/a"),
        frame(TOTAL, b"1") + about(""),
        frame(TOTAL, b"1") + about("a\nb"),
        frame(TOTAL, b"1") + about("a", -1),
        frame(TOTAL, b"1") + about("a", "many"),
        frame(TOTAL, b"1") + frame(FILE, b"[" * 100_000),
        frame(TOTAL, b"1") + about("a") + frame(DATA, b"xx") + frame(END),
        frame(TOTAL, b"1") + about("a") + frame(END),
        frame(TOTAL, b"1") + about("a") + frame(DATA) * 3,
        frame(TOTAL, b"1") + about("a") + about("b"),
        frame(TOTAL, b"1") + about("a", 200) + frame(DATA, b"x" * 200) + frame(END),
        frame(TOTAL, b"1") + HEAD.pack(DATA, 2**32 - 1),
        frame(TOTAL, b"1") + frame(b"?"),
    ],
)
def test_what_is_not_in_the_format_is_no_answer(stream: bytes) -> None:
    with pytest.raises(sandbox.NoAnswerError):
        for file in Unpacked(io.BytesIO(stream), 100):
            for _ in file.pieces:
                pass


def test_notes_and_refusals_are_bounded() -> None:
    notes = json.dumps(["x" * 5000, 7, *["y"] * 100]).encode()
    found = Unpacked(io.BytesIO(frame(TOTAL, b"1") + GOOD + frame(NOTES, notes)), 100)
    assert [b"".join(file.pieces) for file in found] == [b"x"]
    assert len(found.notes) == unpacking.MAX_NOTES and len(found.notes[0]) == unpacking.MAX_NOTE_CHARACTERS
    with pytest.raises(BadUploadError) as refused:
        Unpacked(io.BytesIO(frame(REFUSED, b"z" * 100_000)), 100)
    assert len(str(refused.value)) == unpacking.MAX_NOTE_CHARACTERS


def test_a_full_disk_is_no_fault_of_the_archive(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(unpacker, "read_upload", full)
    assert list(unpacker.frames(io.BytesIO(b""), "x.zip", unpacker.LIMITS)) == [(unpacker.FULL, b"")]
