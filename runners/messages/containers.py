"""What happens with a container before it runs, why it cannot start, and how it ended."""

from dataclasses import dataclass

from runners.messages import Message

# --- until it runs ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AwaitingEnvironment(Message):
    code = "container.awaiting_environment"
    text = "waiting for its environment"


@dataclass(frozen=True)
class EnvironmentInPreparation(Message):
    code = "container.environment_in_preparation"
    key: str
    step: Message | None = None
    """None before it is started."""

    @property
    def text(self) -> str:
        return f"waiting for the environment “{self.key}”: {self.step.text if self.step else 'not started'}"


@dataclass(frozen=True)
class FetchingCheckpoints(Message):
    code = "container.fetching_checkpoints"
    text = "fetching its checkpoints"


@dataclass(frozen=True)
class CheckpointsArrived(Message):
    code = "container.checkpoints_arrived"
    mib: int
    total_mib: int

    @property
    def text(self) -> str:
        return f"fetching its checkpoints: {self.mib:,} of {self.total_mib:,} MiB"


@dataclass(frozen=True)
class FetchingInputs(Message):
    code = "container.fetching_inputs"
    text = "fetching the outputs of an earlier job"


@dataclass(frozen=True)
class InputsArrived(Message):
    code = "container.inputs_arrived"
    mib: int
    total_mib: int

    @property
    def text(self) -> str:
        return f"fetching the outputs of an earlier job: {self.mib:,} of {self.total_mib:,} MiB"


@dataclass(frozen=True)
class FetchingCode(Message):
    code = "container.fetching_code"
    text = "fetching the code"


@dataclass(frozen=True)
class UnpackingCode(Message):
    code = "container.unpacking_code"
    text = "unpacking the code"


@dataclass(frozen=True)
class Creating(Message):
    code = "container.creating"
    text = "creating the container"


@dataclass(frozen=True)
class HostsFirst(Message):
    code = "container.hosts_first"
    text = "letting the hosts start first"


@dataclass(frozen=True)
class Starting(Message):
    code = "container.starting"
    text = "starting"


@dataclass(frozen=True)
class AwaitingConfirmation(Message):
    code = "container.awaiting_confirmation"
    text = "waiting for the portal to confirm the start"


@dataclass(frozen=True)
class AwaitingSpace(Message):
    code = "container.awaiting_space"
    text = "waiting for space on the disk of its node, which is full"


@dataclass(frozen=True)
class AwaitingSharedFolder(Message):
    code = "container.awaiting_shared_folder"
    text = "waiting for the folder that the nodes share"


@dataclass(frozen=True)
class SendingLog(Message):
    code = "container.sending_log"
    text = "sending the rest of its log"


# --- why it cannot start ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EnvironmentFailed(Message):
    code = "container.environment_failed"
    key: str
    failure: Message | None

    @property
    def text(self) -> str:
        return f"The environment “{self.key}” could not be prepared: {self.failure.text if self.failure else ''}"


@dataclass(frozen=True)
class EnvironmentMissing(Message):
    code = "container.environment_missing"
    key: str

    @property
    def text(self) -> str:
        return f"The environment “{self.key}” is not prepared on this node."


@dataclass(frozen=True)
class ImageGone(Message):
    code = "container.image_gone"
    key: str
    image: str

    @property
    def text(self) -> str:
        return f"The image of “{self.key}” ({self.image}) is gone from this node."


@dataclass(frozen=True)
class PortalRefused(Message):
    code = "container.portal_refused"
    error: Message

    @property
    def text(self) -> str:
        return f"The portal refused what its start needs: {self.error.text}"


@dataclass(frozen=True)
class CodeNotFetched(Message):
    code = "container.code_not_fetched"
    error: Message

    @property
    def text(self) -> str:
        return f"The code could not be fetched: {self.error.text}"


