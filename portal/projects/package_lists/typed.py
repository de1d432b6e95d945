"""Reads what a person types or pastes into a field: packages on lines or in a row, or a whole ``pip install``."""

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence

from . import options
from .collecting import Collector, Place
from .model import PackageList
from .requirement_line import LineRefusedError, parse_line
from .requirements_files import INCLUDES
from .texts import logical_lines

MAX_CHARACTERS = 20_000
MAX_LINE = 4000
PATH = ""
"""The path of a list that is not a file."""

_INSTALL = re.compile(
    r"[$>!%\s]*(?:sudo\s+)?(?:\S*python[\d.]*\s+-m\s+)?(?:uv\s+)?(?:pip[\d.]*\s+install|(?<=uv )add|poetry\s+add)\b",
    re.IGNORECASE,
)
_CONDA_INSTALL = re.compile(r"[$>!%\s]*(?:conda|mamba|micromamba)\s+(?:install|create|env)\b", re.IGNORECASE)
_AROUND_OPERATOR = re.compile(r"[ \t]*(===|[<>=!~]=|[<>])[ \t]*")
_BEFORE_NEXT_VERSION = re.compile(r"[ \t]*,[ \t]*(?=[<>=!~])")
_EXTRAS = re.compile(r"[ \t]*\[([A-Za-z0-9._, \t-]*)\]")
_BETWEEN = re.compile(r"[ \t]+|,(?![<>=!~])(?![^\[]*\])")


def read_typed(text: str, allowed: Sequence[str] = ()) -> PackageList:
    """Read what was typed. Lines count from 1; several packages on a line have the same number."""
    collector = Collector(PATH, "typed", tuple(allowed))
    if len(text) > MAX_CHARACTERS:
        why = f"At most {MAX_CHARACTERS:,} characters are read here. Upload a requirements.txt instead."
        collector.refuse(Place(PATH), "", why)
        return collector.finish()
    for number, line in logical_lines(text):
        place = Place(PATH, number)
        if len(line) > MAX_LINE:
            collector.refuse(
                place, line, f"This line is longer than {MAX_LINE:,} characters. Type fewer packages on a line."
            )
            continue
        if _CONDA_INSTALL.match(line):
            collector.refuse(place, line, "Conda is not used here. Type the packages alone, as pip names them.")
            continue
        for item in _items(" ".join(line.split()), allowed):
            if not collector.count(place):
                return collector.finish()
            _add(collector, item, place)
    return collector.finish()


def _add(collector: Collector, item: str, place: Place) -> None:
    option = options.parse_option(item)
    if option is not None and option.name in INCLUDES:
        collector.refuse(place, item, "A file cannot be named here. Put it into your upload, whose lists are offered.")
    else:
        collector.add(item, place)


def _items(line: str, allowed: Sequence[str]) -> Iterator[str]:
    """Yield the packages and options of a line: the whole line where it is one package."""
    command = _INSTALL.match(line)
    rest = line[command.end() :].strip() if command else line
    if not command and (_is_one(rest, allowed) or rest.startswith("-") or " @ " in rest or ";" in rest):
        yield rest
        return
    words = _shell_words(rest) if command or "'" in rest or '"' in rest else [rest]
    yield from items_of(words)


def items_of(words: Iterable[str]) -> Iterator[str]:
    """Yield the packages and options among the words that a shell would pass to pip; an option with its value."""
    yield from _with_values(part for word in words for part in _split(word))


def _is_one(text: str, allowed: Sequence[str]) -> bool:
    try:
        parse_line(text, allowed)
    except LineRefusedError:
        return False
    return True


def _shell_words(text: str) -> list[str]:
    """Return the words that a shell would pass, in which quoted versions keep their signs."""
    try:
        return shlex.split(text)
    except ValueError:  # a quote that is not closed: refused as it stands
        return [text]


def _split(text: str) -> list[str]:
    """Return the packages in a row, separated by blanks or commas; those of versions and extras separate nothing."""
    if ";" in text or " @ " in text or "://" in text:
        return [text]
    text = _BEFORE_NEXT_VERSION.sub(",", _AROUND_OPERATOR.sub(r"\1", text))
    text = _EXTRAS.sub(lambda match: f"[{''.join(match[1].split())}]", text)
    return [part for part in _BETWEEN.split(text) if part]


def _with_values(words: Iterator[str]) -> Iterator[str]:
    """Yield words; an option that takes a value with it, where that is the next word."""
    for word in words:
        option = options.parse_option(word)
        if option is not None and option.name in options.WITH_VALUE and not option.value:
            following = next(words, "")
            yield f"{word} {following}".strip()
        else:
            yield word
