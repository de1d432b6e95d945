"""Runs one of the portal's programs on untrusted data, in a separate process with hard limits.

Whatever the data does to it, the web process only sees that it gave no answer.
"""

import json
import logging
import math
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from django.conf import settings

FOLDER = Path(__file__).resolve().parent
MAX_ERROR_BYTES = 2000
END_SECONDS = 10
"""How long a program may take to end once it has closed its output."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Limits:
    """What a program may use. Only as many run at the same time as ``at_once`` admits; others wait for ``wait_seconds``."""

    seconds: float
    memory_bytes: int
    file_bytes: int
    at_once: threading.BoundedSemaphore
    wait_seconds: float | None = None


UPLOADS = Limits(60, 1024 * 1024 * 1024, (1024 + 64) * 1024 * 1024, threading.BoundedSemaphore(2))
"""Files may be as large as a code version with its headers."""

# The limits come first. The package is a stub with the modules of the portal, since the real one starts Django.
_START = """
import resource, runpy, sys, types
memory, cpu, file, folder, program = *map(int, sys.argv[1:4]), *sys.argv[4:6]
for limit, value in (("AS", memory), ("CPU", cpu), ("FSIZE", file), ("CORE", 0), ("NOFILE", 64)):
    resource.setrlimit(getattr(resource, "RLIMIT_" + limit), (value, value))
sys.modules["portal"] = types.ModuleType("portal")
sys.modules["portal"].__path__ = [folder]
sys.argv[:6] = [program]
runpy.run_module("portal." + program, run_name="__main__")
"""


class NoAnswerError(Exception):
    """The program crashed or was stopped by a limit; the log has the end of its output."""


def run(
    program: str,
    arguments: Sequence[str],
    stdin: IO[bytes] | int,
    pass_fds: Sequence[int] = (),
    limits: Limits | None = None,
) -> Any:
    """Run a module of the portal, such as ``projects.unpacking.program``, without the portal's environment variables.

    Return the JSON that it printed. Raises NoAnswerError.
    """
    limits = limits or UPLOADS
    if not limits.at_once.acquire(timeout=limits.wait_seconds):
        raise NoAnswerError(f"{program} waited {limits.wait_seconds} s for others")
    try:
        done = subprocess.run(
            _command(program, arguments, limits),
            stdin=stdin,
            capture_output=True,
            pass_fds=tuple(pass_fds),
            timeout=limits.seconds,
            cwd="/",
            env=_environment(),
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise NoAnswerError(f"{program} took more than {limits.seconds} s") from error
    finally:
        limits.at_once.release()
    _require_success(program, done.returncode, done.stderr)
    return json.loads(done.stdout)


@contextmanager
def piped(
    program: str, arguments: Sequence[str], stdin: IO[bytes] | int, limits: Limits, scratch: Path | None = None
) -> Iterator[IO[bytes]]:
    """Run a module of the portal as ``run`` does, and give its output while it runs: for more than fits into memory.

    ``scratch`` is the folder for its temporary files, if not the usual one. The program is killed when the block raises. Raises NoAnswerError at its end if the program failed.
    """
    if not limits.at_once.acquire(timeout=limits.wait_seconds):
        raise NoAnswerError(f"{program} waited {limits.wait_seconds} s for others")
    try:
        with tempfile.TemporaryFile() as errors:
            process = subprocess.Popen(
                _command(program, arguments, limits),
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd="/",
                env=_environment(scratch),
            )
            assert process.stdout is not None  # noqa: S101
            end = threading.Timer(limits.seconds, process.kill)
            end.daemon = True
            end.start()
            try:
                with process.stdout:
                    yield process.stdout
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                logger.error("%s closed its output and did not end", program)
            finally:
                end.cancel()
                process.kill()
                process.wait()
            errors.seek(max(0, errors.seek(0, os.SEEK_END) - MAX_ERROR_BYTES))
            _require_success(program, process.returncode, errors.read())
    finally:
        limits.at_once.release()


def _command(program: str, arguments: Sequence[str], limits: Limits) -> list[str]:
    numbers = [str(limits.memory_bytes), str(math.ceil(limits.seconds)), str(limits.file_bytes)]
    return [sys.executable, "-I", "-X", "utf8", "-c", _START, *numbers, str(FOLDER), program, *arguments]


def _environment(scratch: Path | None = None) -> dict[str, str]:
    scratch = scratch or settings.HOME / "incoming"
    scratch.mkdir(mode=0o700, exist_ok=True)
    return {"TMPDIR": str(scratch), "LANG": "C.UTF-8"}


def _require_success(program: str, code: int, errors: bytes) -> None:
    if code != 0:
        logger.error("%s ended with %s: %s", program, code, errors.decode(errors="replace")[-MAX_ERROR_BYTES:])
        raise NoAnswerError(f"{program} ended with {code}")
