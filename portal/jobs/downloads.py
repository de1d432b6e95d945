"""Downloads of a job: its log, outputs and checkpoints. All of it was written by users' code; output_views.py shows it."""

import io
import zipfile
from collections.abc import Iterator, Sequence
from typing import BinaryIO

from django.http import Http404, HttpRequest, HttpResponseBase
from django.shortcuts import get_object_or_404
from django.views.decorators.http import require_safe

from portal.accounts.permissions import signed_in
from portal.downloads import download
from portal.jobs import checkpoints, logs, outputs
from portal.jobs.models import Job, LogStream, Output
from portal.streaming import join_small_pieces


def visible_job(request: HttpRequest, pk: int) -> Job:
    return get_object_or_404(Job.objects.visible_to(signed_in(request)).select_related("project"), pk=pk)


# --- log ---------------------------------------------------------------------------------------------------------


@require_safe
def log(request: HttpRequest, pk: int) -> HttpResponseBase:
    """Send the output of all ranks as one text in the order of time; with times if ``?times=1``; of one ``?attempt=2``."""
    job = visible_job(request, pk)
    rows = LogStream.printed.filter(container__attempt__job=job).select_related("container__attempt")
    number = request.GET.get("attempt", "")
    if number:
        rows = rows.filter(container__attempt__number=int(number) if number.isdecimal() and len(number) < 9 else -1)
    found = list(rows.order_by("container__attempt__number", "container__index", "name")[: logs.MAX_MERGED_STREAMS])
    # one attempt after the other, so that their lines do not mix
    by_attempt: dict[int, list[LogStream]] = {}
    for row in found:
        by_attempt.setdefault(row.container.attempt.number, []).append(row)
    text = _text(by_attempt, request.GET.get("times") == "1")
    return download(request, f"job-{job.pk}.log", text, content_type="text/plain; charset=utf-8")


def _text(by_attempt: dict[int, list[LogStream]], times: bool) -> Iterator[bytes]:
    for number, streams in by_attempt.items():
        if len(by_attempt) > 1:
            yield f"--- attempt {number} ---\n".encode()
        yield from join_small_pieces(logs.merged_text(streams, times=times))


@require_safe
def raw_stream(request: HttpRequest, pk: int, stream_pk: int) -> HttpResponseBase:
    """Send the bytes of one rank as they were written."""
    job = visible_job(request, pk)
    row = get_object_or_404(
        LogStream.printed.select_related("container__attempt"), pk=stream_pk, container__attempt__job=job
    )
    part = row.container
    name = f"job-{job.pk}-attempt-{part.attempt.number}-{part.role}-{part.index}-{row.name}.log"
    return download(request, name, logs.pieces(row), row.size)


# --- outputs -----------------------------------------------------------------------------------------------------


def visible_output(request: HttpRequest, pk: int, path: str) -> Output:
    return get_object_or_404(
        Output.objects.select_related("job__project", "attempt"), job=visible_job(request, pk), path=path
    )


def _open_or_404(output: Output) -> BinaryIO:
    try:
        return outputs.open_output(output)
    except FileNotFoundError:
        raise Http404("The content of this file is gone.") from None


@require_safe
def output(request: HttpRequest, pk: int, path: str) -> HttpResponseBase:
    row = visible_output(request, pk, path)
    return download(request, path, outputs.pieces(_open_or_404(row)), row.size)


def checkpoint_file(request: HttpRequest, job: Job, path: str) -> HttpResponseBase:
    """Send a file of the checkpoints of a job. If it is replaced while it is sent, the response is cut off."""
    row = checkpoints.newest_set(job.pk)
    entry = row.files.get(path) if row else None
    if entry is None or not all(checkpoints.has_piece(job, sha256) for sha256 in entry[2]):
        raise Http404("There is no such checkpoint any more.")
    return download(request, path, checkpoints.read_file(job, entry), entry[0])


@require_safe
def checkpoint(request: HttpRequest, pk: int, path: str) -> HttpResponseBase:
    return checkpoint_file(request, visible_job(request, pk), path)


@require_safe
def all_outputs(request: HttpRequest, pk: int) -> HttpResponseBase:
    """Send all outputs in one zip, which is created while it is sent."""
    job = visible_job(request, pk)
    rows = outputs.that_fit_together(job.outputs.all())
    if not rows:
        raise Http404("This job has no outputs.")
    return download(request, f"job-{job.pk}-outputs.zip", _zip_pieces(rows), content_type="application/zip")


class _ZipBuffer(io.RawIOBase):
    """The buffer to which a zip file is written, until it is taken."""

    def __init__(self) -> None:
        self._kept = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]  # any buffer in fact, bytes as zipfile calls it
        self._kept += data
        return len(data)

    def take(self) -> bytes:
        taken = bytes(self._kept)
        self._kept.clear()
        return taken


def _zip_pieces(rows: Sequence[Output]) -> Iterator[bytes]:
    """Yield a zip without compression: outputs are mostly weights and images, which do not become smaller."""
    pipe = _ZipBuffer()
    with zipfile.ZipFile(pipe, "w", zipfile.ZIP_STORED) as archive:
        for row in rows:
            try:
                file = outputs.open_output(row)
            except FileNotFoundError:
                continue  # it was replaced after the list was read
            info = zipfile.ZipInfo(row.path, row.stored_at.timetuple()[:6])
            info.external_attr = 0o644 << 16
            with archive.open(info, "w", force_zip64=True) as entry:
                for piece in outputs.pieces(file):
                    entry.write(piece)
                    yield pipe.take()
            yield pipe.take()
    yield pipe.take()
