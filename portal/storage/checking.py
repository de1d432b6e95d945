"""Makes a version of what was uploaded: hashes files, unpacks archives, writes the manifest. One version at a time.

1. Hash files that stay as they are. 2. Unpack archives into the store. 3. Write the manifest, which refuses files of the same
path. 4. Move the files of step 1 into the store. 5. Mark the version as ready, and delete what was uploaded.

A check that is interrupted is done again from the beginning; only step 4 takes files away, and a file that is gone then is in
the store. What a refused version has put there is deleted; ``journal`` has it if the check is killed.
"""

import logging
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from hashlib import sha256 as new_sha256
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import IO, Self

from django.db import IntegrityError, connection, transaction
from django.utils import timezone

from portal import sandbox
from portal.projects.unpacking.common import BadUploadError
from portal.refused import Refused
from portal.storage import blobs, incoming, journal, messages, services
from portal.storage.journal import BlobJournal
from portal.storage.manifests import FileEntry, ManifestBuilder, ManifestError, Totals
from portal.storage.models import DatasetVersion, Upload
from portal.storage.unpacking import unpacked
from scheduling.messages import Message, Text

logger = logging.getLogger(__name__)

State = DatasetVersion.State
DEAD_AFTER = timedelta(minutes=3)
"""A check reports every few seconds; after so long its process has ended."""
MAX_CHECKS = 3
SAVE_SECONDS, BEAT_SECONDS = 1.0, 15.0
READ_BYTES = 1 << 20
BATCH = 500
MAX_NOTES = 100


class CheckRefusedError(Exception):
    """The files cannot be a version; the message is for the user."""

    def __init__(self, why: Message) -> None:
        super().__init__(why.code)
        self.why = why


class CheckDiscardedError(Exception):
    """The version was discarded."""


class CheckLostError(Exception):
    """Another process has taken over the check, since this one did not report."""


def run_queued() -> int:
    """Check the versions that wait, one after the other; return how many. Several processes may call it at once."""
    with journal.checks_may_run() as may_run:
        return _run_queued() if may_run else 0


def _run_queued() -> int:
    count = 0
    while (version := _claim()) is not None:
        count += 1
        try:
            with _Progress(version) as progress:
                _check(version, progress)
        except CheckDiscardedError:
            services.remove(version)
        except CheckLostError:
            logger.warning("the check of dataset version %s did not report and was begun again", version.pk)
        except CheckRefusedError as refusal:
            _refuse(version, refusal.why)
        except Refused as refusal:  # the disk is full: what was uploaded stays
            _let_repeat(version, Text(refusal.message))
        except Exception as error:
            logger.exception("the check of dataset version %s failed", version.pk)
            _let_repeat(version, messages.CheckBroke(type(error).__name__))
    return count


def _claim() -> DatasetVersion | None:
    """Claim the version that waits longest; None when there is none or another one is checked."""
    now = timezone.now()
    dead = DatasetVersion.objects.filter(state=State.CHECKING, checked_at__lt=now - DEAD_AFTER)
    for version in dead.exclude(discarded_at=None):
        services.remove(version)
    for version in dead.filter(check_number__gte=MAX_CHECKS):
        _refuse(version, messages.CheckInterrupted(MAX_CHECKS))
    dead.update(state=State.QUEUED)
    following = DatasetVersion.objects.filter(state=State.QUEUED).order_by("pk").first()
    if following is None or DatasetVersion.objects.filter(state=State.CHECKING).exists():
        return None
    rows = DatasetVersion.objects.filter(pk=following.pk, state=State.QUEUED, check_number=following.check_number)
    try:
        with transaction.atomic():  # the constraint lets only one be checked
            claimed = rows.update(
                state=State.CHECKING, check_number=following.check_number + 1, checked_at=now, done_bytes=0
            )
    except IntegrityError:
        return None
    if not claimed:
        return None
    return DatasetVersion.objects.select_related("dataset__owner", "created_by").get(pk=following.pk)


