"""The charts of the usage and ledger pages."""

from collections.abc import Callable, Sequence
from datetime import date

from portal import charts
from portal.charts import Chart, Series
from portal.usage.ledger import Spent
from portal.usage.reports import Ledger, Row, Statement, Usage

HOUR = 3_600_000_000
MAX_BARS = 12
MAX_DAILY_BARS = 62
"""Windows of more days are drawn by month."""
USES: tuple[tuple[str, str, Callable[[Spent], int]], ...] = (
    ("useful", "teal", lambda spent: spent.useful),
    ("starting", "amber", lambda spent: spent.starting),
    ("failed", "red", lambda spent: spent.failed),
    ("interrupted", "violet", lambda spent: spent.interrupted),
)


def gpu_hours_over_time(report: Usage, noun: str) -> Chart | None:
    """Draw how much GPU time was held each day or month, and how much was idle. ``noun``: GPU or CPU slot."""
    if not report.days:
        return None
    monthly = len(report.days) > MAX_DAILY_BARS
    spans: dict[date, Spent] = {}
    idle: dict[date, int] = {}
    for row in report.days:
        assert isinstance(row.key, date)  # noqa: S101  # rows of days have one
        span = row.key.replace(day=1) if monthly else row.key
        spans.setdefault(span, Spent()).add(row.spent)
        idle[span] = idle.get(span, 0) + report.idle.get(row.key, 0)
    series = [Series(name, [of(spent) / HOUR for spent in spans.values()], tone) for name, tone, of in USES]
    if report.capacity is not None:
        series.append(Series("idle", [idle[span] / HOUR for span in spans], "idle"))
    labels: Sequence[date | str] = [f"{span:%b %Y}" for span in spans] if monthly else list(spans)
    return charts.bars(
        f"{noun}-hours by {'month' if monthly else 'day'}",
        labels,
        series,
        f"{noun}-hours",
        stacked=True,
        desc=_wasted_sentence(report, noun),
    )


def _wasted_sentence(report: Usage, noun: str) -> str:
    spent = report.total.spent
    if not spent.allocated:
        return f"No {noun} was held."
    used = charts.format_value(spent.allocated / HOUR, f"{noun}-hours")
    return f"{used} were held; {round(100 * spent.wasted / spent.allocated)} % of them were wasted."


def gpu_hours_by_row(report: Usage, noun: str) -> Chart | None:
    rows = [row for row in report.rows if row.spent.allocated][:MAX_BARS]
    if len(rows) < 2 or report.by in ("day", "month"):
        return None
    series = [Series(name, [of(row.spent) / HOUR for row in rows], tone) for name, tone, of in USES]
    return charts.bars(
        f"{noun}-hours by {_GROUPING_WORDS[report.by]}",
        [row.name for row in rows],
        series,
        f"{noun}-hours",
        stacked=True,
        horizontal=True,
    )


def waiting_times(report: Usage) -> Chart | None:
    rows = [row for row in report.rows if row.spent.waits]
    rows = rows[-MAX_BARS:] if report.by in ("day", "month") else rows[:MAX_BARS]
    if not rows or report.by == "day":
        return None
    return charts.bars(
        f"Waiting times by {_GROUPING_WORDS[report.by]}",
        [row.name for row in rows],
        [
            _waiting_series("median", rows, lambda row: row.median),
            _waiting_series("95th percentile", rows, lambda row: row.p95),
        ],
        charts.SECONDS,
        horizontal=True,
    )


def _waiting_series(name: str, rows: Sequence[Row], of: Callable[[Row], float | None]) -> Series:
    return Series(name, [of(row) for row in rows])


def entitled_and_used(title: str, rows: Sequence[Statement], noun: str) -> Chart | None:
    """Draw entitled and used GPU time side by side."""
    shown = [row for row in rows if row.line.entitled or row.line.used][:MAX_BARS]
    if not shown:
        return None
    return charts.bars(
        title,
        [row.name for row in shown],
        [
            Series("entitled", [row.line.entitled / HOUR for row in shown], "grey"),
            Series("used", [row.line.used / HOUR for row in shown], "teal"),
        ],
        f"{noun}-hours",
        horizontal=True,
    )


def ledger_charts(report: Ledger, noun: str) -> list[Chart]:
    found = (
        entitled_and_used("Entitled and used, by person", report.people, noun),
        entitled_and_used("Entitled and used, by group", report.groups, noun) if len(report.groups) > 1 else None,
    )
    return [chart for chart in found if chart is not None]


_GROUPING_WORDS = {"user": "person", "group": "group", "project": "project", "month": "month", "day": "day"}
