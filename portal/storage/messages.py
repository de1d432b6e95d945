"""Why a version of a dataset was refused, as data. ``portal/sentences`` has the words."""

from dataclasses import dataclass
from typing import ClassVar

from scheduling.messages import Message


@dataclass(frozen=True)
class SameContent(Message):
    code: ClassVar[str] = "dataset_same_content"
    number: int


@dataclass(frozen=True)
class BadFiles(Message):
    """Files that cannot be a dataset; ``problem`` is the sentence of what has read them."""

    code: ClassVar[str] = "dataset_bad_files"
    path: str
    problem: str


@dataclass(frozen=True)
class WrongChecksum(Message):
    code: ClassVar[str] = "dataset_wrong_checksum"
    path: str


@dataclass(frozen=True)
class LostUpload(Message):
    """The bytes of an upload are no longer in the data folder."""

    code: ClassVar[str] = "dataset_lost_upload"
    path: str


@dataclass(frozen=True)
class UnpackingStopped(Message):
    """The program that unpacks gave no answer: a limit of time or memory, or a crash."""

    code: ClassVar[str] = "dataset_unpacking_stopped"
    path: str


@dataclass(frozen=True)
class CheckInterrupted(Message):
    code: ClassVar[str] = "dataset_check_interrupted"
    times: int


@dataclass(frozen=True)
class CheckBroke(Message):
    """An error of the portal."""

    code: ClassVar[str] = "dataset_check_broke"
    error: str
