"""Finds how a rank ended, by the end of its output, and which rank of a job ended first by itself."""

import re
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from portal.jobs.causes import kinds
from portal.jobs.causes.output import Line, Output, is_noise
from portal.jobs.causes.tracebacks import Error, Fate, Frame, find_errors

WENT_ON_MS = 1500
"""A program that writes more than this later than an exception has handled it."""
WENT_ON_LINES = 12
"""So has one that writes more lines than this after it."""
SAME_TIME_MS = 50
MAX_LAST_LINES = 4
MAX_LINE_CHARACTERS = 400
NEAR_LINES = 20
"""Programs of a pipe fail together: with fewer lines than this between their exceptions."""

EXCEPTION_LINE = re.compile(
    r"^(?P<kind>(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Timeout))\b(?::.*)?$", re.MULTILINE
)
"""An exception whose traceback is missing."""
OFTEN_HANDLED = re.compile(
    r"FileNotFoundError|ImportError|ModuleNotFoundError|ConnectionError|HTTPError|URLError|Timeout|StopIteration|KeyError$"
)
CRASH = re.compile(
    r"terminate called (?:after throwing|without)|\s*what\(\): |Fatal Python error: |.*Assertion [`'\"].*failed|"
    r"(?:.*: line \d+: +\d+ )?(?:Segmentation fault|Aborted|Bus error|Illegal instruction|Floating point exception|Killed|Terminated)\b|"
    r"(?:double free|free\(\): invalid|malloc\(\): |corrupted size|munmap_chunk|\*\*\* .* \*\*\*: terminated)"
)
"""What the runtime of C++, the C library, Python and shells write when a process crashes."""
CLEANUP = re.compile(
    r"\b(?:close|flush|finish|shutdown|cleanup|clean_up|terminate|unlink|remove|rmtree|join|destroy\w*|release|stop|__exit__)\("
)
SOCKET_ERRORS = {
    "BrokenPipeError",
    "ConnectionAbortedError",
    "ConnectionError",
    "ConnectionResetError",
    "ProtocolError",
}
LAUNCHER_SUMMARY = "ChildFailedError"
"""The exception with which torchrun ends its report."""
STOPPED_BY = {"KeyboardInterrupt", "SystemExit"}
"""The exceptions of a program that is stopped."""
LAUNCHER_ERRORS = {"ChildFailedError", "SignalException", "CalledProcessError"}
"""Exceptions that only report how another program ended."""
RANK_EXIT = re.compile(r"Rank (\d{1,6}) ended with exit code (-?\d{1,4})$")
SLOT_EXIT = re.compile(r"The rank in slot (\w{1,20}) ended with exit code (-?\d{1,4})$")
TORCHRUN_ENTRY = re.compile(r"\s+(rank|exitcode)\s*: (-?\d{1,6})\b")
TORCHRUN_FIRST = "Root Cause (first observed failure):"
ENDED_BY_LAUNCHER = (128 + signal.SIGTERM, -signal.SIGTERM)
"""The exit codes of ranks that a launcher ended because of another one."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a rank ended."""

    output: Output
    exit_code: int | None = None
    """None if nothing recorded it."""
    error: Error | None = None
    """The exception that ended it."""
    last_lines: Sequence[str] = ()
    """What it wrote last, without warnings and progress bars."""
    crash: Sequence[str] = ()
    """What was written about its crash."""
    left: bool = False
    """It is the only rank that did not lose the others, so it was the one that left them."""
    ms: int = 0

    @property
    def text(self) -> str:
        """The exception, else the last lines."""
        return self.error.text if self.error else "\n".join(self.last_lines)

    @property
    def lost_peer(self) -> bool:
        return self.error is not None and _lost_peer(self.error)

    @property
    def waited(self) -> bool:
        return self.error is not None and kinds.WAITED.search(self.error.text) is not None

    @property
    def signal(self) -> int:
        return signal_of(self.exit_code)


def signal_of(exit_code: int | None) -> int:
    """Return the number of the signal that ended a process, 0 for none: of ``-n`` or, through a shell, ``128 + n``."""
    if exit_code is None or exit_code >= 0 and exit_code <= 128:
        return 0
    number = -exit_code if exit_code < 0 else exit_code - 128
    return number if number in {each.value for each in signal.Signals} else 0


