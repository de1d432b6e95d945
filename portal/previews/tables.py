"""Tables in CSV, TSV and JSON Lines: their first rows as texts."""

import csv
import io
import json
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any

from portal.previews.decoding import Text

MAX_ROWS = 200
MAX_COLUMNS = 100
MAX_CELL_CHARACTERS = 300
DELIMITERS = (",", ";", "\t", "|")
NOT_JSON = "(not JSON)"


def show_table(text: Text, path: str, *, is_whole: bool) -> dict[str, Any] | None:
    """Return the first rows, and how many there are in all if the whole file is known. None if it cannot be read."""
    csv.field_size_limit(2**31 - 1)
    try:
        if path.lower().endswith((".jsonl", ".ndjson")):
            header, rows, count, widest = _json_lines(text.text, is_whole)
        else:
            header, rows, count, widest = _separated(text.text, path, is_whole)
    except csv.Error:
        return None
    columns = min(max([len(header), *map(len, rows)]), MAX_COLUMNS)
    return {
        "header": [_cell(value) for value in header[:MAX_COLUMNS]] + [""] * (columns - len(header)),
        "rows": [[_cell(value) for value in row[:MAX_COLUMNS]] for row in rows],
        "numeric": [_is_numeric(column, rows) for column in range(columns)],
        "columns": widest,
        "hidden_columns": max(0, widest - MAX_COLUMNS),
        "total": count if is_whole else None,
        "encoding": text.encoding,
    }


def _separated(text: str, path: str, is_whole: bool) -> tuple[list[str], list[list[str]], int, int]:
    lines = csv.reader(io.StringIO(text, newline=""), delimiter=_delimiter(text, path))
    header = next(lines, [])
    found: Iterator[list[str]] = (line for line in lines if line)
    if header and all(_is_number(value) for value in header):
        found, header = chain([header], found), [str(number + 1) for number in range(len(header))]
    rows, count, widest = _take(found, is_whole)
    return header, rows, count, max(len(header), widest)


def _delimiter(text: str, path: str) -> str:
    """Return what separates the cells of the first line; commas in quotes count as well, which other separators outnumber."""
    if path.lower().endswith(".tsv"):
        return "\t"
    first = text[:10_000].lstrip().partition("\n")[0]
    return max(DELIMITERS, key=first.count)


def _json_lines(text: str, is_whole: bool) -> tuple[list[str], list[list[str]], int, int]:
    lines = [line for line in text.split("\n") if line.strip()]
    if not is_whole and len(lines) > 1:
        lines.pop()  # may be cut
    records = [_record(line) for line in lines[:MAX_ROWS]]
    header = list(dict.fromkeys(key for record in records for key in record))
    return header, [[record.get(key, "") for key in header] for record in records], len(lines), len(header)


def _record(line: str) -> dict[str, str]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return {NOT_JSON: line[:MAX_CELL_CHARACTERS]}
    if not isinstance(value, dict):
        value = {"value": value}
    return {key: item if isinstance(item, str) else json.dumps(item, ensure_ascii=False) for key, item in value.items()}


def _take(found: Iterable[list[str]], is_whole: bool) -> tuple[list[list[str]], int, int]:
    """Return the rows to be shown, and of all rows the number and the most cells. Of a file that is cut, none of the rest."""
    source = iter(found)
    rows = list(islice(source, MAX_ROWS + 1))
    if not is_whole and len(rows) <= MAX_ROWS and len(rows) > 1:
        rows.pop()  # may be cut
    shown, rest = rows[:MAX_ROWS], len(rows) - min(len(rows), MAX_ROWS)
    widest = max(map(len, rows), default=0)
    if is_whole:
        for row in source:
            rest += 1
            widest = max(widest, len(row))
    return shown, len(shown) + rest, widest


def _is_numeric(column: int, rows: list[list[str]]) -> bool:
    values = [row[column] for row in rows if column < len(row) and row[column].strip()]
    return bool(values) and all(_is_number(value) for value in values)


def _is_number(text: str) -> bool:
    if len(text) > 40:
        return False
    try:
        float(text)
    except ValueError:
        return False
    return True


def _cell(text: str) -> str:
    return text if len(text) <= MAX_CELL_CHARACTERS else text[:MAX_CELL_CHARACTERS] + "…"
