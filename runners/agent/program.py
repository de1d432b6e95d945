"""The node's program: carries out what the portal wants, reports what is, and survives its own restart.

``python -m runners.agent`` (docs/nodes.md). Level-triggered: whatever happened, the next look at what is wanted and at
what is there decides what to do. Several loops, each with one duty, so that no slow thing holds up another:

    reconcile    desired + observed + notes -> actions, each in a thread of its own
    sync         report and ask, every 5 s and when something changed; each reply renews the leases
    wait         the long poll: a doorbell for sync
    observe      list the runtime's containers; bounded calls only, never a stream
    networks     joins the networks of attempts that are on several nodes
    facts        GPUs, problems, the machine's facts
    tend         disk limits of running containers
    tidy         what long gone jobs left, every hour
    outputs, checkpoints   files of running containers, every 30 s and 15 s
    logs, environments, rings   LogShipper, EnvironmentKeeper, RingReports

A container is never touched for the portal's absence: it runs on, its files are the buffer, and its own fence ends it
when no lease comes.
"""

import logging
import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from runners.agent import shared_folders
from runners.agent.actions import Hands, NotYet, counts_from_the_report, renew_lease
from runners.agent.code_store import CodeStore
from runners.agent.disk_watch import over_limit, tidy
from runners.agent.enrol import take_new_token
from runners.agent.environment_keeper import EnvironmentKeeper
from runners.agent.journal import Ledger, delete_tree
from runners.agent.log_shipper import LogShipper
from runners.agent.loops import Loop, Patience
from runners.agent.machine import Machine
from runners.agent.networks import Networks
from runners.agent.portal_client import Backoff, PortalAwayError, PortalClient, PortalError, PortalRefusedError
from runners.agent.reconcile import Action, Desired, Finish, Note, reconcile, renewed, state_of
from runners.agent.ring_reports import RINGS_SECONDS, RingReports
from runners.agent.settings import Identity, Settings, identify, lock_home, make_runtime
from runners.agent.signals import StopSignal
from runners.environments.builds import Environments
from runners.host.node_files import NodeFiles, read_json_beneath
from runners.runtime import ContainerRuntime, EngineError, Observed, RunError, SetupError
from runners.spec import RunSpec

logger = logging.getLogger("runners.agent")

SYNC_SECONDS = 5.0
SYNC_GAP_SECONDS = 0.05
"""At least, between two reports, however often the bell rings."""
RETRY_SECONDS = 1.0
"""Between two tries to reach the portal while leases run out: beside a cut of 25 s the fence allows 4 s."""
OBSERVE_SECONDS = 0.5
ENGINE_SECONDS = 2.0  # until an engine that did not answer is asked again
NETWORKS_SECONDS = 2.0
FACTS_SECONDS = 5.0
TEND_SECONDS = 10.0
OUTPUTS_SECONDS = 30.0
CHECKPOINTS_SECONDS = 15.0
"""A power failure costs at most this, what a checkpoint needs to settle, and the time to send it."""
TIDY_SECONDS = 3600.0
RECONCILE_SECONDS = 1.0
PROMPT_SECONDS = 4.0
"""A reply older than this, counted from when its report was sent, allows no start, and renews no lease that is counted
from the reply: the portal counts from the report, and its margin behind the fence is 5 s."""
EXIT_STOP_SECONDS = 8  # ``--stop-jobs-on-exit``: what each container gets


@dataclass(frozen=True, slots=True)
class Look:
    """One listing of the runtime's containers; ``began`` is monotonic."""

    began: float = -1.0
    containers: Mapping[str, Observed] = field(default_factory=dict)


@dataclass(slots=True)
class Deed:
    """What happens, or last happened, for one container."""

    busy: bool = False
    ended_at: float = 0.0
    """Looks begun before this are too old to act on."""
    rest_until: float = 0.0
    backoff: Backoff = field(default_factory=lambda: Backoff(0.5, 15.0))


