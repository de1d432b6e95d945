"""Reads a configuration file of ``accelerate launch`` in an upload: names and values, at most one level of groups.

The file is hostile: it is read as a stream of events, without recursion, aliases or objects, up to a size.
"""

from collections.abc import Iterator

import yaml

from portal.jobs.models import MAX_ENTRY_LENGTH
from portal.projects import store
from portal.projects.inspecting.launch_lines import UntranslatableError
from portal.projects.models import CodeVersion

MAX_BYTES = 64 * 1024
MAX_EVENTS = 2000
TRUE, FALSE, NONE = ("true", "yes", "on"), ("false", "no", "off"), ("null", "~", "")
"""The words of YAML 1.1 for these values, where they are not quoted."""
Config = dict[str, "str | dict[str, str]"]


def read_config(version: CodeVersion, path: str) -> Config:
    """Return the values of a file of the upload, as text; those without a value are left out.

    Raises UntranslatableError for a file that is not there or has more than names, values and groups of them.
    """
    try:
        content = store.read_file(version, path.removeprefix("./"), MAX_BYTES + 1)
    except (store.MissingError, OSError) as error:
        raise UntranslatableError(
            f"The upload has no file {path[:MAX_ENTRY_LENGTH]!r}. Add it, or correct its path."
        ) from error
    if len(content) > MAX_BYTES:
        raise UntranslatableError(f"{path} is larger than {MAX_BYTES // 1024} KiB, and is not read. Shorten it.")
    try:
        return _read(path, yaml.parse(content, Loader=yaml.SafeLoader))
    except (yaml.YAMLError, UnicodeDecodeError, ValueError) as error:
        raise UntranslatableError(f"{path} cannot be read as YAML. Correct it.") from error


def _read(path: str, events: Iterator[yaml.Event]) -> Config:
    config: Config = {}
    group: dict[str, str] | None = None
    key, depth = None, 0
    for number, event in enumerate(events):
        if number > MAX_EVENTS:
            raise UntranslatableError(f"{path} has too many values. Shorten it.")
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
                raise UntranslatableError(
                    f"{path} has more than names with values{where}. Keep the plain command, which runs accelerate itself."
                )
    return config


def _text(scalar: yaml.ScalarEvent) -> str | None:
    """Return a value as text: ``true`` and ``false`` for truth values; None for none."""
    text = str(scalar.value)
    if scalar.style is not None:  # quoted
        return text
    lowered = text.lower()
    if lowered in NONE:
        return None
    return "true" if lowered in TRUE else "false" if lowered in FALSE else text
