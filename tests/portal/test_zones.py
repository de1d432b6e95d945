"""Times are read and shown in the zone of who reads the page, which the browser sends; days of usage are the lab's."""

import re
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from django import forms
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client
from django.utils import timezone

from portal import ui
from portal.accounts.models import User
from portal.cluster.forms import ReservationForm
from portal.cluster.models import Node, Reservation
from portal.jobs.forms import JobForm
from portal.usage import rollups
from portal.usage.forms import DayField
from portal.zones import MomentField, ReaderZone
from tests.portal.jobs_world import make_code, make_environment, make_node, make_project, make_user

ADDRESS = "/reservations/new"


@pytest.fixture
def ada(db: None) -> User:
    return make_user("ada", is_staff=True)


@pytest.fixture
def node(db: None) -> Node:
    return make_node("gpu1", approved_at=timezone.now())


def client_in(zone: str, user: User) -> Client:
    client = Client()
    client.force_login(user)
    if zone:
        client.cookies["zone"] = zone
    return client


def in_days(days: int, clock: str) -> str:
    return f"{(timezone.now() + timedelta(days=days)).date()}T{clock}"


def reserve(client: Client, node: Node, start: str, end: str) -> Any:
    asked = {"name": "Course", "node": node.pk, "gpus": 1, "start": start, "end": end, "users": "ada"}
    return client.post(ADDRESS, asked)


@pytest.mark.parametrize(
    ("zone", "offset"),
    [("Asia/Tokyo", 9), ("America/Phoenix", -7), ("Asia/Kathmandu", 5.75), ("Pacific/Kiritimati", 14), ("", 0)],
)
def test_a_reservation_is_at_the_time_by_the_clock_of_who_typed_it(
    zone: str, offset: float, ada: User, node: Node
) -> None:
    client = client_in(zone, ada)
    assert reserve(client, node, in_days(5, "09:00"), in_days(5, "12:30")).status_code == 302
    row = Reservation.objects.get()
    typed = datetime.fromisoformat(in_days(5, "09:00")).replace(tzinfo=UTC)
    assert row.start == typed - timedelta(hours=offset) and row.end - row.start == timedelta(hours=3.5)
    page = client.get("/reservations/").content.decode()
    assert f"{typed.day} {typed:%b %Y}, 09:00" in page and f"your time zone, {zone or 'UTC'}." in page


@pytest.mark.parametrize(
    "zone",
    [
        "Mars/Olympus",
        "../../etc/passwd",
        "/etc/localtime",
        "<script>",
        "9" * 4000,
        "%00",
        "Europe",
        "europe/berlin ",
        '""',
    ],
)
def test_a_zone_that_does_not_exist_is_that_of_the_lab(zone: str, ada: User, node: Node) -> None:
    page = client_in(zone, ada).get(ADDRESS)
    assert page.status_code == 200 and "Time zone: UTC." in page.content.decode()


def test_a_zone_ends_with_its_request(ada: User, node: Node) -> None:
    assert "Asia/Tokyo" in client_in("Asia/Tokyo", ada).get(ADDRESS).content.decode()
    assert timezone.get_current_timezone_name() == "UTC"
    assert "Time zone: UTC." in client_in("", ada).get(ADDRESS).content.decode()


@pytest.mark.django_db(transaction=True)
async def test_the_zone_reaches_views_under_asgi() -> None:
    user = await User.objects.acreate(username="ada", is_staff=True)
    client = AsyncClient()
    await client.aforce_login(user)
    client.cookies["zone"] = "Asia/Tokyo"
    assert "Time zone: Asia/Tokyo." in (await client.get(ADDRESS)).content.decode()
    assert timezone.get_current_timezone_name() == "UTC"


def test_programs_get_the_zone_of_the_lab(ada: User) -> None:
    seen: list[str] = []

    def answer(_: HttpRequest) -> HttpResponse:
        seen.append(timezone.get_current_timezone_name())
        return HttpResponse()

    request = HttpRequest()
    request.COOKIES = {"zone": "Asia/Tokyo"}
    for path in ("/api/v1/jobs/", "/agent/v1/sync", "/jobs/"):
        request.path = path
        ReaderZone(answer)(request)
    assert seen == ["UTC", "UTC", "Asia/Tokyo"]


