"""Each chosen local day has exactly one moment, whatever the clocks of the zone do."""

from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from portal.schedules.days import Timetable

EVERY_DAY = frozenset(range(7))
ZONES = ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu", "Pacific/Auckland", "UTC")
ONE_DAY = timedelta(days=1)


def moment(zone: str, day: date, at: time) -> datetime:
    return Timetable(at, EVERY_DAY, ZoneInfo(zone)).moment_on(day)


@pytest.mark.parametrize(
    ("zone", "day", "at", "expected"),
    [
        ("Europe/Berlin", date(2027, 3, 27), time(2, 30), "2027-03-27T01:30"),
        # skipped: the first moment after the gap
        ("Europe/Berlin", date(2027, 3, 28), time(2, 30), "2027-03-28T01:00"),
        ("Europe/Berlin", date(2027, 3, 28), time(2, 0), "2027-03-28T01:00"),
        ("Europe/Berlin", date(2027, 3, 28), time(3, 0), "2027-03-28T01:00"),
        ("America/New_York", date(2027, 3, 14), time(2, 15), "2027-03-14T07:00"),
        ("Australia/Lord_Howe", date(2027, 10, 3), time(2, 15), "2027-10-02T15:30"),  # half an hour is skipped
        # shown twice: the first
        ("Europe/Berlin", date(2027, 10, 31), time(2, 30), "2027-10-31T00:30"),
        ("America/New_York", date(2027, 11, 7), time(1, 30), "2027-11-07T05:30"),
        ("Australia/Lord_Howe", date(2027, 4, 4), time(1, 45), "2027-04-03T14:45"),
        # a whole day is skipped
        ("Pacific/Apia", date(2011, 12, 30), time(12, 0), "2011-12-30T10:00"),
    ],
)
def test_known_changes_of_clocks(zone: str, day: date, at: time, expected: str) -> None:
    assert moment(zone, day, at) == datetime.fromisoformat(expected).replace(tzinfo=UTC)


@given(
    st.sampled_from(ZONES),
    st.times().map(lambda at: at.replace(second=0, microsecond=0)),
    st.frozensets(st.integers(0, 6), min_size=1),
    st.dates(date(2025, 1, 1), date(2035, 1, 1)),
)
def test_each_chosen_day_comes_once_and_no_other(zone: str, at: time, weekdays: frozenset[int], first: date) -> None:
    """Going from moment to moment for half a year finds each chosen local day exactly once, in order."""
    table = Timetable(at, weekdays, ZoneInfo(zone))
    now, end = table.moment_on(first) - timedelta(seconds=1), table.moment_on(first + 180 * ONE_DAY)
    found = []
    while (following := table.following(now)) and following[1] < end:
        assert following[1] > now
        assert table.latest(following[1]) == following, "it is due at its own moment"
        assert table.latest(following[1] - timedelta(seconds=1)) != following, "and not before"
        found.append(following[0])
        now = following[1]
    expected = [first + number * ONE_DAY for number in range(180)]
    assert found == [day for day in expected if day.weekday() in weekdays]


@given(st.sampled_from(ZONES), st.times(), st.integers(0, 10 * 365 * 86_400))
def test_the_latest_and_the_following_day_are_neighbours(zone: str, at: time, seconds: int) -> None:
    table = Timetable(at.replace(second=0, microsecond=0), EVERY_DAY, ZoneInfo(zone))
    moment = datetime(2025, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)
    latest, following = table.latest(moment), table.following(moment)
    assert latest and following and latest[1] <= moment < following[1] and following[0] - latest[0] == ONE_DAY


def test_without_a_day_nothing_is_due() -> None:
    table = Timetable(time(2), frozenset(), ZoneInfo("UTC"))
    assert (
        table.latest(datetime(2027, 1, 1, tzinfo=UTC)) is None
        and table.following(datetime(2027, 1, 1, tzinfo=UTC)) is None
    )
