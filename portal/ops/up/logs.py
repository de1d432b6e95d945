"""Log files of the programs that ``make run`` starts: rotated by size, with warnings and errors on the terminal too."""

import logging
import os
import re
import threading
from collections.abc import Callable, Mapping
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import IO, Any

from portal.ops.up.terminal import Terminal

LOG_BYTES = 10 * 2**20
MAX_OLD_FILES = 4
"""Earlier files of each program: ``web.log.1`` is the newest of them."""
RECORD = re.compile(r"\[?\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}:? (?P<level>[A-Z]+)(/\w+\])? (?P<text>.*)")
"""A line that begins a record, in our format or Celery's; other lines continue the record before (tracebacks)."""
WARNING_LEVELS = frozenset({"WARNING", "ERROR", "CRITICAL"})
SHOWN_CHARACTERS = 500


class PrivateFileHandler(RotatingFileHandler):
    """A rotating handler whose files only their owner can read."""

    def _open(self) -> Any:
        def opener(path: str, flags: int) -> int:
            return os.open(path, flags, 0o600)

        return open(self.baseFilename, self.mode, encoding=self.encoding, errors=self.errors, opener=opener)  # noqa: PTH123


class LogFile:
    """The log file of one program. It is rotated here, so that the program need not know about it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.handler = PrivateFileHandler(path, maxBytes=LOG_BYTES, backupCount=MAX_OLD_FILES)
        self.handler.setFormatter(logging.Formatter("%(message)s"))

    def write(self, line: str) -> None:
        self.handler.handle(logging.makeLogRecord({"msg": line}))

    def close(self) -> None:
        self.handler.close()


def warning_text(line: str) -> str | None:
    """Return the text of a warning or error; None for other lines."""
    found = RECORD.match(line)
    return found["text"][:SHOWN_CHARACTERS] if found and found["level"] in WARNING_LEVELS else None


def follow(name: str, stream: IO[bytes], log: LogFile, terminal: Terminal | None) -> threading.Thread:
    """Copy what a program writes into its log file until it ends; its warnings and errors also to the terminal."""

    def copy() -> None:
        with stream:
            for raw in stream:
                line = raw.decode(errors="replace").rstrip("\n")
                log.write(line)
                if terminal is not None and (text := warning_text(line)) is not None:
                    terminal.print(f"{name}: {text}")

    return _start_thread(f"log of {name}", copy)


def copy_to_terminal(name: str, stream: IO[bytes], terminal: Terminal) -> threading.Thread:
    """Copy everything that a program writes to the terminal."""

    def copy() -> None:
        with stream:
            for raw in stream:
                terminal.print(raw.decode(errors="replace").rstrip("\n"))

    return _start_thread(f"output of {name}", copy)


def _start_thread(name: str, copy: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=copy, name=name, daemon=True)
    thread.start()
    return thread


class TerminalHandler(logging.Handler):
    """Prints warnings and errors of this process."""

    def __init__(self, terminal: Terminal) -> None:
        super().__init__(logging.WARNING)
        self.terminal = terminal

    def emit(self, record: logging.LogRecord) -> None:
        self.terminal.print(f"{record.levelname.lower()}: {record.getMessage()[:SHOWN_CHARACTERS]}")


def quiet_logging(config: Mapping[str, Any], path: Path, terminal: Terminal) -> dict[str, Any]:
    """Return Django's ``LOGGING`` for this process: all records go to a file, warnings and errors to the terminal too."""
    handlers: dict[str, Any] = {
        "file": {
            "()": PrivateFileHandler,
            "filename": str(path),
            "maxBytes": LOG_BYTES,
            "backupCount": MAX_OLD_FILES,
            "formatter": "line",
        },
        "terminal": {"()": TerminalHandler, "terminal": terminal},
    }
    return {**config, "handlers": handlers, "root": {**config["root"], "handlers": list(handlers)}}
