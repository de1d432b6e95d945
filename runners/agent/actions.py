"""Carries out one action for one container. Slow; each runs in a thread of its own.

Raises PortalAwayError, EngineError, TroubleError, BusyError or NotYet when the same action should be tried again later.
What can never work ends the container with ``create_error`` and a sentence.
"""

import contextlib
import errno
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Protocol

from runners.agent import exits, shared_folders
from runners.agent.checkpoints import CheckpointPortal, JobCheckpoints
from runners.agent.claims import Claims, IdentityPortal
from runners.agent.code_store import CodeStore, unpack
from runners.agent.journal import Ledger, delete_tree
from runners.agent.log_shipper import LogShipper
from runners.agent.outputs import OutputPortal, OutputSender
from runners.agent.portal_client import PortalAwayError, PortalError, PortalRefusedError
from runners.agent.reconcile import (
    Action,
    Collect,
    Desired,
    Exit,
    Finish,
    Forget,
    Halt,
    Note,
    Prepare,
    Remove,
    Start,
    Tell,
    Told,
)
from runners.host.exclusive import BusyError
from runners.host.node_files import NodeFiles, read_json_beneath, write_atomic, write_json
from runners.launch.fence import COUNTS_FROM_THE_REPORT, lease_content
from runners.launch.scribe import keep_room
from runners.runtime import ContainerRuntime, CreateError, EngineError, Observed, RunError, TroubleError
from runners.spec import JobIdentity, RunSpec, group_of

logger = logging.getLogger(__name__)

DRAIN_SECONDS = 10.0
"""The end of a container is reported after its log; but a portal that is away does not hold the report up longer."""
COLLECT_SECONDS = 60.0
TROUBLE_SECONDS = 15.0
"""So long a container is tried again with which the engine has trouble: a job that fails for it would be back at once, and
after three times have failed for good."""
PRINTED_BYTES = 2000
HOSTS_FIRST_SECONDS = 3.0
"""So long a driver lets the hosts of its ring that are here start before it: their ranks load while it comes up."""


class NotYet(Exception):  # noqa: N818
    """Something it needs is being prepared. The message says what."""


class Readiness(Protocol):
    def require(self, key: str) -> None:
        """Raises NotYet while the environment is being prepared, CreateError when that failed."""
        ...


class FilesPortal(OutputPortal, CheckpointPortal, IdentityPortal, Protocol):
    """Where files of jobs go."""


