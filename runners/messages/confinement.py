"""How the jobs of the process runtime are confined."""

from dataclasses import dataclass

from runners.messages import Message


@dataclass(frozen=True)
class FilesAndProcesses(Message):
    code = "confinement.files_and_processes"
    text = "bubblewrap: jobs see only their own files and processes"


@dataclass(frozen=True)
class FilesOnly(Message):
    code = "confinement.files_only"
    text = "bubblewrap: jobs see only their own files, but also other processes"


@dataclass(frozen=True)
class NotConfined(Message):
    code = "confinement.none"
    text = "none: jobs run as ordinary processes of this user"
