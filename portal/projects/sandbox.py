"""Runs one of this folder's programs on untrusted data, in a separate process with hard limits.

Whatever the data does to it, the web process only sees that it gave no answer.
"""

import json
import logging
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from django.conf import settings

FOLDER = Path(__file__).resolve().parent
WALL_SECONDS = 60
CPU_SECONDS = 60
MEMORY_BYTES = 1024 * 1024 * 1024
FILE_BYTES = (1024 + 64) * 1024 * 1024
"""Maximum size of a code version and its headers."""

logger = logging.getLogger(__name__)
_running = threading.BoundedSemaphore(2)

# The limits come first; the program's folder comes last, so that no name in it can hide a standard module.
_START = """
import resource, runpy, sys
memory, cpu, file, folder, program = *map(int, sys.argv[1:4]), *sys.argv[4:6]
for limit, value in (("AS", memory), ("CPU", cpu), ("FSIZE", file), ("CORE", 0), ("NOFILE", 64)):
    resource.setrlimit(getattr(resource, "RLIMIT_" + limit), (value, value))
sys.path.append(folder)
sys.argv[:6] = [program]
runpy.run_module(program, run_name="__main__")
"""


class NoAnswerError(Exception):
    """The program crashed or was stopped by a limit; the log has the end of its output."""


def run(program: str, arguments: Sequence[str], stdin: IO[bytes] | int, pass_fds: Sequence[int] = ()) -> Any:
    """Run a program without the portal's environment variables. Return the JSON that it printed, or raise NoAnswerError."""
    limits = [str(MEMORY_BYTES), str(CPU_SECONDS), str(FILE_BYTES)]
    command = [sys.executable, "-I", "-X", "utf8", "-c", _START, *limits, str(FOLDER), program, *arguments]
    scratch = settings.HOME / "incoming"
    scratch.mkdir(mode=0o700, exist_ok=True)
    try:
        with _running:
            done = subprocess.run(
                command,
                stdin=stdin,
                capture_output=True,
                pass_fds=tuple(pass_fds),
                timeout=WALL_SECONDS,
                cwd="/",
                env={"TMPDIR": str(scratch), "LANG": "C.UTF-8"},
                check=False,
            )
    except subprocess.TimeoutExpired as error:
        raise NoAnswerError(f"{program} took more than {WALL_SECONDS} s") from error
    if done.returncode != 0:
        logger.error("%s ended with %s: %s", program, done.returncode, done.stderr.decode(errors="replace")[-2000:])
        raise NoAnswerError(f"{program} ended with {done.returncode}")
    return json.loads(done.stdout)
