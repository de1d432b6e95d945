"""Hooks for a run of Schemathesis: let most of its calls name something that exists, and count the answers.

A random id is of no row, so without them most operations would answer 404 to all of their calls. The run reads two
files in its folder: ``existing.json`` maps a path parameter to values that exist, ``answers.jsonl`` takes one line per
call: operation and status. ``kept.json`` maps a path parameter to the value that no call that changes something may name:
without its own account or token the run would get nowhere.
"""

import json
import zlib
from pathlib import Path
from typing import Any

import schemathesis

EXISTING = json.loads(Path("existing.json").read_text())
KEPT = json.loads(Path("kept.json").read_text())
IN_FOUR = 3
"""How many of four calls name something that exists."""


def chosen(name: str, generated: object) -> object:
    """Choose by the generated value, so that Schemathesis can repeat and shrink what it found."""
    number = zlib.crc32(repr((name, generated)).encode())
    values = EXISTING.get(name)
    return values[number // 4 % len(values)] if values and number % 4 < IN_FOUR else generated


@schemathesis.hook
def map_path_parameters(context: Any, path_parameters: Any) -> Any:
    if isinstance(path_parameters, dict):
        return {name: chosen(name, value) for name, value in path_parameters.items()}
    return path_parameters


@schemathesis.hook
def filter_path_parameters(context: Any, path_parameters: Any) -> bool:
    if context.operation.method.upper() == "GET" or not isinstance(path_parameters, dict):
        return True
    return all(str(path_parameters.get(name)) != str(value) for name, value in KEPT.items())


@schemathesis.hook
def after_call(context: Any, case: Any, response: Any) -> None:
    with Path("answers.jsonl").open("a") as answers:
        answers.write(
            json.dumps([f"{case.operation.method.upper()} {case.operation.path}", response.status_code]) + "\n"
        )
