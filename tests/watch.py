"""An outside judge of containers: it checks the engine's description of each one that Schedulearn starts in the tests.

It does not use our own host configuration, so a mistake there shows here. ``tests/run.py`` has it watch the engine
that most tests share; a test with an engine of its own has that watched itself.
"""

import os
import re
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import docker
from docker.errors import DockerException

LOOK_SECONDS = 0.3
READ_ONLY = (
    "/data",
    "/inputs",
    "/run/secrets",
    "/run/schedulearn/control",
    "/run/schedulearn/data",
    "/run/schedulearn/network",
    "/run/schedulearn/secrets",
    "/opt/layer",
)
PLACES = {"/workspace", "/outputs", "/checkpoints", "/cache", "/run/schedulearn/scribe", *READ_ONLY}
DATASET = re.compile(r"/datasets/[0-9a-f]{64}/files$")
"""The end of the folder that all jobs of a node share of a dataset."""
DATASET_COPY = re.compile(r"/containers/[^/]+/copies/[a-z0-9][a-z0-9._-]*$")
"""That of a copy which one container may change."""
DATASETS = re.compile(r"/containers/[^/]+/(data|datasets)$")
"""That of the folder in which a container finds all its datasets."""
OWN = {"/workspace", "/outputs", "/checkpoints", "/cache", "/inputs"}
SYSTEM = {
    *(
        "bin",
        "boot",
        "dev",
        "etc",
        "home",
        "lib",
        "lib32",
        "lib64",
        "libx32",
        "media",
        "mnt",
        "nix",
        "opt",
        "proc",
        "root",
    ),
    *("run", "sbin", "srv", "sys", "tmp", "usr", "var"),
}
EMPTY = ("Binds", "CapAdd", "Devices", "PortBindings", "VolumesFrom", "Links", "PidMode", "UTSMode")
FIRST_GROUP_OF_CACHES = 2_000_000_000
"""Projects' caches have groups that no person, service or subgid range of a machine has."""


def violations(found: dict[str, Any]) -> list[str]:
    """What one container's ``inspect`` shows that the policy of THREAT_MODEL.md does not allow."""
    host, config = found["HostConfig"], found["Config"]
    mounts = {mount["Destination"]: mount for mount in found["Mounts"]}
    user = config["User"].split(":")[0]
    rules = {
        "drops all capabilities": host["CapDrop"] == ["ALL"],
        "is not privileged": not host["Privileged"],
        "gains no privileges": any(each.startswith("no-new-privileges") for each in host["SecurityOpt"] or []),
        "keeps the default seccomp profile": "seccomp" not in str(host["SecurityOpt"]),
        "has a read-only root": host["ReadonlyRootfs"],
        "does not run as root": user.isdigit() and int(user) >= (10_000 if os.geteuid() == 0 else 1),
        "has a bound of processes": (host["PidsLimit"] or 0) > 0,
        "has a bound of memory, without swap": 0 < host["Memory"] == host["MemorySwap"],
        "has a bound of processor time": host["NanoCpus"] > 0 or host["CpuQuota"] > 0,
        "has its own IPC": host["IpcMode"] == "private",
        "has /tmp of bounded size": "size=" in (host.get("Tmpfs") or {}).get("/tmp", ""),  # noqa: S108
        "has no or its attempt's network": host["NetworkMode"] == "none" or host["NetworkMode"].startswith("sl-"),
        "sees only its own folders": {place for place in mounts if not _is_dataset(mounts[place])} <= PLACES,
        "cannot write to what it only reads": not any(
            mount["RW"] for place, mount in mounts.items() if place in READ_ONLY and not _is_copy(mount)
        ),
        "cannot write to datasets of all": not any(mount["RW"] for mount in mounts.values() if _is_shared(mount)),
        "has no dataset in the place of its other folders": all(map(_is_well_placed, mounts.values())),
        "has no group but that of its cache": _only_group_of_cache(host.get("GroupAdd") or [], mounts),
        "asks no name server of the machine": host["NetworkMode"] == "none" or host["Dns"] == ["127.0.0.1"],
        "sees no engine socket": not any("docker.sock" in mount["Source"] for mount in mounts.values()),
        "has no GPU variables": not any(
            line.startswith(("NVIDIA_", "CUDA_")) and "=" in line for line in config["Env"] or []
        ),
        **{f"has no {key}": not host.get(key) for key in EMPTY},
    }
    return [rule for rule, holds in rules.items() if not holds]


def _is_copy(mount: dict[str, Any]) -> bool:
    return DATASET_COPY.search(mount["Source"]) is not None


def _is_shared(mount: dict[str, Any]) -> bool:
    return any(kind.search(mount["Source"]) for kind in (DATASET, DATASETS))


def _is_dataset(mount: dict[str, Any]) -> bool:
    return _is_copy(mount) or _is_shared(mount)


def _is_well_placed(mount: dict[str, Any]) -> bool:
    """Whether a dataset is beneath the code or the folder of all datasets, or in a folder of its own."""
    top, _, rest = mount["Destination"].lstrip("/").partition("/")
    return not _is_dataset(mount) or (top == "workspace" and rest != "") or (top not in SYSTEM and f"/{top}" not in OWN)


def _only_group_of_cache(groups: list[str], mounts: dict[str, Any]) -> bool:
    return not groups or ("/cache" in mounts and len(groups) == 1 and int(groups[0]) >= FIRST_GROUP_OF_CACHES)


class Watch:
    """Polls the engine; a container that lives shorter than a look is still listed until it is removed."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.seen: dict[str, list[str]] = {}
        self.blind = ""
        self._over = threading.Event()

    def run(self) -> None:
        try:
            with closing(docker.APIClient(self.url, timeout=10)) as client:
                while not self._over.wait(LOOK_SECONDS):
                    self._look(client)
        except Exception as error:  # noqa: BLE001  a judge that sees nothing must not pass for one that finds nothing
            self.blind = f"the watch itself failed: {error!r}"

    def _look(self, client: Any) -> None:
        try:
            for row in client.containers(all=True, filters={"label": "sl.installation"}):
                if row["Id"] not in self.seen:
                    found = client.inspect_container(row["Id"])
                    self.seen[row["Id"]] = [f"{found['Name']}: {rule}" for rule in violations(found)]
        except (DockerException, OSError):
            return  # gone between two questions, or the engine is being tried

    def stop(self) -> None:
        self._over.set()

    @property
    def broken(self) -> list[str]:
        rules = [line for lines in self.seen.values() for line in lines]
        return [*rules, self.blind] if self.blind else rules


@contextmanager
def watching(url: str | None = None) -> Iterator[Watch]:
    """Watches the engine at ``url``, else that of DOCKER_HOST, while its body runs."""
    watch = Watch(url or os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock")
    thread = threading.Thread(target=watch.run, daemon=True)
    thread.start()
    try:
        yield watch
    finally:
        watch.stop()
        thread.join(15)
