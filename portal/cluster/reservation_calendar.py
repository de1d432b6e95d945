"""The calendar of reservations: weeks and months whose days are laid out in the reader's zone.

A day begins and ends at midnight by the reader's clock, so it may have 23 or 25 hours. In a week a reservation within one
day stands at its hours and a longer one is a bar across its days; in a month each one is a bar. Bars that overlap have
different lanes, which are the same in each day of a week.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from typing import Literal

from django.utils import timezone

from portal.cluster.models import Reservation
from portal.cluster.slots import counted
from portal.hues import Mark

View = Literal["week", "month"]
VIEWS: tuple[View, ...] = ("week", "month")
FIRST_DAY, LAST_DAY = date(2000, 1, 3), date(2999, 11, 30)
"""The days that a calendar shows: those of ``portal.zones``, less a margin for whole weeks."""
DAY = timedelta(days=1)
WEEK = 7
SLOTS = 48
"""Half hours of a day."""
MAX_LANES: dict[View, int] = {"week": 6, "month": 4}
MAX_BESIDE = 4
"""More short reservations at once would be too narrow to read; a link leads to the others."""


class DayError(ValueError):
    """What stands in the address is no day of the calendar."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A reservation as a reader may see it."""

    row: Reservation
    noun: str
    mine: bool
    people: tuple[str, ...] | None
    """Who may use it; None when the reader may not know."""
    mark: Mark | None

    @property
    def label(self) -> str:
        return f"{self.row.name}: {self.gpus} on {self.row.node.name}"

    @property
    def gpus(self) -> str:
        """Return what is reserved: ``2 GPUs``, ``2 GPUs (NVIDIA T4)``."""
        model = f" ({self.row.gpu_model})" if self.row.gpu_model else ""
        return f"{counted(self.row.gpus, self.noun)}{model}"

    @property
    def css(self) -> str:
        return f"hue-{self.mark.hue}" if self.mark else "unmarked"


@dataclass(frozen=True, slots=True)
class Bar:
    """A part of a reservation within one day."""

    shown: Shown
    begins: bool
    """The reservation starts on this day."""
    ends: bool
    labelled: bool
    """The first day of the bar in its week: the title stands here, across ``days`` days."""
    days: int
    hours: str
    """What of the day is reserved: ``all day``, ``from 09:00``, ``until 12:30``."""

    @property
    def css(self) -> str:
        names = ["bar", self.shown.css, "begins" if self.begins else "", "ends" if self.ends else ""]
        return " ".join(filter(None, [*names, f"span-{self.days}" if self.labelled else ""]))


@dataclass(frozen=True, slots=True)
class Block:
    """A reservation within one day, at its hours. The first slot is 0; the column is one of those side by side."""

    shown: Shown
    first: int
    slots: int
    column: int
    hours: str

    @property
    def css(self) -> str:
        return f"block {self.shown.css} at-{self.first} for-{self.slots} column-{self.column}"


@dataclass(slots=True)
class Day:
    day: date
    is_today: bool
    inside: bool
    """False for the days of a month's first and last week that belong to its neighbours."""
    is_past: bool
    bars: list[Bar | None] = field(default_factory=list)
    """One for each lane; None where the lane is free on this day."""
    blocks: list[Block] = field(default_factory=list)
    more: int = 0

    @property
    def is_empty(self) -> bool:
        return not self.more and not self.blocks and not any(self.bars)

    @property
    def css(self) -> str:
        about = {"today": self.is_today, "past": self.is_past, "outside": not self.inside, "empty-day": self.is_empty}
        return " ".join(["day", *(name for name, applies in about.items() if applies)])


@dataclass(frozen=True, slots=True)
class Calendar:
    view: View
    first: date
    """Monday of the week, or the first day of the month."""
    weeks: list[list[Day]]

    @property
    def last(self) -> date:
        return self.weeks[-1][-1].day if self.view == "week" else _next_month(self.first) - DAY

    @property
    def before(self) -> date | None:
        first = self.first - WEEK * DAY if self.view == "week" else (self.first - DAY).replace(day=1)
        return first if first >= FIRST_DAY else None

    @property
    def after(self) -> date | None:
        first = self.first + WEEK * DAY if self.view == "week" else _next_month(self.first)
        return first if first <= LAST_DAY else None

    @property
    def has_blocks(self) -> bool:
        return any(day.blocks for week in self.weeks for day in week)

    @property
    def is_empty(self) -> bool:
        return all(day.is_empty for week in self.weeks for day in week)


def parse_day(text: str) -> date:
    """Return the day of an address such as ``2026-11-23``. Raises DayError."""
    try:
        day = date.fromisoformat(text)
    except ValueError:
        raise DayError(f"“{text[:40]}” is not a day. Write it as in 2026-11-23.") from None
    if not FIRST_DAY <= day <= LAST_DAY:
        raise DayError(f"The calendar has the days from {FIRST_DAY} to {LAST_DAY}.")
    return day


def midnight(day: date) -> datetime:
    """Return when a day begins by the reader's clock."""
    return datetime.combine(day, time(), timezone.get_current_timezone()).astimezone(UTC)


