"""How the jobs of the process runtime are confined."""

from dataclasses import dataclass

from runners.messages import Message


@dataclass(frozen=True)
class FilesAndProcesses(Message):
    code = "confinement.files_and_processes"
    text = "bubblewrap: jobs see only their own files and processes"


@dataclass(frozen=True)
class Isolated(Message):
    code = "confinement.isolated"
    text = "bubblewrap: jobs see only their own files and processes, and have no network unless their ranks need each other"


@dataclass(frozen=True)
class FilesOnly(Message):
    code = "confinement.files_only"
    text = "bubblewrap: jobs see only their own files, but also other processes"


@dataclass(frozen=True)
class NotConfined(Message):
    code = "confinement.none"
    text = "none: jobs run as ordinary processes of this user, with its files and network"


@dataclass(frozen=True)
class LimitsEnforced(Message):
    code = "limits.enforced"
    text = "enforced: each job is in a control group of its own"


@dataclass(frozen=True)
class LimitsNotEnforced(Message):
    """Why a job can use more memory and processors than it has got."""

    code = "limits.not_enforced"
    why: str

    @property
    def text(self) -> str:
        return f"not enforced ({self.why}): a job can use more than it has got, and slow others down or stop them"
