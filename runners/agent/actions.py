"""Executes one action for one container. Slow: each action runs in its own thread.

Raises PortalUnavailableError, EngineError, TransientCreateError, BusyError or NotReadyError when the action should be
tried again. An action that can never work ends the container with ``create_error`` and a sentence.
"""

import contextlib
import errno
import logging
import threading
import time
from collections.abc import Callable

from runners.agent import caches, exits, shared_folders
from runners.agent.action_needs import ActionState as ActionState
from runners.agent.action_needs import ContainerPortal, EnvironmentReadiness, NotReadyError
from runners.agent.checkpoints import JobCheckpoints
from runners.agent.claims import Claims
from runners.agent.code_store import CodeStore, unpack
from runners.agent.dataset_cache import DEFAULT_LIMIT_GIB
from runners.agent.inputs import JobInputs
from runners.agent.job_datasets import JobDatasets
from runners.agent.job_proxies import JobProxies
from runners.agent.job_secrets import JobSecrets
from runners.agent.journal import ContainerJournal, delete_tree
from runners.agent.log_shipper import LogShipper
from runners.agent.outputs import BesideCodeSender, OutputSender
from runners.agent.portal_client import PortalError, PortalRefusedError, PortalUnavailableError
from runners.agent.reconcile import (
    Action,
    Collect,
    ControlMessage,
    DesiredContainer,
    Exit,
    Finish,
    Forget,
    Halt,
    JournalEntry,
    Prepare,
    Remove,
    Start,
    WriteControl,
)
from runners.agent.refusals import refusal_as_create_error
from runners.host.exclusive import BusyError
from runners.host.node_files import NodeFiles, read_json_beneath, write_json
from runners.launch.log_writer import reserve_space
from runners.messages import Message
from runners.messages.containers import (
    AwaitingConfirmation,
    AwaitingEnvironment,
    AwaitingSharedFolder,
    AwaitingSpace,
    CheckpointNotFetched,
    CodeNotFetched,
    Creating,
    FetchingCheckpoints,
    FetchingCode,
    FetchingInputs,
    FoldersNotPrepared,
    HostsFirst,
    InputsNotFetched,
    NodeSwitchedOff,
    NoProxy,
    PortalRefused,
    SendingLog,
    Starting,
    UnpackingCode,
)
from runners.messages.portal import LogNotSent, ResourceMissing
from runners.messages.secrets import FetchingSecrets
from runners.runtime import (
    ContainerRuntime,
    CreateError,
    EngineError,
    ObservedContainer,
    RunError,
    TransientCreateError,
)
from runners.spec import JobIdentity, RunSpec, group_name

logger = logging.getLogger(__name__)

LOG_DRAIN_SECONDS = 10.0
"""The end of a container is reported after its log, but a portal that is away delays the report by at most this long."""
COLLECT_SECONDS = 60.0
TRANSIENT_ERROR_SECONDS = 15.0
"""How long a start is tried again while the engine itself fails: a job that failed for it would be back at once, and
would have failed for good after three attempts."""
MAX_PRINTED_BYTES = 2000
HOSTS_FIRST_SECONDS = 3.0
"""How long a driver waits for the hosts of its attempt on this node to start first: their ranks load while it starts."""


