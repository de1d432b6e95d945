"""Mounts each app's viewsets under /api/v1/; paging and the one shape of errors."""

from typing import Any

from rest_framework.pagination import PageNumberPagination
from rest_framework.response import Response
from rest_framework.views import exception_handler as drf_exception_handler


class Pages(PageNumberPagination):
    page_size_query_param = "page_size"
    max_page_size = 200


def exception_handler(error: Exception, context: dict[str, Any]) -> Response | None:
    return drf_exception_handler(error, context)
