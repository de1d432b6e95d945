"""Logs and outputs of jobs over REST: as one text, as exact bytes of one stream, or followed by cursor."""

import re

from django.db.models import QuerySet
from django.http import Http404, HttpResponseBase
from django.shortcuts import get_object_or_404
from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import mixins
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from portal.downloads import download
from portal.jobs import checkpoints, log_watchers, logs, outputs
from portal.jobs.api import JobSubresource
from portal.jobs.consumers import LAST_OUTPUT_WAIT
from portal.jobs.downloads import checkpoint_file
from portal.jobs.models import Attempt, CheckpointSet, LogStream, Output
from portal.jobs.serializers import CheckpointsSerializer, LogUpdateSerializer, OutputSerializer, StreamSerializer
from portal.rest import error_body, refusals
from portal.streaming import join_small_pieces

MAX_BYTES = 1024 * 1024
"""The maximum size of a response when following a log; a client that is behind asks again at once."""
RANGE = re.compile(r"bytes=([0-9]{1,18})?-([0-9]{1,18})?")
CURSOR = re.compile(r"(?:[0-9]{1,18}:[0-9]{1,18}(?:,(?!$)|$)){0,400}")

ATTEMPT = OpenApiParameter("attempt", int, description="Number of the attempt; the last by default.")


class Streams(mixins.ListModelMixin, JobSubresource):
    """The streams of a job's log: one per rank, and ``set-up`` of each container."""

    queryset = LogStream.objects.none()
    serializer_class = StreamSerializer

    def get_queryset(self) -> QuerySet[LogStream]:
        rows = LogStream.printed.filter(container__attempt__job=self.job)
        return rows.select_related("container__attempt").order_by("container__attempt__number", "id")


class Log(JobSubresource):
    queryset = LogStream.objects.none()

    @extend_schema(
        parameters=[
            ATTEMPT,
            OpenApiParameter("times", bool, description="1: each line with its time."),
            OpenApiParameter("raw", bool, description="1: colours and progress bars as they were written."),
            OpenApiParameter("stream", int, description="Id of a stream: then the exact bytes of this one."),
            OpenApiParameter("start", int, description="First byte, with ``stream``."),
            OpenApiParameter("end", int, description="The byte after the last, with ``stream``."),
            OpenApiParameter("Range", str, OpenApiParameter.HEADER, description="With ``stream``: bytes=0-99"),
        ],
        responses={
            (200, "text/plain"): OpenApiTypes.STR,
            (206, "application/octet-stream"): OpenApiTypes.BINARY,
            **refusals(400, 404, 416),
        },
    )
    def text(self, request: Request, job_pk: int) -> HttpResponseBase:
        """The log as text, all ranks merged by time; with ``stream``, bytes of one stream."""
        log_watchers.watch(self.job.pk)
        if request.query_params.get("stream"):
            return self._bytes(request)
        attempt = self._attempt(request)
        streams = logs.streams_of(attempt)[: logs.MAX_MERGED_STREAMS] if attempt else []
        wanted = {name: request.query_params.get(name) in ("1", "true") for name in ("raw", "times")}
        lines = logs.merged_text(streams, plain=not wanted["raw"], times=wanted["times"])
        name = f"job-{job_pk}.log"
        return download(request._request, name, join_small_pieces(lines), content_type="text/plain; charset=utf-8")

    def _attempt(self, request: Request) -> Attempt | None:
        attempts = self.job.attempts.order_by("-number")
        number = _number(request, "attempt")
        return get_object_or_404(attempts, number=number) if number is not None else attempts.first()

    def _bytes(self, request: Request) -> HttpResponseBase:
        rows = LogStream.printed.filter(container__attempt__job=self.job)
        row = get_object_or_404(rows, pk=_number(request, "stream"))
        start, end = _number(request, "start"), _number(request, "end")
        status = 200
        if start is None and end is None and (header := request.headers.get("Range")):
            start, end = _range(header, row.size)
            status = 206 if start is not None else 200
        start, end = start or 0, row.size if end is None else min(end, row.size)
        if (status == 206 and start >= row.size) or start > row.size:
            refusal = Response(error_body(416, f"The stream has {row.size} bytes so far."), 416)
            refusal["Content-Range"] = f"bytes */{row.size}"
            return refusal
        length = max(0, end - start)
        response = download(request._request, f"{row.name}.log", logs.pieces(row, start, length), length)
        response.status_code = status
        response["Accept-Ranges"] = "bytes"
        response["X-Log-Size"] = str(row.size)
        response["X-Log-Closed"] = "1" if row.closed else "0"
        if status == 206:
            response["Content-Range"] = f"bytes {start}-{end - 1}/{row.size}"
        return response

    @extend_schema(
        parameters=[
            OpenApiParameter("cursor", str, description="What the last answer gave; empty at first."),
            ATTEMPT,
        ],
        responses={200: LogUpdateSerializer, **refusals(400, 404)},
    )
    def follow(self, request: Request, job_pk: int) -> Response:
        """Return the output since the cursor. Ask again at once after a response with pieces, otherwise after a second."""
        job = self.job
        log_watchers.watch(job.pk)
        done = job.finished_at is not None  # read before the streams, so that all output before the end is included
        late = job.finished_at is not None and timezone.now() - job.finished_at > LAST_OUTPUT_WAIT
        rows = LogStream.printed.filter(container__attempt__job=job)
        if (number := _number(request, "attempt")) is not None:
            rows = rows.filter(container__attempt__number=number)
        positions = _positions(request.query_params.get("cursor", ""))
        pieces, left, more = [], MAX_BYTES, False
        for row in rows.select_related("container__attempt").order_by("id")[: logs.MAX_MERGED_STREAMS]:
            start = min(positions.get(row.pk, 0), row.size)
            data = logs.read(row, start, left)
            ended = (row.closed or late) and start + len(data) == row.size
            data = data if ended else _whole_characters(data)
            left -= len(data)
            positions[row.pk] = start + len(data)
            more = more or not ended
            if data:
                pieces.append(
                    {
                        "stream": row.pk,
                        "attempt": row.container.attempt.number,
                        "label": logs.label_of(row),
                        "start": start,
                        "text": data.decode("utf-8", "replace"),
                    }
                )
        cursor = ",".join(f"{stream}:{offset}" for stream, offset in sorted(positions.items()))
        return Response({"cursor": cursor, "pieces": pieces, "finished": done and not more})


