"""A plain command is read by a shell, as if its user had typed it, and is stopped as gently as any other job."""

import shutil
from pathlib import Path

import pytest

from runners.launch import shell
from runners.spec import SHELL
from tests.runners.launching import Container, attempt, until


def typed(tmp_path: Path, line: str, files: dict[str, str] | None = None) -> Container:
    """A job that has ended, whose user typed this line."""
    with attempt(tmp_path) as made:
        container = made.container((*SHELL, line))
        for name, content in (files or {}).items():
            place = container.workspace / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(content)
            place.chmod(0o755 if content.startswith("#!") else 0o644)
        container.start().wait()
    return container


@pytest.mark.parametrize(
    ("line", "code", "printed"),
    [
        ("echo one && echo two", 0, "one\ntwo\n"),
        ("false && echo never", 1, ""),
        ("false; echo never", 1, ""),
        ("false || echo otherwise", 0, "otherwise\n"),
        ("echo a b | tr a-z A-Z", 0, "A B\n"),
        ("exit 3 | tee log.txt", 3, ""),
        ("LR=0.1 sh -c 'echo $LR'", 0, "0.1\n"),
        ("echo *.csv", 0, "a.csv b.csv\n"),
        ("echo '*.csv' \"$((1 + 1))\"", 0, "*.csv 2\n"),
        ("echo out > x.txt; cat x.txt", 0, "out\n"),
        ("./run.sh --fast", 0, "run --fast\n"),
        ("cd tools && sh ./where.sh", 0, "tools\n"),
        ("kill -SEGV $$", 139, ""),
    ],
)
def test_a_shell_reads_the_line(tmp_path: Path, line: str, code: int, printed: str) -> None:
    files = {
        "a.csv": "",
        "b.csv": "",
        "run.sh": '#!/bin/sh\necho run "$@"\n',
        "tools/where.sh": 'basename "$PWD"\n',
    }
    container = typed(tmp_path, line, files)
    assert (container.exit()["code"], container.log()) == (code, printed)
    assert f"Starting {line}\n" in container.log("setup"), "the log has the line as it was typed"


@pytest.mark.parametrize(
    ("line", "code", "reason"),
    [
        ("no-such-program --fast", 127, "no-such-program: "),
        ("./train.py", 126, "Permission denied"),
        ("python 'train.py", 2, "unexpected EOF|Unterminated quoted string"),
    ],
)
def test_what_a_shell_cannot_run_ends_with_its_code_and_reason(
    tmp_path: Path, line: str, code: int, reason: str
) -> None:
    container = typed(tmp_path, line, {"train.py": "print('never')\n"})
    assert container.exit()["code"] == code
    assert any(each in container.log() for each in reason.split("|"))


SAVES = """
import signal, sys, time
def save(number, frame):
    time.sleep(0.5)
    print("saved", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("up", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize(
    "line",
    [
        "python saves.py",
        "python saves.py; true",
        "python saves.py & wait",
        "python saves.py | cat",
        "python saves.py | tee log.txt | cat",
        "sleep 60 | python saves.py",  # it gets the signal as well, a little later
    ],
)
def test_a_stopped_program_may_save_before_its_shell_ends(tmp_path: Path, line: str) -> None:
    with attempt(tmp_path) as made:
        container = made.container((*SHELL, line))
        (container.workspace / "saves.py").write_text(SAVES)
        container.start()
        until(lambda: "up" in container.log())
        container.tell(stop={"reason": "preempted", "grace_seconds": 6})
        exit = container.wait(30)
    assert exit["reason"] == "stopped"
    assert container.log().startswith("up\nsaved\n")


def test_another_shell_is_as_good_where_there_is_no_bash(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"python": "/usr/bin/python", "bash": None}
    monkeypatch.setattr(shutil, "which", lambda name: found[name])
    assert shell.shell_argv((*SHELL, "echo $X")) == ("sh", "-ec", f"{shell.TRAP}echo $X")


def test_where_python_has_another_name_the_line_can_still_call_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: "/bin/bash" if name == "bash" else None)
    monkeypatch.setattr("sys.executable", "/opt/my python3")
    argv = shell.shell_argv((*SHELL, "python a.py"))
    assert argv[:4] == ("/bin/bash", "-eo", "pipefail", "-c")
    assert argv[4] == f"{shell.TRAP}python() {{ '/opt/my python3' \"$@\"; }}; python a.py"


def test_a_command_of_an_earlier_portal_is_run_without_a_shell() -> None:
    assert shell.shell_argv(("python", "train.py", "*.csv")) == ("python", "train.py", "*.csv")
