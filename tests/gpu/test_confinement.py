"""A job of the process runtime that bubblewrap confines computes on its GPUs, and sees no other."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from runners.host import interpreters
from runners.host.gpus import cuda_devices
from runners.runtimes import confinement
from runners.runtimes.confinement_check import CODE_ROOT, find_confinement, hidden_folders
from runners.runtimes.host_config import GPU_UUID, owner_for

pytestmark = [pytest.mark.gpu, pytest.mark.bubblewrap]

HOLDS = Path(__file__).parent / "scripts" / "holds.py"


def run_confined(state: Path, uuids: list[str], *command: str) -> "subprocess.CompletedProcess[str]":
    sandbox = find_confinement(state).sandbox
    assert sandbox is not None
    owner = owner_for(7, os.geteuid(), os.getegid())
    private = state / "private"
    private.mkdir(exist_ok=True)
    os.chown(private, owner.uid, owner.gid)
    if uuids:
        confinement.make_gpu_devices()
    view = confinement.JobView(
        owner,
        os.geteuid() == 0,
        interpreters.required_paths(sys.executable, hidden_folders(state)),
        CODE_ROOT,
        private,
        read_only=(HOLDS,),
        devices=confinement.gpu_devices(uuids) if uuids else (),
    )
    argv = confinement.command_line(sandbox, view, command)
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "LD_LIBRARY_PATH")}
    return subprocess.run(argv, env=kept, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)


def test_it_sees_its_own_gpus_and_computes_on_them(tmp_path: Path) -> None:
    uuids = [gpu.uuid for gpu in cuda_devices()]
    for own in (uuids[:1], uuids):
        listed = run_confined(tmp_path, own, "nvidia-smi", "-L")
        assert [found.group() for found in re.finditer(GPU_UUID, listed.stdout)] == own, listed.stderr
        held = run_confined(tmp_path, own, sys.executable, str(HOLDS), "0", "64")
        assert held.stdout == "holds it\n", held.stderr


def test_without_gpus_it_sees_none(tmp_path: Path) -> None:
    held = run_confined(tmp_path, [], sys.executable, str(HOLDS), "0", "64")
    assert held.returncode == 1 and "the driver returned" in held.stderr
