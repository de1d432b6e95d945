"""The driver's view of its hosts: which supervisors are connected, the commands sent to them, and how their ranks ended.

Supervisors connect and poll. Each answer holds all commands that they have not seen yet, so a lost answer costs only time.
"""

import threading
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from runners.launch.files import HOSTNAME, MAX_SLOTS
from runners.launch.rendezvous import RefusedError
from runners.messages import Message

POLL_SECONDS = 10.0
SILENT_SECONDS = 30.0
"""A supervisor polls at least every ten seconds; one that is silent for so long is gone, with its ranks."""
MAX_ADDRESS_CHARACTERS = 64
LOST_CODE = 137
"""The exit code of a rank on a host that fell silent: killed."""


@dataclass
class RankRun:
    """One process of one rank, from its start to its exit."""

    number: int
    host: str
    slot: int
    rank: int
    ended: threading.Event = field(default_factory=threading.Event)
    code: int = 0
    ended_at: float = 0.0
    stopped_by_us: bool = False
    ending: str = ""
    """Why its host ended it, if it did: the host received a stop ("stopped") or lost its lease ("fenced")."""
    size: int = 0
    """How many ranks were started together with it, where a change restarts all ranks; else 0."""
    generation: int = 0
    """The same number for all ranks that were started together; 0 as for ``size``."""
    cost_ms: int | None = None
    """The time between the last step before it in its slot and its own first step, once its supervisor has reported it."""


@dataclass
class _Host:
    slots: int
    boot: str
    seen_at: float
    commands: list[dict[str, Any]] = field(default_factory=list)
    received: int = 0
    """It has acknowledged the commands up to this number. An answer can be lost on its way."""
    open_polls: int = 0
    """How many requests of this host are waiting for a command."""
    polled_at: float = 0.0
    """When its last request arrived."""
    leaving: bool = False
    address: str = ""
    earlier_ranks: dict[int, RankRun] = field(default_factory=dict)
    """Ranks by slot that an earlier driver has started and that this one has not yet taken over."""


