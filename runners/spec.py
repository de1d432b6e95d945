"""The description of one container: what to run, with what, and where. It never changes.

The portal writes it once, when it places an attempt; the agent creates the container from it, and the supervisor in the
container reads it too. Users' input appears in it only as ``command``, ``env`` and the code named by its hash.
"""

import re
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Role = Literal["driver", "host"]
Launcher = Literal["horovod", "torchrun", "command"]


UID = re.compile(r"[0-9a-f]{32}")
COLLECTIVE_KEY = "ring"
"""The key of ``RunSpec.collective`` in JSON: agents and database rows of earlier releases use it."""
SHELL = ("sh", "-ec")
"""The beginning of a command that a shell reads: the third word is the command line, as a user typed it."""
NETWORK_VARIABLE = "SCHEDULEARN_NETWORK"
"""The variable with the folder of the socket of the proxy through which a container reaches hosts, for its first process."""
PROXY_SOCKET = "proxy"
"""The name of that socket."""
CACHE_VARIABLE = "SCHEDULEARN_PROJECT_CACHE"
"""The variable with the folder for caches, which all jobs of a project on a node share."""
OWN_IMAGE = "image"
"""``RunSpec.environment`` of a job that runs in an image which its project named; ``layer`` then identifies the image."""
INPUTS_VARIABLE = "SCHEDULEARN_INPUTS"
"""The variable with the folder of the outputs of an earlier job, where a job uses them."""
SECRETS_VARIABLE = "SCHEDULEARN_SECRETS"
"""The variable with the folder of the secrets that a job reads as files."""
SECRET_VARIABLES_VARIABLE = "SCHEDULEARN_SECRET_VARIABLES"  # noqa: S105 - a name
"""The variable with the folder of the secrets that become variables of ranks, for the first process."""
SECRET_NAMES = {
    "variable": re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}"),
    "file": re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}"),
}
"""The names that secrets of each kind may have."""
DATASET_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
"""The names that datasets may have: each is a folder."""
SHA256 = re.compile(r"[0-9a-f]{64}")
LAYER_VARIABLE = "SCHEDULEARN_LAYER"
"""The variable with the folder of the packages that a job has in addition to those of its environment's base."""
OLD_NAME_PARTS = 4
"""How many parts a container's name has in earlier releases: ``sl-42-a1-0``."""


def group_name(name: str) -> str:
    """Return the part of a container's name that all containers of its attempt share, and no others.

    It is what precedes the index; in names of this release, what precedes the container's own digits before the index.
    """
    parts = name.split("-")
    return "-".join(parts[: -1 if len(parts) <= OLD_NAME_PARTS else -2])


@dataclass(frozen=True, slots=True)
class JobIdentity:
    """Identifies a job for good. A job's number does so only until a backup of the database is restored."""

    installation: str
    job: str

    @classmethod
    def from_json(cls, data: Any) -> "JobIdentity":
        """Raise TypeError, KeyError or ValueError when ``data`` is not a job's identity."""
        installation, job = data["installation"], data["job"]
        if not (UID.fullmatch(installation) and UID.fullmatch(job)):
            raise ValueError("An installation and a job have 32 hexadecimal digits each.")
        return cls(installation, job)


@dataclass(frozen=True, slots=True)
class CollectiveGroup:
    """The group of an attempt's ranks: how their containers find and authenticate each other.

    ``secret`` signs every request between supervisors and driver; no other attempt has it.
    """

    driver_host: str
    port: int
    secret: str
    min_ranks: int
    max_ranks: int
    number: int = 0
    """The number of its overlay network, which no other live attempt has; 0: the attempt stays on one node."""
    subnet: str = ""
    """Addresses of that network, e.g. ``10.192.4.0/22``; empty: the engine chooses."""
    address: str = ""
    """This container's own address in it."""

    @property
    def outlives_driver(self) -> bool:
        """Whether another driver can take over: on several nodes, an elastic group outlives its driver."""
        return bool(self.subnet)


@dataclass(frozen=True, slots=True)
class DatasetMount:
    """A dataset that the ranks of a job read."""

    name: str
    """Its folder in that of all datasets (``SCHEDULEARN_DATA``)."""
    sha256: str
    """The SHA-256 of its manifest, which names the files and their hashes."""
    manifest_bytes: int
    size: int
    """Bytes of all files."""
    path: str = ""
    """Where it is as well, relative to the working folder of the ranks: ``data``, or beside it, ``../data``."""
    writable: bool = False
    """At ``path`` the container has a copy of its own, which is deleted at its end."""

    @classmethod
    def from_json(cls, data: Any) -> "DatasetMount":
        """Raise TypeError, KeyError or ValueError for what is no dataset, or is at no place that it may have."""
        mount = cls(
            str(data["name"]),
            str(data["sha256"]),
            int(data["manifest_bytes"]),
            int(data["size"]),
            str(data.get("path", "")),
            bool(data.get("writable", False)),
        )
        if not DATASET_NAME.fullmatch(mount.name) or not SHA256.fullmatch(mount.sha256):
            raise ValueError("A dataset has an invalid name or hash.")
        parts = mount.path.split("/") if mount.path else []
        if any(part in ("", ".") or "\0" in part or (part == ".." and number) for number, part in enumerate(parts)):
            raise ValueError("A dataset has an invalid path.")
        if parts == [".."] or (mount.writable and not parts):
            raise ValueError("A dataset has an invalid path.")
        return mount