class Agent:
    def __init__(
        self,
        files: NodeFiles,
        portal: PortalClient,
        runtime: ContainerRuntime,
        environments: Environments,
        machine: Machine | None = None,
    ) -> None:
        self.files = files
        self.portal = portal
        self.runtime = runtime
        self.boot = str(uuid.uuid4())
        self.ledger = Ledger(files)
        self.networks = Networks(runtime, self.ledger)
        self.shipper = LogShipper(portal)
        self.environments = EnvironmentKeeper(environments)
        self.code = CodeStore(files.code, portal)
        self.machine = machine or Machine(files.home, runtime, portal.url)
        self.hands = Hands(
            files,
            runtime,
            self.ledger,
            self.code,
            self.shipper,
            portal,
            self.environments,
            self.may_start,
            self.machine.in_use,
        )
        self._lock = threading.Lock()
        """Protects the fields below; never held across a slow call (runners/host/exclusive.py)."""
        self._desired: dict[str, Desired] | None = None
        """None before the first reply: until then nothing is begun and nothing ended."""
        self._replied_at = -1.0
        """When the report was sent whose reply came in time; monotonic."""
        self._seen = ""
        self._look = Look()
        self._deeds: dict[str, Deed] = {}
        self._patience = Patience(files)
        self._engine_error = ""
        self._full_pass = False
        self._backoff = Backoff()
        self._sync_not_before = 0.0
        self._wait_backoff = Backoff()
        self._said = ""
        self._stopping = False
        self._loops = {
            loop.name: loop
            for loop in (
                Loop("facts", FACTS_SECONDS, self.machine.gather),
                Loop("observe", OBSERVE_SECONDS, self._observe),
                Loop("networks", NETWORKS_SECONDS, self._join_networks),
                Loop("sync", SYNC_SECONDS, self._sync),
                Loop("wait", 0.0, self._wait),
                Loop("reconcile", RECONCILE_SECONDS, self._reconcile),
                Loop("tend", TEND_SECONDS, self._tend),
                Loop("outputs", OUTPUTS_SECONDS, partial(self.hands.send_outputs, self._running)),
                Loop("checkpoints", CHECKPOINTS_SECONDS, partial(self.hands.send_checkpoints, self._running)),
                Loop("rings", RINGS_SECONDS, RingReports(files, portal, self._specs).turn),
                Loop("tidy", TIDY_SECONDS, self._tidy),
            )
        }

    # --- life ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self.machine.count_gpus()  # before the first report, so that a node is not listed without its GPUs
        self.shipper.start()
        self.environments.start()
        for loop in self._loops.values():
            loop.start()

    def stop(self, *, stop_jobs: bool = False) -> None:
        """Lets go of everything; containers run on unless they are to be stopped too."""
        self._stopping = True
        for loop in self._loops.values():
            loop.end()
        self.environments.stop()
        if stop_jobs:
            self.hands.stop_everything(EXIT_STOP_SECONDS)
        self.shipper.stop()
        self.portal.close()
        for loop in self._loops.values():
            loop.join(1.0)

    def _ring(self, *names: str) -> None:
        for name in names:
            self._loops[name].bell.set()

    # --- the portal ----------------------------------------------------------------------------------------------

    def report(self) -> dict[str, Any]:
        with self._lock:
            desired, look, full_pass = self._desired or {}, self._look, self._full_pass
            busy = {name for name, deed in self._deeds.items() if deed.busy}
        notes = self.ledger.notes(desired)
        problems = self.machine.problems() + self.networks.problems() + self.hands.claims.problems()
        if self._engine_error:
            problems.append({"text": self._engine_error, "mend": "Start the engine of this machine.", "blocking": True})
        return {
            "boot": self.boot,
            "full_pass": full_pass,
            "runtime": self.runtime.kind,
            "facts": self.machine.facts(),
            "problems": problems,
            "gpus": self.machine.gpus(),
            "environments": self.environments.reports(),
            "containers": [
                self._entry(wish, look.containers.get(name), notes.get(name), name in busy)
                for name, wish in desired.items()
            ],
        }

    def _entry(self, wish: Desired, seen: Observed | None, note: Note | None, busy: bool) -> dict[str, Any]:
        name = wish.spec.name
        state = state_of(wish, seen, note, busy=busy)
        exit = note.exit if note else None
        return {
            "name": name,
            "epoch": wish.spec.number,
            "state": state,
            "detail": self._detail(wish, note, state),
            "running_at": note.running_at if note else None,
            "exit_code": exit.code if exit else None,
            "exit_reason": exit.reason if exit else "",
            "collected": bool(note and note.collected),
        }

    def _detail(self, wish: Desired, note: Note | None, state: str) -> str:
        name = wish.spec.name
        if note is not None and note.exit is not None:
            complaints = (note.exit.detail, self.shipper.refusal(name), self.hands.complaint(wish.spec))
            return " ".join(part for part in complaints if part)[:2000]
        if state == "RUNNING":
            phase = read_json_beneath(self.files.scribe(name), "status.json").get("phase")
            return phase[:200] if isinstance(phase, str) else ""
        return self.hands.details.get(name, "")

    def _sync(self) -> float | None:
        sent_at = time.monotonic()
        if sent_at < self._sync_not_before:
            return self._sync_not_before - sent_at
        report = self.report()
        try:
            reply = self.portal.sync(report)
        except PortalError as error:
            if str(error) != self._said:
                self._said = str(error)
                logger.warning("No contact with the portal: %s", error)
            rest = min(RETRY_SECONDS if self._holds_leases() else SYNC_SECONDS, self._backoff.failed())
            self._sync_not_before = time.monotonic() + rest
            return rest
        if self._said:
            self._said = ""
            logger.info("The portal is back.")
            self.shipper.hurry()
            self._ring("outputs", "checkpoints")
        self._backoff.worked()
        self._sync_not_before = sent_at + SYNC_GAP_SECONDS
        self.machine.heard(reply, sent_at)
        if reply.get("rotate") is True:
            take_new_token(self.files, self.portal)
        try:
            self._take(reply, sent_at)
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            # Acting on half of it could end what should run: the whole reply is as if it had not come.
            logger.error("The portal's reply is not understood, is it of another version? %r", error)
        return None

    def _take(self, reply: dict[str, Any], sent_at: float) -> None:
        wishes = [Desired.from_json(entry) for entry in reply["containers"]]
        desired = {wish.spec.name: wish for wish in wishes}
        environments = [str(key) for key in reply.get("environments", ())]
        if self._desired is None:  # only this loop sets it
            logger.info("In contact with the portal; %s container(s) are expected here.", len(desired))
            for name, wish in desired.items():
                if (note := self.ledger.get(name)) is not None and note.started:
                    self.hands.adopt(wish)
        with self._lock:
            changed = self._desired != desired
            self._desired = desired
            self._seen = str(reply.get("seen", ""))
            prompt = time.monotonic() - sent_at <= PROMPT_SECONDS
            if prompt:
                self._replied_at = sent_at
        for name in renewed(desired, self.ledger.notes(desired)):
            if prompt or counts_from_the_report(self.files, name):
                try:
                    renew_lease(self.files, name, sent_at)
                except OSError as error:  # of one container: the others' must not wait for it
                    logger.error("The lease of %s could not be renewed, it will end by itself: %s", name, error)
        self.environments.want(environments)
        if changed or not self._full_pass:
            self._ring("reconcile", "observe", "networks")

    def _holds_leases(self) -> bool:
        return bool(renewed(desired := self._desired or {}, self.ledger.notes(desired)))

    def may_start(self, name: str) -> bool:
        """A start needs the portal's word of the last seconds; asks for it when it is older."""
        with self._lock:
            wish = (self._desired or {}).get(name)
            recent = time.monotonic() - self._replied_at <= PROMPT_SECONDS
        if not recent:
            self._ring("sync")
        return recent and wish is not None and wish.wanted == "run"

    def _wait(self) -> float | None:
        """The doorbell. Its loss costs nothing but up to 5 s."""
        if self._desired is None:
            return 0.2
        with self._lock:
            seen = self._seen
        try:
            answer = self.portal.wait(seen)
        except PortalRefusedError:
            return SYNC_SECONDS
        except PortalAwayError:
            return self._wait_backoff.failed()
        self._wait_backoff.worked()
        if answer == seen:
            return None
        self._ring("sync")
        # Let the sync take it in before asking again with the same digest.
        until = time.monotonic() + SYNC_SECONDS
        while self._seen == seen and time.monotonic() < until and not self._stopping:
            time.sleep(0.02)
        return None

    # --- this machine --------------------------------------------------------------------------------------------

    def _observe(self) -> float | None:
        began = time.monotonic()
        try:
            containers = {seen.name: seen for seen in self.runtime.list()}
        except EngineError as error:
            if not self._engine_error:
                logger.warning("%s", error)
            self._engine_error = str(error)
            return ENGINE_SECONDS
        self._engine_error = ""
        with self._lock:
            changed = self._look.containers != containers
            self._look = Look(began, containers)
        if changed:
            self._ring("reconcile", "sync")
        elif not self._full_pass:
            self._ring("reconcile")
        return None

    def _join_networks(self) -> float | None:
        """Nothing is touched without the portal's word."""
        if (desired := self._desired) is not None:
            self.networks.join(desired)
        return None

    def _tend(self) -> float | None:
        """Ends containers over their disk limits. A slow disk is looked at less often."""
        began = time.monotonic()
        for wish in self._running():
            if sentence := over_limit(self.files, wish.spec):
                note = self.ledger.get(wish.spec.name)
                if note is not None and not note.halted and note.exit is None:
                    self.hands.halt(wish, "disk", sentence)
                    self._ring("reconcile")
        return max(TEND_SECONDS, 10 * (time.monotonic() - began))

    def _tidy(self) -> float | None:
        if not self._full_pass:
            return SYNC_SECONDS
        listed = self._specs()
        known = self.ledger.notes().values()
        jobs, attempts = {spec.job for spec in listed}, {spec.attempt for spec in listed}
        tidy(self.files, jobs | {note.job for note in known}, attempts | {note.attempt for note in known})
        self.code.tidy()
        self.hands.claims.look()
        return None

    def _specs(self) -> list[RunSpec]:
        with self._lock:
            return [wish.spec for wish in (self._desired or {}).values()]

    def _running(self) -> list[Desired]:
        with self._lock:
            look = self._look.containers
            return [
                wish
                for name, wish in (self._desired or {}).items()
                if (seen := look.get(name)) is not None and seen.state == "running"
            ]

    # --- doing ---------------------------------------------------------------------------------------------------

    def _reconcile(self) -> float | None:
        with self._lock:
            if self._desired is None or self._look.began < 0 or self._stopping:
                return None
            desired, look = self._desired, self._look
        notes = self.ledger.notes(desired)
        actions = reconcile(desired, look.containers, notes, self._patience.overdue(desired, look.containers, notes))
        now, soonest = time.monotonic(), RECONCILE_SECONDS
        with self._lock:
            for action in actions:
                deed = self._deeds.setdefault(action.name, Deed())
                if deed.busy:
                    continue
                if deed.ended_at >= look.began:
                    self._ring("observe")  # it would act on what was, not on what is
                elif deed.rest_until > now:
                    soonest = min(soonest, deed.rest_until - now)
                else:
                    deed.busy = True
                    thread = threading.Thread(
                        target=self._carry_out,
                        args=(action, desired.get(action.name), look.containers.get(action.name), deed),
                        name=f"{type(action).__name__.lower()} {action.name}",
                        daemon=True,
                    )
                    thread.start()
            for name in [name for name in self._deeds if name not in desired and name not in notes]:
                if not self._deeds[name].busy and name not in look.containers:
                    del self._deeds[name]
        self._note_full_pass(desired, look, notes)
        return soonest

    def _carry_out(self, action: Action, wish: Desired | None, seen: Observed | None, deed: Deed) -> None:
        rest = 0.0
        try:
            if isinstance(action, Finish) and wish is not None and wish.spec.gpu_kind == "cuda":
                self.machine.count_gpus()  # its failure is told with the end of what failed by it
            self.hands.do(action, wish, seen)
            deed.backoff.worked()
            if not isinstance(action, Finish):
                self.hands.details.pop(action.name, None)
        except NotYet as reason:
            self.hands.details[action.name] = str(reason)
            rest = 0.3
        except (PortalError, RunError) as error:
            self.hands.details[action.name] = str(error)
            rest = deed.backoff.failed()
            if deed.backoff.failures in (1, 10):
                logger.info("%s of %s waits: %s", type(action).__name__, action.name, error)
        except Exception:
            rest = deed.backoff.failed()
            logger.exception("%s of %s went wrong; it is tried again.", type(action).__name__, action.name)
        with self._lock:
            deed.busy = False
            deed.ended_at = time.monotonic()
            deed.rest_until = deed.ended_at + rest
        self._ring("observe", "reconcile", "networks", *(() if rest else ("sync",)))

    def _note_full_pass(self, desired: Mapping[str, Desired], look: Look, notes: Mapping[str, Note]) -> None:
        """From now on what is reported is complete: what was expected is adopted, what was not is gone."""
        if self._full_pass or look.began < self._replied_at or self._replied_at < 0:
            return
        if any(name not in desired for name in look.containers):
            return
        for folder in self.files.containers.iterdir():
            if folder.name not in notes and folder.name not in desired and self.ledger.get(folder.name) is None:
                delete_tree(folder)  # of an agent that was killed while it forgot a container
        self._full_pass = True  # only this loop sets it
        logger.info("The first full pass is done: this node is ready.")
        self._ring("sync")


