"""The program of a node: carries out the desired state of the portal, reports what runs, and survives its own restart.

``python -m runners.agent`` (docs/admin/nodes.md). Level-triggered: whatever happened, each pass compares the desired state with
the observed one and decides what to do. Each loop has one task, so that no slow task delays another:

    reconcile    desired + observed + journal entries -> actions, each in its own thread
    sync         sends the report, every 5 s and when something changed; each reply renews the leases
    wait         the long poll, which wakes sync when the portal has news
    observe      lists the runtime's containers; bounded calls only, never a stream
    networks     joins the networks of attempts that run on several nodes
    facts        reads GPUs, problems and facts of the machine
    network      reports which hosts containers contact through their proxies
    disk limits, caches    enforce the disk limits of running containers and of projects
    tidy         deletes what old jobs left, every hour
    outputs, checkpoints   send files of running containers, every 30 s and 15 s
    logs, environments, git, rank groups   LogShipper, EnvironmentKeeper, SourceFetcher, RankGroupReports

The agent never stops a container because the portal is away: the container runs on, its files are the buffer, and its own
fence ends it when no lease comes.
"""

import logging
import threading
import time
import uuid
from collections.abc import Mapping
from functools import partial
from typing import Any

from runners.agent.actions import ActionExecutor, ActionState, NotReadyError
from runners.agent.caches import CHECK_SECONDS, Caches
from runners.agent.code_store import CodeStore
from runners.agent.dataset_cache import DEFAULT_LIMIT_GIB
from runners.agent.disk_watch import exceeded_limit
from runners.agent.enrol import rotate_token
from runners.agent.environment_keeper import make_keeper, wanted_environments
from runners.agent.job_datasets import JobDatasets
from runners.agent.job_proxies import REPORT_SECONDS
from runners.agent.journal import ContainerJournal, delete_tree
from runners.agent.leases import accepts_late_renewal, renew_lease
from runners.agent.leftovers import tidy
from runners.agent.log_shipper import LogShipper
from runners.agent.loops import Loop, OverdueTracker
from runners.agent.machine import Machine
from runners.agent.networks import Networks
from runners.agent.portal_client import Backoff, PortalClient, PortalError, PortalRefusedError, PortalUnavailableError
from runners.agent.rank_group_reports import RANK_GROUPS_SECONDS, RankGroupReports
from runners.agent.reconcile import (
    Action,
    ContainerListing,
    DesiredContainer,
    Finish,
    JournalEntry,
    leases_to_renew,
    reconcile,
    state_of,
)
from runners.agent.report import container_report, exit_message, node_report, read_phase
from runners.agent.settings import DEFAULT_CACHE_GIB
from runners.agent.sources import SourceFetcher
from runners.environments.builds import Environments
from runners.environments.own_images import OwnImageStore
from runners.host.node_files import NodeFiles
from runners.messages import Message
from runners.messages.problems import EngineAway
from runners.runtime import ContainerRuntime, EngineError, ObservedContainer, RunError
from runners.spec import RunSpec

logger = logging.getLogger("runners.agent")

SYNC_SECONDS = 5.0
MIN_SYNC_INTERVAL_SECONDS = 0.05
"""The least time between two reports, however often sync is woken."""
RETRY_SECONDS = 1.0
"""Between two attempts to reach the portal while leases run out: after a network cut of 25 s the fence allows 4 s."""
OBSERVE_SECONDS = 0.5
ENGINE_RETRY_SECONDS = 2.0
"""Until an engine that did not answer is asked again."""
NETWORKS_SECONDS = 2.0
FACTS_SECONDS = 5.0
DISK_LIMITS_SECONDS = 10.0
OUTPUTS_SECONDS = 30.0
CHECKPOINTS_SECONDS = 15.0
"""A power failure loses at most the work of this time, of the wait until a checkpoint is stable, and of its sending."""
TIDY_SECONDS = 3600.0
RECONCILE_SECONDS = 1.0
MAX_REPLY_SECONDS = 4.0
"""A reply that is older than this, counted from the sending of its report, permits no start and renews no lease that is
counted from the reply: the portal counts from the report, and its margin after the fence is 5 s."""
EXIT_GRACE_SECONDS = 8
"""The grace period of each container with ``--stop-jobs-on-exit``."""


