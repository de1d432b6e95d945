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


@dataclass(frozen=True)
class Linter:
    """A check, and what to do when it fails, where its own output does not say so."""

    title: str
    command: list[str]
    fix: str = ""


LINTERS = (
    Linter("mypy", [sys.executable, "-m", "mypy"]),
    Linter(
        "ruff check .",
        [sys.executable, "-m", "ruff", "check", "."],
        ".venv/bin/ruff check --fix . corrects some of these.",
    ),
    Linter(
        "ruff format --check .", [sys.executable, "-m", "ruff", "format", "--check", "."], "Run .venv/bin/ruff format ."
    ),
    Linter(
        "djhtml --check",
        [str(Path(sys.executable).parent / "djhtml"), "--tabwidth", "2", "--check", "templates"],
        "Run .venv/bin/djhtml --tabwidth 2 templates",
    ),
    Linter(
        "import contracts",
        [str(Path(sys.executable).parent / "lint-imports")],
        "Move the code, or pass the value in. The contracts are in pyproject.toml, explained in docs/architecture/packages.md "
        "(What may import what). After a change run .venv/bin/lint-imports again.",
    ),
    Linter(
        "OpenAPI schema without warnings",
        [sys.executable, "manage.py", "spectacular", "--fail-on-warn", "--validate", "--file", os.devnull],
        "The warnings name the view or serializer. Then run .venv/bin/python -m portal.ops.reference and commit what changes.",
    ),
    Linter(
        "documentation",
        [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "dummy", "docs", "docs/_build/check"],
        "Each line above names a page and its line. Run make docs to check again.",
    ),
    Linter(
        "missing migrations",
        [sys.executable, "manage.py", "makemigrations", "--check", "--dry-run"],
        "Run .venv/bin/python manage.py makemigrations and commit the new file.",
    ),
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
        for linter, run in zip(LINTERS, pool.map(run_linter, [each.command for each in LINTERS]), strict=True):
            print(f"lint: {linter.title}: {'ok' if run.returncode == 0 else 'FAILED'}", flush=True)
            if run.returncode:
                print(run.output[-9000:], flush=True)
                if linter.fix:
                    print(f"lint: {linter.title}: {linter.fix}\n", flush=True)
            result.failed += run.returncode != 0
            result.passed += run.returncode == 0
            result.processor_seconds += run.processor_seconds
    result.seconds, result.aside = time.monotonic() - started, True
    return result
