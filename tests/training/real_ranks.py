"""Starts scripts of this folder as ranks of a launcher, and reads what they print."""

import json
import subprocess
from pathlib import Path
from typing import Any

from tests import engine

SCRIPTS = Path(__file__).parent / "scripts"
LAUNCHERS = {
    "torchrun": ["torchrun", "--nproc-per-node", "3"],
    "horovod": ["horovodrun", "--gloo", "--disable-cache", "-np", "3", "python"],
}


def finished(command: list[str], job_python: str, folder: Path | None = None) -> "subprocess.CompletedProcess[str]":
    """At most 300 seconds long. Then the launcher is asked to end, which ends its ranks; killed, it would leave them."""
    env = engine.rank_env(job_python)
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=env, cwd=folder, **pipes) as launcher:
        try:
            out, err = launcher.communicate(timeout=300)
        except subprocess.TimeoutExpired:
            launcher.terminate()
            out, err = launcher.communicate()
    return subprocess.CompletedProcess(command, launcher.returncode, out, err)


def run(command: list[str], job_python: str) -> dict[str, Any]:
    """What it printed last, as JSON."""
    done = finished(command, job_python)
    assert done.returncode == 0, done.stdout + done.stderr
    last = [line for line in done.stdout.splitlines() if "{" in line][-1]
    found: dict[str, Any] = json.loads(last[last.index("{") :])
    return found
