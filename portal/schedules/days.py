"""When a schedule runs: at a time of day by the clocks of a zone, on chosen weekdays. Pure: values in, values out.

Each chosen day has exactly one moment. A time that clocks skip, because they are put forward, is moved to the first moment
after the gap; of a time that they show twice, because they are put back, the first counts.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

DAYS_SEARCHED = 9
"""A week and a day at each end: the local date may be another than that of UTC."""
ONE_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Timetable:
    """The days and the time of day on which something runs."""

    at: time
    weekdays: frozenset[int]
    """0 is Monday."""
    zone: ZoneInfo

    def moment_on(self, day: date) -> datetime:
        """Return the moment of a local day, in UTC."""
        local = datetime.combine(day, self.at)
        first = local.replace(tzinfo=self.zone)
        moment = first.astimezone(UTC)
        if moment.astimezone(self.zone).replace(tzinfo=None) == local:
            return moment
        # The clocks skip it. The two readings of it are on the two sides of the gap, at most a day apart.
        before = first.replace(fold=1).astimezone(UTC)
        return self._change_between(min(before, moment), max(before, moment))

    def _change_between(self, low: datetime, high: datetime) -> datetime:
        """Return the first second at which the clocks are those of ``high``."""
        after = high.astimezone(self.zone).utcoffset()
        while high - low > timedelta(seconds=1):
            middle = low + timedelta(seconds=int((high - low).total_seconds()) // 2)
            if middle.astimezone(self.zone).utcoffset() == after:
                high = middle
            else:
                low = middle
        return high

    def latest(self, now: datetime) -> tuple[date, datetime] | None:
        """Return the last chosen day whose moment is not after ``now``, with the moment; None if there is no chosen day."""
        return next((found for found in self._around(now, -1) if found[1] <= now), None)

    def following(self, now: datetime, done: Collection[date] = ()) -> tuple[date, datetime] | None:
        """Return the first chosen day that is not one of ``done`` and whose moment is after ``now``, with the moment."""
        return next((found for found in self._around(now, 1) if found[1] > now and found[0] not in done), None)

    def _around(self, now: datetime, step: int) -> Iterator[tuple[date, datetime]]:
        day = now.astimezone(self.zone).date() - step * ONE_DAY
        for _ in range(DAYS_SEARCHED + 1):
            if day.weekday() in self.weekdays:
                yield day, self.moment_on(day)
            day += step * ONE_DAY
