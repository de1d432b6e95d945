"""Running programs that have things of their own to clean up: servers, engines, whole portals."""

import os
import subprocess
from collections.abc import Sequence
from typing import Any


def call(command: Sequence[str], **settings: Any) -> int:
    """The exit code. ``settings`` are those of ``subprocess.Popen``."""
    return measured(command, **settings)[0]


def measured(command: Sequence[str], **settings: Any) -> tuple[int, float]:
    """The exit code, and the seconds of processors that the program and its children took, without those of containers.

    Control-C interrupts the program as well as us, and it is waited for. ``subprocess.run`` kills it a quarter of a second
    later, and what it started stays behind.
    """
    with subprocess.Popen(command, **settings) as program:
        try:
            _, status, usage = os.wait4(program.pid, 0)
        except KeyboardInterrupt:
            program.wait()
            raise
        program.returncode = os.waitstatus_to_exitcode(status)
        return program.returncode, usage.ru_utime + usage.ru_stime
