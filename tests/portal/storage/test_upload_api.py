"""Resumable uploads: what tus asks for, and what a hostile or unlucky sender gets."""

import fcntl
import os
import shutil
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import connection
from rest_framework.test import APIClient

from portal.accounts.models import User
from portal.projects.models import Membership
from portal.storage import incoming, services, uploads
from portal.storage.models import DatasetVersion, Upload
from tests.portal.api_client import Script
from tests.portal.jobs_world import make_user
from tests.portal.storage_world import PIECE_TYPE, Uploader, checksum, encoded, shared_dataset

pytestmark = [pytest.mark.django_db, pytest.mark.both_databases]
DATA = bytes(range(256)) * 20


def message_of(response: Any) -> str:
    return str(response.json()["error"]["message"])


def stored(address: str) -> bytes:
    return incoming.path_of(uuid.UUID(address.rstrip("/").rpartition("/")[2])).read_bytes()


def test_a_file_arrives_in_pieces_and_continues_after_a_break(sender: Uploader) -> None:
    created = sender.create("images/1.png", len(DATA))
    address = created["Location"]
    assert created.status_code == 201 and created["Upload-Offset"] == "0" and created["Tus-Resumable"] == "1.0.0"
    assert sender.offset(address) == 0
    first = sender.send(address, 0, DATA[:3000])
    assert first.status_code == 204 and first["Upload-Offset"] == "3000"
    assert sender.offset(address) == 3000
    head = sender.client.head(address, headers={"Tus-Resumable": "1.0.0"})
    assert head["Upload-Length"] == str(len(DATA)) and head["Cache-Control"] == "no-store" and head["Upload-Expires"]
    assert sender.send(address, 3000, DATA[3000:]).status_code == 204
    assert stored(address) == DATA
    row = Upload.objects.get()
    assert row.is_complete and (row.path, row.unpack) == ("images/1.png", False)


def test_the_first_piece_may_come_with_the_creation(sender: Uploader) -> None:
    created = sender.create("a.txt", 5, b"hello", headers={"Upload-Checksum": checksum(b"hello", "sha1")})
    assert created.status_code == 201 and created["Upload-Offset"] == "5"
    assert stored(created["Location"]) == b"hello"


def test_an_empty_file_is_complete_at_once(sender: Uploader) -> None:
    assert sender.create("empty", 0).status_code == 201
    assert Upload.objects.get().is_complete


def test_the_server_states_what_it_can_do(sender: Uploader) -> None:
    response = sender.client.options(sender.create("a", 1)["Location"])
    assert response.status_code == 204 and response["Tus-Version"] == "1.0.0"
    assert set(response["Tus-Extension"].split(",")) >= {"creation", "termination", "checksum", "expiration"}
    assert set(response["Tus-Checksum-Algorithm"].split(",")) == {"sha1", "sha256"}


def test_a_piece_at_another_offset_is_refused(sender: Uploader) -> None:
    address = sender.file("a", DATA[:1000])
    Upload.objects.update(length=5000)
    for offset in (0, 999, 1001):
        response = sender.send(address, offset, DATA[:10])
        assert response.status_code == 409 and "byte 1000" in message_of(response)
    assert stored(address) == DATA[:1000]


def test_requests_that_are_not_tus_are_refused(sender: Uploader) -> None:
    address = sender.create("a", 100)["Location"]
    assert sender.send(address, 0, b"x", "application/octet-stream").status_code == 415
    assert sender.send(address, 0, b"x", Tus_Resumable="0.2.2").status_code == 412
    assert sender.client.patch(address, b"x", content_type=PIECE_TYPE).status_code == 412
    assert sender.send(address, 0, b"x", Upload_Offset="-1").status_code == 400
    assert sender.send(address, 0, b"x", Upload_Offset="").status_code == 400
    assert sender.send(address, 0, b"x", Upload_Checksum="md5 aaaa").status_code == 400
    assert sender.send(address, 0, b"x", Upload_Checksum="sha256 ???").status_code == 400
    assert sender.offset(address) == 0


def test_a_piece_with_a_wrong_checksum_leaves_nothing(sender: Uploader) -> None:
    address = sender.create("a", 3000)["Location"]
    assert sender.send(address, 0, DATA[:1000], Upload_Checksum=checksum(DATA[:1000])).status_code == 204
    wrong = sender.send(address, 1000, DATA[:1000], Upload_Checksum=checksum(b"other"))
    assert wrong.status_code == 460 and wrong.json()["error"]["code"] == "checksum_mismatch"
    assert sender.offset(address) == 1000 and stored(address) == DATA[:1000]
    assert sender.send(address, 1000, DATA[1000:3000], Upload_Checksum=checksum(DATA[1000:3000])).status_code == 204


def test_a_piece_must_fit_into_the_upload_and_into_a_request(sender: Uploader, monkeypatch: pytest.MonkeyPatch) -> None:
    address = sender.create("a", 1000)["Location"]
    beyond = sender.send(address, 0, DATA[:1001])
    assert beyond.status_code == 413 and "1,000 bytes" in message_of(beyond)
    monkeypatch.setattr(incoming, "MAX_PIECE_BYTES", 500)
    assert sender.send(address, 0, DATA[:501]).status_code == 413
    assert sender.offset(address) == 0


