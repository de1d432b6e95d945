"""Finds the exceptions in the output of a Python program, and what became of each.

The rules are those of CPython's ``traceback`` module: a header, frames that are indented, then the exception with its
message; chained exceptions are printed one after the other with a sentence between them, groups with a ``|`` at the left.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from portal.jobs.causes.output import TRACEBACK, Line

MAX_ERRORS = 400
"""More exceptions are not read; the last ones count."""
MAX_MESSAGE_LINES = 8

FRAME = re.compile(r'\s*File "(?P<file>[^"\n]{1,1000})", line (?P<line>\d+)(?:, in (?P<function>.+))?$')
RAISED = re.compile(r"(?P<kind>[^\W\d]\w*(?:\.(?:[^\W\d]\w*|<locals>))*)(?::(?: (?P<message>.*))?)?$")
"""The line of the exception: a qualified name, alone or with its message."""
GROUP_LINE = re.compile(r"\s*[|+]")
GROUP_RULE = re.compile(r"\s*\+-*(?:\+-+)?(?: ?(?:\d+|\.\.\.) ?)?-*$")
"""The rules around the members of an exception group."""
BOX_TOP, BOX_BOTTOM = re.compile(r"╭─+ Traceback \(most recent call last\) ─+╮\s*$"), re.compile(r"╰─+╯\s*$")
"""A traceback as the library rich draws it."""
CONTEXT = "During handling of the above exception, another exception occurred:"
CAUSE = "The above exception was the direct cause of the following exception:"
CHILD = re.compile(r"-- Process \d+ terminated with the following error:$")
OUTSIDE_MAIN = re.compile(r"Exception in (?:thread|callback) |(?:Task|Future) exception was never |Process \S{1,200}:$")
LOGGED = re.compile(r".{0,200}?\b(?:ERROR|CRITICAL|FATAL|WARNING|WARN)\b")
SYNTAX_ERRORS = {"SyntaxError", "IndentationError", "TabError"}


class Fate(StrEnum):
    """What became of an exception, as far as its surroundings show it."""

    UNCAUGHT = "uncaught"
    """It left the main module, so it may have ended the program."""
    HANDLED = "handled"
    """It was printed or logged by the program."""
    OTHER = "other"
    """It ended a thread, a task or a child process."""
    IGNORED = "ignored"
    """Python could not raise it: in an exit handler or a destructor."""


@dataclass(frozen=True, slots=True)
class Frame:
    file: str
    line: int
    function: str
    source: str


@dataclass(frozen=True, slots=True)
class Error:
    """An exception as it was printed. ``start`` and ``end`` are numbers of lines, the end excluded."""

    kind: str
    """Its qualified name."""
    message: Sequence[str]
    """The lines of its message, at most ``MAX_MESSAGE_LINES``."""
    frames: Sequence[Frame]
    start: int
    end: int
    ms: int
    fate: Fate
    announced: Fate | None = None
    """The fate that the line before the traceback states, if any does."""
    before: "Error | None" = None
    """The exception that it replaced while that one was handled, or the one it was raised from."""
    raised_from: bool = False
    """Whether it was raised from ``before`` with ``raise ... from``."""

    @property
    def name(self) -> str:
        return self.kind.rpartition(".")[2]

    @property
    def text(self) -> str:
        """The line of the exception, with the other lines of its message."""
        first = f"{self.kind}: {self.message[0]}" if self.message and self.message[0] else self.kind
        return "\n".join([first, *self.message[1:]])

    @property
    def chain(self) -> "list[Error]":
        """This exception and those before it, the newest first."""
        return [self, *(self.before.chain if self.before else [])]


def find_errors(lines: Sequence[Line]) -> list[Error]:
    """Return the exceptions in the order in which they were printed; of a chain and of a group only the last."""
    errors: list[Error] = []
    number = 0
    while number < len(lines):
        if not _begins(lines, number):
            number += 1
            continue
        if "Exception Group " + TRACEBACK in lines[number].text:
            error, number = _read_group(lines, number)
        else:
            error, number = _read_error(lines, number)
        if error is not None:
            _append(errors, error, lines)
            if len(errors) > MAX_ERRORS:
                del errors[: MAX_ERRORS // 2]
    return errors


def _append(errors: list[Error], error: Error, lines: Sequence[Line]) -> None:
    """Add an exception, as the end of a chain where the lines before it announce one."""
    last = errors[-1] if errors else None
    between = (
        [line.text.strip() for line in lines[last.end : error.start]] if last and error.start - last.end < 8 else []
    )
    nested = lines[error.start].text.strip().startswith("Original ") or any(map(CHILD.match, between))
    if last is not None and (nested or CONTEXT in between or CAUSE in between):
        first = errors.pop()
        if nested:
            errors.append(replace(error, fate=first.fate, announced=first.announced))
        else:
            fate = first.announced or error.fate
            errors.append(
                replace(error, fate=fate, announced=first.announced, before=first, raised_from=CAUSE in between)
            )
    else:
        errors.append(error)


def _begins(lines: Sequence[Line], number: int) -> bool:
    text = lines[number].text
    if TRACEBACK in text:
        return text.strip().removeprefix("Original ") == TRACEBACK or "Exception Group " in text
    if text.startswith("╭"):
        return bool(BOX_TOP.match(text))
    if text.startswith("  File ") and FRAME.match(text):  # the header is cut off, or the module itself cannot be read
        return True
    return text.startswith("SyntaxError: ")


def _read_error(lines: Sequence[Line], start: int) -> tuple[Error | None, int]:
    """Return an exception and the number of the line behind it."""
    header = lines[start].text
    indent = len(header) - len(header.lstrip()) if TRACEBACK in header else 0
    boxed = BOX_TOP.match(header)
    number = start + (TRACEBACK in header or boxed is not None)
    frames: list[Frame] = []
    while number < len(lines):
        text = lines[number].text
        if boxed:
            if BOX_BOTTOM.match(text):
                number, boxed = number + 1, None
                continue
        elif not text[indent:].startswith(("  ", "\t")) or text[:indent].strip():
            break
        elif found := FRAME.match(text):
            frames.append(_frame(found, lines, number + 1))
        number += 1
    found = None
    for at in range(number, min(number + 4, len(lines))):  # other output may have come between
        found = RAISED.match(lines[at].text[indent:])
        if found and (at == number or found["kind"].rpartition(".")[2][:1].isupper()):
            number = at
            break
        found = None
    if found is None:
        return None, max(number, start + 1)
    message, end = _read_message(lines, number, indent, found["message"])
    announced = _announced_fate(lines, start)
    fate = announced or _fate_of(frames, found["kind"])
    return Error(found["kind"], message, frames, start, end, lines[number].ms, fate, announced), end


def _frame(found: re.Match[str], lines: Sequence[Line], number: int) -> Frame:
    source = lines[number].text.strip() if number < len(lines) and lines[number].text.startswith("    ") else ""
    return Frame(found["file"], int(found["line"]), found["function"] or "", source)


def _read_message(lines: Sequence[Line], number: int, indent: int, first: str | None) -> tuple[list[str], int]:
    """Return the lines of a message. Those that follow the first are indented, or the first announces them."""
    message = [first or ""]
    number += 1
    open_ended = first is not None and (not first or first.endswith((":", "(", "[", "{")))
    while number < len(lines):
        text = lines[number].text[indent:]
        if not text.strip() or _begins(lines, number) or CHILD.match(text):
            break
        if not (text.startswith((" ", "\t")) or (open_ended and len(message) < MAX_MESSAGE_LINES)):
            break
        if len(message) < MAX_MESSAGE_LINES:
            message.append(text.rstrip())
        number += 1
    return message, number


def _announced_fate(lines: Sequence[Line], start: int) -> Fate | None:
    """Return the fate that the line before a traceback states."""
    before = next(
        (lines[at].text.strip() for at in range(start - 1, max(-1, start - 4), -1) if lines[at].text.strip()), ""
    )
    if before.startswith("Exception ignored in"):
        return Fate.IGNORED
    if OUTSIDE_MAIN.match(before):
        return Fate.OTHER
    return Fate.HANDLED if LOGGED.match(before) else None


def _fate_of(frames: Sequence[Frame], kind: str) -> Fate:
    """An exception that ends a program passed through all functions up to its main module."""
    if not frames or kind in SYNTAX_ERRORS:
        return Fate.UNCAUGHT
    outermost = frames[0]
    return Fate.UNCAUGHT if outermost.function in ("", "<module>") or "runpy" in outermost.file else Fate.HANDLED


def _read_group(lines: Sequence[Line], start: int) -> tuple[Error | None, int]:
    """Return the first member of an exception group that ended its task, with the fate of the group."""
    end = start
    while end < len(lines) and GROUP_LINE.match(lines[end].text):
        end += 1
    inner = [_member_line(line) for line in lines[start:end]]
    errors = find_errors(inner)
    if not errors:
        return None, max(end, start + 1)
    group, *members = errors
    members = sorted([*members, *_never_raised(lines[start:end], inner)], key=lambda each: each.start)
    member = next((each for each in members if each.name not in ("CancelledError", "ExceptionGroup")), group)
    announced = _announced_fate(lines, start)
    fate = announced or _fate_of(group.frames, group.kind)
    return replace(member, start=start, end=end, fate=fate, announced=announced), end


def _never_raised(lines: Sequence[Line], inner: Sequence[Line]) -> Iterator[Error]:
    """Yield the members of a group that have no traceback."""
    for number in range(1, len(lines)):
        found = RAISED.match(inner[number].text) if GROUP_RULE.match(lines[number - 1].text) else None
        if found:
            message, end = _read_message(inner, number, 0, found["message"])
            yield Error(found["kind"], message, (), number, end, lines[number].ms, Fate.OTHER)


def _member_line(line: Line) -> Line:
    """A line of a group without what is left of it."""
    if GROUP_RULE.match(line.text):
        return Line(line.ms, "")
    text = re.sub(r"^\s*[|+] ", "", line.text, count=1)
    return Line(line.ms, TRACEBACK if text.startswith("Exception Group ") else text)
