"""Shared parts of the endpoints under /api/v1/: paging, parsing of bodies, and the format of errors.

``{"error": {"code": "...", "message": "a sentence", "fields": {"name": ["..."]}}}``; ``fields`` is optional.
"""

import difflib
import hashlib
import json
import logging
import re
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from itertools import islice
from typing import IO, Any

from django.core.exceptions import PermissionDenied as DjangoPermissionDenied
from django.core.exceptions import RequestDataTooBig
from django.http import Http404, JsonResponse
from django.utils.cache import get_conditional_response
from django.utils.http import quote_etag
from drf_spectacular.utils import OpenApiResponse, inline_serializer
from rest_framework import exceptions, serializers, status
from rest_framework.pagination import PageNumberPagination
from rest_framework.parsers import JSONParser
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.settings import api_settings
from rest_framework.throttling import AnonRateThrottle
from rest_framework.utils.urls import replace_query_param

from portal.addresses import counted_address
from portal.refused import Refused

log = logging.getLogger(__name__)

MAX_JSON_BYTES = 1024 * 1024
MAX_UNKNOWN_FIELDS = 20
"""Fields that do not exist and are named in one refusal, with what resembles them."""
STATUS_OF = {"invalid": 400, "forbidden": 403, "limit": 429, "conflict": 409, "too_large": 413, "full": 507}
CODES = {
    400: "invalid",
    401: "unauthenticated",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    406: "not_acceptable",
    409: "conflict",
    412: "precondition_failed",
    413: "too_large",
    415: "unsupported_media_type",
    416: "range_not_satisfiable",
    423: "locked",
    429: "throttled",
    460: "checksum_mismatch",
    500: "server_error",
    503: "unavailable",
    507: "insufficient_storage",
}
CONDITIONS_OF_CHANGES = ("If-Match", "If-Unmodified-Since")
NOT_FOUND = "Not found: it does not exist, or you are not allowed to see it."


NUMBERED = {"page", "sort", "ordering"}
"""The query parameters with which a list that goes on by ids has numbered pages instead."""


class Pages(PageNumberPagination):
    page_size_query_param = "page_size"
    max_page_size = 200


class NewestFirst(Pages):
    """Pages of rows whose ids fall. ``next`` goes on before the last row's id, so that no row comes twice for new ones.

    A client that asks for a ``page`` by its number, or for another order by ``sort`` or ``ordering``, gets the links of numbered pages.
    """

    def paginate_queryset(self, queryset: Any, request: Request, view: Any = None) -> list[Any] | None:
        before = request.query_params.get("before", "")
        self.numbered = not NUMBERED.isdisjoint(request.query_params)
        if self.numbered and not before:
            return super().paginate_queryset(queryset, request, view)
        if self.numbered:
            raise exceptions.ValidationError(
                {"before": ["Send before, or page, sort or ordering: these have numbered pages."]}
            )
        if before and not (before.isascii() and before.isdecimal() and len(before) < 19):
            raise exceptions.ValidationError({"before": ["Send the id of the last row that you have."]})
        self.here, size = request.build_absolute_uri(), self.get_page_size(request) or self.max_page_size
        self.count = queryset.count()
        rows = list((queryset.filter(pk__lt=int(before)) if before else queryset)[: size + 1])
        self.last = rows[size - 1] if len(rows) > size else None
        return rows[:size]

    def get_next_link(self) -> str | None:
        if self.numbered:
            return super().get_next_link()
        return replace_query_param(self.here, "before", self.last.pk) if self.last is not None else None

    def get_paginated_response(self, data: Any) -> Response:
        if self.numbered:
            return super().get_paginated_response(data)
        return Response({"count": self.count, "next": self.get_next_link(), "previous": None, "results": data})

    def get_schema_operation_parameters(self, view: Any) -> list[dict[str, Any]]:
        before = {
            "name": "before",
            "in": "query",
            "required": False,
            "description": "Only rows with a smaller id: those after the last one that you have. `next` uses it.",
            "schema": {"type": "integer"},
        }
        return [*super().get_schema_operation_parameters(view), before]


class StrangerThrottle(AnonRateThrottle):
    """Limits the refused requests of an address. Those with a valid token or session do not count, from there or elsewhere."""

    def get_ident(self, request: Request) -> str:
        return counted_address(str(super().get_ident(request)))


