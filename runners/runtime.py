"""The interface between the agent and what runs containers: a few operations, each of which may be repeated.

There are three implementations: ``runtimes.docker`` (labs), ``runtimes.process`` (one's own machine) and ``runtimes.fake``
(tests).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from runners.messages import MessageError
from runners.messages.problems import Problem
from runners.spec import RunSpec

ContainerState = Literal["created", "running", "exited"]


class SetupError(Exception):
    """The agent cannot start. The message is a sentence with what to do."""


class RunError(MessageError):
    """The runtime could not do what was requested.

    RunError
    ├── EngineError   it does not answer, or not in time: nothing is known, try again later
    └── CreateError   this container cannot be created, even if tried again: exit_reason ``create_error``
        └── TransientCreateError   because of an error of the engine itself, which may be temporary
    """


class EngineError(RunError):
    pass


class CreateError(RunError):
    pass


class TransientCreateError(CreateError):
    pass


@dataclass(frozen=True, slots=True)
class Folders:
    """The folders of one container on this machine. The agent creates them; see "Files of a node"."""

    workspace: Path
    control: Path
    scribe: Path
    outputs: Path
    checkpoints: Path
    data: Path | None = None
    cache: Path | None = None
    """The cache of the job's project on this node; None for a container without ranks, and where the node keeps none."""
    network: Path | None = None
    """The folder with the socket of the container's proxy; None for a container that may reach no host."""
    inputs: Path | None = None
    """The outputs of an earlier job, which it only reads; None for a job that uses none. The agent fills it before ``create``."""
    secrets: Path | None = None
    """The folder with the secrets of its ranks, which it only reads, in ``secret_files`` and ``secret_variables``; None for a
    container without any. The agent fills it before ``create``, and deletes it when the container has ended."""

    datasets: tuple["DatasetFolder", ...] = field(default=(), kw_only=True)
    """The datasets of the job, which the agent fetches before ``create``; with any, ``data`` is a folder of the container."""
    lab_data: Path | None = field(default=None, kw_only=True)
    """The lab's own folder of datasets, where ``data`` is another one."""

    @property
    def secret_files(self) -> Path | None:
        """The secrets that its ranks read as files."""
        return self.secrets and self.secrets / "files"

    @property
    def secret_variables(self) -> Path | None:
        """The secrets that become variables of its ranks: a file each."""
        return self.secrets and self.secrets / "variables"


@dataclass(frozen=True, slots=True)
class DatasetFolder:
    """A dataset on this machine, for one container."""

    name: str
    tree: Path
    """Its files, which all jobs of the node share."""
    path: str = ""
    """Its further place, from the working folder: ``data``, ``../data``; empty for none."""
    copy: Path | None = None
    """The container's own copy, which is at ``path``; None for one that it only reads."""


@dataclass(frozen=True, slots=True)
class ObservedContainer:
    """One container of this node as the runtime sees it. ``name`` is RunSpec.name."""

    name: str
    job: int
    attempt: int
    epoch: int
    state: ContainerState
    exit_code: int | None = None
    """The exit code of the first process. None while it runs, and when it ended unobserved: exit.json decides then."""
    oom_killed: bool = False
    detail: str = ""
    """The runtime's error message if the start failed, else empty."""


@dataclass(frozen=True, slots=True)
class AttemptNetwork:
    """An attempt's network over several nodes: its number, and the addresses of the other nodes."""

    network: str
    """RunSpec.network."""
    number: int
    """CollectiveGroup.number."""
    peers: frozenset[str] = frozenset()


EnvironmentLookup = Callable[[str], str | None]
"""Maps an environment's key to what runs it here (an image, or a virtualenv's python); None while it is not ready."""
LayerLookup = Callable[[str], Path | None]
"""Maps a layer's digest to its folder on this machine; None while it is not here."""


def no_images(digest: str) -> str | None:
    """The lookup of a node that has no images of projects."""
    return None


def no_layers(digest: str) -> Path | None:
    """The lookup of a node that has no layers."""
    return None


class ContainerRuntime(Protocol):
    """What runs containers on a node: six operations on containers, and a list.

    Every operation may be repeated: creating what exists, starting what runs, and stopping or removing what is gone count
    as done. None waits without a bound, and none needs stored state: an agent that was killed continues after ``list()``
    where it stopped. Containers of another installation or node are neither listed nor touched.

    All raise EngineError when the runtime did not answer in time. The outcome is then unknown: list and try again.
    """

    @property
    def kind(self) -> Literal["docker", "process", "fake"]: ...

    def check(self) -> list[Problem]:
        """Return the problems of this machine, each with its fix. Repairs what it can itself (the firewall rule)."""
        ...

    def facts(self) -> dict[str, Any]:
        """Return facts for the nodes page: versions, processors, memory."""
        ...

    def is_ours(self, pid: int) -> bool:
        """Whether a process of this machine belongs to a container of this node."""
        ...

    def create(self, spec: RunSpec, folders: Folders) -> None:
        """Create the container, its network and its access to the folders, but do not start it.

        ``folders`` exist and ``workspace`` and ``control`` are filled. Raises CreateError with a reason.
        """
        ...

    def start(self, name: str) -> None:
        """Start a created container. Does nothing when it runs or has ended. Raises CreateError if it cannot start."""
        ...

    def signal(self, name: str, signum: int) -> None:
        """Send a signal to the container's first process, if it lives."""
        ...

    def stop(self, name: str, grace_seconds: int) -> None:
        """Send SIGTERM to the first process, and SIGKILL to all that is left after the grace. Returns when nothing runs."""
        ...

    def remove(self, name: str) -> None:
        """Kill what still runs and delete the container, and with the last one of its attempt also the network.

        The folders stay: they belong to the agent.
        """
        ...

    def list(self) -> list[ObservedContainer]:
        """Return every container of this installation and node, whatever its state, by name."""
        ...

    def connect(self, attempts: Sequence[AttemptNetwork]) -> None:
        """Let the containers of these attempts reach those on other nodes.

        Each call has all attempts: one that is missing is disconnected. Raises RunError when it could not be done.
        """
        ...

    def logs(self, name: str, limit_bytes: int) -> bytes:
        """Return the end of what the first process itself printed: why a supervisor did not start. Never the ranks' log."""
        ...


LAUNCH_PATHS = ("__init__.py", "spec.py", "messages", "launch", "training")
"""The part of ``runners`` that jobs need: what runs first in a container with its messages, and the training library."""


def launch_module(spec: RunSpec) -> str:
    """Return the module of the container's first process."""
    return "runners.launch.driver" if spec.role == "driver" else "runners.launch.supervisor"


CONTROL = "/run/schedulearn/control"
SCRIBE = "/run/schedulearn/scribe"
WORKSPACE = "/workspace"
OUTPUTS = "/outputs"
CHECKPOINTS = "/checkpoints"
INPUTS = "/inputs"
SECRETS = "/run/secrets"
SECRET_VARIABLES = "/run/schedulearn/secrets"  # noqa: S105 - a folder
LAYER = "/opt/layer"
NETWORK = "/run/schedulearn/network"
CACHE = "/cache"
DATA = "/data"
LAB_DATA = "/run/schedulearn/data"
