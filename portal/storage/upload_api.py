"""Resumable uploads: the protocol tus 1.0 (https://tus.io) with creation, expiration, checksum and termination.

A client creates an upload in a version, sends it in pieces, and after a break asks for the offset and continues there.
"""

import base64
import binascii
import io
from typing import Any

from django.db.models import QuerySet
from django.http import Http404
from django.shortcuts import get_object_or_404
from django.utils.http import http_date
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import mixins, status
from rest_framework.exceptions import APIException, ParseError, ValidationError
from rest_framework.parsers import BaseParser
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import GenericViewSet

from portal.accounts.permissions import signed_in
from portal.rest import KnownParameters, refusals
from portal.storage import incoming, uploads
from portal.storage.models import Dataset, DatasetVersion, Upload
from portal.storage.serializers import UploadSerializer

TUS_VERSION = "1.0.0"
EXTENSIONS = "creation,creation-with-upload,expiration,checksum,termination"
PIECE_TYPE = "application/offset+octet-stream"
METADATA = ("path", "unpack", "sha256")
MAX_METADATA_CHARACTERS = 8192
MAX_DIGITS = 18

RESUMABLE = OpenApiParameter("Tus-Resumable", str, OpenApiParameter.HEADER, required=True, enum=[TUS_VERSION])
CHECKSUM = OpenApiParameter(
    "Upload-Checksum", str, OpenApiParameter.HEADER, description="Of the piece: `sha256 `, then the digest in Base64."
)
LENGTH = OpenApiParameter(
    "Upload-Length", int, OpenApiParameter.HEADER, required=True, description="Bytes of the whole file."
)
ABOUT = OpenApiParameter(
    "Upload-Metadata",
    str,
    OpenApiParameter.HEADER,
    required=True,
    description="Pairs of a key and a value in Base64, separated by commas: `path`, its place in the dataset; `unpack`, true "
    "for an archive whose files count instead of it; `sha256` of the whole file, which is then compared.",
)
OFFSET = OpenApiParameter(
    "Upload-Offset", int, OpenApiParameter.HEADER, required=True, description="Bytes sent before."
)


class Piece(BaseParser):
    """Accepts a piece of a file as the body; the view reads it."""

    media_type = PIECE_TYPE

    def parse(self, stream: Any, media_type: str | None = None, parser_context: Any = None) -> Any:
        return stream


