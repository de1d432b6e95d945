"""What is in a version that is ready: its manifest, folders and files, read from the store."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from portal.previews.files import StoredFile
from portal.storage import blobs
from portal.storage.manifests import FileEntry, FolderItem, Manifest
from portal.storage.models import DatasetVersion

PAGE_ITEMS = 100


@contextmanager
def manifest_of(version: DatasetVersion) -> Iterator[Manifest]:
    """Open the manifest of a version that is ready. Raises MissingBlobError."""
    with blobs.store().open(version.sha256) as file:
        yield Manifest(file, version.manifest_bytes)


def folder(
    version: DatasetVersion, path: str, after: str = "", count: int = PAGE_ITEMS
) -> tuple[list[FolderItem], str]:
    """Return a page of the files and folders of a folder, and the cursor behind it; "" at the end."""
    with manifest_of(version) as manifest:
        return manifest.folder(path, after, count)


def find(version: DatasetVersion, path: str) -> FileEntry | None:
    """Return the file with a path."""
    with manifest_of(version) as manifest:
        return manifest.find(path)


def stored_file(entry: FileEntry) -> StoredFile:
    """Return a file for previews and downloads."""
    return StoredFile(entry.path, entry.size, entry.sha256, partial(blobs.store().open, entry.sha256))
