"""What to run, with what, where: the frozen description of one container.

The portal writes it once when an attempt is placed, the agent carries it out, the supervisor reads its part.
Users' input reaches it only as ``command``, ``env`` and the code named by hash.
"""

import re
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Self

Role = Literal["driver", "host"]
Launcher = Literal["horovod", "torchrun", "command"]


UID = re.compile(r"[0-9a-f]{32}")
EARLIER_PARTS = 4
"""Of a container's name in earlier releases: ``sl-42-a1-0``."""


def group_of(name: str) -> str:
    """The part of a container's name that all containers of its attempt share, and no others.

    It is what comes before the index; names that no earlier release gave have digits of their own before that.
    """
    parts = name.split("-")
    return "-".join(parts[: -1 if len(parts) <= EARLIER_PARTS else -2])


@dataclass(frozen=True, slots=True)
class JobIdentity:
    """Which job of which installation it is. A number says so only until a backup of the database is restored."""

    installation: str
    job: str

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """Raises TypeError, KeyError or ValueError when ``data`` is none."""
        installation, job = data["installation"], data["job"]
        if not (UID.fullmatch(installation) and UID.fullmatch(job)):
            raise ValueError("An installation and a job have 32 hexadecimal digits each.")
        return cls(installation, job)


@dataclass(frozen=True, slots=True)
class Ring:
    """How the containers of one attempt find and trust each other.

    ``secret`` signs every request between supervisors and driver; it is this attempt's alone.
    """

    driver_host: str
    port: int
    secret: str
    min_ranks: int
    max_ranks: int
    number: int = 0
    """Of the network over several nodes, which no other live attempt has; 0: the attempt stays on one node."""
    subnet: str = ""
    """Addresses of that network, e.g. ``10.192.4.0/22``; empty: the engine chooses."""
    address: str = ""
    """This container's own address in it."""

    @property
    def moves(self) -> bool:
        """On several nodes, an elastic ring outlives its driver: another one takes over."""
        return bool(self.subnet)


@dataclass(frozen=True, slots=True)
class Resources:
    """Limits of one container."""

    cpus: float = 1.0
    memory_mib: int = 4096
    shm_mib: int = 1024
    tmp_mib: int = 1024
    pids: int = 1024
    disk_mib: int = 10_240
    """Workspace and outputs together; the agent stops a container that exceeds it."""


@dataclass(frozen=True, slots=True)
class RunSpec:
    """One container of one attempt on one node. Identity is ``name``: creating it twice is harmless."""

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
    """Key of a curated environment, e.g. ``pytorch-horovod``."""
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
    ring: Ring | None = None
    """None for a plain command on one container: it gets no network at all."""
    resources: Resources = field(default_factory=Resources)
    grace_seconds: int = 10
    """From SIGTERM to SIGKILL."""
    identity: JobIdentity | None = None
    """Not part of the JSON: the portal names it beside that. None with a portal of an earlier release."""

    @property
    def group(self) -> str:
        return group_of(self.name)

    @property
    def network(self) -> str | None:
        """Name of the attempt's own network, None for none."""
        return self.group if self.ring else None

    def to_json(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if key != "identity"}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Raises TypeError, KeyError or ValueError when ``data`` is not a RunSpec's JSON."""
        ring = data.get("ring")
        return cls(
            **{
                **data,
                "command": tuple(data["command"]),
                "gpus": tuple(data.get("gpus", ())),
                "env": tuple((str(key), str(value)) for key, value in data.get("env", ())),
                "ring": Ring(**ring) if ring else None,
                "resources": Resources(**data.get("resources", {})),
            }
        )