class TusError(APIException):
    """An answer that the protocol defines, with a sentence."""

    def __init__(self, code: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status_code = code


class Tus(KnownParameters, GenericViewSet[Upload]):
    """What both endpoints have: the version of the protocol, and its headers."""

    queryset = Upload.objects.none()
    serializer_class = UploadSerializer
    parser_classes = [Piece]

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        if request.method not in ("OPTIONS", "GET") and request.headers.get("Tus-Resumable") != TUS_VERSION:
            raise TusError(
                412, f"Send the header Tus-Resumable: {TUS_VERSION}. It is the version of tus that is spoken here."
            )

    def finalize_response(self, request: Request, response: Any, *args: Any, **kwargs: Any) -> Any:
        final = super().finalize_response(request, response, *args, **kwargs)
        final["Tus-Resumable"] = final["Tus-Version"] = TUS_VERSION
        final["Cache-Control"] = "no-store"
        return final

    def options(self, request: Request, *args: Any, **kwargs: Any) -> Response:  # type: ignore[override]  # as DRF has it
        """State what the server can do."""
        headers = {"Tus-Extension": EXTENSIONS, "Tus-Checksum-Algorithm": ",".join(incoming.ALGORITHMS)}
        return Response(status=status.HTTP_204_NO_CONTENT, headers=headers)

    def append_piece(self, upload: Upload, offset: int) -> None:
        """Append the body of the request. Errors become the answers of the protocol."""
        body: Any = self.request.data  # raises 415 for another type
        length = _number(self.request, "Content-Length") if hasattr(body, "read") else 0
        piece: Any = body if length else io.BytesIO()
        try:
            incoming.append(upload, offset, piece, length, _checksum(self.request))
        except incoming.UploadGoneError:
            raise Http404 from None
        except incoming.UploadBusyError:
            raise TusError(423, "Another piece of this upload is being written. Try again in a few seconds.") from None
        except incoming.OffsetMismatchError as error:
            raise TusError(409, f"The upload is at byte {error.offset}. Continue there.") from None
        except incoming.WrongChecksumError:
            raise TusError(
                460, "The piece does not have this checksum. Nothing of it is kept: send it again."
            ) from None


class VersionUploads(mixins.ListModelMixin, Tus):
    """The uploads of a version that is not finished."""

    def _version(self) -> DatasetVersion:
        user = signed_in(self.request)
        dataset = get_object_or_404(Dataset.objects.visible_to(user), pk=self.kwargs["dataset_pk"])
        rows = DatasetVersion.objects.visible_to(user).select_related("dataset__project", "dataset__owner")
        return get_object_or_404(rows, dataset=dataset, number=self.kwargs["number"])

    def get_queryset(self) -> QuerySet[Upload]:
        return self._version().uploads.select_related("owner")

    @extend_schema(responses={200: UploadSerializer(many=True), **refusals(404)})
    def list(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """List the uploads of a version by path, each with its offset: what is left to be sent."""
        return super().list(request, *args, **kwargs)

    @extend_schema(
        parameters=[RESUMABLE, LENGTH, ABOUT, CHECKSUM],
        request={PIECE_TYPE: OpenApiTypes.BINARY},
        responses={201: UploadSerializer, **refusals(400, 403, 404, 409, 412, 413, 415, 460, 507)},
    )
    def create(self, request: Request, dataset_pk: int, number: int) -> Response:
        """Begin an upload. The header Location has its address. The body may have its first piece."""
        user, version = signed_in(request), self._version()
        about = _metadata(request.headers.get("Upload-Metadata", ""))
        asked = uploads.NewUpload(
            path=about.get("path", ""),
            length=_number(request, "Upload-Length"),
            unpack=_flag(about.get("unpack", "false")),
            sha256=about.get("sha256", ""),
        )
        upload = uploads.create(user, version, asked)
        if request.headers.get("Content-Length", "0") not in ("", "0"):
            self.append_piece(upload, 0)
        headers = {"Location": f"/api/v1/uploads/{upload.pk}/", **_progress(upload)}
        return Response(UploadSerializer(upload).data, status.HTTP_201_CREATED, headers=headers)


class Uploads(Tus):
    """An upload of the user's, under way."""

    def get_queryset(self) -> QuerySet[Upload]:
        rows = Upload.objects.filter(owner=signed_in(self.request), version__state=DatasetVersion.State.UPLOADING)
        return rows.select_related("owner", "version__dataset__project")

    @extend_schema(responses={200: UploadSerializer, **refusals(404)})
    def retrieve(self, request: Request, pk: str) -> Response:
        """Return how much the portal has. HEAD has the same headers: Upload-Offset, Upload-Length, Upload-Expires."""
        upload = self.get_object()
        upload.offset = incoming.offset_of(upload)
        headers = {"Upload-Length": str(upload.length), **_progress(upload)}
        return Response(UploadSerializer(upload).data, headers=headers)

    @extend_schema(
        parameters=[RESUMABLE, OFFSET, CHECKSUM],
        request={PIECE_TYPE: OpenApiTypes.BINARY},
        responses={204: None, **refusals(400, 403, 404, 409, 412, 413, 415, 423, 460, 507)},
    )
    def append(self, request: Request, pk: str) -> Response:
        """Append a piece of at most 16 MiB at the offset, which is then durable. 8 MiB are fastest."""
        upload = self.get_object()
        uploads.require_sender(signed_in(request), upload)
        self.append_piece(upload, _number(request, "Upload-Offset"))
        return Response(status=status.HTTP_204_NO_CONTENT, headers=_progress(upload))

    @extend_schema(parameters=[RESUMABLE], responses={204: None, **refusals(404, 409, 412)})
    def destroy(self, request: Request, pk: str) -> Response:
        """Delete an upload of a version that is not finished."""
        uploads.delete(self.get_object().pk)
        return Response(status=status.HTTP_204_NO_CONTENT)


def _progress(upload: Upload) -> dict[str, str]:
    return {"Upload-Offset": str(upload.offset), "Upload-Expires": http_date(upload.expires_at.timestamp())}


def _number(request: Request, header: str) -> int:
    text = request.headers.get(header, "")
    if not (text.isascii() and text.isdecimal() and len(text) <= MAX_DIGITS):
        raise ValidationError({header: ["Send the number of bytes."]})
    return int(text)


def _metadata(header: str) -> dict[str, str]:
    """Read ``key base64,key base64``. Raises ValidationError for what is not known, twice, or not UTF-8."""
    if len(header) > MAX_METADATA_CHARACTERS:
        raise ValidationError({"Upload-Metadata": [f"Send at most {MAX_METADATA_CHARACTERS:,} characters."]})
    found: dict[str, str] = {}
    for pair in filter(None, (each.strip() for each in header.split(","))):
        key, _, value = pair.partition(" ")
        if key not in METADATA or key in found:
            raise ValidationError(
                {"Upload-Metadata": [f"Send each of {', '.join(METADATA)} at most once, and nothing else."]}
            )
        try:
            found[key] = base64.b64decode(value.strip(), validate=True).decode()
        except (binascii.Error, UnicodeDecodeError):
            raise ValidationError({"Upload-Metadata": [f"The value of {key} is not UTF-8 in Base64."]}) from None
    return found


def _flag(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValidationError({"Upload-Metadata": ["The value of unpack is true or false, in Base64."]})
    return text == "true"


def _checksum(request: Request) -> incoming.Checksum | None:
    header = request.headers.get("Upload-Checksum", "")
    if not header:
        return None
    algorithm, _, digest = header.partition(" ")
    if algorithm not in incoming.ALGORITHMS:
        raise ParseError(f"A checksum is one of {', '.join(incoming.ALGORITHMS)}.")
    try:
        return incoming.Checksum(algorithm, base64.b64decode(digest.strip(), validate=True))
    except binascii.Error:
        raise ParseError("The checksum is not in Base64.") from None
