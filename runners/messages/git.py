"""Where a fetch from Git stands: phrases for its page."""

from dataclasses import dataclass

from runners.messages import Message


@dataclass(frozen=True)
class FetchStarting(Message):
    code = "git.starting"
    text = "starting"


@dataclass(frozen=True)
class AskingHost(Message):
    code = "git.asking"
    host: str

    @property
    def text(self) -> str:
        return f"asking {self.host} for the newest commit"


@dataclass(frozen=True)
class ReceivingCommit(Message):
    code = "git.receiving"
    percent: int = 0

    @property
    def text(self) -> str:
        return f"receiving the commit: {self.percent} %" if self.percent else "receiving the commit"


@dataclass(frozen=True)
class ComparingHistory(Message):
    code = "git.history"
    text = "comparing it with the commit fetched before"


@dataclass(frozen=True)
class PackingFiles(Message):
    code = "git.packing"
    text = "packing its files"


@dataclass(frozen=True)
class ReceivingSubmodule(Message):
    code = "git.submodule"
    text = "receiving its submodules"


@dataclass(frozen=True)
class ReceivingLfs(Message):
    code = "git.lfs"
    text = "receiving its files of Git LFS"


@dataclass(frozen=True)
class SendingCode(Message):
    code = "git.sending"
    mib: int
    total_mib: int

    @property
    def text(self) -> str:
        return f"sending the files to the portal: {self.mib} of {self.total_mib} MiB"


@dataclass(frozen=True)
class FetchWaiting(Message):
    code = "git.waiting"
    text = "waiting for a node"


@dataclass(frozen=True)
class PullingGitImage(Message):
    code = "git.pulling_image"
    image: str
    arrived: Message

    @property
    def text(self) -> str:
        return f"downloading the image {self.image}, which has git: {self.arrived.text}"


# --- how it ended -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CommitKnown(Message):
    """The branch is still at the commit of a code version."""

    code = "git.known"
    commit: str
    version: int

    @property
    def text(self) -> str:
        return f"The branch is at {self.commit[:10]}, which version {self.version} was made from: nothing is new."


@dataclass(frozen=True)
class CommitStored(Message):
    """A code version was made, perhaps with something to know about it."""

    code = "git.stored"
    commit: str
    version: int
    rewritten: bool = False
    pointers: tuple[str, ...] = ()
    pointer_count: int = 0
    left_out: tuple[str, ...] = ()
    left_out_count: int = 0

    @property
    def text(self) -> str:
        return " ".join([f"Version {self.version} was made from {self.commit[:10]}.", *self.remarks])

    @property
    def remarks(self) -> list[str]:
        """What an owner should know, in sentences."""
        found = []
        if self.rewritten:
            found.append("The history of the branch was rewritten: the commit fetched before is no longer in it.")
        if self.pointer_count:
            found.append(
                f"Of {_listed(self.pointers, self.pointer_count)} the version has only the pointer of Git LFS, not the content: "
                "an owner may switch Git LFS on where an admin allowed it."
            )
        if self.left_out_count:
            found.append(
                f"Left out are submodules: {_listed(self.left_out, self.left_out_count)}. An owner may switch them on where an "
                "admin allowed them."
            )
        return found


def _listed(names: tuple[str, ...], count: int) -> str:
    rest = count - len(names)
    return ", ".join(names) + (f" and {rest} more" if rest > 0 else "")
