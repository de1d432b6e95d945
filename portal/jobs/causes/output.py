"""Reads the output of a rank as lines, without what launchers, terminals and progress bars add.

The output is hostile: lines and numbers of lines are bounded, and each line is read once.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from portal.jobs.logs import strip_controls

MAX_LINE_CHARACTERS = 2000
TRACEBACK = "Traceback (most recent call last):"
PREFIX = re.compile(
    r"\[rank\d{1,6}\]: ?|\[(?:default|worker|trainer)?\d{1,6}\](?:<std(?:out|err)>)?:"  # torchrun and PyTorch, horovodrun
    r"|\(\w[\w.-]{0,60} pid=\d{1,9}(?:, ip=[\d.]{1,15})?\) "  # Ray
)
"""What a launcher puts before each line of a rank."""
BEFORE_TRACEBACK = re.compile(
    r"(?:\[(?:rank|default|worker|trainer)?\d{1,6}\](?:<stderr>)?: ?)?" + re.escape(TRACEBACK)
)


@dataclass(frozen=True, slots=True)
class Line:
    ms: int
    """When it was written at the earliest, in Unix milliseconds; 0 if that is unknown."""
    text: str
    """Without its line feed, cut at ``MAX_LINE_CHARACTERS``."""


@dataclass(frozen=True, slots=True)
class Output:
    """The end of a log stream."""

    lines: Sequence[Line]
    host: int = 0
    """The index of its container."""
    slot: str = "0"
    """The name of the stream, which is the same for all ranks in one place of a host; ``setup`` for that of the launcher."""
    rank: int | None = None
    exit_code: int | None = None
    """The exit code of the container, if this is its only rank."""

    @property
    def is_setup(self) -> bool:
        return self.slot == "setup"


@dataclass(slots=True)
class _Times:
    """The time of each byte, from the marks of a stream."""

    marks: Sequence[tuple[int, int]]
    offsets: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.offsets = [offset for offset, _ in self.marks]

    def at(self, offset: int) -> int:
        found = bisect_right(self.offsets, offset)
        return self.marks[found - 1][1] if found else 0


def read_lines(data: bytes, start: int = 0, marks: Sequence[tuple[int, int]] = ()) -> list[Line]:
    """Return the lines of ``data``, which begins at byte ``start`` of a stream with the time ``marks`` (offset, Unix ms).

    Each state of a progress bar is a line of its own. A traceback that was printed behind one begins a line.
    """
    times, lines, offset = _Times(marks), list[Line](), start
    for raw in data.split(b"\n"):
        for piece in raw.rstrip(b"\r").split(b"\r"):
            ms = times.at(offset)
            lines += (Line(ms, text) for text in _texts(piece))
            offset += len(piece) + 1
        offset += raw.endswith(b"\r")
    return lines


def _texts(raw: bytes) -> Iterator[str]:
    text = strip_controls(raw[: 4 * MAX_LINE_CHARACTERS]).decode(errors="replace")[:MAX_LINE_CHARACTERS]
    text = _without_prefix(text)
    found = BEFORE_TRACEBACK.search(text)
    if found is not None and found.start() and not re.fullmatch(r"[\s|+╭─]*(?:\w+ )*", text[: found.start()]):
        yield text[: found.start()]
        text = _without_prefix(text[found.start() :])
    yield text


def _without_prefix(text: str) -> str:
    found = PREFIX.match(text)
    return text[found.end() :] if found else text


NOISE = re.compile(
    r"\s*$"
    r"|\[?[WIE]\d{4} \d\d:\d\d:"  # glog and c10
    r"|.{0,500}?: \w*Warning: |\w*Warning: "
    r"|.{0,300}?(?:\d+%\||\bit/s\b|\bs/it\b)"  # progress bars
    r"|\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+\] \[\w+\] \[(?:launch|runner|real_accelerator)\.py:\d+:"  # DeepSpeed's launcher
    r"|wandb: |Exception ignored in|\[schedulearn\]|frame #\d+: |.{0,100}? NCCL (?:INFO|WARN) "
    r"|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: [IW] tensorflow/"
    r"|During handling of the above exception|The above exception was the direct cause"
    r"|\(core dumped\)$"
)
"""A line without a reason why a program ended."""


def is_noise(lines: Sequence[Line], number: int) -> bool:
    """Return whether a line cannot be the reason of an end: a warning and its source, a progress bar, a frame of C++."""
    text = lines[number].text
    if NOISE.match(text):
        return True
    return text.startswith("  ") and number > 0 and bool(re.search(r": \w*Warning: ", lines[number - 1].text))
