"""The version that commands show."""

import subprocess
import sys
from pathlib import Path

import pytest

from runners import __version__

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    "command", [["manage.py", "version"], ["manage.py", "--version"], ["-m", "runners.agent", "--version"]]
)
def test_commands_and_the_agent_show_the_version_of_schedulearn(command: list[str]) -> None:
    done = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("Schedulearn ") and done.stdout.endswith(f" {__version__}\n")
