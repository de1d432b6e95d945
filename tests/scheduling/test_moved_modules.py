"""A policy that a lab wrote for the release before still finds the modules that it imports."""

import subprocess
import sys

from scheduling import MOVED

OLD = """
import warnings
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    from scheduling import reasons
    from scheduling.capacity import Capacity
    from scheduling.capacity import queue
    import scheduling.reasons
from scheduling.toolkit import capacity
from scheduling.toolkit import reasons as now
assert reasons is now and scheduling.reasons is now and Capacity is capacity.Capacity and queue is capacity.queue
print(*(each.message for each in seen), sep="\\n")
"""


def test_old_names_are_the_same_modules_and_warn_once() -> None:
    done = subprocess.run([sys.executable, "-c", OLD], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "scheduling.reasons is now scheduling.toolkit.reasons. The next release knows the new name only.",
        "scheduling.capacity is now scheduling.toolkit.capacity. The next release knows the new name only.",
    ]


def test_each_module_that_moved_is_found() -> None:
    code = "import sys, importlib, scheduling\n" + "".join(
        f"assert importlib.import_module('scheduling.{old}').__name__ == 'scheduling.{new}'\n"
        for old, new in MOVED.items()
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)