def read_ending(output: Output, exit_code: int | None) -> Ending:
    """Return how the rank ended that wrote ``output``."""
    lines = output.lines
    errors = [error for error in find_errors(lines) if error.fate != Fate.IGNORED]
    if errors and errors[-1].name == LAUNCHER_SUMMARY and len(errors) > 1:
        lines = lines[: errors.pop().start]
    error = _last_uncaught(errors, lines, exit_code) or _error_at_the_end(errors, lines)
    last_lines, last_ms = _last_lines(lines, errors)
    crash = [_short(line.text) for line in lines[-60:] if CRASH.match(line.text)][-3:]
    return Ending(output, exit_code, error, last_lines, crash, ms=error.ms if error else last_ms)


def _last_uncaught(errors: Sequence[Error], lines: Sequence[Line], exit_code: int | None) -> Error | None:
    """Return the exception that ended the program; of several programs or ranks that wrote here, the one that failed first."""
    uncaught = [error for error in errors if error.fate == Fate.UNCAUGHT]
    if not uncaught or _went_on(uncaught[-1], lines, exit_code):
        return None
    chosen = last = uncaught[-1]
    for error in reversed(uncaught[:-1]):
        if len(list(_after(error, lines, last.start))) >= NEAR_LINES:
            break
        if (_follows(chosen) and not _follows(error)) or (
            _main_file(error) != _main_file(chosen) and not _follows(error)
        ):
            chosen = error
        last = error
    return chosen


def _follows(error: Error) -> bool:
    """Return whether an exception only reports that another rank or program has ended."""
    return error.name in LAUNCHER_ERRORS or _lost_peer(error) or kinds.WAITED.search(error.text) is not None


def _lost_peer(error: Error) -> bool:
    """Return whether an exception is that of a rank without its peer. Those of Python's own sockets have another reason."""
    return error.name not in SOCKET_ERRORS and kinds.LOST_PEER.search(error.text) is not None


def _went_on(error: Error, lines: Sequence[Line], exit_code: int | None) -> bool:
    """Return whether the program continued after an exception that left its main module, so far as its output shows."""
    after = list(_after(error, lines, len(lines)))
    if not after:
        return False
    own_exit = exit_code not in (None, 1) and not signal_of(exit_code)  # Python itself ends with 1
    late = error.ms > 0 and after[-1].ms > error.ms + WENT_ON_MS
    often = OFTEN_HANDLED.search(error.name) is not None and len(after) > 1
    return own_exit or late or often or len(after) > WENT_ON_LINES


def _after(error: Error, lines: Sequence[Line], end: int) -> Iterator[Line]:
    """Yield the lines between an exception and line ``end`` that are no noise and belong to no ignored traceback."""
    ignored = False
    for number in range(error.end, end):
        text = lines[number].text
        if text.startswith("Exception ignored in"):
            ignored = True
        elif ignored:
            ignored = text.startswith((" ", "Traceback")) or not text
        elif not is_noise(lines, number):
            yield lines[number]


def _main_file(error: Error) -> str:
    return error.frames[0].file if error.frames else ""


def _error_at_the_end(errors: Sequence[Error], lines: Sequence[Line]) -> Error | None:
    """Return an exception behind which nothing was written, however it was printed."""
    if not errors or next(_after(errors[-1], lines, len(lines)), None) is not None:
        return None
    return errors[-1]


def _last_lines(lines: Sequence[Line], errors: Sequence[Error]) -> tuple[list[str], int]:
    """Return what was written last and at the same time, behind all exceptions; and when."""
    first = errors[-1].end if errors else 0
    last: list[Line] = []
    for number in range(len(lines) - 1, first - 1, -1):
        if is_noise(lines, number):
            if last:
                break
            continue
        if last and (last[0].ms - lines[number].ms > SAME_TIME_MS or len(last) == MAX_LAST_LINES):
            break
        last.insert(0, lines[number])
    return [_short(line.text) for line in last], last[-1].ms if last else 0


def _short(text: str) -> str:
    return text.rstrip()[:MAX_LINE_CHARACTERS]


# --- exits of ranks ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Exits:
    """The exit codes that launchers reported."""

    of_ranks: dict[int, int]
    of_slots: dict[tuple[int, str], int]
    """By host and slot."""
    first: int | None = None
    """The rank that ended first, where the launcher names one."""

    def of(self, output: Output) -> int | None:
        if (output.host, output.slot) in self.of_slots:
            return self.of_slots[output.host, output.slot]
        if output.rank in self.of_ranks:
            return self.of_ranks[output.rank]
        return output.exit_code


