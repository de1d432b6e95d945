"""Exports rows as CSV files that are safe to open in a spreadsheet."""

import csv
from collections.abc import Iterable, Sequence
from decimal import Decimal

from django.http import HttpResponse

Cell = str | int | float | Decimal | None


def csv_response(name: str, rows: Iterable[Sequence[Cell]]) -> HttpResponse:
    response = HttpResponse(content_type="text/csv; charset=utf-8")
    response["Content-Disposition"] = f'attachment; filename="{name}.csv"'
    response["Cache-Control"] = "no-store"
    response.write("\N{BYTE ORDER MARK}")  # without it Excel takes UTF-8 for an old code page
    writer = csv.writer(response)
    writer.writerows([_escape_formula(cell) for cell in row] for row in rows)
    return response


def _escape_formula(cell: Cell) -> Cell:
    """Quote a text that begins like a formula, which a spreadsheet would otherwise evaluate."""
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(("=", "+", "-", "@", "\t", "\r")) else cell