class KnownParameters:
    """A mixin of every view: query parameters that the schema does not have for an operation are refused.

    Requests are limited, those that are refused, too, and a client that has the present content already gets 304 without it.
    """

    def perform_authentication(self, request: Request) -> None:
        try:
            super().perform_authentication(request)  # type: ignore[misc]  # the view class comes after us
        except (exceptions.NotAuthenticated, exceptions.AuthenticationFailed, exceptions.PermissionDenied):
            self._count_stranger(request)
            raise

    def check_permissions(self, request: Request) -> None:
        super().check_throttles(request)  # type: ignore[misc]  # as above
        try:
            super().check_permissions(request)  # type: ignore[misc]  # as above
        except exceptions.NotAuthenticated:
            self._count_stranger(request)
            raise

    def check_throttles(self, request: Request) -> None:
        """Do nothing: requests are counted before they may be refused."""

    def _count_stranger(self, request: Request) -> None:
        throttle = StrangerThrottle()
        if not throttle.allow_request(request, self):  # type: ignore[arg-type]  # as above
            raise exceptions.Throttled(throttle.wait()) from None

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)  # type: ignore[misc]  # as above
        if request.method not in ("GET", "HEAD", "OPTIONS"):
            for header in CONDITIONS_OF_CHANGES:
                if header in request.headers:
                    raise exceptions.ParseError(
                        f"Changes do not compare {header}, so nothing was done. Leave it out, and send only the fields that you change."
                    )
        if not request.query_params or request.resolver_match is None or request.method == "OPTIONS":
            return
        method = "get" if request.method == "HEAD" else str(request.method).lower()
        known = _known_parameters().get((method, _shape(f"/{request.resolver_match.route}")), frozenset())
        unknown = set(request.query_params) - known - {str(api_settings.URL_FORMAT_OVERRIDE)}
        if unknown:
            raise exceptions.ValidationError({name: [_unknown(name, known, "parameter")] for name in sorted(unknown)})

    def finalize_response(self, request: Request, response: Any, *args: Any, **kwargs: Any) -> Any:
        final = super().finalize_response(request, response, *args, **kwargs)  # type: ignore[misc]  # as above
        if request.method in ("GET", "HEAD") and isinstance(final, Response) and final.status_code == 200:
            if request.auth is not None:  # a script: unlike a browser on a shared machine, it may keep what it got
                final.headers.setdefault("Cache-Control", "private, no-cache")
            final.add_post_render_callback(lambda rendered: _not_modified(request, rendered))
        return final


def _not_modified(request: Request, response: Any) -> Any:
    """Give a response the hash of its content as ETag; return 304 instead when the client has this content already."""
    response["ETag"] = quote_etag(hashlib.sha256(response.content).hexdigest()[:32])
    answer = get_conditional_response(request, etag=response["ETag"], response=response)
    if answer is not None and answer.status_code == status.HTTP_412_PRECONDITION_FAILED:
        return error_response(
            answer.status_code, "The content is another one than that of the condition in your request."
        )
    return answer


@cache
def _known_parameters() -> dict[tuple[str, str], frozenset[str]]:
    """Return the names of the query parameters of each operation, which its schema documents."""
    from drf_spectacular.generators import SchemaGenerator  # noqa: PLC0415  # imports views, which are parsed by Json

    return {
        (method, _shape(path)): frozenset(
            each["name"] for each in operation.get("parameters", ()) if each["in"] == "query"
        )
        for path, operations in SchemaGenerator().get_schema(request=None, public=True)["paths"].items()
        for method, operation in operations.items()
    }


def _shape(path: str) -> str:
    """Return an address of the URL map or of the schema without the names of its variables."""
    return re.sub(r"<[^>]*>|\{[^}]*\}", "{}", path)


class TooLargeError(exceptions.APIException):
    status_code = status.HTTP_413_REQUEST_ENTITY_TOO_LARGE
    default_code = "too_large"
    default_detail = f"A JSON body may have at most {MAX_JSON_BYTES // 1024} KiB."


