"""How a plain command is run: a shell reads the line that its user typed.

An error ends it (``-e``), also in the middle of a pipe where there is a bash: ``python train.py | tee log`` fails when the
training fails. When it is asked to stop, the shell waits for the programs that it has started, as the supervisor does for
those of a job without a shell: they may be writing a checkpoint.
"""

import shlex
import shutil
import sys
from collections.abc import Sequence

from runners.spec import SHELL

TRAP = "trap 'code=$?; wait; exit $code' TERM; "


def shell_argv(command: Sequence[str]) -> tuple[str, ...]:
    """Return the arguments of the shell for a command of ``RunSpec``; any other command as it is."""
    if tuple(command[:-1]) != SHELL:
        return tuple(command)
    script = f"{TRAP}{_python_function()}{command[-1]}"
    bash = shutil.which("bash")
    return (bash, "-eo", "pipefail", "-c", script) if bash else (*SHELL, script)


def _python_function() -> str:
    """Return a function that lets the line call ``python`` where only this Python is installed; empty elsewhere."""
    return "" if shutil.which("python") else f'python() {{ {shlex.quote(sys.executable)} "$@"; }}; '