class Hosts:
    """The hosts of an attempt. ``first`` is above all numbers of runs that earlier drivers have assigned.

    ``on_resumed`` is called once with each run's ``cost_ms``, while its rank counts as running.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        first: int = 0,
        on_resumed: Callable[[int], None] = lambda _milliseconds: None,
    ) -> None:
        self._clock = clock
        self._on_resumed = on_resumed
        self._first = first
        self._last = first
        self._driver = uuid.uuid4().hex
        self.losses = 0
        """How many hosts fell silent so far."""
        self._hosts: dict[str, _Host] = {}
        self._runs: dict[int, RankRun] = {}
        self._changed = threading.Condition()

    # Requests of supervisors. An invalid message is refused with 400.

    def poll(self, message: dict[str, Any]) -> dict[str, Any]:
        """Register the host, then wait for a command with a number above ``seen``."""
        name, slots, boot, seen = (message.get(key) for key in ("host", "slots", "boot", "seen"))
        if not (isinstance(name, str) and HOSTNAME.match(name) and isinstance(boot, str) and len(boot) <= 64):
            raise RefusedError(400, "host and boot are needed")
        if not (isinstance(slots, int) and 0 < slots <= MAX_SLOTS and isinstance(seen, int) and seen >= 0):
            raise RefusedError(400, "slots and seen are needed")
        reported, address = _parse_ranks(message.get("runs", [])), message.get("address", "")
        if not (isinstance(address, str) and len(address) <= MAX_ADDRESS_CHARACTERS):
            raise RefusedError(400, "an address is a short text")
        if message.get("driver", self._driver) != self._driver:
            seen = 0  # it counts another driver's commands
        until = self._clock() + POLL_SECONDS
        with self._changed:
            host = self._hosts.get(name)
            if host is None or host.boot != boot:
                self._mark_fenced(name)
                host = self._hosts[name] = _Host(slots, boot, self._clock(), address=address)
                self._register_earlier_ranks(name, host, reported)
            for entry in reported:
                self._record_cost(self._runs.get(entry.run), entry.cost_ms)
            host.received = max(host.received, seen)
            host.open_polls += 1
            host.polled_at = self._clock()
            self._changed.notify_all()
            try:
                while not (new := host.commands[seen:]) and self._clock() < until:
                    self._changed.wait(until - self._clock())
            finally:
                host.open_polls -= 1
                host.seen_at = self._clock()
                self._changed.notify_all()
        return {"commands": new, "driver": self._driver}

    def record_exit(self, message: dict[str, Any]) -> dict[str, Any]:
        number, code, ending = message.get("run"), message.get("code"), message.get("ending", "")
        if not (isinstance(number, int) and isinstance(code, int)):
            raise RefusedError(400, "run and code are needed")
        cost_ms = _parse_cost(message)
        with self._changed:
            run = self._runs.get(number)
            self._record_cost(run, cost_ms)
            if run is not None and not run.ended.is_set():
                run.ending = ending if ending in {"stopped", "fenced"} else ""
            self._record_end(run, code)
        return {}

    # For the driver

    def connected_slots(self) -> dict[str, int]:
        """Return the slots of the connected hosts by name. Runs on silent hosts count as lost."""
        now = self._clock()
        with self._changed:
            silent = [name for name, host in self._hosts.items() if not self._is_present(host, now)]
            for name in silent:
                self._mark_fenced(name)
                del self._hosts[name]
                self.losses += 1
            return {name: host.slots for name, host in self._hosts.items()}

    def start(
        self, host: str, slot: int, rank: int, env: dict[str, str], size: int = 0, generation: int = 0
    ) -> RankRun:
        with self._changed:
            self._last += 1
            run = RankRun(self._last, host, slot, rank, size=size, generation=generation)
            self._runs[run.number] = run
            command = {"do": "start", "run": run.number, "slot": slot, "label": f"rank {rank}", "env": env}
            together = {"rank": rank, "size": size, "generation": generation}
            if not self._send(host, {**command, "together": together} if generation else command):
                self._record_end(run, LOST_CODE)
            return run

    def addresses(self) -> list[str]:
        """Return the addresses of the connected hosts in the attempt's overlay network; none without one."""
        with self._changed:
            return sorted(host.address for host in self._hosts.values() if host.address)

    def address(self, name: str) -> str:
        """Return the address that one host has reported; empty without one."""
        with self._changed:
            return self._hosts[name].address if name in self._hosts else ""

    def next_number(self) -> int:
        """Return the number of the run that is started next. It is above those of all earlier runs."""
        with self._changed:
            return self._last + 1

    def request_poll(self, names: Iterable[str]) -> None:
        """Request a new poll from these hosts. Those whose supervisors are alive poll at once."""
        with self._changed:
            for name in names:
                self._send(name, {"do": "ask"})

    def has_polled_since(self, name: str, moment: float) -> bool:
        with self._changed:
            return name in self._hosts and self._hosts[name].polled_at > moment

    def slots_to_take_over(self) -> dict[str, int]:
        """Return the hosts with a rank of an earlier driver in each of their slots, and the number of slots."""
        with self._changed:
            return {name: host.slots for name, host in self._hosts.items() if len(host.earlier_ranks) == host.slots}

    def take_over(self, host: str, slot: int) -> RankRun | None:
        """Return the rank that an earlier driver has started in a slot, if there is one. Each is returned once."""
        with self._changed:
            return self._hosts[host].earlier_ranks.pop(slot, None) if host in self._hosts else None

    def stop(self, run: RankRun) -> None:
        """Have its supervisor end a rank: SIGTERM, then SIGKILL."""
        with self._changed:
            if not run.ended.is_set():
                run.stopped_by_us = True
                self._send(run.host, {"do": "stop", "run": run.number})

    def label(self, host: str, slot: int, rank: int) -> None:
        with self._changed:
            self._send(host, {"do": "label", "slot": slot, "label": f"rank {rank}"})

    def release(self, host: str) -> None:
        """Release a host without which the job continues: its supervisor ends when its ranks have ended."""
        with self._changed:
            if host in self._hosts:
                self._hosts[host].leaving = True
                self._send(host, {"do": "leave"})

    def end_attempt(self, code: int, message: Message | None, seconds: float = 5.0) -> None:
        """Send the end of the attempt to all supervisors, and wait until they have received it, up to a time limit."""
        until = self._clock() + seconds
        # Supervisors of the previous release, on nodes that are not upgraded yet, read the sentence.
        words = {"sentence": message.text, "message": message.data()} if message else {"sentence": ""}
        with self._changed:
            for name in self._hosts:
                self._send(name, {"do": "end", "code": code, **words})
            while self._clock() < until and any(self._must_receive(name) for name in self._hosts):
                self._changed.wait(max(until - self._clock(), 0))

    def runs(self) -> list[RankRun]:
        with self._changed:
            return list(self._runs.values())

    def wait(self, seconds: float) -> None:
        """Wait until something changes or the time is up."""
        with self._changed:
            self._changed.wait(seconds)

    def _must_receive(self, name: str) -> bool:
        """Whether a host has yet to acknowledge a command. A supervisor that was released and has no ranks has ended."""
        host = self._hosts[name]
        busy = any(run.host == name and not run.ended.is_set() for run in self._runs.values())
        return host.received < len(host.commands) and (busy or not host.leaving)

    def _is_present(self, host: _Host, now: float) -> bool:
        return host.open_polls > 0 or now - host.seen_at <= SILENT_SECONDS

    def _send(self, name: str, command: dict[str, Any]) -> bool:
        host = self._hosts.get(name)
        if host is None:
            return False
        host.commands.append({"number": len(host.commands) + 1, **command})
        self._changed.notify_all()
        return True

    def _register_earlier_ranks(self, name: str, host: _Host, reported: list["_ReportedRank"]) -> None:
        for entry in reported:
            if entry.run <= self._first and entry.slot < host.slots:
                run = RankRun(entry.run, name, entry.slot, entry.rank, size=entry.size, generation=entry.generation)
                self._runs[run.number] = host.earlier_ranks[entry.slot] = run
                if entry.code is not None:
                    self._record_end(run, entry.code)

    def _mark_fenced(self, name: str) -> None:
        """Count the ranks of a lost host as fenced: by now they are, or will be."""
        for run in self._runs.values():
            if run.host == name and not run.ended.is_set():
                run.ending = "fenced"
                self._record_end(run, LOST_CODE)

    def _record_cost(self, run: RankRun | None, cost_ms: int | None) -> None:
        if run is not None and run.cost_ms is None and cost_ms is not None and not run.ended.is_set():
            run.cost_ms = cost_ms
            self._on_resumed(cost_ms)

    def _record_end(self, run: RankRun | None, code: int) -> None:
        if run is not None and not run.ended.is_set():
            run.code, run.ended_at = code, self._clock()
            run.ended.set()
            self._changed.notify_all()


