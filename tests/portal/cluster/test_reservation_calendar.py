"""The calendar of reservations: days by the reader's clock, bars and blocks side by side, and what its page shows to whom."""

from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from django.contrib.auth.models import Group
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from portal.accounts.models import User
from portal.cluster import reservation_calendar
from portal.cluster.models import Reservation
from portal.cluster.reservation_calendar import Calendar, DayError, Shown, View
from tests.portal import jobs_world as world

BERLIN, ST_JOHNS = "Europe/Berlin", "America/St_Johns"


def row(start: datetime, end: datetime, pk: int = 1) -> Reservation:
    return Reservation(pk=pk, name=f"R{pk}", gpus=1, start=start, end=end)


def local(zone: str, text: str, fold: int = 0) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold).astimezone(UTC)


def lay_out(day: str, *rows: Reservation, view: View = "week") -> Calendar:
    return reservation_calendar.lay_out(
        view, date.fromisoformat(day), rows, lambda one: Shown(one, "GPU", False, None, None)
    )


def blocks(calendar: Calendar) -> dict[str, list[tuple[int, int, int]]]:
    return {
        f"{day.day:%a}": [(block.first, block.slots, block.column) for block in day.blocks]
        for day in calendar.weeks[0]
        if day.blocks
    }


def test_a_week_begins_on_monday_and_a_month_shows_whole_weeks() -> None:
    week, month = lay_out("2026-11-26"), lay_out("2026-11-26", view="month")
    assert (week.first, week.before, week.after) == (date(2026, 11, 23), date(2026, 11, 16), date(2026, 11, 30))
    assert (month.first, month.before, month.after) == (date(2026, 11, 1), date(2026, 10, 1), date(2026, 12, 1))
    assert month.weeks[0][0].day == date(2026, 10, 26) and month.weeks[-1][-1].day == date(2026, 12, 6)
    assert len(lay_out("2027-02-10", view="month").weeks) == 4, "February 2027 begins on a Monday"


@pytest.mark.parametrize("zone", [BERLIN, ST_JOHNS, "UTC", "Pacific/Kiritimati"])
def test_hours_are_those_of_the_reader(zone: str) -> None:
    with timezone.override(zone):
        found = blocks(lay_out("2026-11-25", row(local(zone, "2026-11-25T09:00"), local(zone, "2026-11-25T12:30"))))
    assert found == {"Wed": [(18, 7, 0)]}


def test_the_same_reservation_is_on_another_day_in_another_zone() -> None:
    late = row(datetime(2026, 11, 25, 22, 30, tzinfo=UTC), datetime(2026, 11, 25, 23, 0, tzinfo=UTC))
    with timezone.override("Asia/Tokyo"):
        assert blocks(lay_out("2026-11-25", late)) == {"Thu": [(15, 1, 0)]}
    with timezone.override(ST_JOHNS):
        assert blocks(lay_out("2026-11-25", late)) == {"Wed": [(38, 1, 0)]}


def test_one_over_midnight_is_a_bar_and_one_until_midnight_a_block() -> None:
    with timezone.override(BERLIN):
        over = row(local(BERLIN, "2026-11-24T22:00"), local(BERLIN, "2026-11-25T02:00"))
        until = row(local(BERLIN, "2026-11-26T22:00"), local(BERLIN, "2026-11-27T00:00"), 2)
        week = lay_out("2026-11-24", over, until)
    bars = [(f"{day.day:%a}", bar.begins, bar.ends, bar.hours) for day in week.weeks[0] for bar in day.bars if bar]
    assert bars == [("Tue", True, False, "24 Nov, 22:00 – 25 Nov, 02:00"), ("Wed", False, True, "until 02:00")]
    assert blocks(week) == {"Thu": [(44, 4, 0)]}
    assert week.weeks[0][3].blocks[0].hours == "22:00–24:00"


@pytest.mark.parametrize(
    ("zone", "day", "hours", "shown"),
    [
        (BERLIN, "2026-10-25", 25, "01:00 CEST–04:00 CET"),
        (BERLIN, "2027-03-28", 23, "01:00 CET–04:00 CEST"),
        (ST_JOHNS, "2026-11-01", 25, "01:00 NDT–04:00 NST"),
        (ST_JOHNS, "2027-03-14", 23, "01:00 NST–04:00 NDT"),
    ],
)
def test_days_on_which_the_clocks_change(zone: str, day: str, hours: int, shown: str) -> None:
    with timezone.override(zone):
        begins, next_day = date.fromisoformat(day), date.fromisoformat(day) + timedelta(days=1)
        midnights = reservation_calendar.midnight(begins), reservation_calendar.midnight(next_day)
        assert midnights[1] - midnights[0] == timedelta(hours=hours)
        whole = lay_out(day, row(*midnights))
        part = lay_out(day, row(local(zone, f"{day}T01:00"), local(zone, f"{day}T04:00")))
    assert [(block.first, block.slots, block.hours) for block in whole.weeks[0][6].blocks] == [(0, 48, "all day")]
    assert [(block.first, block.slots, block.hours) for block in part.weeks[0][6].blocks] == [(2, 6, shown)]


