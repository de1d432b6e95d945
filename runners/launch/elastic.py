"""Horovod's ElasticDriver on our rendezvous: the only module that needs Horovod.

Five things differ from ``horovodrun``: ranks ask for host updates instead of being called (see ``shim``); updates are
repeated until the group has changed, because Horovod drops what arrives while it forms a ring; hosts keep their order; a
group that grows trains on until its new ranks are ready (``joining_ranks``); and a group that is over ends, even if the
end of a rank was noticed too late to count.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from horovod.runner.elastic import driver as horovod_driver
from horovod.runner.elastic.discovery import HostManager
from horovod.runner.elastic.worker import HostUpdateResult

from runners.launch.discovery import Discovery, order_hosts
from runners.launch.fence import seconds_from_env
from runners.launch.group_log import MAX_GROUPS
from runners.launch.host_updates import HostUpdates, late_ranks, stuck_ranks
from runners.launch.hosts import Hosts, RankRun
from runners.launch.joining_ranks import JoiningRanks
from runners.launch.rendezvous import Store
from runners.launch.slots import slot_env
from runners.messages import Message, Quotation
from runners.messages.launch import (
    HorovodRankEnded,
    LacksHosts,
    NoRankSucceeded,
    RanksCouldNotContinue,
    RestartedWithoutCommit,
)
from runners.spec import CollectiveGroup

ELASTIC_SECONDS = 120
"""How long a group that has lost too many ranks waits for new hosts (HOROVOD_ELASTIC_TIMEOUT).
``SCHEDULEARN_ELASTIC_SECONDS`` shortens it in tests."""
MAX_RESTARTS_WITHOUT_COMMIT = 5
"""How many restarts in a row on the same hosts without a commit end the attempt. A job sets another number with
``SCHEDULEARN_RING_RETRIES``."""
REPEAT_SECONDS = 3.0
NO_HOST = "none"
"""Takes the place of the live hosts' addresses when ranks are to drop all their connections."""
NO_PLACE = "-1,-1,-1,-1,-1,-1"
BARRIER_SECONDS = 1.0
"""Long enough after the end of a group that no thread is still leaving the barrier."""
STOP_SECONDS = 20.0
"""Time for a rank to end that was asked to. Its supervisor kills it earlier."""

HostManager.order_available_hosts = staticmethod(order_hosts)


class Rendezvous:
    """The rendezvous server of ElasticDriver: it provides an empty store for each new group."""

    def __init__(
        self,
        store: Store,
        host_updates: HostUpdates,
        hosts: Hosts,
        joining_ranks: JoiningRanks,
        on_formed: Callable[[list[str]], None],
    ) -> None:
        self._store = store
        self._updates = host_updates
        self._joining_ranks = joining_ranks
        self._hosts = hosts
        self._on_formed = on_formed

    def init(self, plan: list[Any]) -> None:
        self._store.clear()
        self._updates.discard()
        self._joining_ranks.record_group(plan)
        for slot in plan:
            self._hosts.label(slot.hostname, slot.local_rank, slot.rank)
        self._on_formed([slot.hostname for slot in plan])

    def stop(self) -> None:
        """Do nothing: the server outlives this group, because supervisors still have to learn how it ended."""


@dataclass
class _PlaceAnswer:
    """The answer to a rank that asked for its place."""

    request: str
    text: str = NO_PLACE
    ready: threading.Event = field(default_factory=threading.Event)