@dataclass(frozen=True)
class InputsNotFetched(Message):
    code = "container.inputs_not_fetched"
    error: Message

    @property
    def text(self) -> str:
        return f"The outputs of the earlier job could not be fetched: {self.error.text}"


@dataclass(frozen=True)
class CheckpointNotFetched(Message):
    code = "container.checkpoint_not_fetched"
    error: Message

    @property
    def text(self) -> str:
        return f"The checkpoint could not be fetched: {self.error.text}"


@dataclass(frozen=True)
class CheckpointIncomplete(Message):
    code = "container.checkpoint_incomplete"
    text = (
        "Parts of its checkpoint are missing in the portal. Submit a copy of the job, which starts from the beginning; "
        "an admin can look for them in the backup of the portal's files."
    )


@dataclass(frozen=True)
class CodeNotUnpacked(Message):
    code = "container.code_not_unpacked"
    error: str

    @property
    def text(self) -> str:
        return f"The code cannot be unpacked: {self.error}."


@dataclass(frozen=True)
class CodeHasTooManyFiles(Message):
    code = "container.code_has_too_many_files"
    maximum: int

    @property
    def text(self) -> str:
        return f"The code has more than {self.maximum:,} files."


@dataclass(frozen=True)
class InvalidName(Message):
    code = "container.invalid_name"
    file: str

    @property
    def text(self) -> str:
        return f"The code has a file with the invalid name {self.file!r}."


@dataclass(frozen=True)
class NotARegularFile(Message):
    code = "container.not_a_regular_file"
    file: str

    @property
    def text(self) -> str:
        return f"The code has {self.file!r}, which is not a regular file."


@dataclass(frozen=True)
class UnreadableFile(Message):
    code = "container.unreadable_file"
    file: str

    @property
    def text(self) -> str:
        return f"The code has {self.file!r}, which cannot be read."


@dataclass(frozen=True)
class FoldersNotPrepared(Message):
    code = "container.folders_not_prepared"
    error: str

    @property
    def text(self) -> str:
        return f"The node could not prepare the job's folders: {self.error}."


@dataclass(frozen=True)
class FoldersNotGiven(Message):
    """They could not be given to the user of the job."""

    code = "container.folders_not_given"
    error: str

    @property
    def text(self) -> str:
        return f"The job's folders could not be prepared: {self.error}"


@dataclass(frozen=True)
class GpuInUse(Message):
    """A process that is not of the portal uses it."""

    code = "container.gpu_in_use"
    gpu: int
    by: Message

    @property
    def text(self) -> str:
        return f"GPU {self.gpu} of this node is in use outside the portal ({self.by.text})."


@dataclass(frozen=True)
class GoneBeforeStart(Message):
    code = "container.gone_before_start"
    text = "The container is gone before it started."


@dataclass(frozen=True)
class GoneFromEngine(Message):
    code = "container.gone_from_engine"
    text = "The container is gone from this node's engine before it started."


@dataclass(frozen=True)
class NotOurs(Message):
    code = "container.not_ours"
    name: str

    @property
    def text(self) -> str:
        return f"A container called {self.name} belongs to another installation or program."


@dataclass(frozen=True)
class NotConfined(Message):
    code = "container.not_confined"
    error: str

    @property
    def text(self) -> str:
        return f"The job could not be confined: {self.error}"


@dataclass(frozen=True)
class NotLimited(Message):
    """The control groups that limit its memory and processors could not be made."""

    code = "container.not_limited"
    error: str

    @property
    def text(self) -> str:
        return f"The job's memory and processors could not be limited: {self.error}"


@dataclass(frozen=True)
class NoProxy(Message):
    """The proxy through which a container reaches its hosts could not be started."""

    code = "container.no_proxy"
    error: str

    @property
    def text(self) -> str:
        return f"The proxy for the hosts that this job may reach could not be started: {self.error}"


@dataclass(frozen=True)
class ProcessNotStarted(Message):
    code = "container.process_not_started"
    error: str

    @property
    def text(self) -> str:
        return f"The first process could not be started: {self.error}"


