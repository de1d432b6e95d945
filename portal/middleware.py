"""What holds for every request before a view sees it."""

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse, HttpResponseBase

from portal.rest import error_response

GetResponse = Callable[[HttpRequest], HttpResponseBase]


class RefuseNul:
    """No address has a NUL. PostgreSQL refuses it in any text, which would be a 500 in each view that searches."""

    def __init__(self, get_response: GetResponse) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        if "\0" in request.path or "%00" in request.META.get("QUERY_STRING", ""):
            if request.path.startswith("/api/"):
                return error_response(request, 400, "An address cannot contain a NUL character.")
            return HttpResponse("An address cannot contain a NUL character.", status=400, content_type="text/plain")
        return self.get_response(request)