class ElasticGroup(horovod_driver.ElasticDriver):
    """The ranks of an elastic Horovod job, and the driver that leads them."""

    def __init__(
        self,
        hosts: Hosts,
        store: Store,
        host_updates: HostUpdates,
        discovery: Discovery,
        group: CollectiveGroup,
        on_formed: Callable[[list[str]], None],
        patience_seconds: float,
        restarts_without_commit: Callable[[], int],
        max_restarts_without_commit: int = MAX_RESTARTS_WITHOUT_COMMIT,
    ) -> None:
        """``restarts_without_commit`` counts the latest restarts of the same hosts (``GroupLog``)."""
        self._patience = patience_seconds
        self._restarts_without_commit = restarts_without_commit
        self._max_restarts = max_restarts_without_commit
        self.problem: Message | None = None
        """Why the ranks could not continue, for the user."""
        self.lacks_hosts = False
        """Whether it ended because too few hosts were available."""
        self.min_ranks = group.min_ranks
        self._hosts = hosts
        self._updates = host_updates
        self._discovery = discovery
        self.joining_ranks = JoiningRanks(hosts)
        self._started = threading.Event()
        self.ended = threading.Event()
        self._answers: dict[tuple[str, int], _PlaceAnswer] = {}
        self._answers_lock = threading.Lock()
        self._waiting: dict[tuple[str, int], float] = {}
        """Since when each rank waits for its place."""
        self._late_at = 0.0
        rendezvous = Rendezvous(store, host_updates, hosts, self.joining_ranks, on_formed)
        self._timeout_seconds = round(seconds_from_env(os.environ, "SCHEDULEARN_ELASTIC_SECONDS", ELASTIC_SECONDS))
        super().__init__(rendezvous, self, group.min_ranks, group.max_ranks, timeout=self._timeout_seconds)

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """Return the hosts that may be used (Horovod's ``HostDiscovery``). Called once a second, even before any host came."""
        available = self._discovery.find_available_hosts_and_slots()
        return self.joining_ranks.usable_slots(available, self.host_assignments, self.min_ranks)

    def get_worker_client(self, slot_info: Any) -> Any:
        return self._updates.mailbox(slot_info.hostname, slot_info.local_rank)

    def begin(self) -> None:
        """Start the first ranks, or take over those that an earlier driver has started.

        Ranks that are taken over continue undisturbed. Other hosts join when the group forms again.
        """
        found = self._hosts.slots_to_take_over()
        if not found:
            self.start(self.min_ranks, self.create_worker)
        else:
            self._discovery.only = frozenset(found)
            self._min_num_proc = min(self.min_ranks, sum(found.values()))  # more may be lost than it can do without
            self.start(self._min_num_proc, self.create_worker)
            self._min_num_proc = self.min_ranks
            self._discovery.only = None
            for host, slots in found.items():
                for slot in range(slots):
                    self._updates.mailbox(host, slot)
            self.drop_connections()  # the ranks do not know yet which hosts were lost with the earlier driver
        self._started.set()

    def drop_connections(self) -> None:
        """Have the ranks drop their connections to hosts that are gone, so that they fail at once and form a new group.

        Otherwise they would notice only at Gloo's timeout.
        """
        if alive := self._hosts.addresses():
            self._updates.drop_connections(alive)

    def place(self, host: str, slot: int, request: str) -> str:
        """Wait until all ranks have come to form a ring, then return which rank this one is now, -1 for none.

        A request that is repeated because its answer did not arrive is not counted again.
        """
        self._started.wait()
        with self._answers_lock:
            answer = self._answers.get((host, slot))
            repeated = answer is not None and bool(request) and answer.request == request
            if answer is None or not repeated:
                answer = self._answers[host, slot] = _PlaceAnswer(request)
        if repeated:
            answer.ready.wait()
            return answer.text
        try:
            if self.has_rank_assignment(host, slot):
                self._waiting[host, slot] = time.monotonic()
                self.record_ready(host, slot)
            if self.problem:  # with its old place it would form the old group again
                self.ended.wait(STOP_SECONDS)
            answer.text = str(self.get_slot_info(host, slot).to_response_string())
        finally:
            self._waiting.pop((host, slot), None)
            answer.ready.set()
        return answer.text

    def end_stuck_ranks(self) -> list[RankRun]:
        """Make late ranks leave a ring that others have left, and end and return those that hang. Called repeatedly.

        A ring is over once a rank waits here for the next one. Ranks that are still in it may wait for the answer of that
        rank, or of a lost node, until Gloo's timeout, so they are made to drop their connections. One that does not come
        then either hangs.
        """
        waiting, now = dict(self._waiting), time.monotonic()
        placed = {(host, slot.local_rank) for host, slots in dict(self.host_assignments).items() for slot in slots}
        if late := late_ranks(waiting, placed, now, self._late_at):
            self._late_at = now
            self._updates.drop_connections([NO_HOST], late)
        with self._answers_lock:
            started = self._answers.keys() | self._updates.training_ranks()
        stuck = stuck_ranks(waiting, placed, started, now, self._patience)
        living = [run for run in self._hosts.runs() if not (run.ended.is_set() or run.stopped_by_us)]
        hanging = [run for run in living if (run.host, run.slot) in stuck]
        for run in hanging:
            self._hosts.stop(run)
        return hanging

    def resume(self) -> None:
        if self._restarts_without_commit() >= self._max_restarts:
            self.problem = RestartedWithoutCommit(self._max_restarts)
            raise RuntimeError(self.problem.text)
        try:
            super().resume()
        except horovod_driver.timeout.TimeoutException:
            self.lacks_hosts = True
            self.problem = LacksHosts(self.min_ranks, self._timeout_seconds)
            raise
        except Exception as error:
            self.problem = RanksCouldNotContinue(str(error))
            raise

    def create_worker(self, slot_info: Any, events: list[threading.Event]) -> tuple[int, float]:
        """Run a rank from start to end, in its own thread. Returns its exit code, and a time that orders the ends."""
        place = (slot_info.hostname, slot_info.local_rank)
        run = self.joining_ranks.take(*place) or self._hosts.take_over(*place)
        if run is None:
            with self._answers_lock:
                self._answers.pop(place, None)  # an earlier rank's
            self._updates.reset_rank(*place)
            run = self._hosts.start(*place, slot_info.rank, slot_env(slot_info))
        while not run.ended.wait(0.5):
            if any(event.is_set() for event in events):
                self._hosts.stop(run)
                run.ended.wait(STOP_SECONDS)
                break
        return (run.code if run.ended.is_set() else 1), time.monotonic()

    def _handle_worker_exit(self, slot_info: Any, exit_code: int, timestamp: float) -> None:
        with suppress(threading.BrokenBarrierError):  # see release_barrier
            super()._handle_worker_exit(slot_info, exit_code, timestamp)

    def release_barrier(self) -> None:
        """Abort Horovod's barrier once the group is over. Runs in its own thread.

        Otherwise the thread of a rank that exited during the shutdown would wait there for ever, and ``get_results`` too.
        """
        self._shutdown.wait()
        while not self.ended.wait(BARRIER_SECONDS):
            self._worker_registry._barrier.abort()

    def repeat_updates(self) -> None:
        """Repeat host updates until the group is over. Does nothing while the group has the ranks that the hosts allow."""
        while not self._shutdown.wait(REPEAT_SECONDS):
            with self._wait_hosts_cond:
                try:
                    self._notify_workers_host_changes(self._host_manager.current_hosts, HostUpdateResult.mixed)
                except Exception:
                    logging.exception("host updates could not be repeated")

    def is_blacklisted(self, host: str) -> bool:
        return bool(self._host_manager.is_blacklisted(host)) or self.joining_ranks.has_failed(host)


def restart_limit(env: Mapping[str, str]) -> int:
    """Return the restart limit of a job with these variables. ``GroupLog`` can count no further than it keeps groups."""
    wanted = env.get("SCHEDULEARN_RING_RETRIES", "")
    valid = wanted.isascii() and wanted.isdecimal() and 0 < int(wanted) <= MAX_GROUPS - 2
    return int(wanted) if valid else MAX_RESTARTS_WITHOUT_COMMIT


def run_elastic(group: ElasticGroup) -> tuple[int, Message | None]:
    """Run the ranks from their start to the end of the last. Returns an exit code, 0 for success, and a message."""
    threading.Thread(target=group.repeat_updates, name="repeat updates", daemon=True).start()
    threading.Thread(target=group.release_barrier, name="release barrier", daemon=True).start()
    group.begin()
    results = group.get_results()
    group.ended.set()
    group.stop()
    if group.problem:  # how its ranks ended follows from that
        return 1, group.problem
    ended = sorted(results.worker_results.items(), key=lambda item: item[1][1])
    for name, (code, _) in ended:
        if code != 0:
            return int(code), HorovodRankEnded(str(name), int(code))
    if ended:
        return 0, None
    return 1, Quotation(results.error_message) if results.error_message else NoRankSucceeded()
