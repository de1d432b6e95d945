"""Runs one of the portal's programs on untrusted data, in a separate process with hard limits.

Whatever the data does to it, the web process only sees that it gave no answer.
"""

import json
import logging
import math
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from django.conf import settings

FOLDER = Path(__file__).resolve().parent

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
    numbers = [str(limits.memory_bytes), str(math.ceil(limits.seconds)), str(limits.file_bytes)]
    command = [sys.executable, "-I", "-X", "utf8", "-c", _START, *numbers, str(FOLDER), program, *arguments]
    scratch = settings.HOME / "incoming"
    scratch.mkdir(mode=0o700, exist_ok=True)
    if not limits.at_once.acquire(timeout=limits.wait_seconds):
        raise NoAnswerError(f"{program} waited {limits.wait_seconds} s for others")
    try:
        done = subprocess.run(
            command,
            stdin=stdin,
            capture_output=True,
            pass_fds=tuple(pass_fds),
            timeout=limits.seconds,
            cwd="/",
            env={"TMPDIR": str(scratch), "LANG": "C.UTF-8"},
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise NoAnswerError(f"{program} took more than {limits.seconds} s") from error
    finally:
        limits.at_once.release()
    if done.returncode != 0:
        logger.error("%s ended with %s: %s", program, done.returncode, done.stderr.decode(errors="replace")[-2000:])
        raise NoAnswerError(f"{program} ended with {done.returncode}")
    return json.loads(done.stdout)
