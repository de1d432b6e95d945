"""A version is made of what was uploaded, whole or not at all, whatever happens meanwhile."""

import hashlib
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from portal.accounts.models import User
from portal.storage import blobs, checking, collecting, contents, incoming, services
from portal.storage.models import UPLOAD_LIFE, Dataset, DatasetVersion, Upload
from tests.portal.storage_world import Uploader, tar_of, uploaded, zip_of

pytestmark = [pytest.mark.django_db, pytest.mark.both_databases]
State = DatasetVersion.State


def paths(version: DatasetVersion) -> list[str]:
    with contents.manifest_of(version) as manifest:
        return [entry.path for entry in manifest]


def content(version: DatasetVersion, path: str) -> bytes:
    entry = contents.find(version, path)
    assert entry is not None
    return b"".join(contents.stored_file(entry).pieces())


def blob_count() -> int:
    return len(list(blobs.store().list()))


def waiting(sender: Uploader, files: dict[str, bytes]) -> DatasetVersion:
    for path, data in files.items():
        sender.file(path, data)
    return services.finish(sender.user, sender.version)


def test_files_become_a_version(alice: User, dataset: Dataset, own_home: Path) -> None:
    version = uploaded(alice, dataset, {"b/data.csv": b"a,b\n1,2\n", "a.sh": b"#!/bin/sh\n", "empty": b""})
    assert (version.state, version.files, version.size, version.refusal) == (State.READY, 3, 18, "")
    assert paths(version) == ["a.sh", "b/data.csv", "empty"]
    assert content(version, "b/data.csv") == b"a,b\n1,2\n" and content(version, "empty") == b""
    entry = contents.find(version, "a.sh")
    assert entry is not None and entry.executable and entry.sha256 == hashlib.sha256(b"#!/bin/sh\n").hexdigest()
    assert not Upload.objects.exists() and list((own_home / "datasets" / "incoming").iterdir()) == []
    assert blob_count() == 4, "three files and the manifest"


def test_equal_files_of_versions_are_stored_once(alice: User, dataset: Dataset) -> None:
    uploaded(alice, dataset, {"a": b"same", "b": b"same", "c": b"old"})
    assert blob_count() == 3
    second = uploaded(alice, dataset, {"a": b"same", "c": b"new"})
    assert second.state == State.READY and second.number == 2 and blob_count() == 5


def test_equal_content_makes_no_version(alice: User, dataset: Dataset) -> None:
    uploaded(alice, dataset, {"a": b"1"})
    same = uploaded(alice, dataset, {"a": b"1"})
    assert same.state == State.REFUSED and "exactly the files of version 1" in same.why_refused
    assert blob_count() == 2 and not Upload.objects.exists()


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("x_zip", zip_of(train__1_txt=b"one", test__2_txt=b"two")),
        ("x_tar", tar_of({"train/1.txt": b"one", "test/2.txt": b"two"}, "w")),
        ("x_tar_gz", tar_of({"train/1.txt": b"one", "test/2.txt": b"two"}, "w:gz")),
        ("x_tbz2", tar_of({"train/1.txt": b"one", "test/2.txt": b"two"}, "w:bz2")),
        ("x_tar_xz", tar_of({"train/1.txt": b"one", "test/2.txt": b"two"}, "w:xz")),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_archive_is_unpacked_on_request(alice: User, dataset: Dataset, name: str, data: bytes) -> None:
    version = uploaded(alice, dataset, {}, **{name: data})
    assert version.why_refused == "" and paths(version) == ["test/2.txt", "train/1.txt"]
    assert content(version, "train/1.txt") == b"one"
    assert version.done_bytes == version.total_bytes == 6


def test_an_archive_stays_one_file_unless_it_is_to_be_unpacked(alice: User, dataset: Dataset) -> None:
    data = zip_of(a_txt=b"one")
    assert content(uploaded(alice, dataset, {"x.zip": data}), "x.zip") == data


