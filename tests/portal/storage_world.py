"""Datasets for tests, and a client that uploads to them as tus-js-client does."""

import base64
import hashlib
import io
import tarfile
import zipfile
from collections.abc import Mapping
from typing import Any

from portal.accounts.models import User
from portal.projects.models import Membership, Project
from portal.storage import checking, services
from portal.storage.models import Dataset, DatasetVersion
from tests.portal.api_client import Script
from tests.portal.jobs_world import make_project, make_user

PIECE_TYPE = "application/offset+octet-stream"


def make_dataset(owner: User, name: str = "mnist", **values: Any) -> Dataset:
    return services.create(owner, {"name": name, **values})


def shared_dataset(owner: User, **roles: str) -> Dataset:
    """Return a dataset of a project with members: ``shared_dataset(alice, bob="member", victor="viewer")``."""
    project: Project = make_project(owner)
    for name, role in roles.items():
        Membership.objects.create(project=project, user=make_user(name), role=role)
    return make_dataset(owner, project=project, visibility=Dataset.Visibility.PROJECT)


def encoded(**metadata: str) -> str:
    return ",".join(f"{key} {base64.b64encode(value.encode()).decode()}" for key, value in metadata.items())


def checksum(data: bytes, algorithm: str = "sha256") -> str:
    return f"{algorithm} {base64.b64encode(hashlib.new(algorithm, data).digest()).decode()}"


class Uploader:
    """Sends files to a version, piece by piece."""

    def __init__(self, user: User, version: DatasetVersion) -> None:
        self.user, self.version, self.client = user, version, Script(user)

    def create(self, path: str, length: int, body: bytes = b"", headers: Mapping[str, str] = {}, **about: str) -> Any:
        address = f"/api/v1/datasets/{self.version.dataset_id}/versions/{self.version.number}/uploads/"
        sent = {"Tus-Resumable": "1.0.0", "Upload-Length": str(length), "Upload-Metadata": encoded(path=path, **about)}
        return self.client.generic("POST", address, body, PIECE_TYPE, headers={**sent, **headers})

    def send(self, address: str, offset: int, data: bytes, kind: str = PIECE_TYPE, **headers: str) -> Any:
        sent = {"Tus-Resumable": "1.0.0", "Upload-Offset": str(offset)}
        extra = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.client.generic("PATCH", address, data, kind, headers={**sent, **extra})

    def offset(self, address: str) -> int:
        response = self.client.head(address, headers={"Tus-Resumable": "1.0.0"})
        assert response.status_code == 200, response.status_code
        return int(response["Upload-Offset"])

    def file(self, path: str, data: bytes, piece: int = 1000, **about: Any) -> str:
        """Send a whole file; return the address of its upload."""
        created = self.create(path, len(data), **about)
        assert created.status_code == 201, created.content
        address: str = created["Location"]
        for offset in range(0, len(data), piece):
            sent = self.send(address, offset, data[offset : offset + piece])
            assert sent.status_code == 204, sent.content
        return address


def uploaded(user: User, dataset: Dataset, files: Mapping[str, bytes], **archives: bytes) -> DatasetVersion:
    """Send files, and archives to be unpacked (named by endings: ``a_zip=...``), finish and check the version."""
    version = services.begin_version(user, dataset)
    uploader = Uploader(user, version)
    for path, data in files.items():
        uploader.file(path, data, piece=1 << 20)
    for name, data in archives.items():
        uploader.file(name.replace("_", "."), data, piece=1 << 20, unpack="true")
    services.finish(user, version)
    checking.run_queued()
    version.refresh_from_db()
    return version


def zip_of(**files: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name.replace("__", "/").replace("_", "."), data)
    return out.getvalue()


def tar_of(files: Mapping[str, bytes], mode: str = "w:gz") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as archive:  # type: ignore[call-overload]  # the mode is a variable
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()
