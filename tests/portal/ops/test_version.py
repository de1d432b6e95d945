"""The version that commands show."""

import subprocess
import sys
import tomllib
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


def test_the_project_has_the_same_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == __version__, "Set both: version in pyproject.toml, __version__ in runners/__init__.py."
