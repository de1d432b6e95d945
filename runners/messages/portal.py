"""What a node could not get from the portal or bring to it. What the portal answers is here too: it sends these messages."""

from dataclasses import dataclass

from runners.messages import Message

# --- not now: the agent tries again -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NoAnswer(Message):
    code = "portal.no_answer"
    error: str

    @property
    def text(self) -> str:
        return f"The portal does not answer ({self.error})."


@dataclass(frozen=True)
class HttpStatus(Message):
    """An answer without a sentence of the portal, as proxies give it."""

    code = "portal.http_status"
    status: int
    phrase: str

    @property
    def text(self) -> str:
        return f"The portal answered {self.status} {self.phrase}."


@dataclass(frozen=True)
class AnswerNotUnderstood(Message):
    code = "portal.answer_not_understood"
    request: str
    """Method and path."""

    @property
    def text(self) -> str:
        return f"The portal's answer to {self.request} is not understood."


@dataclass(frozen=True)
class CodeDamaged(Message):
    code = "portal.code_damaged"
    text = "The code that arrived is not the code that was requested (its SHA-256 differs)."


@dataclass(frozen=True)
class InputDamaged(Message):
    code = "portal.input_damaged"
    text = "An input that arrived is not the one that was requested (its SHA-256 differs)."


@dataclass(frozen=True)
class InputLost(Message):
    """The portal no longer has the content of an output."""

    code = "portal.input_lost"
    job: int
    path: str

    @property
    def text(self) -> str:
        return (
            f"The output {self.path} of job {self.job} is missing in the portal. Run job {self.job} again, and submit this one "
            "after the new job; an admin can look for the file in the backup of the portal's files."
        )


@dataclass(frozen=True)
class CheckpointDamaged(Message):
    code = "portal.checkpoint_damaged"
    text = "A checkpoint that arrived is not the one that was requested (its SHA-256 differs)."


@dataclass(frozen=True)
class CheckpointsComing(Message):
    """The portal's answer to a node on which a job continues."""

    code = "portal.checkpoints_coming"
    node: str

    @property
    def text(self) -> str:
        return f"waiting for its checkpoints from {self.node}"


@dataclass(frozen=True)
class CheckpointsNotStored(Message):
    code = "portal.checkpoints_not_stored"
    text = "The portal does not have the checkpoints that it was sent."


@dataclass(frozen=True)
class CheckpointsChanging(Message):
    code = "portal.checkpoints_changing"
    text = "Its checkpoints are still being written."


@dataclass(frozen=True)
class OutputChanging(Message):
    code = "portal.output_changing"
    path: str

    @property
    def text(self) -> str:
        return f"{self.path!a} is still being written."


@dataclass(frozen=True)
class LogNotSent(Message):
    code = "portal.log_not_sent"
    text = "The rest of its log could not be sent yet."


@dataclass(frozen=True)
class LogOffsetsContradict(Message):
    code = "portal.log_offsets_contradict"
    container: str
    stream: str

    @property
    def text(self) -> str:
        return f"The portal contradicts itself about stream {self.stream} of {self.container}."


@dataclass(frozen=True)
class ResourceMissing(Message):
    """The machine of the node lacks memory, files or the like."""

    code = "portal.resource_missing"
    error: str

    @property
    def text(self) -> str:
        return f"This machine lacks a resource: {self.error}."


# --- refused: trying again does not help --------------------------------------------------------------------------------


@dataclass(frozen=True)
class CodeLost(Message):
    """The portal refuses it."""

    code = "portal.code_lost"
    text = "The portal no longer has this code. Upload it again."


@dataclass(frozen=True)
class CodeTooLarge(Message):
    code = "portal.code_too_large"
    limit_mib: int

    @property
    def text(self) -> str:
        return f"The code is larger than {self.limit_mib:,} MiB."


@dataclass(frozen=True)
class TooManyCheckpointFiles(Message):
    code = "portal.too_many_checkpoint_files"
    max_files: int

    @property
    def text(self) -> str:
        return f"there are more than {self.max_files:,} files. Put them into fewer, larger ones."


@dataclass(frozen=True)
class CheckpointsTooLarge(Message):
    """The portal refuses them, or the agent before it reads them."""

    code = "portal.checkpoints_too_large"
    limit_mib: int

    @property
    def text(self) -> str:
        return (
            f"they take more than {self.limit_mib:,} MiB, so they stay on their node. "
            "Delete old ones, or ask an admin for more."
        )


@dataclass(frozen=True)
class PortalDiskFull(Message):
    """The portal refuses checkpoints."""

    code = "portal.disk_full"
    text = "the portal's disk is too full, so they stay on their node. Ask an admin for more room."