class _Progress:
    """Reports how far a check is. A thread reports as well while the check waits for the unpacker or the disk."""

    def __init__(self, version: DatasetVersion) -> None:
        self._rows = DatasetVersion.objects.filter(
            pk=version.pk, state=State.CHECKING, check_number=version.check_number
        )
        self.done = self.total = 0
        self._saved = time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="dataset check", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _beat(self) -> None:
        try:
            while not self._ended.wait(BEAT_SECONDS):
                self._rows.update(checked_at=timezone.now())
        finally:
            connection.close()

    def count(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the pieces, and count their bytes. Raises CheckDiscardedError and CheckLostError."""
        for piece in pieces:
            self.done += len(piece)
            self.save()
            yield piece

    def save(self, *, now: bool = False) -> None:
        if not now and time.monotonic() - self._saved < SAVE_SECONDS:
            return
        self._saved = time.monotonic()
        if self._rows.filter(discarded_at__isnull=False).exists():
            raise CheckDiscardedError
        if not self._rows.update(done_bytes=self.done, total_bytes=self.total, checked_at=timezone.now()):
            raise CheckLostError


def _check(version: DatasetVersion, progress: _Progress) -> None:
    store = blobs.store()
    uploads = list(version.uploads.all())
    files = [upload for upload in uploads if not upload.unpack]
    progress.total = sum(upload.length for upload in uploads)
    with BlobJournal(store, version.pk) as added:
        try:
            with ManifestBuilder() as builder, store.incoming() as out:
                for upload in files:
                    builder.add(_hash(store, upload, progress))
                notes: list[str] = []
                for upload in uploads:
                    if upload.unpack:
                        notes += _unpack(added, upload, builder, progress)
                totals = builder.write(out)
                _judge(version, totals)
                out.flush()
                progress.save(now=True)
                _move(added, files)
                added.put([(Path(out.name), totals.sha256)])
            _make_ready(version, totals, notes)
        except ManifestError as error:
            added.undo()
            raise CheckRefusedError(messages.BadFiles("", str(error))) from error
        except (CheckRefusedError, CheckDiscardedError):
            added.undo()
            raise
        added.forget()
    for upload in uploads:
        incoming.delete(upload.pk)


def _hash(store: blobs.BlobStore, upload: Upload, progress: _Progress) -> FileEntry:
    """Return the entry of a file that stays as it is. One that an interrupted check moved away is in the store."""
    path = incoming.path_of(upload.pk)
    if not path.exists() and upload.sha256 and store.size(upload.sha256) == upload.length:
        with store.open(upload.sha256) as file:
            return FileEntry(upload.path, upload.length, upload.sha256, file.read(2) == b"#!")
    with _opened(upload) as file:
        digest, head = new_sha256(), file.read(2)
        file.seek(0)
        for piece in progress.count(iter(lambda: file.read(READ_BYTES), b"")):
            digest.update(piece)
    sha256 = digest.hexdigest()
    if upload.expected_sha256 not in ("", sha256):
        raise CheckRefusedError(messages.WrongChecksum(upload.path))
    Upload.objects.filter(pk=upload.pk).update(sha256=sha256)
    upload.sha256 = sha256
    return FileEntry(upload.path, upload.length, sha256, head == b"#!")


def _opened(upload: Upload) -> IO[bytes]:
    """Open the bytes of an upload, which are complete or lost."""
    if upload.length == 0:
        incoming.path_of(upload.pk).touch(blobs.FILE_MODE)  # no piece has made it
    try:
        file = incoming.path_of(upload.pk).open("rb")
    except FileNotFoundError:
        file = None
    if file is None or incoming.offset_of(upload) != upload.length:
        raise CheckRefusedError(messages.LostUpload(upload.path))
    return file


def _unpack(added: BlobJournal, upload: Upload, builder: ManifestBuilder, progress: _Progress) -> list[str]:
    """Put the files of an archive into the store, and their entries into the manifest; return notes."""
    folder, name = PurePosixPath(upload.path).parent, PurePosixPath(upload.path).name
    left = incoming.max_bytes() - progress.done
    with _opened(upload) as archive:
        if upload.expected_sha256:
            _verify(upload, archive)
        incoming.require_space(upload.length)
        try:
            with blobs.BlobWriter(added) as writer, unpacked(archive, name, max(0, left)) as found:
                progress.total += found.total_bytes - upload.length
                for file in found:
                    incoming.require_space(file.size)
                    sha256, size = writer.add(progress.count(file.pieces))
                    builder.add(FileEntry(str(folder / file.path), size, sha256, file.executable))
                return found.notes
        except BadUploadError as error:
            raise CheckRefusedError(messages.BadFiles(upload.path, str(error))) from error
        except sandbox.NoAnswerError as error:
            raise CheckRefusedError(messages.UnpackingStopped(upload.path)) from error


def _verify(upload: Upload, archive: IO[bytes]) -> None:
    digest = new_sha256()
    for piece in iter(lambda: archive.read(READ_BYTES), b""):
        digest.update(piece)
    if digest.hexdigest() != upload.expected_sha256:
        raise CheckRefusedError(messages.WrongChecksum(upload.path))


def _judge(version: DatasetVersion, totals: Totals) -> None:
    """Refuse a content that is there already, or is too much."""
    ready = DatasetVersion.objects.filter(dataset=version.dataset_id, state=State.READY, sha256=totals.sha256)
    if same := ready.first():
        raise CheckRefusedError(messages.SameContent(same.number))
    try:
        incoming.require_size(totals.size)
        sent = sum(version.uploads.values_list("length", flat=True))
        services.require_quota(version.dataset.owner, totals.size - sent)
    except Refused as refusal:
        raise CheckRefusedError(messages.BadFiles("", refusal.message)) from refusal


def _move(added: BlobJournal, files: Sequence[Upload]) -> None:
    left = [(incoming.path_of(upload.pk), upload.sha256) for upload in files]
    left = [each for each in left if each[0].exists()]
    for start in range(0, len(left), BATCH):
        added.put(left[start : start + BATCH])


def _make_ready(version: DatasetVersion, totals: Totals, notes: list[str]) -> None:
    with transaction.atomic():
        rows = DatasetVersion.objects.filter(pk=version.pk, state=State.CHECKING, check_number=version.check_number)
        if rows.filter(discarded_at__isnull=False).exists():
            raise CheckDiscardedError
        if not rows.filter(discarded_at=None).update(
            state=State.READY,
            sha256=totals.sha256,
            manifest_bytes=totals.manifest_bytes,
            files=totals.files,
            size=totals.size,
            notes=notes[:MAX_NOTES],
            ready_at=timezone.now(),
        ):
            raise CheckLostError
        Upload.objects.filter(version=version.pk).delete()


def _refuse(version: DatasetVersion, why: Message) -> None:
    with transaction.atomic():
        rows = DatasetVersion.objects.filter(pk=version.pk, state=State.CHECKING, check_number=version.check_number)
        if not rows.update(state=State.REFUSED, refusal=why.data()):
            return
        uploads = Upload.objects.filter(version=version.pk)
        sent = list(uploads.values_list("pk", flat=True))
        uploads.delete()
    for upload in sent:
        incoming.delete(upload)


def _let_repeat(version: DatasetVersion, why: Message) -> None:
    """Keep what was uploaded: the person finishes the version again when the reason is gone."""
    rows = DatasetVersion.objects.filter(pk=version.pk, state=State.CHECKING, check_number=version.check_number)
    rows.update(state=State.UPLOADING, refusal=why.data())
