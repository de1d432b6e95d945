"""The one place that decides what a container may do on its host.

``container_config`` is a pure function from a RunSpec to the body of the engine's ``POST /containers/create``. Users
reach it only through the numbers in ``Resources``, and those are limits: their command and their environment travel
in ``job.json`` and are given to the ranks by the supervisor, never to the engine or to the NVIDIA hook.
"""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runners.host.overlay import MTU
from runners.runtime import CHECKPOINTS, CONTROL, DATA, OUTPUTS, SCRIBE, WORKSPACE, Folders, module_of
from runners.spec import CollectiveGroup, JobIdentity, RunSpec

APP = "/opt/schedulearn"
"""Where the images keep the launch package: part of the image, so that its digest covers what runs first."""

LEAST_MEMORY_MIB = 64
"""Below this the supervisor itself would not start."""

JOB_UID_BASE, JOB_UID_SPAN = 2_000_000_000, 100_000_000
"""Each job has a user id of its own, outside every range that people, services, subuid or systemd use."""

LEAST_UID = 10_000

NO_NAME_SERVER = "127.0.0.1"
"""Where questions go that a ring's network cannot answer itself: the container's own loopback, where nothing listens. Docker
before 26 would pass them on to the machine's name servers, which leads out of an internal network (CVE-2024-29018)."""
SHORT_LOOKUPS = ["timeout:1", "attempts:1"]
"""For a ring over several nodes, whose hosts know each other by address. PyTorch looks up the name of each address that
connects to its store; Docker before 26 leaves the addresses of other nodes unanswered, which takes 10 s by default."""