class _ReportedRank(NamedTuple):
    """A rank that a supervisor reports to have."""

    run: int
    slot: int
    code: int | None
    rank: int = -1
    size: int = 0
    generation: int = 0
    cost_ms: int | None = None


def _parse_ranks(entries: Any) -> list[_ReportedRank]:
    """Parse the ranks that a supervisor reports. Raises RefusedError for anything else."""
    if not (isinstance(entries, list) and len(entries) <= MAX_SLOTS):
        raise RefusedError(400, "runs must be a list")
    found = []
    for entry in entries:
        fields = entry if isinstance(entry, dict) else {}
        number, slot, code = (fields.get(key, "") for key in ("run", "slot", "code"))
        rank, size, generation = (
            fields.get(key, default) for key, default in (("rank", -1), ("size", 0), ("generation", 0))
        )
        if not (isinstance(number, int) and isinstance(slot, int) and 0 <= slot < MAX_SLOTS):
            raise RefusedError(400, "run and slot are needed")
        if not (
            (code is None or isinstance(code, int)) and all(isinstance(each, int) for each in (rank, size, generation))
        ):
            raise RefusedError(400, "a code is a number, and so are rank, size and generation")
        found.append(_ReportedRank(number, slot, code, rank, size, generation, _parse_cost(fields)))
    return found


def _parse_cost(entry: dict[str, Any]) -> int | None:
    cost = entry.get("cost_ms")
    if not (cost is None or (isinstance(cost, int) and cost >= 0)):
        raise RefusedError(400, "a cost is in milliseconds")
    return cost
