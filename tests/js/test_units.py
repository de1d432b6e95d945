"""Runs the unit tests of the pages' scripts with node, so that they count with all others."""

import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.browser
def test_the_scripts_units_pass() -> None:
    node = shutil.which("node") or shutil.which("nodejs")
    assert node, "node is missing: install nodejs"
    files = [str(path) for path in sorted(HERE.glob("*.test.js"))]
    run = subprocess.run([node, "--test", *files], capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stdout[-4000:]
    assert "# fail 0" in run.stdout and "# pass 0" not in run.stdout
