"""What the first process of a container does and how it ended, as ``runners/launch`` writes it to status.json and exit.json."""

from dataclasses import dataclass, fields
from typing import Any

from runners.messages import CLASSES, MAX_TEXT_CHARACTERS, Message, Quotation

MAX_NUMBER = 2**31


def read_message(content: Any, text: Any, max_length: int = MAX_TEXT_CHARACTERS) -> Message | None:
    """Return the message that a supervisor or driver wrote, else the text beside it as a quotation; None without either.

    Those of the previous release write only the text. Users' code can write both, so only messages of this module are
    read; parameters and texts are cut, and a message that is too long, or has a number that is too large, does not count.
    """
    code = content.get("code") if isinstance(content, dict) else None
    kind = CLASSES.get(code) if isinstance(code, str) else None
    if kind is not None and kind.__module__ == __name__:
        try:
            message = kind.of(
                {name: each[:max_length] if isinstance(each, str) else each for name, each in content.items()}
            )
        except (TypeError, RecursionError):  # of another release; a value that is nested too deeply to be shown
            message = None
        if message is not None and _fits(message, max_length):
            return message
    return Quotation(text[:max_length]) if isinstance(text, str) and text else None


def _fits(message: Message, max_length: int) -> bool:
    values = [getattr(message, field.name) for field in fields(message)]  # type: ignore[arg-type]  # all are dataclasses
    numbers = [value for value in values if isinstance(value, int)]
    return all(abs(number) <= MAX_NUMBER for number in numbers) and len(message.text) <= max_length


# --- what it does -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AwaitingHosts(Message):
    code = "launch.awaiting_hosts"
    text = "waiting for hosts"


@dataclass(frozen=True)
class AwaitingOtherHosts(Message):
    code = "launch.awaiting_other_hosts"
    text = "waiting for the other hosts"


@dataclass(frozen=True)
class Running(Message):
    code = "launch.running"
    text = "running"


@dataclass(frozen=True)
class Stopping(Message):
    code = "launch.stopping"
    text = "stopping"


# --- why it was asked to stop -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Preempted(Message):
    code = "launch.preempted"
    text = "The scheduler takes the GPUs back"


@dataclass(frozen=True)
class Cancelled(Message):
    code = "launch.cancelled"
    text = "The job was cancelled"


@dataclass(frozen=True)
class TimedOut(Message):
    code = "launch.timed_out"
    text = "The job has reached its time limit"


@dataclass(frozen=True)
class Drained(Message):
    code = "launch.drained"
    text = "The node is being drained"


@dataclass(frozen=True)
class PeerLost(Message):
    code = "launch.peer_lost"
    text = "Another part of the job was lost"


@dataclass(frozen=True)
class JobEnded(Message):
    code = "launch.job_ended"
    text = "The job has ended"


@dataclass(frozen=True)
class Held(Message):
    code = "launch.held"
    text = "The job was put on hold"


@dataclass(frozen=True)
class Stuck(Message):
    code = "launch.stuck"
    text = "The job did not make progress in time"


@dataclass(frozen=True)
class GpuFailed(Message):
    code = "launch.gpu_failed"
    text = "A GPU of the job has failed"


@dataclass(frozen=True)
class DiskOverLimit(Message):
    code = "launch.disk_over_limit"
    text = "The job has used more of the disk than it may"


@dataclass(frozen=True)
class Fenced(Message):
    code = "launch.fenced"
    text = "The node has lost contact with the portal"


@dataclass(frozen=True)
class AskedToStop(Message):
    code = "launch.asked_to_stop"
    reason: str = ""
    """A reason of a portal or agent that is newer than the supervisor; else empty."""

    @property
    def text(self) -> str:
        return f"The container was asked to stop{f' ({self.reason})' if self.reason else ''}"


# --- how its ranks ended ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RankEnded(Message):
    code = "launch.rank_ended"
    rank: int
    host: str
    exit_code: int

    @property
    def text(self) -> str:
        return f"Rank {self.rank} on {self.host} ended with exit code {self.exit_code}"


@dataclass(frozen=True)
class HorovodRankEnded(Message):
    """A rank of an elastic group, whose number may have changed."""

    code = "launch.horovod_rank_ended"
    place: str
    """Its host and slot, as Horovod writes them."""
    exit_code: int

    @property
    def text(self) -> str:
        return f"The rank on {self.place} ended with exit code {self.exit_code}"


@dataclass(frozen=True)
class RankInSlotEnded(Message):
    code = "launch.rank_in_slot_ended"
    slot: int
    host: str
    exit_code: int

    @property
    def text(self) -> str:
        return f"The rank in slot {self.slot} of {self.host} ended with exit code {self.exit_code}"


