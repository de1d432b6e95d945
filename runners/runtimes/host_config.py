"""Decides what a container may do on its host. No other module does.

``container_config`` is a pure function from a RunSpec to the body of the engine's ``POST /containers/create``. Users
influence it only by the numbers in ``Resources``, which are limits: their command and their environment are in
``job.json``, and the supervisor gives them to the ranks; neither the engine nor the NVIDIA hook receives them.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runners.host.overlay import MTU
from runners.runtime import (
    CACHE,
    CHECKPOINTS,
    CONTROL,
    DATA,
    INPUTS,
    LAB_DATA,
    LAYER,
    NETWORK,
    OUTPUTS,
    SCRIBE,
    SECRET_VARIABLES,
    SECRETS,
    WORKSPACE,
    Folders,
    launch_module,
)
from runners.runtimes import dataset_places
from runners.spec import (
    CACHE_VARIABLE,
    INPUTS_VARIABLE,
    LAYER_VARIABLE,
    NETWORK_VARIABLE,
    SECRET_VARIABLES_VARIABLE,
    SECRETS_VARIABLE,
    CollectiveGroup,
    JobIdentity,
    RunSpec,
)

APP_FOLDER = "/opt/schedulearn"
"""Where the launch package is in the images: as part of the image, so that its digest covers what runs first."""

MIN_MEMORY_MIB = 64
"""Below this the supervisor itself would not start."""

CACHE_GID_BASE, CACHE_GID_SPAN = 2_110_000_000, 30_000_000
"""Each project has a group on a node, beside those of jobs: its jobs share a cache."""

JOB_UID_BASE, JOB_UID_SPAN = 2_000_000_000, 100_000_000
"""Each job has its own user id, outside every range that people, services, subuid or systemd use."""

MIN_UID = 10_000

NO_NAME_SERVER = "127.0.0.1"
"""The name server for queries that the attempt's network cannot answer itself: the container's own loopback, where nothing
listens. Docker before 26 would forward them to the machine's name servers, outside the internal network (CVE-2024-29018)."""
RESOLVER_OPTIONS = ["timeout:1", "attempts:1"]
"""Resolver options for attempts over several nodes, whose hosts know each other by address. PyTorch looks up the name of
each address that connects to its store; Docker before 26 does not answer for addresses of other nodes, which takes 10 s by
default."""

DEVICE_VARIABLE = re.compile(
    r"NVIDIA_\w*|CUDA_(VISIBLE_DEVICES|DEVICE_ORDER|MPS_\w*)|SCHEDULEARN_\w*|LD_PRELOAD|PYTHONHOME"
)
"""Variables that an image may not set: those by which NVIDIA's hook and CUDA choose devices, and ours."""