def read_exits(outputs: Sequence[Output]) -> Exits:
    """Return what the launchers wrote about the ends of ranks."""
    of_ranks: dict[int, int] = {}
    of_slots: dict[tuple[int, str], int] = {}
    first: int | None = None
    for output in outputs:
        if not output.is_setup:
            continue
        rank, is_first = -1, False
        for line in output.lines:
            if found := RANK_EXIT.match(line.text):
                of_ranks.setdefault(int(found[1]), int(found[2]))
                first = int(found[1]) if first is None else first
            elif found := SLOT_EXIT.match(line.text):
                of_slots[output.host, found[1]] = int(found[2])
            elif TORCHRUN_FIRST in line.text:
                is_first = True
            elif found := TORCHRUN_ENTRY.match(line.text):
                if found[1] == "rank":
                    rank = int(found[2])
                else:
                    of_ranks[rank] = int(found[2])
                    first = rank if is_first and first is None else first
    return Exits(of_ranks, of_slots, first)


# --- the rank to blame -------------------------------------------------------------------------------------------


def choose(everything: Sequence[Ending], first: int | None) -> Ending | None:
    """Return the ending that explains those of the other ranks.

    That is the earliest exception that does not follow from the end of another rank; but a crash counts more where the
    launcher saw it first, because it explains whatever other ranks then report.
    """
    endings = [each for each in everything if each.exit_code != 0]
    crashed = next((each for each in endings if each.output.rank == first and each.signal and first is not None), None)
    if crashed is not None and crashed.error is None and not kinds.LOST_PEER.search("\n".join(crashed.crash)):
        return crashed
    own = [each for each in endings if each.error is not None and not (each.lost_peer or each.waited)]
    if own:
        return min(own, key=lambda each: (each.ms, each.output.host, each.output.rank or 0))
    ended = [
        each for each in endings if each.error is None and each.exit_code and each.exit_code not in ENDED_BY_LAUNCHER
    ]
    if ended:
        return min(ended, key=lambda each: (not each.signal, each.output.rank != first, each.ms))
    others = [each for each in endings if each.error is not None]
    silent = [each for each in everything if each.error is None]
    if len(silent) == 1 and others and not any(each.waited for each in others):
        return replace(silent[0], left=True)
    if others:
        return min(others, key=lambda each: (not each.waited, each.ms))
    return next((each for each in endings if each.exit_code), endings[0] if len(endings) == 1 else None)


def error_before_silence(outputs: Sequence[Output]) -> Error | None:
    """Return the earliest exception after which its rank wrote nothing, in a process or thread for which others may wait.

    Exceptions that follow from the end of another rank, or from being stopped, are none.
    """
    found = []
    for output in (output for output in outputs if not output.is_setup):
        errors = [error for error in find_errors(output.lines) if error.fate != Fate.IGNORED]
        last = _error_at_the_end(errors, output.lines)
        if last is not None and last.name not in STOPPED_BY and not _follows(last):
            found.append(last)
    return min(found, key=lambda error: error.ms, default=None)


def explained(error: Error) -> Error:
    """Return the exception of a chain that explains the end: the last, except where only a clean-up failed after another."""
    before = error.before
    if before is None or error.raised_from or not error.frames:
        return error
    raised = error.frames[-1].source.startswith("raise")
    cleans = any(CLEANUP.search(frame.source) for frame in error.frames[-2:])
    return before if cleans and not raised else error


def place_of(error: Error) -> str:
    """Return where in the user's own code an exception was raised, as ``file:line: source``; empty if none of it took part."""
    for frame in reversed(error.frames):
        if path := own_file(frame):
            source = f": {frame.source}" if frame.source else ""
            return f"{path}:{frame.line}{source}"[:MAX_LINE_CHARACTERS]
    return ""


def own_file(frame: Frame) -> str:
    """Return the path within the upload of a frame in the user's own code; empty for another."""
    _, found, relative = frame.file.rpartition("/workspace/")
    own = found and "site-packages" not in relative and not PurePosixPath(relative).is_absolute()
    return relative if own else ""