@dataclass(frozen=True)
class NoRankSucceeded(Message):
    code = "launch.no_rank_succeeded"
    text = "No rank ended successfully"


@dataclass(frozen=True)
class RankNotEnded(Message):
    code = "launch.rank_not_ended"
    text = "A rank could not be ended, so the others cannot be restarted"


@dataclass(frozen=True)
class RestartedWithoutCommit(Message):
    code = "launch.restarted_without_commit"
    times: int

    @property
    def text(self) -> str:
        times = f"{self.times} times in a row" if self.times > 1 else "once"
        return f"The ranks failed and were restarted {times} without a commit. Their logs show why"


@dataclass(frozen=True)
class RanksCouldNotContinue(Message):
    code = "launch.ranks_could_not_continue"
    error: str

    @property
    def text(self) -> str:
        return f"The ranks could not continue: {self.error}"


@dataclass(frozen=True)
class RanksNotRun(Message):
    code = "launch.ranks_not_run"
    error: str

    @property
    def text(self) -> str:
        return f"The ranks could not be run: {self.error}"


@dataclass(frozen=True)
class RanksApart(Message):
    """Each rank ran the whole program. The portal has a hint for this (``portal/jobs/causes.py``)."""

    code = "launch.ranks_apart"
    text = (
        "The ranks have not joined each other: none has started Horovod, a process group of torch or schedulearn_train's "
        "Run. Each runs the whole program by itself, so unless it divides the work by rank, all of them train on all of "
        "the data."
    )


# --- hosts and drivers that did not come ------------------------------------------------------------------------------


@dataclass(frozen=True)
class HostsDidNotCome(Message):
    code = "launch.hosts_did_not_come"
    missing: tuple[str, ...]
    more: int
    """How many others are missing."""
    seconds: int

    @classmethod
    def among(cls, missing: list[str], seconds: int, maximum: int = 10) -> "HostsDidNotCome":
        """Return the message with the names of the first hosts, as all may be too many to be shown."""
        return cls(tuple(missing[:maximum]), max(0, len(missing) - maximum), seconds)

    @property
    def text(self) -> str:
        names = ", ".join(self.missing) or "hosts"
        more = f" and {self.more} more" if self.more else ""
        return f"Waiting for {names}{more} took longer than {self.seconds} seconds"


@dataclass(frozen=True)
class LacksHosts(Message):
    """An elastic job of Horovod could not form a group again."""

    code = "launch.lacks_hosts"
    min_ranks: int
    seconds: int

    @property
    def text(self) -> str:
        ranks = f"{self.min_ranks} rank{'s' if self.min_ranks != 1 else ''}"
        return f"The job needs {ranks}, but too few hosts were available for {self.seconds} s"


@dataclass(frozen=True)
class LacksRanks(Message):
    """An elastic job of torchrun could not form a group again."""

    code = "launch.lacks_ranks"
    min_ranks: int
    seconds: int

    @property
    def text(self) -> str:
        needed = f"the {self.min_ranks} ranks that it needs" if self.min_ranks != 1 else "the one rank that it needs"
        return f"For {self.seconds} seconds the job had fewer than {needed}"


@dataclass(frozen=True)
class LeftJob(Message):
    code = "launch.left_job"
    text = "left the job"


@dataclass(frozen=True)
class DriverNeverAnswered(Message):
    code = "launch.driver_did_not_answer"
    seconds: int

    @property
    def text(self) -> str:
        return f"The driver of this job did not answer within {self.seconds} seconds"


@dataclass(frozen=True)
class DriverStoppedAnswering(Message):
    code = "launch.driver_silent"
    seconds: int

    @property
    def text(self) -> str:
        return f"The driver of this job has not answered for {self.seconds} seconds"


# --- why it could not be run ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ContainerNotRun(Message):
    code = "launch.container_not_run"
    error: str

    @property
    def text(self) -> str:
        return f"This container could not be run: {self.error}"


@dataclass(frozen=True)
class DriverCannotListen(Message):
    code = "launch.driver_cannot_listen"
    port: int
    error: str

    @property
    def text(self) -> str:
        return f"The driver cannot listen on port {self.port}: {self.error}"


@dataclass(frozen=True)
class HostHasNoAddress(Message):
    code = "launch.host_has_no_address"
    text = "This host's own name has no address, which Gloo needs: add it to /etc/hosts on the node"


@dataclass(frozen=True)
class NoWayToDriver(Message):
    code = "launch.no_way_to_driver"
    error: str

    @property
    def text(self) -> str:
        return f"No network interface leads to the driver: {self.error}"
