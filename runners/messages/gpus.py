"""Why nothing should run on a GPU, what its driver has reported, and who uses it outside the portal."""

from dataclasses import dataclass
from datetime import datetime, timezone

from runners.messages import Message


@dataclass(frozen=True)
class LostByDriver(Message):
    code = "gpu.lost_by_driver"
    error: str

    @property
    def text(self) -> str:
        return f"The driver has lost it: {self.error}"


@dataclass(frozen=True)
class NoAnswer(Message):
    code = "gpu.no_answer"
    text = "It does not answer the driver."


@dataclass(frozen=True)
class WornOut(Message):
    code = "gpu.worn_out"
    text = "Its memory is worn out (row remapping failed): replace the GPU."


@dataclass(frozen=True)
class MemoryErrors(Message):
    code = "gpu.memory_errors"
    count: int

    @property
    def text(self) -> str:
        return f"{self.count} memory errors could not be corrected since the driver was loaded: reset it or reboot."


@dataclass(frozen=True)
class PagesToRetire(Message):
    code = "gpu.pages_to_retire"
    text = "Bad memory pages are waiting to be retired: reset it or reboot."


@dataclass(frozen=True)
class TooHot(Message):
    code = "gpu.too_hot"
    celsius: int

    @property
    def text(self) -> str:
        return f"It has a temperature of {self.celsius} °C: check its cooling."


@dataclass(frozen=True)
class DividedByMig(Message):
    code = "gpu.divided_by_mig"
    text = "MIG is on, and it has no instances: make some (nvidia-smi mig -cgi ... -C), or turn MIG off."


# --- grave errors that the driver has reported ---------------------------------------------------------------------

XID_MEANINGS = {
    48: "memory error that could not be corrected",
    62: "its own controller has stopped",
    64: "worn out memory could not be replaced",
    74: "error on NVLink",
    79: "it has fallen off the bus",
    94: "memory error that could not be corrected",
    95: "memory error that could not be corrected, and may have spread",
    119: "its firmware does not answer",
    120: "its firmware has failed",
}
"""The meanings of those that are known (NVIDIA, XID Errors)."""


@dataclass(frozen=True)
class XidError(Message):
    code = "gpu.xid_error"
    xid: int
    at: str
    """In ISO 8601."""

    @property
    def text(self) -> str:
        meaning = f" ({XID_MEANINGS[self.xid]})" if self.xid in XID_MEANINGS else ""
        return f"XID {self.xid}{meaning} at {_format_time(self.at)}"


@dataclass(frozen=True)
class LostAt(Message):
    """The driver no longer finds it."""

    code = "gpu.lost_at"
    at: str
    """In ISO 8601."""

    @property
    def text(self) -> str:
        return f"The driver has lost it at {_format_time(self.at)}"


@dataclass(frozen=True)
class UncorrectedErrors(Message):
    """There are more memory errors than at the last count."""

    code = "gpu.uncorrected_errors"
    count: int

    @property
    def text(self) -> str:
        return f"{self.count} memory error{'s' * (self.count != 1)} that could not be corrected"


# --- processes on it outside the portal ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Process(Message):
    code = "gpu.process"
    name: str
    pid: int

    @property
    def text(self) -> str:
        return f"{self.name}, process {self.pid}"


@dataclass(frozen=True)
class Processes(Message):
    """A list, not a sentence."""

    code = "gpu.processes"
    first: tuple[Message, ...]
    more: int
    """The number of the others."""

    @property
    def text(self) -> str:
        return "; ".join(each.text for each in self.first) + (f" and {self.more} more" if self.more else "")


def _format_time(at: str) -> str:
    """Return a moment as people read it; what is none, from another version of the agent, as it is."""
    try:
        moment = datetime.fromisoformat(at).astimezone(timezone.utc)  # noqa: UP017  jobs may have Python 3.10
        return f"{moment:%Y-%m-%d %H:%M:%S} UTC"
    except (ValueError, OverflowError):
        return at