GPU_UUID = re.compile(r"(GPU|MIG)-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class Owner:
    """The user and group of the first process, inside and outside the container."""

    uid: int
    gid: int

    @property
    def user(self) -> str:
        return f"{self.uid}:{self.gid}"


@dataclass(frozen=True, slots=True)
class Host:
    """The processors and memory of the engine's machine."""

    cpus: float
    memory_mib: int


@dataclass(frozen=True, slots=True)
class AgentIdentity:
    """The agent that owns a container, by engine names and labels: several agents may share one engine without conflicts."""

    installation: str
    node: str

    @property
    def suffix(self) -> str:
        return short_hash(f"{self.installation} {self.node}", 8)

    def engine_name(self, name: str) -> str:
        """Return the engine's name of a container or network. It is deterministic, so that creating it twice is noticed."""
        return f"{name}.{self.suffix}"

    def bridge(self, network: str) -> str:
        """Return the name of the host's interface (15 characters at most). The firewall rule matches ``slj-``."""
        return f"slj-{short_hash(self.engine_name(network), 11)}"

    def labels(self) -> dict[str, str]:
        return {"sl.installation": self.installation, "sl.node": self.node}


def job_labels(job: JobIdentity | None) -> dict[str, str]:
    """Return labels of a container or network for admins. Names alone are unique already, even after a restored backup."""
    return {"sl.portal": job.installation, "sl.job-uid": job.job} if job else {}


def short_hash(text: str, length: int) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def owner_for(job: int, agent_uid: int, agent_gid: int) -> Owner:
    """Return the job's own id if the agent is root; any other agent can run jobs only as itself."""
    if agent_uid != 0:
        return Owner(agent_uid, agent_gid)
    uid = JOB_UID_BASE + job % JOB_UID_SPAN
    return Owner(uid, uid)


def cache_group(key: str) -> int:
    """Return the group of a project's cache, whatever its generation."""
    return CACHE_GID_BASE + int(short_hash(key.partition("-")[0], 12), 16) % CACHE_GID_SPAN


def groups_for(spec: RunSpec, agent_uid: int) -> tuple[int, ...]:
    """Return the groups of a container's user in addition to its own; none if the agent is not root."""
    return (cache_group(spec.cache),) if spec.cache and agent_uid == 0 else ()


def mounts(folders: Folders, layer: Path | None = None) -> list[dict[str, Any]]:
    """Return the mounts: the user's four folders, the supervisor's two, the layer of the environment, the cache of the project,
    its inputs, its secrets, its datasets, and the folder of the proxy's socket; nothing else of the host."""
    pairs: list[tuple[Path | None, str, bool]] = [
        (folders.workspace, WORKSPACE, False),
        (folders.data, data_folder(folders), True),
        (folders.lab_data, LAB_DATA, True),
        (folders.inputs, INPUTS, True),
        (folders.secret_files, SECRETS, True),
        (folders.secret_variables, SECRET_VARIABLES, True),
        (folders.outputs, OUTPUTS, False),
        (folders.checkpoints, CHECKPOINTS, False),
        (folders.control, CONTROL, True),
        (folders.scribe, SCRIBE, False),
        (layer, LAYER, True),
        (folders.cache, CACHE, False),
        (folders.network, NETWORK, True),
        *((place.source, place.within(WORKSPACE), not place.writable) for place in dataset_places.places(folders)),
    ]
    return [
        {
            "Type": "bind",
            "Source": str(source),
            "Target": target,
            "ReadOnly": read_only,
            # Private: nothing mounted later on one side is visible on the other. Missing folders are not created.
            "BindOptions": {"Propagation": "rprivate"},
        }
        for source, target, read_only in pairs
        if source is not None
    ]


def data_folder(folders: Folders) -> str:
    """Return where a container finds the folder of all datasets."""
    return f"/{folders.data.name}" if folders.datasets and folders.data else DATA


def device_requests(spec: RunSpec) -> list[dict[str, Any]]:
    """Return the request for the allocated devices by UUID, never by count or index: to the hook the id "all" means all."""
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


def environment(spec: RunSpec, of_image: Sequence[str] = ()) -> list[str]:
    """Return the first process's variables: ours, and those of the image that choose no devices. HOME is the only writable
    folder that has no work of the user. A name without a value removes the image's variable."""
    secret_folders = f"{SECRETS_VARIABLE}={SECRETS}", f"{SECRET_VARIABLES_VARIABLE}={SECRET_VARIABLES}"
    return [
        *(name for name in of_image if DEVICE_VARIABLE.fullmatch(name)),
        "HOME=/tmp",
        "USER=job",
        "LOGNAME=job",
        "LANG=C.UTF-8",
        "PYTHONUNBUFFERED=1",
        "PYTHONDONTWRITEBYTECODE=1",
        f"SCHEDULEARN_CONTROL={CONTROL}",
        f"SCHEDULEARN_SCRIBE={SCRIBE}",
        f"SCHEDULEARN_WORKSPACE={WORKSPACE}",
        f"SCHEDULEARN_DATA=/{spec.data_name}",
        f"SCHEDULEARN_OUTPUTS={OUTPUTS}",
        f"SCHEDULEARN_CHECKPOINTS={CHECKPOINTS}",
        *([f"{LAYER_VARIABLE}={LAYER}"] if spec.layer and not spec.has_own_image else []),
        *([f"{CACHE_VARIABLE}={CACHE}"] if spec.cache and spec.role == "host" else []),
        *([f"{INPUTS_VARIABLE}={INPUTS}"] if spec.inputs and spec.role == "host" else []),
        *(secret_folders if spec.secrets and spec.role == "host" else []),
        *([f"{NETWORK_VARIABLE}={NETWORK}"] if spec.allowed_hosts else []),
    ]


def container_config(
    spec: RunSpec,
    folders: Folders,
    image: str,
    owner: Owner,
    identity: AgentIdentity,
    host: Host,
    layer: Path | None = None,
    groups: tuple[int, ...] = (),
    of_image: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the configuration of a container, the whole policy. Raises ValueError if a GPU is not given by its UUID.

    ``of_image`` has the names of the variables that the image sets.

    Everything else keeps the engine's default: its seccomp profile, masked paths, read-only /proc/sys, AppArmor where it
    exists, and no device, host namespace or port.
    """
    resources = spec.resources
    memory = max(MIN_MEMORY_MIB, resources.memory_mib) * 2**20
    network = identity.engine_name(spec.network) if spec.network else None
    return {
        "Image": image,
        "Entrypoint": ["python", "-m", launch_module(spec)],
        "Cmd": [],
        "WorkingDir": APP_FOLDER,
        "Env": environment(spec, of_image),
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
            "GroupAdd": [str(group) for group in groups],
            "SecurityOpt": ["no-new-privileges:true"],
            "Privileged": False,
            "ReadonlyRootfs": True,
            "Mounts": mounts(folders, layer),
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
            "DnsOptions": RESOLVER_OPTIONS if spec.collective and spec.collective.subnet else [],
            "DeviceRequests": device_requests(spec),
            "RestartPolicy": {"Name": "no"},
            "AutoRemove": False,
            "Init": False,  # the supervisor is PID 1 and reaps
            # Only the supervisor's own last output: the ranks' log is in its files.
            "LogConfig": {"Type": "json-file", "Config": {"max-size": "2m", "max-file": "1"}},
        },
        "NetworkingConfig": {"EndpointsConfig": {network: endpoint(spec)} if network else {}},
    }


def endpoint(spec: RunSpec) -> dict[str, Any]:
    """Return the container's settings in its attempt's network. Over several nodes, only fixed addresses surely differ."""
    address = (
        {"IPAMConfig": {"IPv4Address": spec.collective.address}} if spec.collective and spec.collective.subnet else {}
    )
    return {"Aliases": [spec.hostname], **address}


def network_config(
    name: str, identity: AgentIdentity, collective: CollectiveGroup | None = None, job: JobIdentity | None = None
) -> dict[str, Any]:
    """Return the attempt's own network: no route out, nothing published, a bridge whose name the firewall rule matches."""
    subnet = collective.subnet if collective else ""
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
