"""The files between the agent and a container: ``control``, which the container reads, and ``scribe``, which it writes.

Control files are replaced by renaming. An invalid one is ignored as well: the last valid content stays in force.
"""

import json
import math
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runners.spec import RunSpec

READ_LIMIT_BYTES = 1024 * 1024
"""No valid control file is longer."""
MAX_GRACE_SECONDS = 3600.0
MAX_SLOTS = 1024
HOSTNAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,62}\Z")


@dataclass(frozen=True, slots=True)
class Stop:
    """A stop request of the agent: its reason, and how long the ranks may take."""

    reason: str
    grace_seconds: float


@dataclass(frozen=True, slots=True)
class Host:
    name: str
    slots: int


@dataclass(frozen=True, slots=True)
class ContainerPaths:
    """The folders of a container. The process runtime has no mounts and sets them by variables."""

    control: Path
    scribe: Path
    workspace: Path
    data: Path
    outputs: Path
    checkpoints: Path

    @classmethod
    def from_env(cls, env: dict[str, str]) -> "ContainerPaths":
        def place(name: str, default: str) -> Path:
            return Path(env.get(f"SCHEDULEARN_{name}") or default)

        return cls(
            control=place("CONTROL", "/run/schedulearn/control"),
            scribe=place("SCRIBE", "/run/schedulearn/scribe"),
            workspace=place("WORKSPACE", "/workspace"),
            data=place("DATA", "/data"),
            outputs=place("OUTPUTS", "/outputs"),
            checkpoints=place("CHECKPOINTS", "/checkpoints"),
        )


def read_limited(path: Path) -> bytes | None:
    """Return the file's content, None when it is absent or cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(READ_LIMIT_BYTES)
    except OSError:
        return None


def write_atomic(path: Path, data: bytes) -> None:
    """Replace a file's content. Readers see the old content or the new one, also after a power cut."""
    beside = path.with_name(f".{path.name}.new")
    with beside.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write_json(path: Path, value: Any) -> None:
    write_atomic(path, json.dumps(value).encode())


class Control:
    """The agent's instructions. ``refresh`` reads them again; an invalid file changes nothing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.stop: Stop | None = None
        self.hosts: tuple[Host, ...] = ()
        self.driver = ""
        """The present address of the driver; empty: the one in the container's description."""
        self.batch = 0
        """The samples per step of all ranks together, as chosen by the scheduler; 0 while it leaves that to the job."""

    def spec(self) -> RunSpec:
        """Read job.json. Raises OSError or ValueError with a sentence when it is absent or is not a RunSpec."""
        data = (self.folder / "job.json").read_bytes()
        try:
            return RunSpec.from_json(json.loads(data))
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            raise ValueError(f"job.json is not a container's description: {error}") from error

    def refresh(self) -> None:
        data = read_limited(self.folder / "control.json")
        try:
            value = json.loads(data or b"{}")
            stop, hosts = _parse_stop(value.get("stop")), _parse_hosts(value.get("hosts", []))
            driver, batch = _parse_driver(value.get("driver")), int(value.get("batch") or 0)
        except (TypeError, KeyError, ValueError, AttributeError, OverflowError, RecursionError):
            return
        self.stop = stop or self.stop  # a stop is final
        self.hosts = hosts
        self.driver = driver
        self.batch = max(0, batch)


def _parse_stop(value: Any) -> Stop | None:
    if not value:
        return None
    grace = float(value.get("grace_seconds", 10))
    grace = min(max(grace, 0.0), MAX_GRACE_SECONDS) if math.isfinite(grace) else MAX_GRACE_SECONDS
    return Stop(str(value.get("reason", "")) or "stopped", grace)


def _parse_driver(value: Any) -> str:
    if value and not (isinstance(value, str) and HOSTNAME.match(value)):
        raise ValueError("a driver's address")
    return value or ""


def _parse_hosts(value: Any) -> tuple[Host, ...]:
    hosts = []
    for item in value:
        name, slots = item["name"], item["slots"]
        if not (isinstance(name, str) and HOSTNAME.match(name)):
            raise ValueError("a host's name")
        if not (isinstance(slots, int) and 0 < slots <= MAX_SLOTS):
            raise ValueError("a host's slots")
        hosts.append(Host(name, slots))
    return tuple(hosts)
