"""When a message may be sent: quiet hours and summaries, by the clock of its reader. Pure functions."""

from datetime import UTC, datetime, time, timedelta
from zoneinfo import ZoneInfo

from portal.notifications.models import Preferences

SOON = timedelta(minutes=5)
"""What follows a message within this time comes together: a sweep of a hundred jobs makes two messages."""


def due_at(wanted: Preferences, now: datetime, last_sent_at: datetime | None) -> datetime:
    """Return when a message that arises now is sent to a channel at which the last one was sent then."""
    zone = wanted.clock
    if wanted.digest == Preferences.Digest.DAY:
        moment = next_time(wanted.digest_at, zone, now)
    else:
        pause = timedelta(hours=1) if wanted.digest == Preferences.Digest.HOUR else SOON
        moment = max(now, last_sent_at + pause) if last_sent_at else now
    return after_quiet_hours(wanted.quiet_from, wanted.quiet_until, zone, moment)


def after_quiet_hours(start: time | None, end: time | None, zone: ZoneInfo, moment: datetime) -> datetime:
    """Return the moment itself, or the end of the quiet hours that it is in.

    The hours are those that clocks in the zone show: a night in which they are put back is an hour longer.
    """
    if start is None or end is None or start == end:
        return moment
    shown = moment.astimezone(zone).time()
    within = start <= shown < end if start < end else shown >= start or shown < end
    return next_time(end, zone, moment) if within else moment


def is_quiet(wanted: Preferences, now: datetime) -> bool:
    return after_quiet_hours(wanted.quiet_from, wanted.quiet_until, wanted.clock, now) != now


def next_time(wanted: time, zone: ZoneInfo, now: datetime) -> datetime:
    """Return the next moment at which clocks in the zone show a time, after ``now``.

    A time that they skip is the moment at which they are put forward by as much; one that they show twice is the first.
    """
    day = now.astimezone(zone).date()
    for later in range(3):
        moment = datetime.combine(day + timedelta(days=later), wanted, zone).astimezone(UTC)
        if moment > now:
            return moment
    raise AssertionError("a time comes every day")