def days_of(view: View, day: date) -> tuple[date, list[date]]:
    """Return the first day of the week or month around a day, and the Mondays of the weeks that are shown."""
    if view == "week":
        monday = day - day.weekday() * DAY
        return monday, [monday]
    first, end = day.replace(day=1), _next_month(day)
    monday = first - first.weekday() * DAY
    return first, [monday + WEEK * number * DAY for number in range(-(-(end - monday).days // WEEK))]


def bounds_of(view: View, day: date) -> tuple[datetime, datetime]:
    """Return the time of the shown weeks: from the first moment to the one after the last."""
    _, mondays = days_of(view, day)
    return midnight(mondays[0]), midnight(mondays[-1] + WEEK * DAY)


def lay_out(view: View, day: date, rows: Iterable[Reservation], show: Callable[[Reservation], Shown]) -> Calendar:
    """Lay out the reservations of ``bounds_of(view, day)``."""
    first, mondays = days_of(view, day)
    today = timezone.localdate()
    bars: list[Shown] = []
    blocks: list[Shown] = []
    weeks = []
    for row in sorted(rows, key=lambda row: (row.start, row.pk)):
        (blocks if view == "week" and _is_short(row) else bars).append(show(row))
    for monday in mondays:
        days = [monday + number * DAY for number in range(WEEK)]
        week = [Day(each, each == today, view == "week" or each.month == first.month, each < today) for each in days]
        _place_bars(week, bars, MAX_LANES[view])
        _place_blocks(week, blocks)
        weeks.append(week)
    return Calendar(view, first, weeks)


def _is_short(row: Reservation) -> bool:
    return _local_day(row.start) == _last_day(row)


def _local_day(moment: datetime) -> date:
    return timezone.localtime(moment).date()


def _last_day(row: Reservation) -> date:
    """Return the last day of which some is reserved: until midnight means until the end of the day before."""
    return _local_day(row.end - timedelta(microseconds=1))


def _place_bars(week: Sequence[Day], rows: Iterable[Shown], max_lanes: int) -> None:
    lanes: list[date] = []  # the last day that is taken in each
    monday, sunday = week[0].day, week[-1].day
    for shown in rows:
        start, end = _local_day(shown.row.start), _last_day(shown.row)
        first, last = max(start, monday), min(end, sunday)
        if first > last:
            continue
        lane = next((number for number, taken in enumerate(lanes) if taken < first), len(lanes))
        if lane == max_lanes:
            for day in week[first.weekday() : last.weekday() + 1]:
                day.more += 1
            continue
        lanes[lane : lane + 1] = [last]
        for day in week[first.weekday() : last.weekday() + 1]:
            day.bars.extend([None] * (lane + 1 - len(day.bars)))
            day.bars[lane] = Bar(
                shown,
                begins=day.day == start,
                ends=day.day == end,
                labelled=day.day == first,
                days=(last - first).days + 1,
                hours=_hours(shown.row, day.day) if start == end or day.day > first else _span(shown.row),
            )


def _place_blocks(week: Sequence[Day], rows: Iterable[Shown]) -> None:
    for shown in rows:
        start = _local_day(shown.row.start)
        number = (start - week[0].day).days
        if not 0 <= number < WEEK:
            continue
        day = week[number]
        first, end = _slot(shown.row.start), _end_slot(shown.row)
        taken = {block.column for block in day.blocks if block.first < end and first < block.first + block.slots}
        column = next(number for number in range(len(taken) + 1) if number not in taken)
        if column == MAX_BESIDE:
            day.more += 1
            continue
        day.blocks.append(Block(shown, first, end - first, column, _hours(shown.row, start)))


def _slot(moment: datetime) -> int:
    local = timezone.localtime(moment)
    return local.hour * 2 + local.minute // 30


def _end_slot(row: Reservation) -> int:
    """Return the slot after the last one, by the clock; where clocks are put back it might be before the first."""
    last = _slot(row.end - timedelta(microseconds=1))
    return max(last, _slot(row.start)) + 1


def _hours(row: Reservation, day: date) -> str:
    begins, ends = row.start >= midnight(day), row.end <= midnight(day + DAY)
    start, end = clock(row.start, day), clock(row.end, day)
    if begins and ends:
        whole = row.start == midnight(day) and row.end == midnight(day + DAY)
        return "all day" if whole else f"{start}–{end}"
    if begins:
        return f"from {start}" if row.start > midnight(day) else "all day"
    return f"until {end}" if ends and row.end < midnight(day + DAY) else "all day"


def _span(row: Reservation) -> str:
    """Return the times of a reservation of several days, with their zones where the clocks change in between."""
    start, end = timezone.localtime(row.start), timezone.localtime(row.end)
    form = "%H:%M" if start.utcoffset() == end.utcoffset() else "%H:%M %Z"
    return f"{start.day} {start:%b}, {start:{form}} – {end.day} {end:%b}, {end:{form}}"


def clock(moment: datetime, day: date) -> str:
    """Return a time of a day, with its zone where the clocks change on that day: ``02:30 CET``."""
    local, next_day = timezone.localtime(moment), day + DAY
    if local.date() == next_day and moment == midnight(next_day):
        return "24:00"
    zone = timezone.get_current_timezone()
    changes = midnight(day).astimezone(zone).utcoffset() != midnight(next_day).astimezone(zone).utcoffset()
    return f"{local:%H:%M %Z}" if changes else f"{local:%H:%M}"


def _next_month(day: date) -> date:
    return (day.replace(day=1) + 32 * DAY).replace(day=1)