# --- how it ended -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StoppedBeforeStart(Message):
    code = "container.stopped_before_start"
    text = "It was stopped before it started."


@dataclass(frozen=True)
class NoRecord(Message):
    code = "container.no_record"
    text = "This node has no record of it."


@dataclass(frozen=True)
class Forgotten(Message):
    code = "container.forgotten"
    text = "It ended earlier and is forgotten here."


@dataclass(frozen=True)
class OverMemoryLimit(Message):
    code = "container.over_memory_limit"
    text = "It was killed because it used more memory than its limit."


@dataclass(frozen=True)
class KilledAfterGrace(Message):
    code = "container.killed_after_grace"
    text = "It did not end by itself in time and was killed."


@dataclass(frozen=True)
class GoneWithoutRecord(Message):
    code = "container.gone_without_record"
    text = "The container is gone from this node and left no record of how it ended."


@dataclass(frozen=True)
class EndedUnobserved(Message):
    code = "container.ended_unobserved"
    text = "The container ended unobserved and left no record of how."


@dataclass(frozen=True)
class KilledFromOutside(Message):
    code = "container.killed_from_outside"
    text = "Its first process was killed from outside."


@dataclass(frozen=True)
class MachineDown(Message):
    code = "container.machine_down"
    text = "The machine or its engine went down, and the container with it."


@dataclass(frozen=True)
class FirstProcessCrashed(Message):
    code = "container.first_process_crashed"
    printed: str
    """The end of what it printed."""

    @property
    def text(self) -> str:
        return f"Its first process crashed. {self.printed}".strip()


@dataclass(frozen=True)
class NodeSwitchedOff(Message):
    code = "container.node_switched_off"
    text = "Its node was switched off."


@dataclass(frozen=True)
class TooManyFiles(Message):
    code = "container.too_many_files"
    text = "It has too many files, folders too deep, or folders closed to reading, in /workspace and /outputs."


@dataclass(frozen=True)
class FilesOverLimit(Message):
    code = "container.files_over_limit"
    used_mib: int
    limit_mib: int
    temporary: bool = False
    """Whether temporary files are counted, too: those of a process are on the disk."""

    @property
    def text(self) -> str:
        where = "/workspace, /outputs and temporary files" if self.temporary else "/workspace and /outputs"
        return f"It filled {self.used_mib:,} MiB of {where}; its limit is {self.limit_mib:,} MiB."


@dataclass(frozen=True)
class CacheOverLimit(Message):
    """The cache of the job's project, which its jobs on the node share."""

    code = "container.cache_over_limit"
    used_gib: int
    limit_gib: int

    @property
    def text(self) -> str:
        return (
            f"The cache of its project on this node reached {self.used_gib:,} GiB, twice its limit of {self.limit_gib:,} GiB. Keep "
            "data in /outputs or /checkpoints, or ask an admin for more."
        )


@dataclass(frozen=True)
class CheckpointsOverLimit(Message):
    code = "container.checkpoints_over_limit"
    limit_mib: int

    @property
    def text(self) -> str:
        return f"Its /checkpoints are over the limit of {self.limit_mib:,} MiB. Delete old ones as it goes."


@dataclass(frozen=True)
class SupervisorFolderOverLimit(Message):
    code = "container.supervisor_folder_over_limit"
    text = "It wrote far too much to the folder that only its supervisor should write to."


@dataclass(frozen=True)
class CheckpointsNotKept(Message):
    code = "container.checkpoints_not_kept"
    error: Message

    @property
    def text(self) -> str:
        return f"Its checkpoints were not kept in the portal: {self.error.text}"


@dataclass(frozen=True)
class WithRemark(Message):
    """How it ended, and what of its log and outputs could not be sent."""

    code = "container.with_remark"
    end: Message
    remark: Message

    @property
    def text(self) -> str:
        return f"{self.end.text} {self.remark.text}"
