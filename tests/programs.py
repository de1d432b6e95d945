"""Running programs that have things of their own to clean up: servers, engines, whole portals."""

import subprocess
from collections.abc import Sequence
from typing import Any


def call(command: Sequence[str], **settings: Any) -> int:
    """The exit code. ``settings`` are those of ``subprocess.Popen``.

    Control-C interrupts the program as well as us, and it is waited for. ``subprocess.run`` kills it a quarter of a second
    later, and what it started stays behind.
    """
    with subprocess.Popen(command, **settings) as program:
        try:
            return program.wait()
        except KeyboardInterrupt:
            program.wait()
            raise
