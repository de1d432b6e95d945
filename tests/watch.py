"""An outside judge of containers: looks at every one that the tests make Schedulearn start, by what the engine says.

It does not use our own host configuration, so a mistake there shows here.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import docker
from docker.errors import APIError, NotFound

LOOK_SECONDS = 0.3
PLACES = {"/workspace", "/data", "/outputs", "/checkpoints", "/run/schedulearn/control", "/run/schedulearn/scribe"}
EMPTY = ("Binds", "CapAdd", "Devices", "PortBindings", "VolumesFrom", "GroupAdd", "Links", "PidMode", "UTSMode")


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
        "has /tmp of bounded size": "size=" in (host["Tmpfs"] or {}).get("/tmp", ""),  # noqa: S108
        "has no or its attempt's network": host["NetworkMode"] == "none" or host["NetworkMode"].startswith("sl-"),
        "sees only its own folders": set(mounts) <= PLACES,
        "cannot write what it is told": not mounts.get("/run/schedulearn/control", {"RW": False})["RW"],
        "sees no engine socket": not any("docker.sock" in mount["Source"] for mount in mounts.values()),
        "is told of no GPU by name": not any(line.startswith(("NVIDIA_", "CUDA_")) for line in config["Env"]),
        **{f"has no {key}": not host.get(key) for key in EMPTY},
    }
    return [rule for rule, holds in rules.items() if not holds]


class Watch:
    """Polls the engine; a container that lives shorter than a look is still listed until it is removed."""

    def __init__(self) -> None:
        self.seen: dict[str, list[str]] = {}
        self._over = threading.Event()

    def run(self) -> None:
        client = docker.from_env(timeout=10)
        while not self._over.wait(LOOK_SECONDS):
            try:
                for row in client.api.containers(all=True, filters={"label": "sl.installation"}):
                    if row["Id"] not in self.seen:
                        found = client.api.inspect_container(row["Id"])
                        self.seen[row["Id"]] = [f"{found['Name']}: {rule}" for rule in violations(found)]
            except (APIError, NotFound, OSError):
                continue  # gone between two questions, or the engine is being tried
        client.close()

    def stop(self) -> None:
        self._over.set()

    @property
    def broken(self) -> list[str]:
        return [line for lines in self.seen.values() for line in lines]


@contextmanager
def watching() -> Iterator[Watch]:
    watch = Watch()
    thread = threading.Thread(target=watch.run, daemon=True)
    thread.start()
    try:
        yield watch
    finally:
        watch.stop()
        thread.join(15)
