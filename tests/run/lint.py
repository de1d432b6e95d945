"""Checks that test no behaviour: style, types, import contracts, the schema, the documentation, missing migrations."""

import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.programs import measured
from tests.run.isolation import plain_environment
from tests.run.report import Result

ROOT = Path(__file__).resolve().parents[2]
LINTERS: tuple[tuple[str, list[str]], ...] = (
    ("mypy", [sys.executable, "-m", "mypy"]),
    ("ruff check .", [sys.executable, "-m", "ruff", "check", "."]),
    ("ruff format --check .", [sys.executable, "-m", "ruff", "format", "--check", "."]),
    ("djhtml --check", [str(Path(sys.executable).parent / "djhtml"), "--tabwidth", "2", "--check", "templates"]),
    ("import contracts", [str(Path(sys.executable).parent / "lint-imports")]),
    (
        "OpenAPI schema",
        [sys.executable, "manage.py", "spectacular", "--fail-on-warn", "--validate", "--file", os.devnull],
    ),
    (
        "documentation",
        [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "dummy", "docs", "docs/_build/check"],
    ),
    ("missing migrations", [sys.executable, "manage.py", "makemigrations", "--check", "--dry-run"]),
)


@dataclass(frozen=True)
class LinterRun:
    """What came of one linter."""

    returncode: int
    output: str
    processor_seconds: float


def run_linter(command: list[str]) -> LinterRun:
    """Run a linter in an environment without anything of this machine."""
    with tempfile.TemporaryDirectory() as home, tempfile.TemporaryFile("w+") as output:
        env = {**plain_environment(os.environ), "SCHEDULEARN_HOME": home}
        code, seconds = measured(command, cwd=ROOT, env=env, stdout=output, stderr=subprocess.STDOUT)
        output.seek(0)
        return LinterRun(code, output.read(), seconds)


def lint() -> Result:
    """Run all linters, two at a time, and print one line for each."""
    result, started = Result(), time.monotonic()
    with ThreadPoolExecutor(2) as pool:
        for (title, _), run in zip(LINTERS, pool.map(run_linter, [command for _, command in LINTERS]), strict=True):
            print(f"lint: {title}: {'ok' if run.returncode == 0 else 'FAILED'}", flush=True)
            if run.returncode:
                print(run.output[-9000:], flush=True)
            result.failed += run.returncode != 0
            result.passed += run.returncode == 0
            result.processor_seconds += run.processor_seconds
    result.seconds, result.aside = time.monotonic() - started, True
    return result