def run(settings: Settings) -> int:
    """The agent's whole life. Raises SetupError when it cannot begin."""
    stop = StopSignal(signal.SIGTERM, signal.SIGINT)
    files = NodeFiles(settings.home, settings.datasets, settings.shared)
    lock = lock_home(files)
    try:
        shared_folders.begin(files)
        identity: Identity = identify(settings, files, stop)
        runtime, environments = make_runtime(identity, files, settings.ring_address)
        portal = settings.client(settings.url or identity.url, identity.token)
        machine = Machine(files.home, runtime, portal.url, settings.ring_address, files)
        agent = Agent(files, portal, runtime, environments, machine)
        try:
            agent.start()
        except ValueError as error:  # nonsense in SCHEDULEARN_CPU_SLOTS
            raise SetupError(str(error)) from error
        logger.info("Agent of node %s (%s, %s) at %s.", identity.node, identity.name, runtime.kind, portal.url)
        stop.wait()
        logger.info("Stopping%s.", " with all containers" if settings.stop_jobs_on_exit else "; containers run on")
        agent.stop(stop_jobs=settings.stop_jobs_on_exit)
    finally:
        lock.close()
    return 0


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    try:
        return run(Settings.read(sys.argv[1:], os.environ))
    except SetupError as error:
        logger.error("%s", error)
        return 2