def test_an_archive_is_unpacked_into_its_folder(sender: Uploader) -> None:
    sender.file("images/a.zip", zip_of(one_txt=b"1"), unpack="true")
    sender.file("images/two.txt", b"2")
    services.finish(sender.user, sender.version)
    assert checking.run_queued() == 1
    sender.version.refresh_from_db()
    assert paths(sender.version) == ["images/one.txt", "images/two.txt"]


def test_what_unpacking_leaves_out_is_noted(alice: User, dataset: Dataset) -> None:
    version = uploaded(alice, dataset, {}, x_tar=tar_of({"a.txt": b"1", "d/.DS_Store": b"2", ".git/config": b"3"}, "w"))
    assert paths(version) == ["a.txt"]
    assert any("no run needs" in note for note in version.notes)


def test_files_that_contradict_each_other_are_refused_and_leave_nothing(alice: User, dataset: Dataset) -> None:
    twice = uploaded(alice, dataset, {"a.txt": b"1"}, x_zip=zip_of(a_txt=b"2", b_txt=b"3"))
    assert twice.state == State.REFUSED and "“a.txt” is in it twice" in twice.why_refused
    assert blob_count() == 0
    both = uploaded(alice, dataset, {"a": b"1", "a/b": b"2"})
    assert "both a file and a folder" in both.why_refused and blob_count() == 0


def test_a_refusal_keeps_contents_that_others_have(alice: User, dataset: Dataset) -> None:
    first = uploaded(alice, dataset, {"a": b"shared"})
    uploaded(alice, dataset, {"x": b"1", "x/y": b"2"}, z_zip=zip_of(b_txt=b"shared", c_txt=b"new"))
    assert content(first, "a") == b"shared" and blob_count() == 2


def test_a_wrong_checksum_is_refused(sender: Uploader) -> None:
    sender.file("good", b"1", sha256=hashlib.sha256(b"1").hexdigest())
    sender.file("bad.zip", zip_of(a=b"1"), unpack="true", sha256=hashlib.sha256(b"2").hexdigest())
    services.finish(sender.user, sender.version)
    checking.run_queued()
    sender.version.refresh_from_db()
    assert "“bad.zip” does not have the SHA-256" in sender.version.why_refused
    assert blob_count() == 0 and not Upload.objects.exists()


def test_bytes_that_are_lost_are_a_refusal(sender: Uploader) -> None:
    waiting(sender, {"a": b"123"})
    os.truncate(incoming.path_of(Upload.objects.get().pk), 1)
    checking.run_queued()
    sender.version.refresh_from_db()
    assert "no longer on the disk" in sender.version.why_refused