def test_what_is_announced_is_judged_first(sender: Uploader) -> None:
    for path in ("../a", "/etc/passwd", "C:/a", "", ".", "a/", "a" * 300, "/".join(["a" * 100] * 11)):
        response = sender.create(path, 1)
        assert response.status_code == 400 and response.json()["error"]["fields"].keys() == {"path"}, path
    assert sender.create("a\u202eb\n.txt", 1).json()["path"] == "a_b_.txt"
    assert sender.create("a", 1, sha256="A" * 64).json()["error"]["fields"].keys() == {"sha256"}
    assert sender.create("a.csv", 1, unpack="true").json()["error"]["fields"].keys() == {"unpack"}
    assert sender.create("a", 1, unpack="yes").status_code == 400
    assert sender.create("a", 1, filename="a").status_code == 400
    assert sender.create("a", 1, headers={"Upload-Length": "many"}).status_code == 400
    assert sender.create("a", 1, headers={"Upload-Metadata": "path ???"}).status_code == 400
    assert sender.create("a", 1, headers={"Upload-Metadata": "path /w=="}).status_code == 400
    assert (
        sender.create("a", 1, headers={"Upload-Metadata": f"{encoded(path='a')},{encoded(path='b')}"}).status_code
        == 400
    )
    assert [row.path for row in Upload.objects.all()] == ["a_b_.txt"]


def test_a_path_is_sent_once(sender: Uploader) -> None:
    sender.create("a", 1)
    again = sender.create("a", 1)
    assert again.status_code == 409 and "Continue its upload" in message_of(again)


def test_the_number_and_size_of_files_are_limited(
    sender: Uploader, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.MAX_DATASET_GIB = 3
    monkeypatch.setattr(incoming, "require_space", lambda more: None)
    assert sender.create("a", 2 << 30).status_code == 201
    too_large = sender.create("b", (1 << 30) + 1)
    assert too_large.status_code == 413 and "at most 3 GiB" in message_of(too_large)
    settings.DATASETS_QUOTA_GIB = 2
    too_much = sender.create("b", 1)
    assert too_much.status_code == 413 and "more than 2 GiB" in message_of(too_much)
    settings.DATASETS_QUOTA_GIB = 0
    monkeypatch.setattr(uploads, "MAX_UPLOADS", 1)
    assert sender.create("b", 1).status_code == 409


def test_a_full_disk_is_noticed_before_and_during_an_upload(sender: Uploader, monkeypatch: pytest.MonkeyPatch) -> None:
    address = sender.create("a", 1000)["Location"]

    def leave(free: int) -> None:
        monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=free))

    leave(incoming.MARGIN_BYTES + 1500)
    assert sender.create("b", 501).status_code == 507, "the first upload needs the rest"
    assert sender.create("b", 500).status_code == 201
    leave(incoming.MARGIN_BYTES + 99)
    full = sender.send(address, 0, DATA[:100])
    assert full.status_code == 507 and "ask an admin to make room" in message_of(full)
    leave(incoming.MARGIN_BYTES + 100)
    assert sender.send(address, 0, DATA[:100]).status_code == 204


def test_a_disk_that_fills_up_within_a_piece(sender: Uploader, monkeypatch: pytest.MonkeyPatch) -> None:
    address = sender.file("a", DATA[:1000])
    Upload.objects.update(length=3000)

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        assert sender.send(address, 1000, DATA[:1000]).status_code == 507
    assert sender.offset(address) == 1000
    assert sender.send(address, 1000, DATA[1000:3000]).status_code == 204
    assert stored(address) == DATA[:3000]


def test_a_process_that_is_killed_within_a_piece_costs_that_piece(sender: Uploader) -> None:
    address = sender.file("a", DATA[:1000])
    Upload.objects.update(length=4000)
    with incoming.path_of(Upload.objects.get().pk).open("ab") as file:
        file.write(b"half a piece, which no row counts")
    assert sender.offset(address) == 1000
    assert sender.send(address, 1000, DATA[1000:1010]).status_code == 204
    assert stored(address) == DATA[:1010]


def test_a_file_that_is_lost_is_sent_again_from_what_is_left(sender: Uploader) -> None:
    address = sender.file("a", DATA[:2000])
    path = incoming.path_of(Upload.objects.get().pk)
    os.truncate(path, 500)
    assert sender.offset(address) == 500
    assert sender.send(address, 500, DATA[500:1000]).status_code == 204
    path.unlink()
    assert sender.offset(address) == 0
    assert sender.send(address, 0, DATA[:2000]).status_code == 204 and stored(address) == DATA[:2000]


@contextmanager
def held(path: Path) -> Iterator[None]:
    handle = os.open(path, os.O_RDWR)
    fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(handle)


