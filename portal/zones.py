"""The time zone of who reads a page: its times are shown, and what is typed into its forms is read, in this zone.

``static/js/first.js`` sends the zone of the browser as a cookie. Without one, the zone of the lab (``TIME_ZONE``) is used.
Whole days, such as those of usage, are days of the lab for all readers.
"""

from collections.abc import Awaitable
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from functools import cache
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

from django import forms
from django.conf import settings
from django.http import HttpRequest, HttpResponseBase
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from portal.errors import is_program
from portal.middleware import Middleware

COOKIE = "zone"
FIRST_YEAR, LAST_YEAR = 2000, 2999
"""The years of times that a form accepts: near the limits of the calendar some zones have no time."""
LOCAL_TIME_FORMAT = "%Y-%m-%dT%H:%M"


class ReaderZone(Middleware):
    """Activates the reader's zone for pages. Programs send times with their zone, and get them in that of the lab."""

    def __call__(self, request: HttpRequest) -> Any:
        if self.is_async:
            return self._handle_async(request)
        with _zone_of(request):
            return self.get_response(request)

    async def _handle_async(self, request: HttpRequest) -> HttpResponseBase:
        with _zone_of(request):
            answer: Any = self.get_response(request)
            response: HttpResponseBase = await answer if isinstance(answer, Awaitable) else answer
            return response


def _zone_of(request: HttpRequest) -> AbstractContextManager[Any]:
    name = request.COOKIES.get(COOKIE, "")
    if is_program(request) or name not in known_zones():
        return nullcontext()
    return timezone.override(ZoneInfo(name))


NOT_PLACES = {"localtime", "Factory", "posixrules"}
"""Names of the zone database that mean another zone on each machine, or none."""


@cache
def known_zones() -> frozenset[str]:
    """Return the names of the time zones that this machine knows."""
    return frozenset(available_timezones() - NOT_PLACES)


def zone_or_lab(name: str) -> ZoneInfo:
    """Return a zone that someone chose; that of the lab for an empty name, and for one that this machine does not know."""
    return ZoneInfo(name if name in known_zones() else settings.TIME_ZONE)


class TypedTime(str):
    """What was typed as a time, with the zone that the form named."""

    __slots__ = ("zone",)
    zone: str


class MomentInput(forms.DateTimeInput):
    """Carries the zone that the form names: the browser may have sent another one since, or none before."""

    def __init__(self) -> None:
        super().__init__(attrs={"type": "datetime-local"}, format=LOCAL_TIME_FORMAT)

    def value_from_datadict(self, data: Any, files: Any, name: str) -> Any:
        """Return what was typed, with its zone; a script that sends none means that of its cookie."""
        value, zone = super().value_from_datadict(data, files, name), data.get(f"{name}_zone")
        if not isinstance(value, str) or zone not in known_zones():
            return value
        typed = TypedTime(value)
        typed.zone = zone
        return typed

    def render(self, name: str, value: Any, attrs: Any = None, renderer: Any = None) -> SafeString:
        hidden = format_html('<input type="hidden" name="{}_zone" value="{}">', name, zone_named_with(value))
        return super().render(name, value, attrs, renderer) + hidden


def zone_named_with(value: object) -> str:
    return value.zone if isinstance(value, TypedTime) else str(timezone.get_current_timezone())


class MomentField(forms.DateTimeField):
    """A time by the reader's clock. The form names the zone beside it."""

    widget = MomentInput

    def to_python(self, value: Any) -> datetime | None:
        """Read a time. Raises ValidationError for one that the clocks skip or show twice, and for one far away."""
        with timezone.override(ZoneInfo(value.zone)) if isinstance(value, TypedTime) else nullcontext():
            return self._to_python(value)

    def has_changed(self, initial: Any, data: Any) -> bool:
        """Return whether another minute was typed: an input shows no seconds."""
        return super().has_changed(initial.replace(second=0, microsecond=0) if initial else initial, data)

    def _to_python(self, value: Any) -> datetime | None:
        try:
            moment = super().to_python(value)
        except forms.ValidationError as error:
            local = (error.params or {}).get("datetime")
            if error.code != "ambiguous_timezone" or not isinstance(local, datetime):
                raise
            _refuse_far_year(local)
            raise forms.ValidationError(_unclear(local), code=error.code) from error
        if moment is not None:
            _refuse_far_year(moment)
        return moment

    def get_bound_field(self, form: forms.BaseForm, field_name: str) -> forms.BoundField:
        bound = super().get_bound_field(form, field_name)
        bound.help_text = f"{self.help_text} Time zone: {zone_named_with(bound.data)}.".strip()
        return bound


def _refuse_far_year(moment: datetime) -> None:
    if not FIRST_YEAR <= moment.year <= LAST_YEAR:
        raise forms.ValidationError(f"Choose a time from {FIRST_YEAR} to {LAST_YEAR}.", code="far")


def _unclear(local: datetime) -> str:
    """Return why a time of the current zone means no moment, or two: the clocks are put forward or back."""
    zone = timezone.get_current_timezone()
    before, after = (local.replace(tzinfo=zone, fold=fold).utcoffset() for fold in (0, 1))
    skipped = before is not None and after is not None and before < after
    what = "skip this time: they are put forward" if skipped else "show this time twice: they are put back"
    return f"The clocks in {timezone.get_current_timezone_name()} {what}. Choose an earlier or a later time."