@pytest.mark.parametrize(
    ("zone", "typed", "message"),
    [
        ("Europe/Berlin", "2027-03-28T02:30", "skip this time"),
        ("Europe/Berlin", "2027-10-31T02:30", "show this time twice"),
        ("America/New_York", "2027-03-14T02:00", "skip this time"),
        ("America/New_York", "2027-11-07T01:59", "show this time twice"),
        ("Australia/Lord_Howe", "2027-10-03T02:15", "skip this time"),
        ("Pacific/Apia", "2011-12-30T12:00", "skip this time"),
        ("UTC", "0001-01-01T00:00", "Choose a time from 2000 to 2999."),
        ("Pacific/Kiritimati", "0001-01-01T00:00", "Choose a time from 2000 to 2999."),
        ("America/Phoenix", "9999-12-31T23:59", "Choose a time from 2000 to 2999."),
        ("UTC", "1999-12-31T23:59", "Choose a time from 2000 to 2999."),
        ("UTC", "2027-02-30T10:00", "Enter a valid date/time."),
        ("UTC", "tomorrow", "Enter a valid date/time."),
    ],
)
def test_a_time_that_is_none_is_refused_with_what_to_do(zone: str, typed: str, message: str) -> None:
    with timezone.override(zone), pytest.raises(forms.ValidationError, match=re.escape(message)):
        MomentField().clean(typed)


@pytest.mark.parametrize(
    ("zone", "first", "last", "hours"),
    [
        ("Europe/Berlin", "2027-03-28T00:00", "2027-03-29T00:00", 23),
        ("Europe/Berlin", "2027-10-31T00:00", "2027-11-01T00:00", 25),
        ("Australia/Lord_Howe", "2027-04-04T00:00", "2027-04-05T00:00", 24.5),
        ("UTC", "2027-03-28T00:00", "2027-03-29T00:00", 24),
    ],
)
def test_days_have_as_many_hours_as_the_clocks_make_them(zone: str, first: str, last: str, hours: float) -> None:
    with timezone.override(zone):
        since, until = (MomentField().clean(each) for each in (first, last))
    assert until.astimezone(UTC) - since.astimezone(UTC) == timedelta(hours=hours)


@pytest.mark.django_db
def test_every_time_in_a_form_is_by_the_readers_clock() -> None:
    make_environment()
    job = JobForm(make_code(make_project(make_user("alice"))))
    fields = [field for form in (job, ReservationForm()) for field in form.fields.values()]
    moments = [each for each in fields if isinstance(each, forms.DateTimeField | forms.SplitDateTimeField)]
    assert len(moments) == 3 and all(isinstance(each, MomentField) for each in moments)
    assert "Time zone: UTC." in str(job["deadline"].help_text)


def test_a_time_keeps_its_moment_on_the_way_through_a_form(ada: User, node: Node) -> None:
    moment = datetime(2027, 5, 1, 12, tzinfo=UTC)
    with timezone.override("Asia/Tokyo"):
        form = ReservationForm(initial={"start": moment})
        shown = re.search(r'value="([^"]+)"', str(form["start"]))
        assert shown is not None and shown[1] == "2027-05-01T21:00"
        assert MomentField().clean(shown[1]) == moment


def test_days_of_usage_are_those_of_the_lab_for_every_reader() -> None:
    now = datetime(2027, 5, 1, 22, tzinfo=UTC)
    with timezone.override("Asia/Tokyo"):
        assert rollups.today(now) == date(2027, 5, 1)
        assert rollups.midnight(date(2027, 5, 1)) == datetime(2027, 5, 1, tzinfo=UTC)


@pytest.mark.parametrize("day", ["0001-01-01", "1999-12-31", "2200-01-02", "9999-12-31"])
def test_days_far_away_are_refused(day: str) -> None:
    with pytest.raises(forms.ValidationError, match="Choose a day from 2000-01-01 to 2200-01-01"):
        DayField().clean(day)


def test_exact_times_have_day_hour_and_zone_as_text() -> None:
    moment = datetime(2026, 12, 4, 8, tzinfo=UTC)
    with timezone.override("Europe/Berlin"):
        text = ui.exact(moment)
    assert ">4 Dec 2026, 09:00 CET</time>" in text and 'datetime="2026-12-04T08:00:00+00:00"' in text
    assert "data-when" in text and "data-when" not in ui.exact(moment, relative=False)
    assert "never" in ui.exact(None)


def test_a_time_is_read_in_the_zone_that_its_form_named(ada: User, node: Node) -> None:
    """Not in one that the browser sent since: its first page after an upgrade names the zone of the lab."""
    client = client_in("", ada)
    page = client.get(ADDRESS).content.decode()
    assert 'name="start_zone" value="UTC"' in page
    client.cookies["zone"] = "Asia/Tokyo"
    sent = {
        "name": "course",
        "node": str(node.pk),
        "gpus": "1",
        "start": in_days(3, "09:00"),
        "end": in_days(4, "09:00"),
        "users": "ada",
    }
    refused = client.post(ADDRESS, sent | {"gpus": "99", "start_zone": "UTC", "end_zone": "UTC"}).content.decode()
    assert 'name="start_zone" value="UTC"' in refused and "Time zone: UTC." in refused
    assert "Time zone: Asia/Tokyo." not in refused
    client.post(ADDRESS, sent | {"start_zone": "UTC", "end_zone": "Mars/Olympus"})
    row = Reservation.objects.get()
    assert (row.start.astimezone(UTC).hour, row.end.astimezone(UTC).hour) == (9, 0), "an unknown zone is not used"
