"""What a change costs a rank that starts again, by the steps of its optimizer."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from runners.launch.ranks import SHIM
from runners.launch.restart_costs import LAYOUT, STEPS_VARIABLE, RestartCosts, read_steps

TORCH = """
hooks = []
def register_optimizer_step_post_hook(hook): hooks.append(hook)
class Optimizer:
    def step(self):
        for hook in hooks:
            hook(self, (), {})
"""
RANK = """
import importlib, os, sys, time
now = 100.0
time.monotonic = lambda: now
optimizer = importlib.import_module("torch.optim.optimizer").Optimizer()
for _ in range(int(sys.argv[1])):
    now += 0.25
    optimizer.step()
if os.fork() == 0:  # as a data loader's worker; it is no rank
    now += 0.5
    optimizer.step()
    os._exit(0)
os.wait()
os.kill(os.getpid(), 9)
"""


@pytest.fixture
def torch(tmp_path: Path) -> Path:
    """What there is of it here has what the real one has; that is in tests/cluster/test_torch_groups.py."""
    package = tmp_path / "packages" / "torch" / "optim"
    package.mkdir(parents=True)
    (package / "optimizer.py").write_text(TORCH)
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()
    return package.parent.parent


def rank(torch: Path, file: Path, steps: int) -> None:
    env = {"PYTHONPATH": f"{SHIM}:{torch}", STEPS_VARIABLE: str(file)}
    subprocess.run([sys.executable, "-c", RANK, str(steps)], env=env, check=False, timeout=60)


def test_a_rank_that_is_killed_leaves_the_times_of_its_steps(torch: Path, tmp_path: Path) -> None:
    rank(torch, tmp_path / "steps", 4)
    steps = read_steps(tmp_path / "steps")
    assert steps is not None
    assert steps == (100.25, 101.0, 4), "the child's came half a second later"
    assert steps.mean_seconds == 0.25
    assert (tmp_path / "steps").stat().st_mode & 0o777 == 0o600


def test_a_rank_without_a_step_or_a_writable_file_reports_nothing(torch: Path, tmp_path: Path) -> None:
    rank(torch, tmp_path / "steps", 0)
    rank(torch, tmp_path / "missing" / "steps", 2)
    assert read_steps(tmp_path / "steps") is None
    assert sorted(each.name for each in tmp_path.iterdir()) == ["packages"]


def put(clock: RestartCosts, slot: str, first: float, last: float, count: int) -> None:
    clock.file(slot).write_bytes(LAYOUT.pack(first, last, count))


def test_the_cost_is_the_time_between_two_ranks_less_a_usual_step(tmp_path: Path) -> None:
    clock = RestartCosts(tmp_path)
    clock.expect("0")
    put(clock, "0", 100.0, 110.0, 11)
    assert clock.take_new() == {}, "no rank waited for the first one"
    clock.record_exit("0")
    clock.expect("0")
    clock.expect("1")
    assert clock.take_new() == {}
    put(clock, "0", 117.0, 117.0, 1)
    put(clock, "1", 119.0, 119.0, 1)
    assert clock.take_new() == {"0": 6.0}
    assert clock.take_new() == {}


def test_a_rank_that_made_no_step_adds_to_what_the_next_change_costs(tmp_path: Path) -> None:
    clock = RestartCosts(tmp_path)
    put(clock, "0", 100.0, 101.0, 2)
    clock.record_exit("0")
    clock.expect("0")
    clock.record_exit("0")
    clock.expect("0")
    put(clock, "0", 110.0, 110.0, 1)
    assert clock.take_new() == {"0": 8.0}


@pytest.mark.parametrize(
    "junk",
    [b"", b"short", LAYOUT.pack(5.0, 4.0, 2), LAYOUT.pack(float("nan"), 4.0, 2), LAYOUT.pack(1.0, float("inf"), 2),
     LAYOUT.pack(-1.0, 4.0, 2), LAYOUT.pack(1.0, 4.0, 0)],
)  # fmt: skip
def test_what_no_rank_would_write_is_passed_over(tmp_path: Path, junk: bytes) -> None:
    (tmp_path / "steps").write_bytes(junk)
    assert read_steps(tmp_path / "steps") is None


def test_no_file_of_a_rank_holds_its_supervisor_up(tmp_path: Path) -> None:
    clock = RestartCosts(tmp_path)
    put(clock, "0", 1.0, 2.0, 2)
    clock.record_exit("0")
    clock.file("0").unlink()
    os.mkfifo(clock.file("0"))
    assert read_steps(clock.file("0")) is None
    clock.file("0").unlink()
    clock.file("0").mkdir()
    clock.expect("0")
    clock.record_exit("0")
    assert clock.take_new() == {}
    (tmp_path / "elsewhere").write_bytes(LAYOUT.pack(1.0, 2.0, 2))
    clock.file("1").symlink_to(tmp_path / "elsewhere")
    assert read_steps(clock.file("1")) is None