class Json(JSONParser):
    """Parses JSON objects of bounded size and depth. DRF's own parser would read a gigabyte."""

    def parse(
        self, stream: IO[Any], media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        content = stream.read(MAX_JSON_BYTES + 1)
        if len(content) > MAX_JSON_BYTES:
            raise TooLargeError
        try:
            data = json.loads(content.decode("utf-8"), parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            raise exceptions.ParseError("The body is not valid JSON in UTF-8.") from error
        try:
            json.dumps(data, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise exceptions.ParseError("The body has a \\u escape with half of a surrogate pair.") from error
        if not isinstance(data, dict):
            raise exceptions.ParseError("The body must be a JSON object: {...}.")
        return data


def validated(asked: serializers.Serializer[Any]) -> dict[str, Any]:
    """Return the values of a request. Raises ValidationError for values that are wrong, and for fields that do not exist.

    Fields that are only read may be sent: clients send back what they were given.
    """
    unknown = dict(islice(_unknown_fields(asked, asked.initial_data), MAX_UNKNOWN_FIELDS))
    if not asked.is_valid() or unknown:
        raise exceptions.ValidationError({**asked.errors, **unknown})
    return dict(asked.validated_data)


def _unknown_fields(asked: Any, data: Any, above: str = "") -> Iterator[tuple[str, list[str]]]:
    """Yield the path of each field that does not exist, also in objects within the request, with a sentence on it."""
    if isinstance(asked, serializers.ListSerializer | serializers.ListField):
        for number, each in enumerate(data if isinstance(data, list) else ()):
            yield from _unknown_fields(asked.child, each, f"{above}{number}.")
    elif isinstance(asked, serializers.Serializer) and isinstance(data, Mapping):
        for name, value in data.items():
            if field := asked.fields.get(name):
                yield from _unknown_fields(field, value, f"{above}{name}.")
            else:
                names = [known for known, field in asked.fields.items() if not field.read_only]
                yield f"{above}{name}", [_unknown(str(name), names, "field")]


def _unknown(name: str, names: Collection[str], kind: str) -> str:
    nearest = difflib.get_close_matches(name, names, n=1, cutoff=0.8) or difflib.get_close_matches(name, names, 2, 0.5)
    known = f"There are: {', '.join(sorted(names))}." if names else "There are none here."
    hint = f"Did you mean {' or '.join(nearest)}?" if nearest else known
    return f"There is no {kind} of this name. {hint}"


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


# Errors


def exception_handler(error: Exception, context: dict[str, Any]) -> Response | None:
    """Turn an exception of a view into an error response. Unknown exceptions are ours: 500, logged with a traceback."""
    if isinstance(error, Refused):
        fields = {error.field: [error.message]} if error.field else None
        code = "limit" if error.code == "limit" else None
        return Response(error_body(STATUS_OF[error.code], error.message, fields, code), STATUS_OF[error.code])
    if isinstance(error, Http404):
        error = exceptions.NotFound(NOT_FOUND)
    elif isinstance(error, DjangoPermissionDenied):
        error = exceptions.PermissionDenied()
    elif isinstance(error, RequestDataTooBig):
        error = TooLargeError("The body is too large.")
    if not isinstance(error, exceptions.APIException):
        return None
    headers = {}
    if auth := getattr(error, "auth_header", None):
        headers["WWW-Authenticate"] = auth
    if wait := getattr(error, "wait", None):
        headers["Retry-After"] = str(int(wait) + 1)
    if isinstance(error, exceptions.ValidationError):
        fields = dict(_flatten(error.detail))
        alone = fields.pop("", [])
        message = " ".join(alone) or "Some fields need your attention: " + ", ".join(sorted(fields)) + "."
        return Response(error_body(error.status_code, message, fields), error.status_code, headers=headers)
    return Response(error_body(error.status_code, _sentence(error)), error.status_code, headers=headers)


def error_body(
    status_code: int, message: str, fields: Mapping[str, list[str]] | None = None, code: str | None = None
) -> dict[str, Any]:
    error: dict[str, Any] = {"code": code or CODES.get(status_code, "error"), "message": message}
    if fields:
        error["fields"] = fields
    return {"error": error}


def _sentence(error: exceptions.APIException) -> str:
    if isinstance(error, exceptions.NotFound):
        return NOT_FOUND
    return str(error.detail)


def _flatten(detail: Any, path: str = "") -> Iterator[tuple[str, list[str]]]:
    """Flatten nested errors: ``{"members": [{"role": ["bad"]}]}`` becomes ``members.0.role: ["bad"]``."""
    if isinstance(detail, dict):
        for name, inner in detail.items():
            key = "" if name == "non_field_errors" else str(name)
            yield from _flatten(inner, ".".join(part for part in (path, key) if part))
    elif isinstance(detail, list) and any(isinstance(inner, dict | list) for inner in detail):
        for index, inner in enumerate(detail):
            if inner:
                yield from _flatten(inner, f"{path}.{index}" if path else str(index))
    else:
        yield path, [str(one) for one in (detail if isinstance(detail, list) else [detail])]


def error_response(status_code: int, message: str) -> JsonResponse:
    """Return an error in the same format for requests that reach no endpoint: unknown paths, failures."""
    return JsonResponse(error_body(status_code, message), status=status_code)


# For the schema

ErrorBody = inline_serializer(
    "Error",
    {
        "error": inline_serializer(
            "ErrorDetail",
            {
                "code": serializers.CharField(),
                "message": serializers.CharField(),
                "fields": serializers.DictField(
                    child=serializers.ListField(child=serializers.CharField()), required=False
                ),
            },
        )
    },
)


def refusals(*codes: int) -> dict[int, OpenApiResponse]:
    """Return the error responses that an operation documents: 401 and these."""
    return {code: OpenApiResponse(ErrorBody, CODES[code].replace("_", " ")) for code in (401, *codes)}
