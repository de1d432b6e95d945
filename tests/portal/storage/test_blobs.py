"""The store of blobs: whole or absent, once for each content, polite when the disk is full."""

import errno
import hashlib
import io
import os
from pathlib import Path
from typing import Any

import pytest

from portal.refused import Refused
from portal.storage import blobs
from portal.storage.blobs import BlobWriter, FolderStore, MissingBlobError, put_pieces

DATA = b"0123456789" * 1000
SHA256 = hashlib.sha256(DATA).hexdigest()


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "datasets")


def files_of(top: Path) -> list[Path]:
    return [path for path in top.rglob("*") if path.is_file()]


def put(store: FolderStore, data: bytes = DATA) -> tuple[str, int]:
    return put_pieces(store, [data[:7], data[7:]])


def test_a_content_is_stored_once_and_read_from_any_offset(store: FolderStore, tmp_path: Path) -> None:
    assert put(store) == put(store) == (SHA256, len(DATA))
    assert files_of(tmp_path) == [store.path_of(SHA256)]
    assert store.size(SHA256) == len(DATA)
    with store.open(SHA256) as file:
        assert file.read() == DATA
    with store.open(SHA256, 9_995) as file:
        assert file.read() == DATA[9_995:]
    assert store.path_of(SHA256).stat().st_mode & 0o777 == blobs.FILE_MODE


def test_what_is_not_there(store: FolderStore) -> None:
    assert store.size(SHA256) is None
    with pytest.raises(MissingBlobError):
        store.open(SHA256)
    store.delete(SHA256)
    put(store)
    store.delete(SHA256)
    assert store.size(SHA256) is None
    with pytest.raises(ValueError, match="hexadecimal"):
        store.open("../../secret_key")


def test_the_hashes_with_a_prefix_are_listed_in_order(store: FolderStore) -> None:
    stored = sorted(put(store, bytes([number]))[0] for number in range(60))
    assert list(store.list()) == stored
    for length in (1, 2, 5):
        prefix = stored[30][:length]
        assert list(store.list(prefix)) == [each for each in stored if each.startswith(prefix)]
    assert list(store.list("zz")) == []


def test_nothing_is_left_of_a_content_that_breaks_off(store: FolderStore, tmp_path: Path) -> None:
    def pieces() -> Any:
        yield DATA
        raise ConnectionError

    with pytest.raises(ConnectionError):
        put_pieces(store, pieces())
    assert files_of(tmp_path) == []


def test_bytes_and_name_are_on_the_disk_in_that_order(store: FolderStore, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    fsync, rename = os.fsync, Path.rename

    def record_fsync(handle: int) -> None:
        path = os.readlink(f"/proc/self/fd/{handle}")
        steps.append("folder" if Path(path).is_dir() else "file")
        fsync(handle)

    def record_rename(path: Path, target: Path) -> Path:
        steps.append("rename")
        return rename(path, target)

    put(store, b"makes the folder")
    monkeypatch.setattr(os, "fsync", record_fsync)
    monkeypatch.setattr(Path, "rename", record_rename)
    put(store)
    assert [step for step in steps if step != "folder"] == ["file", "rename"] and steps[-1] == "folder"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_a_refusal_with_a_way_forward(
    store: FolderStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def full(*_: Any) -> None:
        raise OSError(number, "full")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(Refused, match="ask an admin to make room") as refused:
        put(store)
    assert refused.value.code == "full" and files_of(tmp_path) == []


def test_many_contents_are_stored_in_batches(
    store: FolderStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blobs, "BATCH_FILES", 7)
    put(store, b"3")
    with BlobWriter(store) as writer:
        stored = [writer.add([str(number % 20).encode()]) for number in range(40)]
    hashes = {sha256 for sha256, _ in stored}
    assert len(hashes) == 20 and set(store.list()) == hashes
    assert len(files_of(tmp_path)) == 20


def test_a_batch_that_is_given_up_leaves_nothing_behind(store: FolderStore, tmp_path: Path) -> None:
    with pytest.raises(ConnectionError), BlobWriter(store) as writer:
        writer.add([DATA])
        raise ConnectionError
    assert files_of(tmp_path) == []


def test_other_errors_of_the_disk_stay_errors(store: FolderStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OSError, match="broken"):
        put_pieces(store, io.BytesIO(DATA))
