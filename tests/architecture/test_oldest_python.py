"""What runs in jobs works with the oldest Python that an image of a project may have."""

import subprocess
import sys

from runners.environments.image_check import OLDEST_PYTHON
from runners.runtime import LAUNCH_PATHS

LAUNCHED = [f"runners/{name}" for name in LAUNCH_PATHS if name != "training"]
"""The training library has its own checks: users import it, with packages that are not installed here."""


def test_the_launch_package_uses_nothing_that_came_later() -> None:
    version = ".".join(map(str, OLDEST_PYTHON))
    command = [sys.executable, "-m", "mypy", "--python-version", version, "--follow-imports=silent", *LAUNCHED]
    output = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    later = [line for line in output.splitlines() if "[attr-defined]" in line or "[syntax]" in line]
    assert not later, later