def test_a_version_is_too_large_when_unpacked(alice: User, dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    data = zip_of(a_txt=b"0" * 3000, b_txt=b"1" * 3000)
    monkeypatch.setattr(incoming, "max_bytes", lambda: 5000)
    version = uploaded(alice, dataset, {}, x_zip=data)
    assert version.state == State.REFUSED and "It unpacks to more than" in version.why_refused
    assert blob_count() == 0


class KilledError(BaseException):
    """Stands for kill -9: no handler of the check runs."""


@pytest.mark.parametrize("step", ["_unpack", "_judge", "_move", "_make_ready"])
def test_a_check_that_is_killed_is_done_again(sender: Uploader, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    sender.file("x.zip", zip_of(b_txt=b"2"), unpack="true")
    waiting(sender, {"a.txt": b"1"})

    def die(*args: Any) -> None:
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(checking, step, die)
        with pytest.raises(KilledError):
            checking.run_queued()
    assert checking.run_queued() == 0, "it may still run elsewhere"
    DatasetVersion.objects.update(checked_at=timezone.now() - checking.DEAD_AFTER * 2)
    assert checking.run_queued() == 1
    sender.version.refresh_from_db()
    assert sender.version.why_refused == "" and paths(sender.version) == ["a.txt", "b.txt"]
    assert not Upload.objects.exists() and blob_count() == 3


def test_a_check_that_is_always_killed_is_given_up(sender: Uploader, monkeypatch: pytest.MonkeyPatch) -> None:
    version = waiting(sender, {"a": b"1"})

    def die(*args: Any) -> None:
        raise KilledError

    monkeypatch.setattr(checking, "_check", die)
    for _ in range(checking.MAX_CHECKS):
        with pytest.raises(KilledError):
            checking.run_queued()
        DatasetVersion.objects.update(checked_at=timezone.now() - checking.DEAD_AFTER * 2)
    assert checking.run_queued() == 0
    version.refresh_from_db()
    assert version.state == State.REFUSED and "interrupted 3 times" in version.why_refused


def test_a_full_disk_keeps_what_was_uploaded(sender: Uploader, monkeypatch: pytest.MonkeyPatch) -> None:
    version = waiting(sender, {"a": b"1"})

    def full(handle: int) -> None:
        raise OSError(28, "full")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        checking.run_queued()
    version.refresh_from_db()
    assert version.state == State.UPLOADING and "ask an admin to make room" in version.why_refused
    services.finish(sender.user, version)
    checking.run_queued()
    version.refresh_from_db()
    assert version.state == State.READY and version.why_refused == ""


def test_an_error_of_ours_keeps_what_was_uploaded(sender: Uploader, monkeypatch: pytest.MonkeyPatch) -> None:
    version = waiting(sender, {"a": b"1"})

    def broken(*args: Any) -> None:
        raise RuntimeError

    monkeypatch.setattr(checking, "_judge", broken)
    checking.run_queued()
    version.refresh_from_db()
    assert version.state == State.UPLOADING and "RuntimeError" in version.why_refused and Upload.objects.exists()


def test_a_version_that_is_discarded_during_its_check_leaves_nothing(
    sender: Uploader, monkeypatch: pytest.MonkeyPatch, own_home: Path
) -> None:
    sender.file("x.zip", zip_of(b_txt=b"2"), unpack="true")
    version = waiting(sender, {"a": b"1"})
    judge = checking._judge

    def discard(*args: Any) -> None:
        judge(*args)
        services.discard(sender.user, version)

    monkeypatch.setattr(checking, "_judge", discard)
    checking.run_queued()
    assert not DatasetVersion.objects.exists() and not Upload.objects.exists() and blob_count() == 0
    assert list((own_home / "datasets" / "incoming").iterdir()) == []


def test_a_check_that_another_process_took_over_stops(sender: Uploader, monkeypatch: pytest.MonkeyPatch) -> None:
    version = waiting(sender, {"a": b"1"})
    judge = checking._judge

    def take_over(*args: Any) -> None:
        judge(*args)
        DatasetVersion.objects.update(check_number=7)

    monkeypatch.setattr(checking, "_judge", take_over)
    checking.run_queued()
    version.refresh_from_db()
    assert version.state == State.CHECKING and Upload.objects.exists()


def test_one_version_is_checked_at_a_time(alice: User, dataset: Dataset, sender: Uploader) -> None:
    waiting(sender, {"a": b"1"})
    DatasetVersion.objects.update(state=State.CHECKING, checked_at=timezone.now())
    other = Uploader(alice, services.begin_version(alice, dataset))
    waiting(other, {"a": b"2"})
    assert checking.run_queued() == 0


def test_what_is_not_continued_is_deleted_after_a_week(alice: User, dataset: Dataset, sender: Uploader) -> None:
    sender.file("old", b"1")
    sender.create("new", 5)
    old = Upload.objects.get(path="old")
    Upload.objects.filter(pk=old.pk).update(progressed_at=timezone.now() - UPLOAD_LIFE - timedelta(minutes=1))
    orphan = incoming.path_of(old.pk).with_name("01234567-0123-4123-8123-0123456789ab.upload")
    orphan.write_bytes(b"x")
    os.utime(orphan, (1, 1))
    collecting.delete_old()
    assert [row.path for row in Upload.objects.all()] == ["new"]
    assert not incoming.path_of(old.pk).exists() and not orphan.exists()
    assert DatasetVersion.objects.count() == 1
    Upload.objects.all().delete()
    ready = uploaded(alice, dataset, {"a": b"1"})
    DatasetVersion.objects.update(created_at=timezone.now() - UPLOAD_LIFE * 2)
    collecting.delete_old()
    assert list(DatasetVersion.objects.all()) == [ready]
