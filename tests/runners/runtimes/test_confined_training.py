"""Training jobs of the process runtime inside bubblewrap: Horovod, torchrun, workers that load data, and a training that fails."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from portal.jobs import causes
from portal.jobs.causes import Facts
from portal.jobs.causes.output import Output, read_lines
from runners.runtime import Folders
from runners.runtimes import confinement_check
from runners.runtimes.process import ProcessRuntime
from runners.spec import CollectiveGroup, Resources, RunSpec
from tests.runners.conftest import make_folders, make_spec
from tests.runners.launching import local_group, until

pytestmark = [pytest.mark.horovod, pytest.mark.bubblewrap, pytest.mark.timeout(400)]

HOROVOD = """
import os, torch
import horovod.torch as hvd
hvd.init()
total = hvd.allreduce(torch.ones(3) * (hvd.rank() + 1), op=hvd.Sum)
print("sum", total.tolist(), "of", hvd.size())
open(os.environ["SCHEDULEARN_CHECKPOINTS"] + f"/{hvd.rank()}.pt", "wb").write(b"weights")
"""
TORCHRUN = """
import os, torch, torch.distributed as dist
from torch.utils.data import DataLoader
if __name__ == "__main__":
    dist.init_process_group("gloo")
    total = torch.ones(3) * (dist.get_rank() + 1)
    dist.all_reduce(total)
    print("sum", total.tolist(), "of", dist.get_world_size())
    loaded = sum(batch.sum().item() for batch in DataLoader(torch.ones(4000, 100), batch_size=500, num_workers=2))
    print("loaded", loaded)
    open(os.environ["SCHEDULEARN_OUTPUTS"] + f"/{dist.get_rank()}.txt", "w").write(str(loaded))
    dist.barrier()
"""


class Jobs:
    """The containers of one attempt, and what the agent would do for them."""

    def __init__(self, home: Path, python: str) -> None:
        self.home = home
        self.runtime = ProcessRuntime(
            "i", "n", home / "processes", lambda key: python, confinement_check.find_confinement
        )
        self.folders: dict[str, Folders] = {}
        self.ended = threading.Event()
        threading.Thread(target=self._renew, daemon=True).start()

    def start(self, index: int, program: str, hosts: list[dict[str, Any]], **more: Any) -> RunSpec:
        spec = make_spec(f"sl-42-a1-{index}", command=("python", "train.py"), grace_seconds=5, **more)
        folders = make_folders(self.home / spec.name)
        (folders.workspace / "train.py").write_text(program)
        (folders.control / "job.json").write_text(json.dumps(spec.to_json()))
        (folders.control / "control.json").write_text(json.dumps({"stop": None, "hosts": hosts}))
        self.runtime.create(spec, folders)
        self.runtime.start(spec.name)
        self.folders[spec.name] = folders
        return spec

    def end(self, spec: RunSpec) -> dict[str, Any]:
        exit_file = self.folders[spec.name].scribe / "exit.json"
        until(exit_file.exists, 200, lambda: self.printed(spec))
        value: dict[str, Any] = json.loads(exit_file.read_bytes())
        return value

    def log(self, spec: RunSpec, stream: str) -> str:
        return (self.folders[spec.name].scribe / "log" / f"{stream}.log").read_text()

    def printed(self, spec: RunSpec) -> str:
        logs = sorted((self.folders[spec.name].scribe / "log").glob("*.log"))
        return "\n".join([*(path.read_text() for path in logs), self.runtime.logs(spec.name, 5000).decode()])

    def _renew(self) -> None:
        number = 0
        while not self.ended.wait(0.5):
            number += 1
            for folders in list(self.folders.values()):
                beside = folders.control / ".lease.new"
                beside.write_text(json.dumps({"renewal": number}))
                beside.replace(folders.control / "lease")


@pytest.fixture
def jobs(tmp_path: Path, job_python: str) -> Iterator[Jobs]:
    made = Jobs(tmp_path, job_python)
    assert made.runtime.confinement.sandbox is not None
    yield made
    made.ended.set()
    for seen in made.runtime.list():
        made.runtime.remove(seen.name)


def test_horovod_trains_with_two_ranks_on_two_hosts(jobs: Jobs) -> None:
    group: CollectiveGroup = local_group(2, 2)
    hosts = [{"name": name, "slots": 1} for name in ("h0", "h1")]
    specs = [
        jobs.start(index, HOROVOD, hosts, launcher="horovod", collective=group, role=role, hostname=name, slots=slots)
        for index, (role, name, slots) in enumerate([("driver", "driver", 0), ("host", "h0", 1), ("host", "h1", 1)])
    ]
    for spec in specs:
        assert jobs.end(spec)["code"] == 0, jobs.printed(spec)
    for spec in specs[1:]:
        assert "sum [3.0, 3.0, 3.0] of 2" in jobs.log(spec, "0")
    kept = [path.name for spec in specs[1:] for path in jobs.folders[spec.name].checkpoints.iterdir()]
    assert sorted(kept) == ["0.pt", "1.pt"]


def test_torchrun_trains_with_two_ranks_and_workers_that_load_data(jobs: Jobs) -> None:
    spec = jobs.start(0, TORCHRUN, [], launcher="torchrun", slots=2)
    assert jobs.end(spec) == {"code": 0, "reason": "exited", "detail": ""}, jobs.printed(spec)
    for rank in ("0", "1"):
        assert "sum [3.0, 3.0, 3.0] of 2" in jobs.log(spec, rank)
        assert "loaded 400000.0" in jobs.log(spec, rank)
    assert sorted(path.name for path in jobs.folders[spec.name].outputs.iterdir()) == ["0.txt", "1.txt"]


LOADER = """
import torch
from torch.utils.data import DataLoader
if __name__ == "__main__":
    images = torch.ones(256, 3, 224, 224)
    loader = DataLoader(images, batch_size=32, num_workers=4, prefetch_factor=2)
    print("loaded", sum(batch.sum().item() for _ in range(2) for batch in loader))
"""


def test_four_workers_of_a_loader_have_enough_of_dev_shm_by_default(jobs: Jobs) -> None:
    """A job with 4 GiB of memory has a GiB of it."""
    spec = jobs.start(0, LOADER, [], launcher="torchrun", slots=1, resources=Resources(memory_mib=4096, shm_mib=1024))
    assert jobs.end(spec)["code"] == 0, jobs.printed(spec)
    assert "loaded 77070336.0" in jobs.log(spec, "0")


def test_a_full_dev_shm_is_the_cause(jobs: Jobs) -> None:
    spec = jobs.start(0, LOADER, [], launcher="torchrun", slots=1, resources=Resources(memory_mib=4096, shm_mib=64))
    end = jobs.end(spec)
    assert end["code"] != 0, jobs.printed(spec)
    log = jobs.log(spec, "0")
    assert (
        causes.classify(
            Facts(outcome="failed", exit_reason="exited", exit_code=end["code"]), [Output(read_lines(log.encode()))]
        ).code
        == "shared_memory"
    )