class Outputs(mixins.ListModelMixin, JobSubresource):
    """The files that a job left in /outputs."""

    queryset = Output.objects.none()
    serializer_class = OutputSerializer

    def get_queryset(self) -> QuerySet[Output]:
        return self.job.outputs.select_related("attempt").order_by("path")

    @extend_schema(
        responses={(200, "application/octet-stream"): OpenApiTypes.BINARY, **refusals(404)},
    )
    def file(self, request: Request, job_pk: int, path: str) -> HttpResponseBase:
        row = get_object_or_404(self.job.outputs, path=path)
        try:
            file = outputs.open_output(row)
        except FileNotFoundError as error:
            raise Http404 from error
        return download(request._request, path, outputs.pieces(file), row.size)


class Checkpoints(JobSubresource):
    """The latest complete content of /checkpoints of a job."""

    queryset = CheckpointSet.objects.none()
    serializer_class = CheckpointsSerializer

    @extend_schema(responses={200: CheckpointsSerializer, **refusals(404)})
    def whole(self, request: Request, job_pk: int) -> Response:
        """Return the latest checkpoints; 404 while there are none."""
        row = get_object_or_404(CheckpointSet.objects.select_related("attempt"), job=self.job)
        about = {name: getattr(row, name) for name in ("taken_at", "stored_at", "size")}
        about |= {"attempt": row.attempt.number, "files": checkpoints.files_of(row)}
        return Response(CheckpointsSerializer(about).data)

    @extend_schema(
        responses={(200, "application/octet-stream"): OpenApiTypes.BINARY, **refusals(404)},
    )
    def file(self, request: Request, job_pk: int, path: str) -> HttpResponseBase:
        return checkpoint_file(request._request, self.job, path)


def _number(request: Request, name: str) -> int | None:
    value = request.query_params.get(name, "")
    if not value:
        return None
    if not (value.isascii() and value.isdecimal() and len(value) < 19):
        raise ValidationError({name: ["A whole number, not less than 0."]})
    return int(value)


def _range(header: str, size: int) -> tuple[int | None, int | None]:
    """Read one range as (start, end after the last byte). A range that cannot be read means everything, as in HTTP."""
    found = RANGE.fullmatch(header.strip())
    if not found or found[1] is None and found[2] is None:
        return None, None
    if found[1] is None:
        return max(0, size - int(found[2])), size
    if found[2] is not None and int(found[2]) < int(found[1]):
        return None, None
    return int(found[1]), size if found[2] is None else min(int(found[2]) + 1, size)


def _positions(cursor: str) -> dict[int, int]:
    if not CURSOR.fullmatch(cursor):
        raise ValidationError({"cursor": ["Send the cursor as the last answer gave it."]})
    pairs = (part.split(":") for part in cursor.split(",") if part)
    return {int(stream): int(offset) for stream, offset in pairs}


def _whole_characters(data: bytes) -> bytes:
    """Cut off an incomplete last character, whose rest is still to come. Invalid bytes are kept."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0x80:
            continue
        length = 2 if byte >> 5 == 0b110 else 3 if byte >> 4 == 0b1110 else 4 if byte >> 3 == 0b11110 else 1
        return data[:-back] if length > back else data
    return data
