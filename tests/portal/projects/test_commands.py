"""The command line that a page proposes for code, from inspection to the line that a shell reads."""

import io
import shlex
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from portal.jobs.services import command_for
from portal.projects.inspecting.program import inspect


def guess_for(files: dict[str, str]) -> dict[str, Any]:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for path, text in files.items():
            info = tarfile.TarInfo(path)
            info.size = len(text.encode())
            tar.addfile(info, io.BytesIO(text.encode()))
    out.seek(0)
    return inspect(out)


def proposed(files: dict[str, str]) -> str:
    return command_for(guess_for(files))


@pytest.mark.parametrize(
    "name",
    [
        "Copy of Lab3.py",
        "analysis final (2).py",
        "it's $HOME.py",
        "a&b;c.py",
        "wörter zählen.py",
        "50% *.py",
        "plain.py",
    ],
)
def test_a_shell_runs_the_file_whatever_its_name(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("print('it ran')\n")
    command = proposed({name: "print('it ran')\n"})
    assert shlex.split(command) == ["python", name]
    run = subprocess.run(
        ["bash", "-eo", "pipefail", "-c", command.replace("python", sys.executable, 1)],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.stdout == "it ran\n", run.stderr


def test_nothing_is_proposed_where_nothing_can_be_run() -> None:
    assert proposed({"notes.txt": "x"}) == ""
