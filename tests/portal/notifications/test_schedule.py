"""Quiet hours and summaries, by the clock of their reader."""

from datetime import UTC, datetime, time, timedelta
from zoneinfo import ZoneInfo

import pytest

from portal.notifications.models import Preferences
from portal.notifications.schedule import SOON, after_quiet_hours, due_at, next_time

BERLIN = ZoneInfo("Europe/Berlin")
Digest = Preferences.Digest


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("moment", "expected"),
    [
        ("2026-07-01 19:59", "2026-07-01 19:59"),  # 21:59 in Berlin
        ("2026-07-01 20:00", "2026-07-02 05:00"),
        ("2026-07-02 04:59", "2026-07-02 05:00"),
        ("2026-07-02 05:00", "2026-07-02 05:00"),
        ("2026-12-01 20:30", "2026-12-01 20:30"),  # an hour later in winter
        ("2026-12-01 21:00", "2026-12-02 06:00"),
        ("2026-10-24 21:00", "2026-10-25 06:00"),  # in this night the clocks are put back: it lasts an hour longer
        ("2026-03-28 22:00", "2026-03-29 05:00"),  # and in this one forward
    ],
)
def test_quiet_hours_over_midnight_follow_the_clocks_of_the_zone(moment: str, expected: str) -> None:
    assert after_quiet_hours(time(22), time(7), BERLIN, at(moment)) == at(expected)


def test_quiet_hours_within_a_day() -> None:
    moment = at("2026-07-01 11:00")
    assert after_quiet_hours(time(12), time(14), BERLIN, moment) == at("2026-07-01 12:00")
    assert after_quiet_hours(time(12), time(12), BERLIN, moment) == moment
    assert after_quiet_hours(None, None, BERLIN, moment) == moment


def test_a_time_that_the_clocks_skip_or_show_twice_comes_once() -> None:
    assert next_time(time(2, 30), BERLIN, at("2026-03-28 23:00")) == at("2026-03-29 01:30")
    assert next_time(time(2, 30), BERLIN, at("2026-10-24 23:00")) == at("2026-10-25 00:30")
    assert next_time(time(2, 30), BERLIN, at("2026-10-25 00:30")) == at("2026-10-26 01:30")


def test_the_first_message_goes_at_once_and_what_follows_comes_together() -> None:
    wanted, now = Preferences(zone="Europe/Berlin"), at("2026-07-01 12:00")
    assert due_at(wanted, now, None) == now
    assert due_at(wanted, now, now - timedelta(hours=1)) == now
    assert due_at(wanted, now, now - timedelta(minutes=1)) == now + SOON - timedelta(minutes=1)


def test_once_an_hour_and_once_a_day() -> None:
    now = at("2026-07-01 12:00")
    assert due_at(Preferences(digest=Digest.HOUR), now, now - timedelta(minutes=10)) == at("2026-07-01 12:50")
    assert due_at(Preferences(digest=Digest.DAY, digest_at=time(8), zone="Europe/Berlin"), now, None) == at(
        "2026-07-02 06:00"
    )


def test_quiet_hours_hold_a_summary_back() -> None:
    wanted = Preferences(zone="Europe/Berlin", digest=Digest.HOUR, quiet_from=time(22), quiet_until=time(7))
    assert due_at(wanted, at("2026-07-01 19:59"), at("2026-07-01 19:30")) == at("2026-07-02 05:00")
