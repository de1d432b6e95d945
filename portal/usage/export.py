"""Reports as CSV. Amounts are GPU-seconds with all digits, so that sums in a spreadsheet are exact too."""

from collections.abc import Iterable, Sequence
from decimal import Decimal

from portal.spreadsheets import Cell
from portal.usage.reports import Ledger, Row, Usage


def gpu_seconds(amount: int) -> Decimal:
    return Decimal(amount).scaleb(-6)


def ledger_rows(report: Ledger) -> Iterable[Sequence[Cell]]:
    yield (
        "kind",
        "name",
        "entitled_gpu_seconds",
        "used_gpu_seconds",
        "lent_gpu_seconds",
        "borrowed_gpu_seconds",
        "spare_gpu_seconds",
        "balance_gpu_seconds",
    )
    for one in report.statements:
        line = one.line
        amounts = (line.entitled, line.used, line.lent, line.borrowed, line.spare)
        yield one.kind, one.name, *map(gpu_seconds, amounts), round(one.balance / 1e6, 1)
    yield "unclaimed", "", gpu_seconds(report.unclaimed), *[None] * 5
    yield "idle", "", None, gpu_seconds(report.idle), *[None] * 4
    yield "capacity", "", gpu_seconds(report.capacity), gpu_seconds(report.capacity), *[None] * 4


def usage_rows(report: Usage) -> Iterable[Sequence[Cell]]:
    yield (
        report.by,
        "id",
        "allocated_gpu_seconds",
        "useful_gpu_seconds",
        "wasted_gpu_seconds",
        "starting_gpu_seconds",
        "failed_gpu_seconds",
        "interrupted_gpu_seconds",
        "jobs_submitted",
        "jobs_started",
        "waiting_mean_seconds",
        "waiting_median_seconds",
        "waiting_p95_seconds",
    )
    for row in report.rows:
        yield row.name, row.id, *_amounts(row)
    yield "total", "", *_amounts(report.total)


def _amounts(row: Row) -> Iterable[Cell]:
    spent = row.spent
    for amount in (
        spent.allocated,
        spent.useful,
        spent.wasted,
        spent.starting,
        spent.failed,
        spent.interrupted,
    ):
        yield gpu_seconds(amount)
    yield spent.submitted
    yield len(spent.waits)
    for wait in (row.mean, row.median, row.p95):
        yield None if wait is None else round(wait, 1)
