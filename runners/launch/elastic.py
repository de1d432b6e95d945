"""Horovod's ElasticDriver on our rendezvous: the one module that needs Horovod.

Three things differ from ``horovodrun``: ranks ask for news instead of being called (see ``shim``); news is repeated
until the ring has changed, because Horovod forgets what arrives while it forms a ring; and hosts keep their order.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from horovod.runner.elastic import driver as horovod_driver
from horovod.runner.elastic.discovery import HostManager
from horovod.runner.elastic.worker import HostUpdateResult

from runners.launch.discovery import Discovery, in_order
from runners.launch.hosts import Hosts
from runners.launch.news import News
from runners.launch.rendezvous import Store
from runners.launch.slots import slot_env
from runners.spec import Ring

ELASTIC_SECONDS = 120
"""How long a ring that has lost too many ranks waits for new hosts (HOROVOD_ELASTIC_TIMEOUT)."""
REPEAT_SECONDS = 3.0
STOP_SECONDS = 20.0
"""For a rank that was told to end. Its supervisor kills it before that."""

HostManager.order_available_hosts = staticmethod(in_order)


class Rendezvous:
    """What ElasticDriver asks of its rendezvous server: a fresh store for each new ring."""

    def __init__(self, store: Store, news: News, hosts: Hosts, formed: Callable[[int], None]) -> None:
        self._store = store
        self._news = news
        self._hosts = hosts
        self._formed = formed

    def init(self, plan: list[Any]) -> None:
        self._store.clear()
        self._news.forget()
        for slot in plan:
            self._hosts.label(slot.hostname, slot.local_rank, slot.rank)
        self._formed(len(plan))

    def stop(self) -> None:
        """The server is ours and outlives this ring: supervisors still have to hear how it ended."""


class ElasticRing(horovod_driver.ElasticDriver):
    def __init__(
        self, hosts: Hosts, store: Store, news: News, discovery: Discovery, ring: Ring, formed: Callable[[int], None]
    ) -> None:
        self.problem = ""
        """Why the ring could not go on, for the user."""
        self.min_ranks = ring.min_ranks
        self._hosts = hosts
        self._news = news
        rendezvous = Rendezvous(store, news, hosts, formed)
        super().__init__(rendezvous, discovery, ring.min_ranks, ring.max_ranks, timeout=ELASTIC_SECONDS)

    def get_worker_client(self, slot_info: Any) -> Any:
        return self._news.box(slot_info.hostname, slot_info.local_rank)

    def place(self, host: str, slot: int) -> str:
        """A rank has come to form a ring: waits for the others, then says which rank it is now, -1 for none."""
        self.record_ready(host, slot)
        return str(self.get_slot_info(host, slot).to_response_string())

    def resume(self) -> None:
        try:
            super().resume()
        except Exception as error:
            self.problem = f"The ring could not go on: {error}"
            raise

    def create_worker(self, slot_info: Any, events: list[threading.Event]) -> tuple[int, float]:
        """Runs in a thread for each rank, from its start to its end."""
        run = self._hosts.start(slot_info.hostname, slot_info.local_rank, slot_info.rank, slot_env(slot_info))
        while not run.ended.wait(0.5):
            if any(event.is_set() for event in events):
                self._hosts.stop(run)
                run.ended.wait(STOP_SECONDS)
                break
        return (run.code if run.ended.is_set() else 1), time.time()

    def repeat_news(self) -> None:
        """Until the ring is over. Does nothing while the ring is as the hosts allow it to be."""
        while not self._shutdown.wait(REPEAT_SECONDS):
            with self._wait_hosts_cond:
                try:
                    self._notify_workers_host_changes(self._host_manager.current_hosts, HostUpdateResult.mixed)
                except Exception:
                    logging.exception("news could not be repeated")

    def is_blacklisted(self, host: str) -> bool:
        return bool(self._host_manager.is_blacklisted(host))


def run_elastic(ring: ElasticRing) -> tuple[int, str]:
    """Runs the ring from its first ranks to its end. Returns an exit code, 0 for success, and a sentence."""
    threading.Thread(target=ring.repeat_news, name="repeat news", daemon=True).start()
    ring.start(ring.min_ranks, ring.create_worker)
    results = ring.get_results()
    ring.stop()
    ended = sorted(results.worker_results.items(), key=lambda item: item[1][1])
    for name, (code, _) in ended:
        if code != 0:
            return int(code), f"The rank on {name} ended with exit code {code}"
    if ended:
        return 0, ""
    return 1, ring.problem or results.error_message or "No rank of the ring ended successfully"