def test_a_reservation_in_the_hour_that_comes_twice_has_a_height() -> None:
    with timezone.override(BERLIN):
        twice = row(local(BERLIN, "2026-10-25T02:30"), local(BERLIN, "2026-10-25T02:15", fold=1))
        block = lay_out("2026-10-25", twice).weeks[0][6].blocks[0]
    assert (block.first, block.slots, block.hours) == (5, 1, "02:30 CEST–02:15 CET")


def test_overlaps_are_side_by_side_and_too_many_are_counted() -> None:
    def at(first: int, last: int, pk: int) -> Reservation:
        return row(datetime(2026, 11, 24, first, tzinfo=UTC), datetime(2026, 11, 24, last, tzinfo=UTC), pk)

    found = blocks(lay_out("2026-11-24", at(9, 12, 1), at(10, 14, 2), at(12, 13, 3)))
    assert found == {"Tue": [(18, 6, 0), (20, 8, 1), (24, 2, 0)]}
    crowded = lay_out("2026-11-24", *(at(9, 12, pk) for pk in range(1, 8))).weeks[0][1]
    assert [block.column for block in crowded.blocks] == [0, 1, 2, 3] and crowded.more == 3


def test_a_bar_keeps_its_lane_through_its_week() -> None:
    def days(first: int, last: int, pk: int) -> Reservation:
        return row(datetime(2026, 11, first, tzinfo=UTC), datetime(2026, 11, last, tzinfo=UTC), pk)

    week = lay_out("2026-11-23", days(1, 25, 1), days(24, 28, 2), days(25, 30, 3)).weeks[0]
    lanes = [[bar.shown.row.pk if bar else None for bar in day.bars] for day in week]
    assert lanes == [[1], [1, 2], [3, 2], [3, 2], [3, 2], [3], [3]]
    month = lay_out("2026-11-23", *(days(23, 25, pk) for pk in range(1, 7)), view="month").weeks[4]
    assert [(len(day.bars), day.more) for day in month[:3]] == [(4, 2), (4, 2), (0, 0)]


@pytest.mark.parametrize("text", ["2026-13-01", "tomorrow", "1999-12-31", "9999-12-31", "<b>", "0001-01-01", ""])
def test_a_day_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(DayError):
        reservation_calendar.parse_day(text)


@pytest.mark.parametrize("day", [reservation_calendar.FIRST_DAY, reservation_calendar.LAST_DAY])
@pytest.mark.parametrize("view", ["week", "month"])
def test_the_first_and_last_days_have_a_calendar(view: View, day: date) -> None:
    for zone in ("Pacific/Kiritimati", "Etc/GMT+12"):
        with timezone.override(zone):
            reservation_calendar.bounds_of(view, day)
            lay_out(day.isoformat(), view=view)


# --- the page ----------------------------------------------------------------------------------------------------


def client_of(user: User, zone: str = "") -> Client:
    client = Client()
    client.force_login(user)
    if zone:
        client.cookies["zone"] = zone
    return client


def reserve(name: str, start: str, hours: float, *people: User, group: Group | None = None) -> Reservation:
    begins = datetime.fromisoformat(start).replace(tzinfo=UTC)
    node = world.make_node("alpha", 8) if not Reservation.objects.exists() else Reservation.objects.all()[0].node
    made = Reservation.objects.create(name=name, node=node, gpus=1, start=begins, end=begins + timedelta(hours=hours))
    made.users.set(people)
    if group:
        made.groups.add(group)
    return made


@pytest.mark.django_db
def test_the_page_shows_a_week_by_the_clock_of_the_reader() -> None:
    made = reserve("Course", "2026-11-24T08:00", 3)
    page = client_of(world.make_user("bob"), ST_JOHNS).get("/reservations/?view=week&from=2026-11-26").content.decode()
    assert "04:30–07:30" in page and "time zone, America/St_Johns." in page
    assert f'href="/reservations/{made.pk}/"' in page and 'from=2026-11-30"' in page


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ("view=year", "choose week or month"),
        ("from=2026-02-30", "is not a day"),
        ("from=<script>alert(1)</script>", "is not a day"),
        ("list=all", "Choose a list"),
    ],
)
def test_an_address_that_cannot_be_followed_is_explained(query: str, problem: str) -> None:
    answer = client_of(world.make_user("bob")).get(f"/reservations/?{query}")
    page = answer.content.decode()
    assert answer.status_code == 200 and problem in page and "<script>alert" not in page