@dataclass(frozen=True, slots=True)
class Resources:
    """Limits of one container."""

    cpus: float = 1.0
    memory_mib: int = 4096
    shm_mib: int = 1024
    tmp_mib: int = 1024
    pids: int = 1024
    disk_mib: int = 10_240
    """The limit of workspace and outputs together; the agent stops a container that exceeds it."""


@dataclass(frozen=True, slots=True)
class RunSpec:
    """One container of one attempt on one node. ``name`` identifies it: creating it twice is harmless."""

    name: str
    """``sl-<job>-a<attempt number>-<12 digits of the attempt's uid>-<6 random digits>-<index>``, e.g.
    ``sl-42-a1-3f0c6b1d9a52-77e0b1-0``; without the uid in attempts that an earlier release began."""
    job: int
    attempt: int
    """The attempt's id (unique over all jobs)."""
    number: int
    """The attempt's number within its job, from 1; also the epoch of every report about it."""
    role: Role
    hostname: str
    """``driver`` or ``h<index>``: the container's name inside the attempt's network."""
    environment: str
    """Key of a curated environment, e.g. ``pytorch-horovod``: the job's own, or the base of its layer; or ``OWN_IMAGE``."""
    code_sha256: str
    launcher: Launcher
    command: tuple[str, ...]
    """What each rank runs in /workspace, e.g. ``("python", "train.py", "--epochs", "3")``."""
    slots: int
    """Ranks this container can hold; 0 for a driver."""
    gpus: tuple[str, ...] = ()
    """UUIDs of CUDA devices, or ids of CPU slots."""
    gpu_kind: Literal["cuda", "cpu"] = "cpu"
    elastic: bool = False
    env: tuple[tuple[str, str], ...] = ()
    collective: CollectiveGroup | None = None
    """None for a plain command on one container: it gets no network at all. Its key in JSON is ``COLLECTIVE_KEY``."""
    resources: Resources = field(default_factory=Resources)
    grace_seconds: int = 10
    """The time between SIGTERM and SIGKILL."""
    layer: str = ""
    """Digest of the packages that the job has in addition to those of ``environment``, or of its own image; empty for none."""
    allowed_hosts: tuple[str, ...] = ()
    """Hosts that it may reach through the agent's proxy, as ``host.egress.HostRule.parse`` reads them; empty: no network."""
    cache: str = ""
    """The name of its project's cache on the node, ``<32 hexadecimal digits>-<generation>``; empty for none."""
    inputs: bool = False
    """Its job uses the outputs of an earlier job."""
    secrets: tuple[tuple[str, str], ...] = ()
    """The name and the kind, a key of ``SECRET_NAMES``, of each secret that its ranks get. The agent asks for the values."""
    datasets: tuple[DatasetMount, ...] = ()
    """The datasets that its ranks read; the agent fetches those that the node does not have."""
    identity: JobIdentity | None = None
    """Not part of the JSON: the portal sends it beside that. None with a portal of an earlier release."""

    @property
    def data_name(self) -> str:
        """The name of the folder of all datasets, beside the working folder; another one if a dataset takes its place."""
        return "datasets" if any(mount.path == "../data" for mount in self.datasets) else "data"

    @property
    def group(self) -> str:
        return group_name(self.name)

    @property
    def has_own_image(self) -> bool:
        """Whether it runs in an image that its project named."""
        return self.environment == OWN_IMAGE

    @property
    def command_line(self) -> str:
        """The command as its user typed it, or its words."""
        return self.command[-1] if self.command[:-1] == SHELL else " ".join(self.command)

    @property
    def network(self) -> str | None:
        """The name of the attempt's own network, None if it has none."""
        return self.group if self.collective else None

    def to_json(self) -> dict[str, Any]:
        fields = {COLLECTIVE_KEY if key == "collective" else key: value for key, value in asdict(self).items()}
        del fields["identity"]
        for name in ("layer", "allowed_hosts", "cache", "inputs", "secrets", "datasets"):
            if not fields[name]:
                del fields[name]  # an agent of an earlier release refuses a spec with a key that it does not know
        return fields

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "RunSpec":
        """Raise TypeError, KeyError or ValueError when ``data`` is not a RunSpec's JSON."""
        collective = data.get(COLLECTIVE_KEY)
        return cls(
            **{
                **{key: value for key, value in data.items() if key != COLLECTIVE_KEY},
                "command": tuple(data["command"]),
                "gpus": tuple(data.get("gpus", ())),
                "allowed_hosts": tuple(str(each) for each in data.get("allowed_hosts", ())),
                "env": tuple((str(key), str(value)) for key, value in data.get("env", ())),
                "secrets": tuple((str(name), str(kind)) for name, kind in data.get("secrets", ())),
                "datasets": tuple(map(DatasetMount.from_json, data.get("datasets", ()))),
                "collective": CollectiveGroup(**collective) if collective else None,
                "resources": Resources(**data.get("resources", {})),
            }
        )