class ActionExecutor:
    """Carries out the actions of ``reconcile``."""

    def __init__(
        self,
        files: NodeFiles,
        runtime: ContainerRuntime,
        journal: ContainerJournal,
        code: CodeStore,
        shipper: LogShipper,
        portal: ContainerPortal,
        environments: EnvironmentReadiness,
        may_start: Callable[[str], bool],
        gpu_conflict: Callable[[tuple[str, ...]], Message | None] = lambda gpus: None,
        datasets: JobDatasets | None = None,
    ) -> None:
        self.files = files
        self.runtime = runtime
        self.journal = journal
        self.code = code
        self.shipper = shipper
        self.environments = environments
        self.may_start = may_start
        """Whether a recent reply of the portal wants the container to run: it counts its fence from its own start."""
        self.gpu_conflict = gpu_conflict
        """Why nothing may start on these GPUs: they are in use outside the portal. None when they are free."""
        self.details: dict[str, Message] = {}
        """What happens with each container now, by name."""
        self._failing_since: dict[str, float] = {}
        """Since when the engine has failed to start a container, by name; monotonic seconds."""
        self._portal = portal
        self.claims = Claims(files, journal, portal)
        self.proxies = JobProxies(files, portal)
        self.inputs = JobInputs(portal)
        self.secrets = JobSecrets(files, journal, portal)
        self.datasets = datasets or JobDatasets(files, portal, DEFAULT_LIMIT_GIB, dict)
        self._senders: dict[tuple[int, str], OutputSender] = {}
        self._beside: dict[str, BesideCodeSender] = {}
        """By the number of an attempt and the common part of its containers' names."""
        self._checkpoints: dict[tuple[int, JobIdentity | None], JobCheckpoints] = {}
        self._senders_lock = threading.Lock()

    def execute(self, action: Action, container: DesiredContainer | None, seen: ObservedContainer | None) -> None:
        match action:
            case Prepare() if container:
                self._end_on_error(container.spec, lambda: self._prepare_and_start(container))
            case Start() if container:
                self._end_on_error(container.spec, lambda: self._start(container.spec))
            case WriteControl() if container:
                self._update_control(container.spec, action.control)
            case Halt():
                self.runtime.stop(action.name, action.grace_seconds)
            case Finish() if container:
                self._finish(container, seen)
            case Collect() if container:
                self._collect(container.spec)
            case Remove():
                self.runtime.remove(action.name)
            case Forget():
                self._forget(action.name)
            case _:
                raise ValueError(f"{action} needs its desired container.")

    def adopt(self, container: DesiredContainer) -> None:
        """Continue to send the log of a container that an earlier agent started, and to serve its proxy."""
        spec = container.spec
        self._follow(spec)
        entry = self.journal.get(spec.name)
        if entry is not None and entry.exit is None:
            try:
                self._open_proxy(spec)
            except CreateError as error:
                logger.error("%s reaches no host: %s", spec.name, error)

    def _follow(self, spec: RunSpec) -> None:
        self.shipper.follow(spec.name, self.files.scribe(spec.name), spec.slots, known_to_portal=True)

    def _open_proxy(self, spec: RunSpec) -> None:
        try:
            self.proxies.open(spec)
        except (OSError, ValueError) as error:
            raise CreateError(NoProxy(str(error))) from error

    def output_sender(self, spec: RunSpec) -> OutputSender:
        key = (spec.attempt, spec.group)
        with self._senders_lock:
            known = self._senders.get(key)
        if known is not None:
            return known
        record_file = self.files.attempt(spec.attempt) / "sent.json"
        made = OutputSender(self.files.outputs(spec.attempt), record_file, self._portal)  # reads the disk
        with self._senders_lock:
            return self._senders.setdefault(key, made)

    def _beside_code_sender(self, spec: RunSpec) -> BesideCodeSender | None:
        """Return what sends the files that were written beside the code; None for a driver, which runs none."""
        with self._senders_lock:
            known = self._beside.get(spec.name)
        if known is not None or spec.role != "host":
            return known
        try:
            prepared_ns = self.files.prepared(spec.name).stat().st_mtime_ns
        except FileNotFoundError:  # an agent of an earlier release prepared it
            return None
        record_file = self.files.container(spec.name) / "beside.json"
        subfolder = spec.hostname if spec.collective else ""
        made = BesideCodeSender(
            self.files.workspace(spec.name), record_file, self._portal, prepared_ns, subfolder
        )  # reads the disk
        with self._senders_lock:
            return self._beside.setdefault(spec.name, made)

    def job_checkpoints(self, spec: RunSpec) -> JobCheckpoints:
        made = JobCheckpoints(self.files.job(spec.job), self._portal)
        with self._senders_lock:
            return self._checkpoints.setdefault((spec.job, spec.identity), made)

    def send_outputs(self, running: Callable[[], list[DesiredContainer]]) -> float | None:
        """Send the outputs of running containers as far as the portal takes them; the next call sends the rest."""
        with contextlib.suppress(PortalError):
            for container in running():
                with contextlib.suppress(BusyError):
                    if self.claims.owns_attempt_folder(container.spec):
                        self.output_sender(container.spec).send(container.spec.name, ended=False)
        return None

    def send_checkpoints(self, running: Callable[[], list[DesiredContainer]]) -> float | None:
        """Send the checkpoints of running containers, in the same way as their outputs."""
        specs = [container.spec for container in running()]
        for spec in specs:
            with contextlib.suppress(BusyError):
                self.claims.mark_folders(spec)
        hosts = {spec.job: spec for spec in specs if spec.role == "host"}
        with contextlib.suppress(PortalError):
            for spec in hosts.values():
                with contextlib.suppress(BusyError):
                    if self.claims.owns_job_folder(spec):
                        self.job_checkpoints(spec).send(spec.name, ended=False)
        return None

    def halt(self, container: DesiredContainer, reason: str, detail: Message) -> bool:
        """Mark a container to be ended for a reason of the agent; False if it ends already. A stop from the portal takes
        precedence."""
        entry = self.journal.get(container.spec.name)
        if entry is None or entry.halted or entry.exit is not None:
            return False
        self.journal.change(container.spec.name, halted=reason, halted_detail=detail)
        logger.warning("%s is stopped: %s", container.spec.name, detail.text)
        return True

    def stop_everything(self, grace_seconds: int) -> None:
        """End all running containers. They will be reported as lost, so the portal may run their jobs again."""
        until = time.monotonic() + grace_seconds + 5
        while time.monotonic() < until and (names := self._running()):
            threads = [threading.Thread(target=self._stop, args=(name, grace_seconds), daemon=True) for name in names]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(max(0.0, until - time.monotonic()))
            # Look again: a container may have started meanwhile.

    def _running(self) -> list[str]:
        try:
            return [seen.name for seen in self.runtime.list() if seen.state == "running"]
        except EngineError as error:
            logger.warning("The containers could not be listed to stop them: %s", error)
            return []

    def _stop(self, name: str, grace_seconds: int) -> None:
        if self.journal.get(name) is not None:
            self.journal.change(name, halted="lost", halted_detail=NodeSwitchedOff())
        try:
            self.runtime.stop(name, grace_seconds)
            self.secrets.remove(name)
            self.datasets.remove(name)
        except RunError as error:
            logger.warning("%s could not be stopped: %s", name, error)

    def _end_on_error(self, spec: RunSpec, work: Callable[[], None]) -> None:
        try:
            work()
            self._failing_since.pop(spec.name, None)
            return
        except CreateError as error:
            if isinstance(error, TransientCreateError) and self._may_recover(spec.name):
                raise
            message = error.message
        except PortalRefusedError as error:
            if error.status == 401:
                raise PortalUnavailableError(error.message) from error
            message = PortalRefused(error.message)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR):
                raise PortalUnavailableError(ResourceMissing(error.strerror or str(error))) from error
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise NotReadyError(AwaitingSpace()) from error
            message = FoldersNotPrepared(str(error.strerror or error))
        logger.warning("%s cannot start: %s", spec.name, message.text)
        self._record_exit(spec, Exit(None, "create_error", message))

    def _may_recover(self, name: str) -> bool:
        """Whether the engine's failure with a container is so recent that it may pass."""
        now = time.monotonic()
        return now - self._failing_since.setdefault(name, now) < TRANSIENT_ERROR_SECONDS

    def _prepare_and_start(self, container: DesiredContainer) -> None:
        """Prepare a container and start it at once: a listing in between would take longer than everything else."""
        self._prepare(container)
        self._start(container.spec)

    def _prepare(self, container: DesiredContainer) -> None:
        spec = container.spec
        self.journal.begin(spec.name, JournalEntry(spec.job, spec.attempt, spec.number))
        if spec.role == "driver":
            self._wait_for_hosts(spec)
        self._set_detail(spec, AwaitingEnvironment())
        self.environments.require(spec.environment, spec.layer)
        if not shared_folders.is_mounted(self.files):
            raise NotReadyError(AwaitingSharedFolder())
        self.claims.claim(spec)
        folders = self.files.make_container(spec)
        caches.prepare(self.files, spec)
        reserve_space(folders.scribe)
        write_json(folders.control / "job.json", spec.to_json())
        self._write_control(spec, container.control)
        if spec.role == "host":
            self._set_detail(spec, FetchingCheckpoints())
            with refusal_as_create_error(CheckpointNotFetched):
                self.job_checkpoints(spec).fetch(
                    spec.name,
                    lambda user: self._may_use_checkpoints(user, spec),
                    lambda detail: self._set_detail(spec, detail),
                )
        if folders.inputs is not None:
            self._set_detail(spec, FetchingInputs())
            with refusal_as_create_error(InputsNotFetched):
                self.inputs.fetch(spec.name, folders.inputs, lambda detail: self._set_detail(spec, detail))
        self._set_detail(spec, FetchingCode())
        with refusal_as_create_error(CodeNotFetched):
            tar = self.code.fetch(spec.code_sha256)
        if any(folders.workspace.iterdir()):  # an earlier agent was killed here
            delete_tree(folders.workspace)
            folders.workspace.mkdir()
        self._set_detail(spec, UnpackingCode())
        unpack(tar, folders.workspace)
        self.datasets.place(spec, lambda detail: self._set_detail(spec, detail))
        if folders.secrets is not None:
            self._set_detail(spec, FetchingSecrets())
            self.secrets.place(spec)
        self._set_detail(spec, Creating())
        self._open_proxy(spec)
        self.runtime.create(spec, folders)
        write_json(self.files.prepared(spec.name), {})
        self.journal.change(spec.name, created=True)

    def _wait_for_hosts(self, spec: RunSpec) -> None:
        self._set_detail(spec, HostsFirst())
        until = time.monotonic() + HOSTS_FIRST_SECONDS
        while time.monotonic() < until:
            entries = [entry for name, entry in self.journal.entries().items() if name != spec.name]
            if all(entry.running_at or entry.exit for entry in entries if entry.attempt == spec.attempt):
                return
            time.sleep(0.05)

    def _may_use_checkpoints(self, user: str, spec: RunSpec) -> bool:
        """Whether a container may use the job's checkpoints: also one of this attempt on another node that shares them."""
        entry = self.journal.get(user)
        if entry is None:
            return self.files.shared is not None and group_name(user) == spec.group
        return entry.exit is None

    def _start(self, spec: RunSpec) -> None:
        self._set_detail(spec, Starting())
        if not self.may_start(spec.name):
            raise NotReadyError(AwaitingConfirmation())
        if occupied := self.gpu_conflict(tuple(spec.gpus)):
            raise CreateError(occupied)
        self._open_proxy(spec)  # an earlier agent may have prepared it
        self.secrets.place(spec)  # the machine may have been restarted since
        self.journal.change(spec.name, started=True)
        self.shipper.follow(spec.name, self.files.scribe(spec.name), spec.slots)
        self.runtime.start(spec.name)
        self.journal.change(spec.name, running_at=time.time())

    def _update_control(self, spec: RunSpec, control: ControlMessage) -> None:
        # It runs, so if it has no entry, an agent whose disk was lost has started it.
        entry = JournalEntry(spec.job, spec.attempt, spec.number, created=True, started=True, running_at=time.time())
        self.journal.begin(spec.name, entry)
        self._write_control(spec, control)

    def _write_control(self, spec: RunSpec, control: ControlMessage) -> None:
        folder = self.files.control(spec.name)
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "control.json", control.to_json())
        self.journal.change(spec.name, control=control)

    def _finish(self, container: DesiredContainer, seen: ObservedContainer | None) -> None:
        spec = container.spec
        entry = self.journal.get(spec.name)
        exit_file = read_json_beneath(self.files.scribe(spec.name), "exit.json") if entry else {}
        printed = b""
        if seen is not None and entry is not None and entry.started and exits.read_exit(exit_file) is None:
            with contextlib.suppress(EngineError):
                printed = self.runtime.logs(spec.name, MAX_PRINTED_BYTES)
        self._set_detail(spec, SendingLog())
        self.proxies.close(spec.name)
        with contextlib.suppress(PortalError):  # the cause of a failure names the host; else it is sent later
            self.proxies.send(spec)
        if entry is not None and entry.started:
            self._follow(spec)  # if it is not followed yet
            self.shipper.finish(spec.name, LOG_DRAIN_SECONDS)
        self._record_exit(spec, exits.determine_exit(container, seen, entry, exit_file, printed))

    def _record_exit(self, spec: RunSpec, exit: Exit) -> None:
        self.secrets.remove(spec.name)
        self.datasets.remove(spec.name)
        self.journal.begin(spec.name, JournalEntry(spec.job, spec.attempt, spec.number))
        self.journal.change(spec.name, exit=exit)
        logger.info("%s has ended: %s (code %s). %s", spec.name, exit.reason, exit.code, exit.detail)

    def _collect(self, spec: RunSpec) -> None:
        entry = self.journal.get(spec.name)
        if entry is not None and entry.started and spec.role == "host" and self.claims.owns_job_folder(spec):
            # Checkpoints first: the node on which the job continues waits for them.
            checkpoints = self.job_checkpoints(spec)
            in_use = any(self._may_use_checkpoints(user, spec) for user in checkpoints.users() if user != spec.name)
            checkpoints.send(spec.name, ended=not in_use)
        if entry is not None and entry.started:
            self._follow(spec)  # an earlier agent noted the exit
            if not self.shipper.finish(spec.name, COLLECT_SECONDS):
                raise PortalUnavailableError(LogNotSent())
            self.proxies.send(spec)
            if self.claims.owns_attempt_folder(spec):
                self.output_sender(spec).send(spec.name, ended=True)
                if (beside := self._beside_code_sender(spec)) is not None:
                    beside.send(spec.name, ended=True)
        self.journal.change(spec.name, collected=True)

    def _forget(self, name: str) -> None:
        self.shipper.forget(name)
        self.proxies.forget(name)
        self.secrets.remove(name)
        self.datasets.remove(name)
        self.details.pop(name, None)
        self._failing_since.pop(name, None)
        entry = self.journal.get(name)
        if entry is not None and entry.started and not entry.collected:
            self.claims.keep_uncollected(name, entry.attempt)
        self.journal.forget(name)
        if entry is not None:
            self._drop_unused_senders(entry)

    def _drop_unused_senders(self, forgotten: JournalEntry) -> None:
        """Drop the senders of an attempt and of a job that have no more containers here.

        Two objects for the checkpoints of one job would not exclude each other. A container has its entry before it asks
        for them, so under the lock none is dropped that is in use.
        """
        with self._senders_lock:
            left = self.journal.entries().values()
            names = self.journal.entries().keys()
            self._beside = {name: one for name, one in self._beside.items() if name in names}
            if all(entry.attempt != forgotten.attempt for entry in left):
                self.inputs.forget(self.files.inputs(forgotten.attempt))
                self._senders = {key: one for key, one in self._senders.items() if key[0] != forgotten.attempt}
            if all(entry.job != forgotten.job for entry in left):
                self._checkpoints = {key: one for key, one in self._checkpoints.items() if key[0] != forgotten.job}

    def _set_detail(self, spec: RunSpec, detail: Message) -> None:
        self.details[spec.name] = detail

    def complaints(self, spec: RunSpec) -> list[Message]:
        """Return which files were not kept, for the job's page; nothing when all were."""
        with self._senders_lock:
            sender = self._senders.get((spec.attempt, spec.group))
            checkpoints = self._checkpoints.get((spec.job, spec.identity))
            beside = self._beside.get(spec.name)
        found = (
            sender.complaint() if sender else None,
            beside.complaint() if beside else None,
            checkpoints.complaint if checkpoints else None,
        )
        return [message for message in found if message]
