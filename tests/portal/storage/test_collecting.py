"""Blobs that a killed check has stored are deleted, and never one that a version names."""

import os
import time
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from portal.accounts.models import User
from portal.storage import blobs, checking, collecting, journal, services
from portal.storage.models import Dataset, DatasetVersion
from tests.portal.storage_world import Uploader, uploaded, zip_of

pytestmark = [pytest.mark.django_db, pytest.mark.both_databases]
State = DatasetVersion.State


class KilledError(BaseException):
    """Stands for kill -9: no handler of the check runs."""


def killed(sender: Uploader, monkeypatch: pytest.MonkeyPatch, files: dict[str, bytes]) -> DatasetVersion:
    """Return a version whose check is killed when its blobs are stored."""

    def die(*args: Any) -> None:
        raise KilledError

    for path, data in files.items():
        sender.file(path, data)
    sender.file("x.zip", zip_of(from_zip=b"in the archive"), unpack="true")
    services.finish(sender.user, sender.version)
    with monkeypatch.context() as patch, pytest.raises(KilledError):
        patch.setattr(checking, "_make_ready", die)
        checking.run_queued()
    return sender.version


def age_journals() -> None:
    before = time.time() - collecting.ORPHAN_SECONDS - 60
    for path in journal.folder().iterdir():
        os.utime(path, (before, before))


def give_up() -> None:
    stale = timezone.now() - checking.DEAD_AFTER - timedelta(minutes=1)
    checks = DatasetVersion.objects.filter(state=State.CHECKING)
    checks.update(checked_at=stale, check_number=checking.MAX_CHECKS)
    assert checking.run_queued() == 0


def blob_count() -> int:
    return len(list(blobs.store().list()))


def test_a_check_that_ends_leaves_no_journal(alice: User, dataset: Dataset) -> None:
    uploaded(alice, dataset, {"a": b"1"})
    uploaded(alice, dataset, {"x": b"1", "x/y": b"2"}, z_zip=zip_of(b_txt=b"new"))
    assert list(journal.folder().iterdir()) == [] and blob_count() == 2


def test_blobs_of_a_killed_check_are_deleted_after_a_day(
    alice: User, dataset: Dataset, sender: Uploader, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed(sender, monkeypatch, {"a": b"1", "shared": b"shared"})
    assert blob_count() == 4, "two files, one of the archive, and the manifest"
    age_journals()
    assert collecting.delete_blobs_of_killed_checks() == 0, "the check may be done again"
    give_up()
    other = uploaded(alice, dataset, {"other": b"shared"})
    assert other.state == State.READY and blob_count() == 5
    assert collecting.delete_blobs_of_killed_checks() == 3
    assert blob_count() == 2 and list(journal.folder().iterdir()) == []
    with blobs.store().open(other.sha256) as manifest:
        named = manifest.read(64).decode()
    assert blobs.store().size(named) == 6


def test_a_young_journal_stays(sender: Uploader, monkeypatch: pytest.MonkeyPatch) -> None:
    killed(sender, monkeypatch, {"a": b"1"})
    give_up()
    assert collecting.delete_blobs_of_killed_checks() == 0 and blob_count() == 3


def test_a_version_that_became_ready_later_keeps_all(sender: Uploader, monkeypatch: pytest.MonkeyPatch) -> None:
    version = killed(sender, monkeypatch, {"a": b"1"})
    DatasetVersion.objects.update(checked_at=timezone.now() - checking.DEAD_AFTER * 2)
    assert checking.run_queued() == 1
    version.refresh_from_db()
    age_journals()
    assert version.state == State.READY and collecting.delete_blobs_of_killed_checks() == 0
    assert blob_count() == 3 and list(journal.folder().iterdir()) == []


def test_many_blobs_are_compared_in_parts(sender: Uploader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collecting, "BATCH_BLOBS", 2)
    killed(sender, monkeypatch, {f"{number}": f"{number}".encode() for number in range(7)})
    give_up()
    age_journals()
    assert collecting.delete_blobs_of_killed_checks() == 9 and blob_count() == 0


def test_checks_and_the_collection_exclude_each_other(sender: Uploader, monkeypatch: pytest.MonkeyPatch) -> None:
    killed(sender, monkeypatch, {"a": b"1"})
    give_up()
    age_journals()
    with journal.checks_may_run() as first, journal.checks_may_run() as second:
        assert first and second
        assert collecting.delete_blobs_of_killed_checks() == 0
    with journal.no_check_runs() as alone:
        assert alone and checking.run_queued() == 0
        with journal.checks_may_run() as may_run:
            assert not may_run
    assert collecting.delete_blobs_of_killed_checks() == 3


def test_a_hash_is_noted_before_its_blob_is_stored(own_home: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    store = blobs.store()
    noted: list[list[str]] = []

    def killed_put(files: Any) -> None:
        noted.extend(path.read_text().split() for path in journal.folder().iterdir())
        raise KilledError

    monkeypatch.setattr(store, "put", killed_put)
    with pytest.raises(KilledError), journal.BlobJournal(store, 1) as added, blobs.BlobWriter(added) as writer:
        sha256, _ = writer.add([b"data"])
    assert noted == [[sha256]]