class Hands:
    def __init__(
        self,
        files: NodeFiles,
        runtime: ContainerRuntime,
        ledger: Ledger,
        code: CodeStore,
        shipper: LogShipper,
        portal: FilesPortal,
        environments: Readiness,
        may_start: Callable[[str], bool],
        in_use: Callable[[tuple[str, ...]], str] = lambda gpus: "",
    ) -> None:
        self.files = files
        self.runtime = runtime
        self.ledger = ledger
        self.code = code
        self.shipper = shipper
        self.environments = environments
        self.may_start = may_start
        """Whether the portal has just wanted it to run: a container counts its fence from its own start."""
        self.in_use = in_use
        """Why nothing may start on these GPUs: somebody works there without the portal. Empty when nobody does."""
        self.details: dict[str, str] = {}
        """What each container does now, in words."""
        self._trouble_since: dict[str, float] = {}
        """Since when the engine has had trouble with a container that is to start; monotonic."""
        self._portal = portal
        self.claims = Claims(files, ledger, portal)
        self._senders: dict[tuple[int, str], OutputSender] = {}
        """By the number of an attempt and what its containers' names share."""
        self._checkpoints: dict[tuple[int, JobIdentity | None], JobCheckpoints] = {}
        self._senders_lock = threading.Lock()

    def do(self, action: Action, wish: Desired | None, seen: Observed | None) -> None:
        match action:
            case Prepare() if wish:
                self._or_create_error(wish.spec, lambda: self._bring_up(wish))
            case Start() if wish:
                self._or_create_error(wish.spec, lambda: self._start(wish.spec))
            case Tell() if wish:
                self._tell(wish.spec, action.told)
            case Halt():
                self.runtime.stop(action.name, action.grace_seconds)
            case Finish() if wish:
                self._finish(wish, seen)
            case Collect() if wish:
                self._collect(wish.spec)
            case Remove():
                self.runtime.remove(action.name)
            case Forget():
                self._forget(action.name)
            case _:
                raise ValueError(f"{action} needs to know its container.")

    def adopt(self, wish: Desired) -> None:
        """Goes on sending the log of a container that an earlier agent started."""
        spec = wish.spec
        self.shipper.follow(spec.name, self.files.scribe(spec.name), spec.slots, known_to_portal=True)

    def sender(self, spec: RunSpec) -> OutputSender:
        key = (spec.attempt, spec.group)
        with self._senders_lock:
            known = self._senders.get(key)
        if known is not None:
            return known
        memory = self.files.attempt(spec.attempt) / "sent.json"
        made = OutputSender(self.files.outputs(spec.attempt), memory, self._portal)  # reads the disk
        with self._senders_lock:
            return self._senders.setdefault(key, made)

    def checkpoints(self, spec: RunSpec) -> JobCheckpoints:
        made = JobCheckpoints(self.files.job(spec.job), self._portal)
        with self._senders_lock:
            return self._checkpoints.setdefault((spec.job, spec.identity), made)

    def send_outputs(self, running: Callable[[], list[Desired]]) -> float | None:
        """A loop's turn: as far as the portal takes them now; the rest is still there the next time."""
        with contextlib.suppress(PortalError):
            for wish in running():
                with contextlib.suppress(BusyError):
                    if self.claims.has_attempt(wish.spec):
                        self.sender(wish.spec).send(wish.spec.name, ended=False)
        return None

    def send_checkpoints(self, running: Callable[[], list[Desired]]) -> float | None:
        """A loop's turn, like that for outputs."""
        specs = [wish.spec for wish in running()]
        for spec in specs:
            with contextlib.suppress(BusyError):
                self.claims.mark(spec)
        hosts = {spec.job: spec for spec in specs if spec.role == "host"}
        with contextlib.suppress(PortalError):
            for spec in hosts.values():
                with contextlib.suppress(BusyError):
                    if self.claims.has_job(spec):
                        self.checkpoints(spec).send(spec.name, ended=False)
        return None

    def halt(self, wish: Desired, reason: str, detail: str) -> None:
        """The agent's own wish to end it; the portal's word goes before."""
        self.ledger.change(wish.spec.name, halted=reason, halted_detail=detail)
        logger.warning("%s is stopped: %s", wish.spec.name, detail)

    def stop_everything(self, grace_seconds: int) -> None:
        """Whatever runs is ended, and will be reported as lost: the portal may run it again."""
        until = time.monotonic() + grace_seconds + 5
        while time.monotonic() < until and (names := self._running()):
            threads = [threading.Thread(target=self._stop, args=(name, grace_seconds), daemon=True) for name in names]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(max(0.0, until - time.monotonic()))
            # Once more: a start may have been on its way.

    def _running(self) -> list[str]:
        try:
            return [seen.name for seen in self.runtime.list() if seen.state == "running"]
        except EngineError as error:
            logger.warning("The containers could not be stopped: %s", error)
            return []

    def _stop(self, name: str, grace_seconds: int) -> None:
        if self.ledger.get(name) is not None:
            self.ledger.change(name, halted="lost", halted_detail="Its node was switched off.")
        try:
            self.runtime.stop(name, grace_seconds)
        except RunError as error:
            logger.warning("%s could not be stopped: %s", name, error)

    def _or_create_error(self, spec: RunSpec, work: Callable[[], None]) -> None:
        try:
            work()
            self._trouble_since.pop(spec.name, None)
            return
        except CreateError as error:
            if isinstance(error, TroubleError) and self._may_pass(spec.name):
                raise
            sentence = str(error)
        except PortalRefusedError as error:
            if error.status == 401:
                raise PortalAwayError(str(error)) from error
            sentence = f"The portal refused what its start needs: {error}"
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR):
                raise PortalAwayError(f"This machine is short of something: {error.strerror}.") from error
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise NotYet("waiting for room on its node's disk, which is full") from error
            sentence = f"The node could not prepare the job's folders: {error.strerror or error}."
        logger.warning("%s cannot start: %s", spec.name, sentence)
        self._end(spec, Exit(None, "create_error", sentence))

    def _may_pass(self, name: str) -> bool:
        """The engine's trouble with a container is not old yet."""
        now = time.monotonic()
        return now - self._trouble_since.setdefault(name, now) < TROUBLE_SECONDS

    def _bring_up(self, wish: Desired) -> None:
        """Starts it at once: to list what there is first would take longer than all of the rest."""
        self._prepare(wish)
        self._start(wish.spec)

    def _prepare(self, wish: Desired) -> None:
        spec = wish.spec
        self.ledger.begin(spec.name, Note(spec.job, spec.attempt, spec.number))
        if spec.role == "driver":
            self._let_hosts_start(spec)
        self._says(spec, "waiting for its environment")
        self.environments.require(spec.environment)
        if not shared_folders.is_there(self.files):
            raise NotYet("waiting for the folder that the nodes share")
        self.claims.claim(spec)
        folders = self.files.make_container(spec)
        keep_room(folders.scribe)
        write_json(folders.control / "job.json", spec.to_json())
        self._write_told(spec, wish.told)
        if spec.role == "host":
            self._says(spec, "fetching its checkpoints")
            with _fetching("Its checkpoint"):
                self.checkpoints(spec).fetch(
                    spec.name, lambda user: self._lives(user, spec), lambda words: self._says(spec, words)
                )
        self._says(spec, "fetching the code")
        with _fetching("Its code"):
            tar = self.code.fetch(spec.code_sha256)
        if any(folders.workspace.iterdir()):  # an earlier agent was killed here
            delete_tree(folders.workspace)
            folders.workspace.mkdir()
        self._says(spec, "unpacking the code")
        unpack(tar, folders.workspace)
        self._says(spec, "creating the container")
        self.runtime.create(spec, folders)
        self.ledger.change(spec.name, created=True)

    def _let_hosts_start(self, spec: RunSpec) -> None:
        self._says(spec, "letting the hosts start first")
        until = time.monotonic() + HOSTS_FIRST_SECONDS
        while time.monotonic() < until:
            notes = [note for name, note in self.ledger.notes().items() if name != spec.name]
            if all(note.running_at or note.exit for note in notes if note.attempt == spec.attempt):
                return
            time.sleep(0.05)

    def _lives(self, user: str, spec: RunSpec) -> bool:
        """Whether a container of the job may use its checkpoints. On another node that shares them, of this attempt."""
        note = self.ledger.get(user)
        if note is None:
            return self.files.shared is not None and group_of(user) == spec.group
        return note.exit is None

    def _start(self, spec: RunSpec) -> None:
        self._says(spec, "starting")
        if not self.may_start(spec.name):
            raise NotYet("waiting for the portal's word")
        if occupied := self.in_use(tuple(spec.gpus)):
            raise CreateError(occupied)
        self.ledger.change(spec.name, started=True)
        self.shipper.follow(spec.name, self.files.scribe(spec.name), spec.slots)
        self.runtime.start(spec.name)
        self.ledger.change(spec.name, running_at=time.time())

    def _tell(self, spec: RunSpec, told: Told) -> None:
        # It runs, so if there is no note of it, an agent that died with its disk has started it.
        note = Note(spec.job, spec.attempt, spec.number, created=True, started=True, running_at=time.time())
        self.ledger.begin(spec.name, note)
        self._write_told(spec, told)

    def _write_told(self, spec: RunSpec, told: Told) -> None:
        control = self.files.control(spec.name)
        control.mkdir(parents=True, exist_ok=True)
        write_json(control / "control.json", told.to_json())
        self.ledger.change(spec.name, told=told)

    def _finish(self, wish: Desired, seen: Observed | None) -> None:
        spec = wish.spec
        note = self.ledger.get(spec.name)
        said = read_json_beneath(self.files.scribe(spec.name), "exit.json") if note else {}
        printed = b""
        if seen is not None and note is not None and note.started and exits.supervisors_word(said) is None:
            with contextlib.suppress(EngineError):
                printed = self.runtime.logs(spec.name, PRINTED_BYTES)
        self._says(spec, "sending the rest of its log")
        if note is not None and note.started:
            self.adopt(wish)  # unless it is followed already
            self.shipper.finish(spec.name, DRAIN_SECONDS)
        self._end(spec, exits.judge(wish, seen, note, said, printed))

    def _end(self, spec: RunSpec, exit: Exit) -> None:
        self.ledger.begin(spec.name, Note(spec.job, spec.attempt, spec.number))
        self.ledger.change(spec.name, exit=exit)
        logger.info("%s has ended: %s (code %s). %s", spec.name, exit.reason, exit.code, exit.detail)

    def _collect(self, spec: RunSpec) -> None:
        note = self.ledger.get(spec.name)
        if note is not None and note.started and spec.role == "host" and self.claims.has_job(spec):
            # First: where the job goes on, it waits for them.
            checkpoints = self.checkpoints(spec)
            in_use = any(self._lives(user, spec) for user in checkpoints.users() if user != spec.name)
            checkpoints.send(spec.name, ended=not in_use)
        if note is not None and note.started:
            self.shipper.follow(
                spec.name, self.files.scribe(spec.name), spec.slots, known_to_portal=True
            )  # an earlier agent noted the exit
            if not self.shipper.finish(spec.name, COLLECT_SECONDS):
                raise PortalAwayError("The rest of its log could not be sent yet.")
            if self.claims.has_attempt(spec):
                self.sender(spec).send(spec.name, ended=True)
        self.ledger.change(spec.name, collected=True)

    def _forget(self, name: str) -> None:
        self.shipper.forget(name)
        self.details.pop(name, None)
        self._trouble_since.pop(name, None)
        note = self.ledger.get(name)
        if note is not None and note.started and not note.collected:
            self.claims.keep_uncollected(name, note.attempt)
        self.ledger.forget(name)
        if note is not None:
            self._drop_unused(note)

    def _drop_unused(self, forgotten: Note) -> None:
        """Drop the senders of an attempt and a job without containers here.

        Two objects for the checkpoints of one job would not exclude each other. A container has its note before it asks
        for them, so under the lock none is dropped that one uses.
        """
        with self._senders_lock:
            left = self.ledger.notes().values()
            if all(note.attempt != forgotten.attempt for note in left):
                self._senders = {key: one for key, one in self._senders.items() if key[0] != forgotten.attempt}
            if all(note.job != forgotten.job for note in left):
                self._checkpoints = {key: one for key, one in self._checkpoints.items() if key[0] != forgotten.job}

    def _says(self, spec: RunSpec, words: str) -> None:
        self.details[spec.name] = words

    def complaint(self, spec: RunSpec) -> str:
        """What was not kept, for the job's page."""
        with self._senders_lock:
            sender = self._senders.get((spec.attempt, spec.group))
            checkpoints = self._checkpoints.get((spec.job, spec.identity))
        said = (sender.complaint() if sender else "", checkpoints.complaint if checkpoints else "")
        return " ".join(part for part in said if part)


@contextlib.contextmanager
def _fetching(what: str) -> Iterator[None]:
    """Name what the portal refuses to send. An unknown token is no refusal: the agent joins again."""
    try:
        yield
    except PortalRefusedError as error:
        if error.status == 401:
            raise
        raise CreateError(f"{what} could not be fetched: {error}") from error


def counts_from_the_report(files: NodeFiles, name: str) -> bool:
    """Whether a late reply may renew this container's lease: one of an earlier release would count from the reply."""
    return read_json_beneath(files.scribe(name), "status.json").get("lease") == COUNTS_FROM_THE_REPORT


LEASE_BYTES = 160
"""Of each lease: one that is written over an older one leaves nothing of it."""


def renew_lease(files: NodeFiles, name: str, sent_at: float) -> None:
    """A number the supervisor has not seen before, and when the report was sent. On a full disk the old file is written
    over, which needs no room."""
    lease = files.control(name) / "lease"
    content = lease_content(time.time_ns(), sent_at).ljust(LEASE_BYTES)
    try:
        write_atomic(lease, content, sync=False)
    except OSError:
        with contextlib.suppress(FileNotFoundError):
            handle = os.open(lease, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                os.pwrite(handle, content, 0)
            finally:
                os.close(handle)