def test_one_piece_at_a_time(sender: Uploader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incoming, "LOCK_SECONDS", 0.0)
    address = sender.file("a", DATA[:1000])
    Upload.objects.update(length=3000)
    with held(incoming.path_of(Upload.objects.get().pk)):
        busy = sender.send(address, 1000, DATA[:10])
    assert busy.status_code == 423 and "Try again" in message_of(busy)
    assert sender.send(address, 1000, DATA[1000:3000]).status_code == 204


@pytest.mark.django_db(transaction=True)
def test_of_two_pieces_for_the_same_offset_one_is_taken(sender: Uploader) -> None:
    address = sender.create("a", 2000)["Location"]
    others = [Uploader(sender.user, sender.version) for _ in range(2)]
    start, codes = threading.Barrier(2), []

    def send(uploader: Uploader, data: bytes) -> None:
        try:
            start.wait(10)
            codes.append(uploader.send(address, 0, data).status_code)
        finally:
            connection.close()

    threads = [
        threading.Thread(target=send, args=(each, mark * 1000)) for each, mark in zip(others, (b"a", b"b"), strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(codes) == [204, 409]
    assert stored(address) in (b"a" * 1000, b"b" * 1000) and sender.offset(address) == 1000


def test_an_upload_is_deleted_with_its_bytes(sender: Uploader) -> None:
    address = sender.file("a", DATA)
    path = incoming.path_of(Upload.objects.get().pk)
    gone = sender.client.delete(address, headers={"Tus-Resumable": "1.0.0"})
    assert gone.status_code == 204 and not path.exists()
    assert sender.client.head(address, headers={"Tus-Resumable": "1.0.0"}).status_code == 404
    assert sender.send(address, 0, b"x").status_code == 404 and not path.exists()


def test_a_piece_for_an_upload_that_is_deleted_meanwhile(sender: Uploader, monkeypatch: pytest.MonkeyPatch) -> None:
    sender.create("a", 1000)
    upload = Upload.objects.get()
    write = incoming._write

    def delete_meanwhile(*args: Any) -> None:
        write(*args)
        Upload.objects.all().delete()

    monkeypatch.setattr(incoming, "_write", delete_meanwhile)
    assert sender.send(f"/api/v1/uploads/{upload.pk}/", 0, DATA[:10]).status_code == 404
    assert not incoming.path_of(upload.pk).exists()


def test_a_finished_version_takes_no_more(sender: Uploader) -> None:
    address = sender.file("a", DATA)
    services.finish(sender.user, sender.version)
    assert sender.create("b", 1).status_code == 409
    for response in (
        sender.send(address, len(DATA), b""),
        sender.client.delete(address, headers={"Tus-Resumable": "1.0.0"}),
    ):
        assert response.status_code == 404


def test_only_the_sender_knows_an_upload(sender: Uploader) -> None:
    address = sender.create("a", 10)["Location"]
    for user in (make_user("charlie"), make_user("ada", is_staff=True)):
        other = Uploader(user, sender.version)
        assert other.client.get(address).status_code == 404
        assert other.send(address, 0, b"x").status_code == 404
        assert other.client.delete(address, headers={"Tus-Resumable": "1.0.0"}).status_code == 404
    assert APIClient().get(address).status_code == 401
    reader = Script(sender.user, scope="read")
    assert reader.get(address).status_code == 200
    assert reader.generic("PATCH", address, b"x", PIECE_TYPE).status_code == 403


def test_who_sends_by_a_session_needs_the_token_against_forgery(sender: Uploader) -> None:
    address = sender.create("a", 10)["Location"]
    browser = APIClient(enforce_csrf_checks=True)
    browser.force_login(sender.user)
    headers = {"Tus-Resumable": "1.0.0", "Upload-Offset": "0"}
    assert browser.generic("PATCH", address, "x", PIECE_TYPE, headers=headers).status_code == 403
    browser.get("/")
    token = browser.cookies["csrftoken"].value
    sent = browser.generic("PATCH", address, "x", PIECE_TYPE, headers={**headers, "X-CSRFToken": token})
    assert sent.status_code == 204


def test_members_of_the_project_send_until_they_are_removed(alice: User) -> None:
    dataset = shared_dataset(alice, bob="member", victor="viewer")
    bob, victor, charlie = (User.objects.get(username="bob"), User.objects.get(username="victor"), make_user("charlie"))
    version = services.begin_version(bob, dataset)
    sender = Uploader(bob, version)
    address = sender.create("a", 10)["Location"]
    assert sender.send(address, 0, b"12345").status_code == 204
    assert Uploader(victor, version).create("b", 1).status_code == 404, "what is not ready is seen by who makes it"
    assert Uploader(charlie, version).create("b", 1).status_code == 404
    assert Uploader(alice, version).create("b", 1).status_code == 201, "she owns the dataset"
    Membership.objects.filter(user=bob).delete()
    refused = sender.send(address, 5, b"67890")
    assert refused.status_code == 403 and "may add versions" in message_of(refused)
    assert sender.create("c", 1).status_code == 404
    assert DatasetVersion.objects.visible_to(bob).count() == 0