class Agent:
    def __init__(
        self,
        files: NodeFiles,
        portal: PortalClient,
        runtime: ContainerRuntime,
        environments: Environments,
        machine: Machine | None = None,
        cache_gib: int = DEFAULT_CACHE_GIB,
        own_images: OwnImageStore | None = None,
        dataset_cache_gib: int = DEFAULT_LIMIT_GIB,
    ) -> None:
        self.files = files
        self.portal = portal
        self.runtime = runtime
        self.boot = str(uuid.uuid4())
        self.journal = ContainerJournal(files)
        self.networks = Networks(runtime, self.journal)
        self.shipper = LogShipper(portal)
        self.environments = make_keeper(environments, own_images, portal, files.home)
        self.code = CodeStore(files.code, portal)
        self.machine = machine or Machine(files.home, runtime, portal.url)
        self.sources = SourceFetcher(portal, runtime.kind)
        self.machine.add_facts(self.sources.facts)
        self.caches = Caches(files, cache_gib, lambda: {spec.cache for spec in self._desired_specs()})
        self.datasets = JobDatasets(files, portal, dataset_cache_gib, lambda: self._desired or {})
        self.machine.add_facts(self.datasets.facts)
        self.executor = ActionExecutor(
            files,
            runtime,
            self.journal,
            self.code,
            self.shipper,
            portal,
            self.environments,
            self.may_start,
            self.machine.gpu_conflict,
            self.datasets,
        )
        self._lock = threading.Lock()
        """Protects the fields below; never held across a slow call (runners/host/exclusive.py)."""
        self._desired: dict[str, DesiredContainer] | None = None
        """None before the first reply: until then the agent starts and ends nothing."""
        self._replied_at = -1.0
        """When the last report was sent whose reply came in time; monotonic seconds."""
        self._known_digest = ""
        self._listing = ContainerListing()
        self._action_states: dict[str, ActionState] = {}
        self._overdue = OverdueTracker(files)
        self._engine_error: Message | None = None
        self._full_pass = False
        self._backoff = Backoff()
        self._sync_not_before = 0.0
        self._wait_backoff = Backoff()
        self._sync_error = ""
        self._stopping = False
        send_checkpoints = partial(self.executor.send_checkpoints, self._running_containers)
        self._loops = {
            loop.name: loop
            for loop in (
                Loop("facts", FACTS_SECONDS, self.machine.gather),
                Loop("observe", OBSERVE_SECONDS, self._observe),
                Loop("networks", NETWORKS_SECONDS, self._join_networks),
                Loop("sync", SYNC_SECONDS, self._sync),
                Loop("wait", 0.0, self._wait_for_change),
                Loop("reconcile", RECONCILE_SECONDS, self._reconcile),
                Loop("disk limits", DISK_LIMITS_SECONDS, self._enforce_disk_limits),
                Loop("outputs", OUTPUTS_SECONDS, partial(self.executor.send_outputs, self._running_containers)),
                Loop("checkpoints", CHECKPOINTS_SECONDS, send_checkpoints),
                Loop("rank groups", RANK_GROUPS_SECONDS, RankGroupReports(files, portal, self._desired_specs).send),
                Loop("network", REPORT_SECONDS, lambda: self.executor.proxies.send_all(self._desired_specs())),
                Loop("caches", CHECK_SECONDS, self._check_caches),
                Loop("tidy", TIDY_SECONDS, self._tidy),
            )
        }

    # --- start and stop ------------------------------------------------------------------------------------------

    def start(self) -> None:
        self.machine.refresh_gpus()  # before the first report, so that a node is not listed without its GPUs
        self.shipper.start()
        self.environments.start()
        self.sources.start()
        for loop in self._loops.values():
            loop.start()

    def stop(self, *, stop_jobs: bool = False) -> None:
        """Stop all loops. Containers run on unless they are to be stopped too."""
        self._stopping = True
        for loop in self._loops.values():
            loop.end()
        self.environments.stop()
        self.sources.stop()
        if stop_jobs:
            self.executor.stop_everything(EXIT_GRACE_SECONDS)
        self.executor.proxies.close_all()
        self.shipper.stop()
        self.portal.close()
        for loop in self._loops.values():
            loop.join(1.0)

    def _wake(self, *names: str) -> None:
        for name in names:
            self._loops[name].wake_up()

    # --- the portal ----------------------------------------------------------------------------------------------

    def report(self) -> dict[str, Any]:
        """Return the report of the next sync."""
        with self._lock:
            desired, listing, full_pass = self._desired or {}, self._listing, self._full_pass
            busy = {name for name, state in self._action_states.items() if state.busy}
        entries = self.journal.entries(desired)
        problems = self.machine.problems() + self.networks.problems() + self.executor.claims.problems()
        if self._engine_error:
            problems.append(EngineAway(self._engine_error).to_json())
        containers = [
            container_report(container, state, entries.get(name), self._message(container, entries.get(name), state))
            for name, container in desired.items()
            for state in [state_of(container, listing.containers.get(name), entries.get(name), busy=name in busy)]
        ]
        return node_report(
            self.boot, full_pass, self.runtime.kind, self.machine, self.environments, problems, containers
        )

    def _message(self, container: DesiredContainer, entry: JournalEntry | None, state: str) -> Message | None:
        name = container.spec.name
        if entry is not None and entry.exit is not None:
            return exit_message(entry.exit, self.shipper.refusal(name), *self.executor.complaints(container.spec))
        if state == "RUNNING":
            return read_phase(self.files.scribe(name))
        return self.executor.details.get(name)

    def _sync(self) -> float | None:
        sent_at = time.monotonic()
        if sent_at < self._sync_not_before:
            return self._sync_not_before - sent_at
        report = self.report()
        try:
            reply = self.portal.sync(report)
        except PortalError as error:
            if str(error) != self._sync_error:
                self._sync_error = str(error)
                logger.warning("No contact with the portal: %s", error)
            rest = min(RETRY_SECONDS if self._holds_leases() else SYNC_SECONDS, self._backoff.next_pause())
            self._sync_not_before = time.monotonic() + rest
            return rest
        if self._sync_error:
            self._sync_error = ""
            logger.info("The portal answers again.")
            self.shipper.retry_now()
            self._wake("outputs", "checkpoints")
        self._backoff.reset()
        self._sync_not_before = sent_at + MIN_SYNC_INTERVAL_SECONDS
        self.machine.update_clock(reply, sent_at)
        if reply.get("rotate") is True:
            rotate_token(self.files, self.portal)
        try:
            self._apply_reply(reply, sent_at)
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            # Acting on half of a reply could end what should run, so the whole reply is ignored.
            logger.error("The portal's reply is not understood. Has it another version? %r", error)
        return None

    def _apply_reply(self, reply: dict[str, Any], sent_at: float) -> None:
        containers = [DesiredContainer.from_json(entry) for entry in reply["containers"]]
        desired = {container.spec.name: container for container in containers}
        environments = wanted_environments(reply)
        if self._desired is None:  # only this loop sets it
            logger.info("In contact with the portal; %s container(s) are expected here.", len(desired))
            for name, container in desired.items():
                if (entry := self.journal.get(name)) is not None and entry.started:
                    self.executor.adopt(container)
        with self._lock:
            changed = self._desired != desired
            self._desired = desired
            self._known_digest = str(reply.get("seen", ""))
            in_time = time.monotonic() - sent_at <= MAX_REPLY_SECONDS
            if in_time:
                self._replied_at = sent_at
        for name in leases_to_renew(desired, self.journal.entries(desired)):
            if in_time or accepts_late_renewal(self.files, name):
                try:
                    renew_lease(self.files, name, sent_at)
                except OSError as error:  # of one container: it must not delay the leases of the others
                    logger.error(
                        "The lease of %s could not be renewed, so the container will end itself: %s", name, error
                    )
        self.environments.set_wanted(environments)
        self.sources.set_waiting(reply)
        if changed or not self._full_pass:
            self._wake("reconcile", "observe", "networks")

    def _holds_leases(self) -> bool:
        return bool(leases_to_renew(desired := self._desired or {}, self.journal.entries(desired)))

    def may_start(self, name: str) -> bool:
        """Whether a recent reply wants the container to run. If the last reply is older, sync is woken."""
        with self._lock:
            container = (self._desired or {}).get(name)
            recent = time.monotonic() - self._replied_at <= MAX_REPLY_SECONDS
        if not recent:
            self._wake("sync")
        return recent and container is not None and container.wanted == "run"

    def _wait_for_change(self) -> float | None:
        """Wait until the desired state changes, then wake sync. A lost answer delays the sync by at most 5 s."""
        if self._desired is None:
            return 0.2
        with self._lock:
            seen = self._known_digest
        try:
            answer = self.portal.wait_for_change(seen)
        except PortalRefusedError:
            return SYNC_SECONDS
        except PortalUnavailableError:
            return self._wait_backoff.next_pause()
        self._wait_backoff.reset()
        if answer == seen:
            return None
        self._wake("sync")
        # Give sync time to take the change before asking again with the same digest.
        until = time.monotonic() + SYNC_SECONDS
        while self._known_digest == seen and time.monotonic() < until and not self._stopping:
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
            self._engine_error = error.message
            return ENGINE_RETRY_SECONDS
        self._engine_error = None
        with self._lock:
            changed = self._listing.containers != containers
            self._listing = ContainerListing(began, containers)
        if changed:
            self._wake("reconcile", "sync")
        elif not self._full_pass:
            self._wake("reconcile")
        return None

    def _join_networks(self) -> float | None:
        """Join the networks; before the first reply of the portal, change nothing."""
        if (desired := self._desired) is not None:
            self.networks.join(desired)
        return None

    def _enforce_disk_limits(self) -> float | None:
        """End containers over their disk limits. A slow disk is checked less often."""
        began = time.monotonic()
        for container in self._running_containers():
            if (excess := exceeded_limit(self.files, container.spec)) and self.executor.halt(container, "disk", excess):
                self._wake("reconcile")
        return max(DISK_LIMITS_SECONDS, 10 * (time.monotonic() - began))

    def _check_caches(self) -> float | None:
        """Shorten caches that are too large, and end what fills one far beyond its limit. A slow disk is checked less often."""
        if not self._full_pass:
            return SYNC_SECONDS
        began = time.monotonic()
        excess = self.caches.excess({container.spec.cache for container in self._running_containers()})
        for container in self._running_containers():
            if (message := excess.get(container.spec.cache)) and self.executor.halt(container, "disk", message):
                self._wake("reconcile")
        self.caches.check()
        return max(CHECK_SECONDS, 10 * (time.monotonic() - began))

    def _tidy(self) -> float | None:
        if not self._full_pass:
            return SYNC_SECONDS
        listed = self._desired_specs()
        known = self.journal.entries().values()
        jobs, attempts = {spec.job for spec in listed}, {spec.attempt for spec in listed}
        used = jobs | {entry.job for entry in known}, attempts | {entry.attempt for entry in known}
        tidy(self.files, self.portal, *used)
        self.code.tidy()
        self.caches.tidy()
        self.datasets.tidy()
        self.environments.tidy({spec.layer for spec in listed if spec.layer})
        self.executor.claims.find_set_aside()
        return None

    def _desired_specs(self) -> list[RunSpec]:
        with self._lock:
            return [container.spec for container in (self._desired or {}).values()]

    def _running_containers(self) -> list[DesiredContainer]:
        with self._lock:
            listing = self._listing.containers
            return [
                container
                for name, container in (self._desired or {}).items()
                if (seen := listing.get(name)) is not None and seen.state == "running"
            ]

    # --- actions -------------------------------------------------------------------------------------------------

    def _reconcile(self) -> float | None:
        with self._lock:
            if self._desired is None or self._listing.began < 0 or self._stopping:
                return None
            desired, listing = self._desired, self._listing
        entries = self.journal.entries(desired)
        overdue = self._overdue.overdue(desired, listing.containers, entries)
        actions = reconcile(desired, listing.containers, entries, overdue)
        now, soonest = time.monotonic(), RECONCILE_SECONDS
        with self._lock:
            for action in actions:
                state = self._action_states.setdefault(action.name, ActionState())
                if state.busy:
                    continue
                if state.ended_at >= listing.began:
                    self._wake("observe")  # this listing is older than the last action
                elif state.rest_until > now:
                    soonest = min(soonest, state.rest_until - now)
                else:
                    state.busy = True
                    about = (action, desired.get(action.name), listing.containers.get(action.name), state)
                    name = f"{type(action).__name__.lower()} {action.name}"
                    threading.Thread(target=self._run_action, args=about, name=name, daemon=True).start()
            for name in [name for name in self._action_states if name not in desired and name not in entries]:
                if not self._action_states[name].busy and name not in listing.containers:
                    del self._action_states[name]
        self._check_full_pass(desired, listing, entries)
        return soonest

    def _run_action(
        self, action: Action, container: DesiredContainer | None, seen: ObservedContainer | None, state: ActionState
    ) -> None:
        rest = 0.0
        try:
            if isinstance(action, Finish) and container is not None and container.spec.gpu_kind == "cuda":
                self.machine.refresh_gpus()  # reports a failed GPU together with the end of the job that failed on it
            self.executor.execute(action, container, seen)
            state.backoff.reset()
            if not isinstance(action, Finish):
                self.executor.details.pop(action.name, None)
        except NotReadyError as reason:
            self.executor.details[action.name] = reason.message
            rest = 0.3
        except (PortalError, RunError) as error:
            self.executor.details[action.name] = error.message
            rest = state.backoff.next_pause()
            if state.backoff.failures in (1, 10):
                logger.info("%s of %s waits: %s", type(action).__name__, action.name, error)
        except Exception:
            rest = state.backoff.next_pause()
            logger.exception("%s of %s failed; it is tried again.", type(action).__name__, action.name)
        with self._lock:
            state.busy = False
            state.ended_at = time.monotonic()
            state.rest_until = state.ended_at + rest
        self._wake("observe", "reconcile", "networks", *(() if rest else ("sync",)))

    def _check_full_pass(
        self, desired: Mapping[str, DesiredContainer], listing: ContainerListing, entries: Mapping[str, JournalEntry]
    ) -> None:
        """Record when the reports become complete: expected containers are adopted, all others are removed."""
        if self._full_pass or listing.began < self._replied_at or self._replied_at < 0:
            return
        if any(name not in desired for name in listing.containers):
            return
        for folder in self.files.containers.iterdir():
            if folder.name not in entries and folder.name not in desired and self.journal.get(folder.name) is None:
                delete_tree(folder)  # left by an agent that was killed while it forgot a container
        self._full_pass = True  # only this loop sets it
        logger.info("The first full pass is complete: this node is ready.")
        self._wake("sync")