GPU_UUID = re.compile(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class Owner:
    """Whom the first process runs as, inside and outside."""

    uid: int
    gid: int

    @property
    def user(self) -> str:
        return f"{self.uid}:{self.gid}"


@dataclass(frozen=True, slots=True)
class Host:
    """What the engine's machine offers."""

    cpus: float
    memory_mib: int


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose container it is: engine names and labels. Several agents may share one engine without meeting."""

    installation: str
    node: str

    @property
    def suffix(self) -> str:
        return short_hash(f"{self.installation} {self.node}", 8)

    def engine_name(self, name: str) -> str:
        """Of a container or network: deterministic, so that making it twice meets itself."""
        return f"{name}.{self.suffix}"

    def bridge(self, network: str) -> str:
        """The host's interface (15 characters at most); ``slj-`` is what the firewall rule goes by."""
        return f"slj-{short_hash(self.engine_name(network), 11)}"

    def labels(self) -> dict[str, str]:
        return {"sl.installation": self.installation, "sl.node": self.node}


def job_labels(job: JobIdentity | None) -> dict[str, str]:
    """Of a container or network, for whoever looks at the engine: names that no restored backup repeats already differ."""
    return {"sl.portal": job.installation, "sl.job-uid": job.job} if job else {}


def short_hash(text: str, length: int) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def owner_for(job: int, agent_uid: int, agent_gid: int) -> Owner:
    """An agent that is root gives each job its own id; any other can give only its own."""
    if agent_uid != 0:
        return Owner(agent_uid, agent_gid)
    uid = JOB_UID_BASE + job % JOB_UID_SPAN
    return Owner(uid, uid)


def mounts(folders: Folders) -> list[dict[str, Any]]:
    """The user's four folders and the supervisor's two; nothing else of the host."""
    pairs: list[tuple[Path | None, str, bool]] = [
        (folders.workspace, WORKSPACE, False),
        (folders.data, DATA, True),
        (folders.outputs, OUTPUTS, False),
        (folders.checkpoints, CHECKPOINTS, False),
        (folders.control, CONTROL, True),
        (folders.scribe, SCRIBE, False),
    ]
    return [
        {
            "Type": "bind",
            "Source": str(source),
            "Target": target,
            "ReadOnly": read_only,
            # Private: nothing mounted later on either side shows on the other. And no making of missing folders.
            "BindOptions": {"Propagation": "rprivate"},
        }
        for source, target, read_only in pairs
        if source is not None
    ]


def device_requests(spec: RunSpec) -> list[dict[str, Any]]:
    """Exactly the allocated devices by UUID, never a count or an index: to the hook the id "all" means all."""
    if spec.gpu_kind != "cuda" or not spec.gpus:
        return []
    if strange := [uuid for uuid in spec.gpus if not GPU_UUID.fullmatch(uuid)]:
        raise ValueError(f"{strange[0]!r} is not the UUID of a GPU.")
    return [
        {
            "Driver": "nvidia",
            "Count": 0,
            "DeviceIDs": list(spec.gpus),
            "Capabilities": [["gpu", "nvidia", "compute", "utility"]],
            "Options": {},
        }
    ]


def environment(spec: RunSpec) -> list[str]:
    """The first process's variables: ours alone. HOME is the only writable place that is not the user's work."""
    return [
        "HOME=/tmp",
        "USER=job",
        "LOGNAME=job",
        "LANG=C.UTF-8",
        "PYTHONUNBUFFERED=1",
        "PYTHONDONTWRITEBYTECODE=1",
        f"SCHEDULEARN_CONTROL={CONTROL}",
        f"SCHEDULEARN_SCRIBE={SCRIBE}",
        f"SCHEDULEARN_WORKSPACE={WORKSPACE}",
        f"SCHEDULEARN_DATA={DATA}",
        f"SCHEDULEARN_OUTPUTS={OUTPUTS}",
        f"SCHEDULEARN_CHECKPOINTS={CHECKPOINTS}",
    ]


def container_config(
    spec: RunSpec, folders: Folders, image: str, owner: Owner, identity: Identity, host: Host
) -> dict[str, Any]:
    """The whole policy. Raises ValueError for what is no UUID among the GPUs.

    Anything not named here keeps the engine's default: its seccomp profile, masked paths, read-only /proc/sys, AppArmor
    where there is one, and no device, host namespace or port.
    """
    resources = spec.resources
    memory = max(LEAST_MEMORY_MIB, resources.memory_mib) * 2**20
    network = identity.engine_name(spec.network) if spec.network else None
    return {
        "Image": image,
        "Entrypoint": ["python", "-m", module_of(spec)],
        "Cmd": [],
        "WorkingDir": APP,
        "Env": environment(spec),
        "User": owner.user,
        "Hostname": spec.hostname,
        "Labels": {
            **identity.labels(),
            **job_labels(spec.identity),
            "sl.name": spec.name,
            "sl.job": str(spec.job),
            "sl.attempt": str(spec.attempt),
            "sl.epoch": str(spec.number),
            "sl.network": network or "",
        },
        "Tty": False,
        "OpenStdin": False,
        "StopSignal": "SIGTERM",
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": {
            "CapDrop": ["ALL"],
            "SecurityOpt": ["no-new-privileges:true"],
            "Privileged": False,
            "ReadonlyRootfs": True,
            "Mounts": mounts(folders),
            "Tmpfs": {"/tmp": f"rw,nosuid,nodev,mode=1777,size={max(1, resources.tmp_mib)}m"},  # noqa: S108 - inside
            "ShmSize": max(1, resources.shm_mib) * 2**20,
            "Memory": memory,
            "MemorySwap": memory,
            "NanoCpus": int(max(0.01, min(resources.cpus, host.cpus)) * 1e9),
            "PidsLimit": max(16, resources.pids),
            "OomScoreAdj": 500,  # when the machine itself runs short, jobs go before the engine and the agent
            "Ulimits": [{"Name": "core", "Soft": 0, "Hard": 0}],
            "IpcMode": "private",
            "NetworkMode": network or "none",
            # Without a network the engine does not write the container's own name into /etc/hosts.
            "ExtraHosts": [] if network else [f"{spec.hostname}:127.0.0.1"],
            "Dns": [NO_NAME_SERVER] if network else [],
            "DnsOptions": SHORT_LOOKUPS if spec.collective and spec.collective.subnet else [],
            "DeviceRequests": device_requests(spec),
            "RestartPolicy": {"Name": "no"},
            "AutoRemove": False,
            "Init": False,  # the supervisor is PID 1 and reaps
            # Only the supervisor's own last words: the ranks' log is in its files.
            "LogConfig": {"Type": "json-file", "Config": {"max-size": "2m", "max-file": "1"}},
        },
        "NetworkingConfig": {"EndpointsConfig": {network: endpoint(spec)} if network else {}},
    }


def endpoint(spec: RunSpec) -> dict[str, Any]:
    """The container's place in its attempt's network. Over several nodes only fixed addresses are sure to differ."""
    address = (
        {"IPAMConfig": {"IPv4Address": spec.collective.address}} if spec.collective and spec.collective.subnet else {}
    )
    return {"Aliases": [spec.hostname], **address}


def network_config(
    name: str, identity: Identity, ring: CollectiveGroup | None = None, job: JobIdentity | None = None
) -> dict[str, Any]:
    """The attempt's own network: no way out, nothing published, a bridge the firewall rule knows by its name."""
    subnet = ring.subnet if ring else ""
    return {
        "name": identity.engine_name(name),
        "check_duplicate": True,
        "driver": "bridge",
        "internal": True,
        "attachable": False,
        "enable_ipv6": False,
        "labels": {**identity.labels(), **job_labels(job)},
        "options": {
            "com.docker.network.bridge.name": identity.bridge(name),
            **({"com.docker.network.driver.mtu": str(MTU)} if subnet else {}),
        },
        **({"ipam": {"Driver": "default", "Config": [{"Subnet": subnet}]}} if subnet else {}),
    }
