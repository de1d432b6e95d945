"""A portal on a data folder of one of these labs: run its programs, and read what it holds."""

import json
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


def lab_settings(database: str, broker: str) -> dict[str, str]:
    """Return the variables of a portal in the lab size."""
    return {"DATABASE_URL": database, "REDIS_URL": broker, "SECRET_KEY": "only-for-tests-and-longer-than-thirty-two"}


def python(home: Path, env: dict[str, str], *words: str) -> str:
    """Run this Python for the portal in a data folder; return what it printed. Raises RuntimeError with its errors."""
    variables = {**os.environ, "SCHEDULEARN_HOME": str(home), "DJANGO_SETTINGS_MODULE": "portal.settings", **env}
    done = subprocess.run(
        [sys.executable, *words], cwd=ROOT, env=variables, check=False, capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)} ended with {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout


def read(home: Path, env: dict[str, str], *words: str) -> dict[str, object]:
    """Return what a portal holds. Raises RuntimeError if it cannot be read."""
    found: dict[str, object] = json.loads(python(home, env, "-m", "tests.releases.contents", *words))
    return found
