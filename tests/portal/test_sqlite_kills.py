"""SQLite with several writers of which one is killed again and again: nothing that was acknowledged is lost, nothing is
half there, and no user sees that the database is locked."""

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.examples import examples
from tests.portal.homes import migrate
from tests.runners.launching import until

ROOT = Path(__file__).resolve().parents[2]
ROUNDS = examples(6, 2)
MOST_SECONDS = 120
"""For any step on a busy machine."""


class Process:
    """One that the program of the writers has forked."""

    def __init__(self, pid: int, output: Path) -> None:
        self.pid, self.output = pid, output

    def alive(self) -> bool:
        return Path(f"/proc/{self.pid}").exists()

    def text(self) -> str:
        return self.output.read_text() if self.output.exists() else ""

    def numbers(self, word: str) -> set[int]:
        """Of whole lines: the last one may be cut."""
        lines = self.text().splitlines(keepends=True)
        return {int(line.split()[1]) for line in lines if line.endswith("\n") and word in line}

    def writes(self, jobs: int) -> None:
        """Wait until so many of its jobs were accepted."""
        until(lambda: len(self.numbers("accepted")) >= jobs or not self.alive(), MOST_SECONDS, self.text)
        assert self.alive(), self.text()

    def kill(self) -> None:
        assert self.alive(), self.text()
        os.kill(self.pid, signal.SIGKILL)
        until(lambda: not self.alive(), MOST_SECONDS)


class Writers:
    def __init__(self, home: Path) -> None:
        self.home, self.count = home, 0
        env = {**os.environ, "SCHEDULEARN_HOME": str(home), "DJANGO_SETTINGS_MODULE": "portal.settings"}
        command = [sys.executable, "-m", "tests.portal.sqlite_writers"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.program = subprocess.Popen(command, cwd=ROOT, env=env, text=True, **pipes)  # type: ignore[call-overload]
        assert self.program.stdout.readline() == "ready\n"

    def fork(self, task: str) -> Process:
        self.count += 1
        output = self.home / f"output-{self.count}"
        self.program.stdin.write(f"{task} {output}\n")
        self.program.stdin.flush()
        return Process(int(self.program.stdout.readline()), output)


@pytest.fixture
def writers(django_db_setup: None, django_db_blocker: Any, tmp_path: Path) -> Iterator[Writers]:
    migrate(tmp_path, django_db_blocker)
    one = Writers(tmp_path)
    yield one
    with one.program:
        one.program.kill()


@pytest.mark.timeout(600)
def test_a_writer_that_is_killed_at_any_moment_loses_nothing_and_blocks_no_one(
    writers: Writers, tmp_path: Path
) -> None:
    rng = random.Random(15)
    accepted, ended = set[int](), set[int]()
    for _ in range(ROUNDS):
        pair = [writers.fork(f"write {index}") for index in range(2)]
        for writer in pair:
            writer.writes(rng.randint(1, 6))
        time.sleep(rng.uniform(0, 0.05))  # into any of the transactions that follow
        for writer in rng.sample(pair, 2):
            writer.kill()
            accepted |= writer.numbers("accepted")
            ended |= writer.numbers("ended")
    with sqlite3.connect(tmp_path / "db.sqlite3") as database:
        assert column(database, "PRAGMA integrity_check") == ["ok"]
        assert column(database, "PRAGMA foreign_key_check") == []
        assert accepted <= set(column(database, "SELECT id FROM jobs_job"))
        assert ended <= set(column(database, "SELECT id FROM jobs_job WHERE state = 'SUCCEEDED'"))
    assert len(ended) > ROUNDS
    check = writers.fork("check")
    until(lambda: not check.alive(), MOST_SECONDS)
    assert check.text().split()[-1:] == ["jobs"], check.text()
    print(check.text(), len(accepted), len(ended))


def column(database: sqlite3.Connection, question: str) -> Sequence[object]:
    return [row[0] for row in database.execute(question)]
