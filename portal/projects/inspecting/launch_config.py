"""The program that reads a configuration file of ``accelerate launch``: YAML on stdin, names and values as JSON on stdout.

The file is read as a stream of events, without recursion, aliases or objects; it may have groups of values, one level deep.
"""

import json
import sys
from collections.abc import Iterable

import yaml

MAX_EVENTS = 2000
TRUE, FALSE, NONE = ("true", "yes", "on"), ("false", "no", "off"), ("null", "~", "")
"""The words of YAML 1.1 for these values, where they are not quoted."""
Config = dict[str, "str | dict[str, str]"]


class UnreadableError(Exception):
    """The file has more than names with values; the text follows its name in a sentence."""


def read(content: bytes) -> Config:
    """Return the values as text, ``true`` and ``false`` for truth values, without those that are null. Raises UnreadableError."""
    try:
        return _read(yaml.parse(content, Loader=yaml.SafeLoader))
    except (yaml.YAMLError, ValueError) as error:
        raise UnreadableError("cannot be read as YAML. Correct it.") from error


def _read(events: Iterable[yaml.Event]) -> Config:
    config: Config = {}
    group: dict[str, str] | None = None
    key, depth = None, 0
    for number, event in enumerate(events):
        if number > MAX_EVENTS:
            raise UnreadableError("has too many values. Shorten it.")
        match event:
            case yaml.MappingStartEvent(anchor=None) if depth == 0 or (depth == 1 and key is not None):
                depth += 1
                if key is not None:
                    group = {}
                    config[key] = group
                    key = None
            case yaml.MappingEndEvent():
                depth -= 1
                group = None
            case yaml.ScalarEvent(anchor=None, tag=None | "!") if depth:
                if key is None:
                    key = str(event.value)
                else:
                    values: Config | dict[str, str] = config if group is None else group
                    if (text := _text(event)) is not None:
                        values[key] = text
                    key = None
            case yaml.StreamStartEvent() | yaml.StreamEndEvent() | yaml.DocumentStartEvent() | yaml.DocumentEndEvent():
                pass
            case _:
                where = "" if event.start_mark is None else f", at line {event.start_mark.line + 1}"
                raise UnreadableError(
                    f"has more than names with values{where}. Keep the plain command, which runs accelerate itself."
                )
    return config


def _text(scalar: yaml.ScalarEvent) -> str | None:
    text = str(scalar.value)
    if scalar.style is not None:  # quoted
        return text
    lowered = text.lower()
    if lowered in NONE:
        return None
    return "true" if lowered in TRUE else "false" if lowered in FALSE else text


def answer(content: bytes) -> dict[str, object]:
    """Return the values, or what is wrong with the file."""
    try:
        return {"values": read(content)}
    except UnreadableError as error:
        return {"problem": str(error)}


if __name__ == "__main__":
    json.dump(answer(sys.stdin.buffer.read()), sys.stdout)
