"""The agents' API about datasets: ``/agent/v1/containers/<name>/datasets/<SHA-256 of the manifest>/``.

A node reads the manifest, and the contents of consecutive files of it as one stream, for containers of its own that have not
ended. Whoever submitted the job must still be allowed to use the dataset.
"""

from collections.abc import Iterator, Sequence
from itertools import islice

from django.http import HttpRequest, HttpResponseBase

from portal.agents.views import AgentError, agent_view, authenticate, not_found, own_container
from portal.jobs import job_datasets
from portal.jobs.models import Container, ContainerState, Job
from portal.sentences import agents
from portal.storage import blobs
from portal.storage.manifests import FileEntry
from portal.storage.models import DatasetVersion
from portal.streaming import join_small_pieces, stream

MAX_FILES_AT_ONCE = 1000
PIECE_BYTES = 256 * 1024


def _version(request: HttpRequest, name: str, sha256: str) -> DatasetVersion:
    """Return the version with this manifest, which a container of this node reads that has not ended."""
    node = authenticate(request)
    container = own_container(node, name)
    has_ranks = container.role == Container.Role.HOST
    if node.approved_at is None or container.state == ContainerState.EXITED or not has_ranks:
        raise not_found()
    job = Job.objects.select_related("submitted_by").get(pk=container.attempt.job_id)
    version = job_datasets.require_usable(job, sha256)
    if version is None:
        raise not_found()
    return version


@agent_view("GET")
def manifest(request: HttpRequest, name: str, sha256: str) -> HttpResponseBase:
    """Send the manifest from ``offset`` on."""
    version = _version(request, name, sha256)
    offset = _number(request, "offset", version.manifest_bytes)
    entry = FileEntry(version.dataset.name, version.manifest_bytes, version.sha256)
    return _stream(request, version, [entry], offset)


@agent_view("GET")
def contents(request: HttpRequest, name: str, sha256: str) -> HttpResponseBase:
    """Send the contents of ``count`` files one after the other, from ``offset`` of the first on.

    ``line`` is the position in the manifest at which the line of the first file begins, in bytes.
    """
    version = _version(request, name, sha256)
    line = _number(request, "line", version.manifest_bytes)
    count = _number(request, "count", MAX_FILES_AT_ONCE, 1)
    entries = _entries(version, line, count)
    offset = _number(request, "offset", entries[0].size)
    return _stream(request, version, entries, offset)


def _number(request: HttpRequest, name: str, maximum: int, default: int = 0) -> int:
    text = request.GET.get(name, str(default))
    if not (text.isascii() and text.isdecimal() and len(text) < 17 and int(text) <= maximum):
        raise AgentError(400, "invalid", f"{name} is a whole number of at most {maximum}.")
    return int(text)


def _entries(version: DatasetVersion, line: int, count: int) -> Sequence[FileEntry]:
    invalid = AgentError(400, "invalid", "No line of the manifest begins there.")
    try:
        with blobs.store().open(version.sha256, max(0, line - 1)) as file:
            if line and file.read(1) != b"\n":
                raise invalid
            entries = [FileEntry.of_line(each) for each in islice(file, count)]
    except blobs.MissingBlobError as error:
        raise _lost(version, "manifest") from error
    if not entries:
        raise invalid
    return entries


def _stream(
    request: HttpRequest, version: DatasetVersion, entries: Sequence[FileEntry], offset: int
) -> HttpResponseBase:
    store = blobs.store()
    for entry in entries:
        if store.size(entry.sha256) != entry.size:
            raise _lost(version, entry.path)
    response = stream(request, join_small_pieces(_pieces(store, entries, offset)), "application/octet-stream")
    response["Content-Length"] = str(sum(entry.size for entry in entries) - offset)
    return response


def _pieces(store: blobs.BlobStore, entries: Sequence[FileEntry], offset: int) -> Iterator[bytes]:
    for number, entry in enumerate(entries):
        with store.open(entry.sha256, 0 if number else offset) as file:
            yield from iter(lambda file=file: file.read(PIECE_BYTES), b"")  # type: ignore[misc]


def _lost(version: DatasetVersion, path: str) -> AgentError:
    return AgentError(404, "dataset_lost", agents.datasets.DatasetLost(version.dataset.name, path))
