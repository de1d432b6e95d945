"""The gallery in hardened containers on a real engine: one network for each attempt, or none."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runners.runtime import Folders
from runners.runtimes.docker import DockerRuntime
from runners.spec import SHELL, CollectiveGroup, Resources, RunSpec
from tests.runners.conftest import make_folders, make_spec
from tests.runners.environments.test_gallery import GALLERY, about
from tests.runners.launching import last_accuracy, until

pytestmark = [pytest.mark.docker, pytest.mark.horovod, pytest.mark.timeout(900)]

ROOMY = Resources(cpus=1, memory_mib=1536, shm_mib=64, tmp_mib=128, pids=512)


class Node:
    """Plays the agent: folders, files, leases."""

    def __init__(self, runtime: DockerRuntime, home: Path) -> None:
        self.runtime = runtime
        self.home = home
        self.folders: dict[str, Folders] = {}
        self.renewal = 0

    def run(self, spec: RunSpec, example: str, hosts: list[tuple[str, int]] = ()) -> None:  # type: ignore[assignment]
        own, shared = make_folders(self.home / spec.name), make_folders(self.home)
        folders = Folders(own.workspace, own.control, own.scribe, shared.outputs, shared.checkpoints)
        (folders.workspace / "train.py").write_text((GALLERY / example / "train.py").read_text())
        (folders.control / "job.json").write_text(json.dumps(spec.to_json()))
        self.tell(folders, hosts)
        self.folders[spec.name] = folders
        self.renew()
        self.runtime.create(spec, folders)
        self.runtime.start(spec.name)

    def tell(self, folders: Folders, hosts: list[tuple[str, int]]) -> None:
        content = {"stop": None, "hosts": [{"name": name, "slots": slots} for name, slots in hosts]}
        (folders.control / ".new").write_text(json.dumps(content))
        (folders.control / ".new").replace(folders.control / "control.json")

    def renew(self) -> None:
        self.renewal += 1
        for folders in self.folders.values():
            (folders.control / "lease").write_text(json.dumps({"renewal": self.renewal}))

    def exit(self, name: str, seconds: float = 300) -> dict[str, Any]:
        path = self.folders[name].scribe / "exit.json"

        def there() -> bool:
            self.renew()
            return path.exists()

        until(there, seconds, self.summary)
        found: dict[str, Any] = json.loads(path.read_text())
        return found

    def log(self, name: str, stream: str = "0") -> str:
        path = self.folders[name].scribe / "log" / f"{stream}.log"
        return path.read_text() if path.exists() else ""

    def summary(self) -> str:
        lines = []
        for name, folders in self.folders.items():
            lines.append(f"=== {name}\n{self.runtime.logs(name, 4000).decode(errors='replace')}")
            lines += [f"--- {path.name}\n{path.read_text()}" for path in sorted(folders.scribe.glob("log/*.log"))]
        return "\n".join(lines)


@pytest.fixture
def node(job_image: str, tmp_path: Path) -> Iterator[Node]:
    runtime = DockerRuntime(f"test {tmp_path}", "node", lambda key: job_image)
    yield Node(runtime, tmp_path)
    for seen in runtime.list():
        runtime.remove(seen.name)


@pytest.mark.parametrize("key", ["horovod-elastic", pytest.param("horovod-static", marks=pytest.mark.thorough)])
def test_a_group_of_three_containers_learns(node: Node, key: str) -> None:
    job = about(key)
    group = CollectiveGroup("driver", 21_000, "secret", job["min_gpus"], 2)
    common: dict[str, Any] = {
        "launcher": "horovod",
        "command": ("python", job["entry"], *job["arguments"]),
        "elastic": job["elastic"],
        "collective": group,
        "resources": ROOMY,
    }
    driver = make_spec("sl-42-a1-0", role="driver", hostname="driver", slots=0, gpus=(), **common)
    hosts = [("h1", 1), ("h2", 1)]
    for index in (1, 2):  # before there is a driver, whose name then is not known yet: their ranks load meanwhile
        node.run(make_spec(f"sl-42-a1-{index}", hostname=f"h{index}", gpus=(f"cpu-{index}",), **common), key, hosts)
    node.run(driver, key, hosts)
    assert node.exit(driver.name) == {"code": 0, "reason": "exited", "detail": ""}, node.summary()
    assert node.exit("sl-42-a1-1")["code"] == 0
    assert last_accuracy(node.log("sl-42-a1-1")) >= 0.95
    assert "of 2" in node.log("sl-42-a1-2")
    assert (node.home / "outputs" / "model.pt").stat().st_size > 10_000


@pytest.mark.parametrize("key", ["pytorch-digits", "torchrun-ddp"])
@pytest.mark.thorough
def test_one_container_without_a_network_learns(node: Node, key: str) -> None:
    job = about(key)
    command = ("python", "train.py", *job["arguments"])
    ranks = job["max_gpus"]
    gpus = tuple(f"cpu-{number}" for number in range(ranks))
    spec = make_spec(launcher=job["launcher"], command=command, slots=ranks, gpus=gpus, resources=ROOMY)
    node.run(spec, key)
    assert node.exit(spec.name)["code"] == 0, node.summary()
    assert last_accuracy(node.log(spec.name)) >= 0.95


@pytest.mark.parametrize(
    "line",
    [
        "torchrun --nproc_per_node=2 train.py",
        "python -m torch.distributed.run --standalone --nproc_per_node=2 train.py",
    ],
)
@pytest.mark.thorough
def test_torchrun_in_a_plain_command_needs_no_network(node: Node, line: str) -> None:
    words = " ".join(about("torchrun-ddp")["arguments"])
    gpus = ("cpu-0", "cpu-1")
    spec = make_spec(command=(*SHELL, f"{line} {words}"), slots=2, gpus=gpus, resources=ROOMY)
    node.run(spec, "torchrun-ddp")
    assert node.exit(spec.name)["code"] == 0, node.summary()
    assert last_accuracy(node.log(spec.name)) >= 0.95


def test_torchrun_over_two_containers_learns(node: Node) -> None:
    group = CollectiveGroup("h0", 21_000, "secret", 2, 2)
    command = ("python", "train.py", *about("torchrun-ddp")["arguments"])
    for index in (1, 0):  # the first host comes last
        spec = make_spec(
            f"sl-42-a1-{index}",
            hostname=f"h{index}",
            launcher="torchrun",
            command=command,
            collective=group,
            resources=ROOMY,
        )
        node.run(spec, "torchrun-ddp")
    for name in ("sl-42-a1-0", "sl-42-a1-1"):
        assert node.exit(name)["code"] == 0, node.summary()
    logs = node.log("sl-42-a1-0") + node.log("sl-42-a1-1")
    assert last_accuracy(logs) >= 0.95
    assert "I am rank 0 of 2" in logs and "I am rank 1 of 2" in logs
