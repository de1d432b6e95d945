"""Uploads of files into a version that is not finished: created, continued and deleted by the person who sends them."""

import re
import uuid
from dataclasses import dataclass

from django.db import transaction
from django.db.models import Sum

from portal.accounts.models import User
from portal.projects.unpacking.common import BadUploadError
from portal.projects.unpacking.names import clean_path
from portal.refused import Refused
from portal.storage import incoming, services
from portal.storage.models import MAX_PATH_CHARACTERS, DatasetVersion, Upload

MAX_UPLOADS = 20_000
"""Files of one version that are sent one by one."""
ARCHIVE_ENDINGS = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tbz", ".tar.xz", ".txz")
SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)


@dataclass(frozen=True, slots=True)
class NewUpload:
    """What the sender announces: where the file goes in the dataset, its length in bytes, and perhaps its SHA-256."""

    path: str
    length: int
    unpack: bool = False
    sha256: str = ""


def create(user: User, version: DatasetVersion, asked: NewUpload) -> Upload:
    """Begin an upload into a version of the user's, or of a dataset that the user manages."""
    path = _checked_path(asked)
    if asked.sha256 and not SHA256.fullmatch(asked.sha256):
        raise Refused("A SHA-256 is 64 hexadecimal digits, in lower case.", field="sha256")
    incoming.require_size(asked.length)
    incoming.require_room(asked.length)
    with transaction.atomic():
        dataset = services.locked(version.dataset)
        row = DatasetVersion.objects.filter(pk=version.pk, state=DatasetVersion.State.UPLOADING).first()
        if row is None:
            raise Refused("This version takes no more files. Begin a new one.", "conflict")
        services.require_writer(user, dataset)
        services.require_maker(user, row, dataset)
        if Upload.objects.filter(version=row, path=path).exists():
            raise Refused(
                f"“{path}” is in this version already. Continue its upload, or delete that first.", "conflict"
            )
        if row.uploads.count() >= MAX_UPLOADS:
            raise Refused(
                f"At most {MAX_UPLOADS:,} files can be sent one by one. Pack them, and let the portal unpack them.",
                "conflict",
            )
        incoming.require_size((row.uploads.aggregate(all=Sum("length"))["all"] or 0) + asked.length)
        services.require_quota(dataset.owner, asked.length)
        return Upload.objects.create(
            version=row,
            owner=user,
            path=path,
            unpack=asked.unpack,
            length=asked.length,
            expected_sha256=asked.sha256,
        )


def _checked_path(asked: NewUpload) -> str:
    try:
        path = clean_path(asked.path)
    except BadUploadError as error:
        raise Refused(str(error), field="path") from error
    if not path or asked.path.endswith("/") or len(path) > MAX_PATH_CHARACTERS:
        raise Refused("Send the path of the file in the dataset, such as images/1.png.", field="path")
    if asked.unpack and not path.lower().endswith(ARCHIVE_ENDINGS):
        raise Refused(
            f"“{path}” cannot be unpacked. Archives are {', '.join(ARCHIVE_ENDINGS[:-1])} and {ARCHIVE_ENDINGS[-1]}.",
            field="unpack",
        )
    return path


def require_sender(user: User, upload: Upload) -> None:
    """Refuse who may no longer add to the dataset: the project has removed them, or the dataset is archived."""
    services.require_writer(user, upload.version.dataset)


def delete(upload: uuid.UUID) -> None:
    """Delete an upload of a version that is not finished, with its bytes."""
    rows = Upload.objects.filter(pk=upload, version__state=DatasetVersion.State.UPLOADING)
    if not rows.delete()[0] and Upload.objects.filter(pk=upload).exists():
        raise Refused("This version is being checked. Discard the version instead.", "conflict")
    incoming.delete(upload)
