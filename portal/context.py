"""What every template may use."""

from django.http import HttpRequest


def site(request: HttpRequest) -> dict[str, object]:
    return {}
