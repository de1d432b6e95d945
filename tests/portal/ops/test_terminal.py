"""What ``make run`` shows: lines that stay, one line of progress, and the warnings of its programs."""

import errno
import io
import logging
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from portal.ops.up.logs import LOG_BYTES, LogFile, TerminalHandler, follow, quiet_logging, warning_text
from portal.ops.up.processes import Program, ProgramManager
from portal.ops.up.terminal import CLEAR, PIPE_SECONDS, Terminal


class Screen(io.StringIO):
    """A terminal: what is on it after carriage returns and clearing."""

    def isatty(self) -> bool:
        return True

    def lines(self) -> list[str]:
        return [line.split(CLEAR)[-1] for line in self.getvalue().split("\n")]


def test_progress_is_rewritten_in_place_and_stays_below_other_lines() -> None:
    screen = Screen()
    terminal = Terminal(screen)
    terminal.progress("Preparing PyTorch", "10 %")
    terminal.progress("Preparing PyTorch", "20 %")
    terminal.print("web: something odd")
    terminal.progress("Preparing PyTorch", "30 %")
    assert screen.lines() == ["web: something odd", "Preparing PyTorch: 30 %"]
    terminal.progress("")
    terminal.print("Stopped.")
    assert screen.lines() == ["web: something odd", "Stopped.", ""]


def test_a_long_progress_line_is_cut_to_the_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    screen = Screen()
    Terminal(screen).progress("Preparing PyTorch", "a long explanation of what happens")
    assert screen.lines() == ["Preparing PyTorch:…"]


def test_into_a_pipe_progress_is_written_sparsely() -> None:
    now, pipe = [0.0], io.StringIO()
    terminal = Terminal(pipe, clock=lambda: now[0])
    for second in range(60):
        now[0] = float(second)
        terminal.progress("Preparing PyTorch", f"{second} %")
    terminal.progress("first job runs")
    terminal.progress("")
    assert pipe.getvalue().splitlines() == [
        "Preparing PyTorch: 0 %",
        f"Preparing PyTorch: {PIPE_SECONDS:.0f} %",
        f"Preparing PyTorch: {2 * PIPE_SECONDS:.0f} %",
        "first job runs",
    ]


@pytest.mark.parametrize(
    "error", [BrokenPipeError(), OSError(errno.ENOSPC, "No space left on device"), ValueError("closed file")]
)
def test_output_that_cannot_be_written_does_not_stop_it(error: Exception) -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise error

    Terminal(Closed()).print("anything")


def test_letters_that_a_terminal_does_not_have_are_replaced() -> None:
    written = io.BytesIO()
    output = io.TextIOWrapper(written, encoding="ascii")
    Terminal(output).print("Preparing … done")
    assert written.getvalue() == b"Preparing ? done\n"


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("2026-11-27 03:04:31,398 WARNING runners.agent: No contact", "runners.agent: No contact"),
        ("2026-11-27 03:04:31,398 ERROR portal.jobs: It broke", "portal.jobs: It broke"),
        ("[2026-11-27 03:04:31,398: WARNING/MainProcess] No broker", "No broker"),
        ("2026-11-27 03:04:31,398 INFO runners.agent: WARNING signs", None),
        ("[2026-11-27 03:04:31,398: INFO/MainProcess] ready", None),
        ('  File "x.py", line 3, in WARNING', None),
        ("", None),
    ],
)
def test_it_distinguishes_warnings_from_other_lines(line: str, text: str | None) -> None:
    assert warning_text(line) == text


SCRIPT = """
import sys
print("2026-11-27 03:04:31,398 INFO a: quiet", file=sys.stderr)
print("2026-11-27 03:04:31,399 ERROR a: loud", file=sys.stderr)
print("Traceback (most recent call last):", file=sys.stderr)
print("To: ada@example.org", flush=True)
"""


def run_one(name: str, folder: Path, env: Mapping[str, str]) -> tuple[str, str]:
    """What a program leaves on the terminal and in its log file."""
    screen = io.StringIO()
    manager = ProgramManager(folder, Terminal(screen))
    manager.start(Program(name, (sys.executable, "-c", SCRIPT), env))
    process = manager.programs[0].process
    assert process is not None
    process.wait(30)
    manager.stop()
    return screen.getvalue(), (folder / f"{name}.log").read_text()


def test_what_a_program_logs_goes_to_its_file_and_errors_to_the_terminal_too(tmp_path: Path) -> None:
    screen, log = run_one("agent", tmp_path, {})
    assert screen == "agent: a: loud\n"
    assert "quiet" in log and "loud" in log and "Traceback" in log and "ada@example.org" in log


def test_mails_that_the_web_process_prints_reach_the_terminal(tmp_path: Path) -> None:
    screen, log = run_one("web", tmp_path, {})
    assert sorted(screen.splitlines()) == ["To: ada@example.org", "web: a: loud"] and "ada@" not in log


def test_log_files_are_rotated(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "web.log")
    for _ in range(3):
        log.write("x" * (LOG_BYTES // 2 + 1))
    log.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["web.log", "web.log.1", "web.log.2"]


def test_bytes_that_are_no_text_do_not_end_the_copying(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "odd.log")
    follow("odd", io.BytesIO(b"\xff\xfe odd\nlast"), log, None).join(30)
    log.close()
    assert (tmp_path / "odd.log").read_text().splitlines()[-1] == "last"


def test_this_process_logs_into_a_file_and_only_warnings_reach_the_terminal(tmp_path: Path) -> None:
    screen = io.StringIO()
    config = {"version": 1, "formatters": {}, "handlers": {"console": {}}, "root": {"level": "INFO"}}
    quiet = quiet_logging(config, tmp_path / "up.log", Terminal(screen))
    assert set(quiet["root"]["handlers"]) == {"file", "terminal"} == set(quiet["handlers"])
    handler = TerminalHandler(Terminal(screen))
    logger = logging.Logger("apart")
    logger.addHandler(handler)
    logger.info("Task simulations succeeded")
    logger.warning("the scheduler ended with code %s", 3)
    assert screen.getvalue() == "warning: the scheduler ended with code 3\n"