@pytest.mark.django_db
def test_others_see_neither_for_whom_nor_their_mark() -> None:
    secret = world.make_user("secret-person")
    made = reserve("Course", "2026-11-24T08:00", 3, secret, group=Group.objects.create(name="secret-group"))
    for path in ("/reservations/?from=2026-11-24", f"/reservations/{made.pk}/"):
        page = client_of(world.make_user(f"bob{len(path)}")).get(path).content.decode()
        assert "Course" in page and "secret" not in page and "hue-" not in page.split("<main", 1)[1]
        shown = client_of(secret).get(path).content.decode()
        assert "mark group" in shown


@pytest.mark.django_db
def test_a_cancelled_one_is_in_no_calendar() -> None:
    made = reserve("Course", "2026-11-24T08:00", 3)
    Reservation.objects.update(cancelled_at=timezone.now())
    client = client_of(world.make_user("bob"))
    assert "Course" not in client.get("/reservations/?from=2026-11-24&list=past").content.decode()
    assert client.get(f"/reservations/{made.pk}/").status_code == 404


@pytest.mark.django_db
def test_titles_are_escaped() -> None:
    reserve("<img src=x onerror=alert(1)>", "2026-11-24T08:00", 30)
    page = client_of(world.make_user("bob")).get("/reservations/?from=2026-11-24&view=month").content.decode()
    assert "<img src=x" not in page and "&lt;img src=x" in page


@pytest.mark.django_db
def test_the_past_is_listed_latest_first() -> None:
    reserve("Older", "2020-11-24T08:00", 3)
    reserve("Newer", "2021-11-24T08:00", 3)
    page = client_of(world.make_user("bob")).get("/reservations/?list=past").content.decode()
    assert page.index("Newer") < page.index("Older")


@pytest.mark.django_db
def test_more_than_a_day_can_show_lead_to_the_list_of_their_week() -> None:
    for number in range(12):
        reserve(f"Course {number:02}", "2020-11-24T08:00", 3)
    reserve("Another week", "2020-12-08T08:00", 3)
    client = client_of(world.make_user("bob"))
    page = client.get("/reservations/?from=2020-11-24").content.decode()
    assert "8 more" in page and "Course 11" not in page
    listed = client.get("/reservations/?view=week&from=2020-11-24&list=shown").content.decode()
    assert "Course 11" in listed and "Another week" not in listed


@pytest.mark.django_db
def test_an_empty_day_leads_admins_to_the_form_with_its_hours() -> None:
    admin = client_of(world.make_user("ada", is_staff=True), BERLIN)
    day = timezone.localdate() + timedelta(days=14)
    link = f'href="/reservations/new?from={day}"'
    assert link in admin.get(f"/reservations/?from={day}").content.decode()
    assert link not in client_of(world.make_user("bob")).get(f"/reservations/?from={day}").content.decode()
    form = admin.get(f"/reservations/new?from={day}").content.decode()
    assert f'value="{day}T09:00"' in form and f'value="{day}T17:00"' in form and "Time zone: Europe/Berlin." in form
    assert "is not a day" in admin.get("/reservations/new?from=soon").content.decode()


@pytest.mark.django_db
def test_many_take_as_many_queries_as_one() -> None:
    ada = world.make_user("ada", is_staff=True)
    client = client_of(ada)

    def queries() -> int:
        with CaptureQueriesContext(connection) as seen:
            client.get("/reservations/?from=2026-11-24&list=past")
        return len(seen)

    reserve("One", "2026-11-24T08:00", 3, ada, group=Group.objects.create(name="course"))
    queries()
    one = queries()
    for hour in range(8):
        reserve(f"More {hour}", f"2026-11-25T0{hour}:00", 20 * hour + 1, ada, group=Group.objects.get())
    assert queries() == one


@pytest.mark.django_db
def test_a_page_from_before_the_calendar_still_reserves() -> None:
    """The form was on the page of the list and was sent to its address."""
    ada, bob, node = world.make_user("ada", is_staff=True), world.make_user("bob"), world.make_node(gpus=2)
    start = timezone.now() + timedelta(days=1)
    asked = {"name": "Course", "node": node.pk, "gpus": 1, "start": start.strftime("%Y-%m-%dT%H:%M"), "users": "bob"}
    asked["end"] = (start + timedelta(hours=2)).strftime("%Y-%m-%dT%H:%M")
    client = Client()
    client.force_login(ada)
    broken = client.post("/reservations/", {**asked, "users": "no-such-user"})
    assert broken.status_code == 400 and "no-such-user" in broken.content.decode()
    made = client.post("/reservations/", asked)
    assert made.status_code == 302 and Reservation.objects.get().name == "Course"
    client.force_login(bob)
    assert client.post("/reservations/", asked).status_code == 404
