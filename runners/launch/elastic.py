"""Horovod's ElasticDriver on our rendezvous: the one module that needs Horovod.

Five things differ from ``horovodrun``: ranks ask for news instead of being called (see ``shim``); news is repeated
until the ring has changed, because Horovod forgets what arrives while it forms a ring; hosts keep their order; a ring
that grows trains on until its new ranks are ready (``joining_ranks``); and a ring that is over ends, also when the end of a
rank was heard too late to count.
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

from runners.launch.discovery import Discovery, in_order
from runners.launch.fence import shortened
from runners.launch.group_log import MAX_GROUPS
from runners.launch.host_updates import HostUpdates, late_ranks, stuck_ranks
from runners.launch.hosts import Hosts, RankRun
from runners.launch.joining_ranks import JoiningRanks
from runners.launch.rendezvous import Store
from runners.launch.slots import slot_env
from runners.spec import CollectiveGroup

ELASTIC_SECONDS = 120
"""How long a ring that has lost too many ranks waits for new hosts (HOROVOD_ELASTIC_TIMEOUT). ``SCHEDULEARN_ELASTIC_SECONDS``
shortens it in tests."""
MAX_RESTARTS_WITHOUT_COMMIT = 5
"""Restarts in a row of a ring of the same hosts without a commit, after which the attempt fails. A job sets another number
with ``SCHEDULEARN_RING_RETRIES``."""
REPEAT_SECONDS = 3.0
NOBODY = "nobody"
NO_PLACE = "-1,-1,-1,-1,-1,-1"
BARRIER_SECONDS = 1.0
"""Long enough after the end of a ring that no thread is still leaving the barrier."""
STOP_SECONDS = 20.0
"""For a rank that was told to end. Its supervisor kills it before that."""

HostManager.order_available_hosts = staticmethod(in_order)


class Rendezvous:
    """What ElasticDriver asks of its rendezvous server: a fresh store for each new ring."""

    def __init__(
        self,
        store: Store,
        news: HostUpdates,
        hosts: Hosts,
        newcomers: JoiningRanks,
        formed: Callable[[list[str]], None],
    ) -> None:
        self._store = store
        self._news = news
        self._newcomers = newcomers
        self._hosts = hosts
        self._formed = formed

    def init(self, plan: list[Any]) -> None:
        self._store.clear()
        self._news.forget()
        self._newcomers.formed(plan)
        for slot in plan:
            self._hosts.label(slot.hostname, slot.local_rank, slot.rank)
        self._formed([slot.hostname for slot in plan])

    def stop(self) -> None:
        """The server is ours and outlives this ring: supervisors still have to hear how it ended."""


@dataclass
class _Answer:
    """To a rank that asked for its place."""

    request: str
    text: str = NO_PLACE
    ready: threading.Event = field(default_factory=threading.Event)


class ElasticGroup(horovod_driver.ElasticDriver):
    def __init__(
        self,
        hosts: Hosts,
        store: Store,
        news: HostUpdates,
        discovery: Discovery,
        ring: CollectiveGroup,
        formed: Callable[[list[str]], None],
        patience_seconds: float,
        restarts_without_commit: Callable[[], int],
        max_restarts_without_commit: int = MAX_RESTARTS_WITHOUT_COMMIT,
    ) -> None:
        """``restarts_without_commit`` counts the latest restarts of the same hosts (``GroupLog``)."""
        self._patience = patience_seconds
        self._restarts_without_commit = restarts_without_commit
        self._max_restarts = max_restarts_without_commit
        self.problem = ""
        """Why the ring could not go on, for the user."""
        self.lacks_hosts = False
        """It ended because too few hosts were available."""
        self.min_ranks = ring.min_ranks
        self._hosts = hosts
        self._news = news
        self._discovery = discovery
        self.newcomers = JoiningRanks(hosts)
        self._started = threading.Event()
        self.ended = threading.Event()
        self._answers: dict[tuple[str, int], _Answer] = {}
        self._answers_lock = threading.Lock()
        self._waiting: dict[tuple[str, int], float] = {}
        """Since when ranks wait for their place."""
        self._hurried_at = 0.0
        rendezvous = Rendezvous(store, news, hosts, self.newcomers, formed)
        self._timeout_seconds = round(shortened(os.environ, "SCHEDULEARN_ELASTIC_SECONDS", ELASTIC_SECONDS))
        super().__init__(rendezvous, self, ring.min_ranks, ring.max_ranks, timeout=self._timeout_seconds)

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """Horovod asks once a second, from before it has any host (its ``HostDiscovery``)."""
        available = self._discovery.find_available_hosts_and_slots()
        return self.newcomers.ready(available, self.host_assignments, self.min_ranks)

    def get_worker_client(self, slot_info: Any) -> Any:
        return self._news.box(slot_info.hostname, slot_info.local_rank)

    def begin(self) -> None:
        """Starts the first ranks, or takes over those that an earlier driver has started.

        A ring that is taken over goes on undisturbed. Hosts that are not part of it come in when it forms anew.
        """
        found = self._hosts.found()
        if not found:
            self.start(self.min_ranks, self.create_worker)
        else:
            self._discovery.only = frozenset(found)
            self._min_num_proc = min(
                self.min_ranks, sum(found.values())
            )  # it may have lost more than it can do without
            self.start(self._min_num_proc, self.create_worker)
            self._min_num_proc = self.min_ranks
            self._discovery.only = None
            for host, slots in found.items():
                for slot in range(slots):
                    self._news.box(host, slot)
            self.break_off()  # with the earlier driver others may have gone, which nobody has told the ranks
        self._started.set()

    def break_off(self) -> None:
        """The ranks give up what connects them to hosts that are not there: they fail at once, and form the ring anew.

        Else they would find out when Gloo's time is up.
        """
        if alive := self._hosts.addresses():
            self._news.break_off(alive)

    def place(self, host: str, slot: int, request: str) -> str:
        """A rank has come to form a ring: waits for the others, then says which rank it is now, -1 for none.

        A request that is repeated because its answer did not arrive is not counted again.
        """
        self._started.wait()
        with self._answers_lock:
            answer = self._answers.get((host, slot))
            repeated = answer is not None and bool(request) and answer.request == request
            if answer is None or not repeated:
                answer = self._answers[host, slot] = _Answer(request)
        if repeated:
            answer.ready.wait()
            return answer.text
        try:
            if self.has_rank_assignment(host, slot):
                self._waiting[host, slot] = time.monotonic()
                self.record_ready(host, slot)
            if self.problem:  # with its old place it would form the old ring once more
                self.ended.wait(STOP_SECONDS)
            answer.text = str(self.get_slot_info(host, slot).to_response_string())
        finally:
            self._waiting.pop((host, slot), None)
            answer.ready.set()
        return answer.text

    def hurry(self) -> list[RankRun]:
        """Called again and again. A rank that waits here has left the ring, which is over for all: who still is in it
        may wait for that rank's answer, or for a lost node's, until Gloo's time is up. One that does not come then
        either hangs: it is ended, and returned."""
        waiting, now = dict(self._waiting), time.monotonic()
        placed = {(host, slot.local_rank) for host, slots in dict(self.host_assignments).items() for slot in slots}
        if late := late_ranks(waiting, placed, now, self._hurried_at):
            self._hurried_at = now
            self._news.break_off([NOBODY], late)
        with self._answers_lock:
            started = self._answers.keys() | self._news.training()
        stuck = stuck_ranks(waiting, placed, started, now, self._patience)
        living = [run for run in self._hosts.runs() if not (run.ended.is_set() or run.stopped_by_us)]
        hanging = [run for run in living if (run.host, run.slot) in stuck]
        for run in hanging:
            self._hosts.stop(run)
        return hanging

    def resume(self) -> None:
        if self._restarts_without_commit() >= self._max_restarts:
            times = f"{self._max_restarts} times in a row" if self._max_restarts > 1 else "once"
            self.problem = f"The ring failed and was restarted {times} without a commit. The logs of its ranks show why"
            raise RuntimeError(self.problem)
        try:
            super().resume()
        except horovod_driver.timeout.TimeoutException:
            self.lacks_hosts = True
            ranks = f"{self.min_ranks} rank{'s' if self.min_ranks != 1 else ''}"
            self.problem = f"The ring needs {ranks}, but too few hosts were available for {self._timeout_seconds} s"
            raise
        except Exception as error:
            self.problem = f"The ring could not go on: {error}"
            raise

    def create_worker(self, slot_info: Any, events: list[threading.Event]) -> tuple[int, float]:
        """Runs in a thread for each rank, from its start to its end. Returns its code, and a time that only orders the ends."""
        place = (slot_info.hostname, slot_info.local_rank)
        run = self.newcomers.take(*place) or self._hosts.take_over(*place)
        if run is None:
            with self._answers_lock:
                self._answers.pop(place, None)  # an earlier rank's
            self._news.begins(*place)
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
        """Abort Horovod's barrier once the ring is over. Runs in its own thread.

        The thread of a rank that exited while the ring was shut down would wait there for ever, and ``get_results`` with it.
        """
        self._shutdown.wait()
        while not self.ended.wait(BARRIER_SECONDS):
            self._worker_registry._barrier.abort()

    def repeat_news(self) -> None:
        """Until the ring is over. Does nothing while the ring is as the hosts allow it to be."""
        while not self._shutdown.wait(REPEAT_SECONDS):
            with self._wait_hosts_cond:
                try:
                    self._notify_workers_host_changes(self._host_manager.current_hosts, HostUpdateResult.mixed)
                except Exception:
                    logging.exception("news could not be repeated")

    def is_blacklisted(self, host: str) -> bool:
        return bool(self._host_manager.is_blacklisted(host)) or self.newcomers.failed(host)


def retries(env: Mapping[str, str]) -> int:
    """Return the limit of a job with these variables: of more rings than ``GroupLog`` keeps none could be counted."""
    wanted = env.get("SCHEDULEARN_RING_RETRIES", "")
    valid = wanted.isascii() and wanted.isdecimal() and 0 < int(wanted) <= MAX_GROUPS - 2
    return int(wanted) if valid else MAX_RESTARTS_WITHOUT_COMMIT


def run_elastic(ring: ElasticGroup) -> tuple[int, str]:
    """Runs the ring from its first ranks to its end. Returns an exit code, 0 for success, and a sentence."""
    threading.Thread(target=ring.repeat_news, name="repeat news", daemon=True).start()
    threading.Thread(target=ring.release_barrier, name="release barrier", daemon=True).start()
    ring.begin()
    results = ring.get_results()
    ring.ended.set()
    ring.stop()
    if ring.problem:  # how its ranks ended follows from that
        return 1, ring.problem
    ended = sorted(results.worker_results.items(), key=lambda item: item[1][1])
    for name, (code, _) in ended:
        if code != 0:
            return int(code), f"The rank on {name} ended with exit code {code}"
    if ended:
        return 0, ""
    return 1, results.error_message or "No rank of the ring ended successfully"
