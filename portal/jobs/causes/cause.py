"""Why an attempt did not succeed, and the facts by which it is judged."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Cause:
    """Why an attempt did not succeed; stored as JSON."""

    code: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    detail: Any = ""
    """A quotation of the log, or the ``detail`` of a container."""
    ended_early: bool = False
    """A host ended without an error while others still worked."""
    rank: int | None = None
    """The rank that the cause is about, if the job had others that did not end in the same way."""


@dataclass(frozen=True, slots=True)
class Facts:
    """The stored facts about an attempt that has ended."""

    outcome: str
    stop_reason: str = ""
    exit_code: int | None = None
    exit_reason: str = ""
    detail: Any = ""
    """As ``Container.detail`` has it."""
    node: str = ""
    """The node of the container to blame."""
    final: bool = False
    """The job has failed with this attempt: no other follows."""
    some_ended_early: bool = False
    """A host ended without an error while others still worked."""
    time_limit_seconds: int = 0
    was_silent: bool = False
    """A silence of this attempt was reported."""
    resumable: bool = False
    memory_mib: int = 0
    offered_by: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The titles of the environments that have a package and the frameworks of the code, by the package's import name."""
    without: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The frameworks of the code that an environment with a package lacks, by the package's import name."""
    allowed_hosts: Sequence[str] = ()
    """The hosts that it may reach, as agents read them."""
    refused_host: str = ""
    """The one that its proxy refused, or did not reach, last."""
    refused_reason: str = ""
    """Why: ``sentences.network.REASONS``."""
    launcher: str = ""
    """That of the job: ``Job.Launcher``."""
    command: str = ""
    """The command line of a job without a launcher."""
    environment: str = ""
    """The title of the job's environment."""
    files: Sequence[str] = ()
    """The names of the files in the job's code version."""
    read_first_line: Callable[[str], str] = lambda path: ""
    """Returns the first line of one of these files."""
