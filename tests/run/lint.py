"""Checks that run no code of ours: style, types, import contracts, missing migrations."""

import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.run.isolation import plain_environment
from tests.run.report import Result

ROOT = Path(__file__).resolve().parents[2]
LINTERS: tuple[tuple[str, list[str]], ...] = (
    ("mypy", [sys.executable, "-m", "mypy"]),
    ("ruff check .", [sys.executable, "-m", "ruff", "check", "."]),
    ("ruff format --check .", [sys.executable, "-m", "ruff", "format", "--check", "."]),
    ("djhtml --check", [str(Path(sys.executable).parent / "djhtml"), "--tabwidth", "2", "--check", "templates"]),
    ("import contracts", [str(Path(sys.executable).parent / "lint-imports")]),
    ("missing migrations", [sys.executable, "manage.py", "makemigrations", "--check", "--dry-run"]),
)


def run_linter(command: list[str]) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryDirectory() as home:
        env = {**plain_environment(os.environ), "SCHEDULEARN_HOME": home}
        return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)


def lint() -> Result:
    """Run all linters, two at a time, and print one line for each."""
    result, started = Result(), time.monotonic()
    with ThreadPoolExecutor(2) as pool:
        for (title, _), run in zip(LINTERS, pool.map(run_linter, [command for _, command in LINTERS]), strict=True):
            print(f"lint: {title}: {'ok' if run.returncode == 0 else 'FAILED'}", flush=True)
            if run.returncode:
                print(run.stdout[-6000:], run.stderr[-3000:], flush=True)
            result.failed += run.returncode != 0
            result.passed += run.returncode == 0
    result.seconds = time.monotonic() - started
    return result
