"""The first process of a ring's driver container: gathers the supervisors and leads the ring.

``python -m runners.launch.driver``

1. read control/job.json; 2. listen at ``ring.port`` for this attempt's supervisors and ranks; 3. when the hosts of
control.json have come, run the ring, static or elastic; 4. tell every supervisor that it is over, write exit.json.
It holds no GPU and has no more rights than the user's code, which it must not trust.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from importlib import import_module

from runners.launch.discovery import Discovery
from runners.launch.fence import COUNTS_FROM_THE_REPORT, Fence, shortened
from runners.launch.files import ContainerPaths, Control, write_json
from runners.launch.group_host_worker import FORM_SECONDS
from runners.launch.group_log import GroupLog
from runners.launch.host_updates import HostUpdates, patience
from runners.launch.host_worker import Verdict
from runners.launch.hosts import Hosts, RankRun
from runners.launch.network import bind_address
from runners.launch.processes import Wakeup
from runners.launch.rendezvous import Routes, serve
from runners.launch.scribe import Scribe
from runners.launch.static import run_static
from runners.launch.supervisor import TURN_SECONDS, carry_out, sentence_of
from runners.launch.torch_group import TorchGroup
from runners.spec import CollectiveGroup, RunSpec

NUMBERS_EACH = 1_000_000
"""Of runs and news, for each driver of an attempt, by the index of its container: a later one's are higher."""
SETTLE_SECONDS = 20.0
"""An elastic ring that could start waits this long for the rest of its hosts: starting together saves a resize."""
FAREWELL_SECONDS = 5.0
"""For all hosts to hear of the end. ``SCHEDULEARN_FAREWELL_SECONDS`` shortens it in tests where a host is gone."""
EARLY_SECONDS = 30.0
"""Ranks end within this time of each other (rank 0 may still write files), or one has left the others behind."""


class Driver:
    def __init__(self, spec: RunSpec, paths: ContainerPaths, control: Control, scribe: Scribe) -> None:
        if spec.collective is None:
            raise ValueError("a driver needs a ring")
        self.spec = spec
        self.ring: CollectiveGroup = spec.collective
        self.paths = paths
        self.control = control
        self.scribe = scribe
        self.wakeup = Wakeup()
        self.turn_seconds = shortened(os.environ, "SCHEDULEARN_TURN_SECONDS", TURN_SECONDS)
        self.farewell_seconds = shortened(os.environ, "SCHEDULEARN_FAREWELL_SECONDS", FAREWELL_SECONDS)
        self.fence = Fence.from_env(paths.control / "lease", os.environ)
        first = NUMBERS_EACH * int(spec.name.rpartition("-")[2])
        self.news = HostUpdates(first)
        self._phase, self._ranks = "", 0
        self._formed_at = 0.0
        self.ring_log = GroupLog(self._write_status)
        self.hosts = Hosts(first=first, went_on=self.ring_log.went_on)
        self.routes = Routes(
            poll=self.hosts.poll, exited=self.hosts.exited, news=self.news.read, went_on=self.ring_log.went_on
        )
        self._ring_there = threading.Event()
        if spec.elastic:
            self.routes.place = self._place_later
        self.outcome: Verdict | None = None
        self._known: set[str] = set()
        """Hosts that control.json has named; a supervisor may come before its name does."""
        self._left: set[str] = set()
        self._removed: set[str] = set()
        self._blacklisted: Callable[[str], bool] = lambda _host: False
        self._break_off: Callable[[], None] = lambda: None
        self._hurry: Callable[[], list[RankRun]] = list
        self._turn_away: Callable[[str], None] = lambda _host: None
        self._losses = 0
        self._told: set[int] = set()
        self._early: set[int] = set()

    def run(self) -> Verdict:
        self.wakeup.on_signals(signal.SIGTERM, signal.SIGINT)
        self.control.refresh()
        address = bind_address(self.ring.driver_host)
        try:
            server = serve(self.ring.secret, self.routes, address, self.ring.port)
        except OSError as error:
            return Verdict(1, "launch_error", f"The driver cannot listen on port {self.ring.port}: {error.strerror}")
        threading.Thread(target=self._form_and_run, name="ring", daemon=True).start()
        verdict = None
        while verdict is None:
            arrived = self.wakeup.wait(self.turn_seconds)
            self.control.refresh()
            self._watch()
            stop, outcome = self._stop(arrived), self.outcome
            verdict = outcome if outcome and outcome.code == 0 else stop or outcome
        if verdict.detail:
            self.scribe.say(verdict.detail)
        self._tell_status("stopping")
        if not self._goes_on(verdict):
            self.hosts.end(verdict.code, verdict.detail, self.farewell_seconds)
        server.shutdown()
        return verdict

    def _goes_on(self, verdict: Verdict) -> bool:
        """The ring outlives a driver whose node is emptied or cut off: another driver takes over."""
        if not (self.spec.elastic and self.ring.outlives_driver):
            return False
        drained = self.control.stop is not None and self.control.stop.reason == "drained"
        return verdict.reason == "fenced" or (verdict.reason == "stopped" and drained)

    def _stop(self, arrived: set[int]) -> Verdict | None:
        if self.fence.expired():
            return Verdict(1, "fenced", sentence_of("fenced"))
        if self.control.stop:
            return Verdict(1, "stopped", sentence_of(self.control.stop.reason))
        if arrived & {signal.SIGTERM, signal.SIGINT}:
            return Verdict(1, "stopped", sentence_of("stopped"))
        return None

    def _place_later(self, host: str, slot: int, request: str) -> str:
        """A rank of a ring that is being taken over may ask before all hosts have come."""
        self._ring_there.wait()
        return self.routes.place(host, slot, request)

    # The ring, in a thread of its own

    def _form_and_run(self) -> None:
        try:
            if self.spec.elastic and self.spec.launcher == "horovod":
                import_module("runners.launch.elastic")  # takes a moment, in which the hosts come
            outcome = self._wait_for_hosts() or self._run()
        except Exception as error:  # whatever it was, the attempt must end and say so
            outcome = Verdict(1, "launch_error", f"The ring could not be run: {type(error).__name__}: {error}")
        self.outcome = outcome
        self.wakeup.ring()

    def _wait_for_hosts(self) -> Verdict | None:
        """None when the ring can start."""
        began = time.monotonic()
        enough_since = None
        told = ""
        self._tell_status("waiting for hosts")
        while True:
            wanted, present = self.control.hosts, self.hosts.present()
            here = [host for host in wanted if host.name in present]
            missing = ", ".join(host.name for host in wanted if host.name not in present)
            enough = sum(host.slots for host in here) >= self.ring.min_ranks
            now = time.monotonic()
            enough_since = (enough_since or now) if enough else None
            if enough and not missing:
                return None
            if self.spec.elastic and enough_since and now - enough_since > SETTLE_SECONDS:
                self.scribe.say(f"Starting without {missing}, which may join later")
                return None
            sentence = f"Waiting for {missing}" if missing else "Waiting for hosts"
            if sentence != told:
                told = sentence
                self.scribe.say(sentence)
            if now - began > FORM_SECONDS:
                return Verdict(1, "launch_error", f"{sentence} took longer than {FORM_SECONDS:.0f} seconds")
            self.hosts.wait(self.turn_seconds)

    def _run(self) -> Verdict:
        if not self.spec.elastic:
            plan = self.control.hosts
            self._tell_ring([host.name for host in plan for _ in range(host.slots)])
            code, sentence = run_static(self.hosts, plan, self.scribe.say)
            return Verdict(code, self._reason(code), sentence)
        discovery = Discovery(lambda: self.control.hosts, self.hosts.present)
        if self.spec.launcher == "torchrun":
            available = discovery.find_available_hosts_and_slots
            torch_ring = TorchGroup(self.hosts, available, self.ring, self.scribe.say, self._tell_ring)
            return self._verdict(*torch_ring.run(), torch_ring.lacks_hosts)
        from runners.launch.elastic import ElasticGroup, retries, run_elastic  # needs Horovod, which takes a moment

        if found := self.hosts.found():
            self.scribe.say(f"Taking over a ring on {', '.join(sorted(found))}")
        env = dict(self.spec.env)
        ring = ElasticGroup(
            self.hosts,
            self.routes.store,
            self.news,
            discovery,
            self.ring,
            self._tell_ring,
            patience(env),
            self.ring_log.restarts_without_commit,
            retries(env),
        )
        self.routes.place = ring.place
        self._ring_there.set()
        self.routes.first_place = ring.newcomers.first_place
        self._blacklisted, self._turn_away = ring.is_blacklisted, ring.newcomers.turn_away
        self._break_off, self._hurry = ring.break_off, ring.hurry
        return self._verdict(*run_elastic(ring), ring.lacks_hosts)

    def _verdict(self, code: int, sentence: str, lacks_hosts: bool) -> Verdict:
        """Too few hosts are not the job's fault, unless one of its ranks failed before."""
        if lacks_hosts:
            return self._first_failure() or Verdict(code, "launch_error", sentence)
        return Verdict(code, self._reason(code), sentence)

    def _first_failure(self) -> Verdict | None:
        """The exit of a rank that failed by itself: without its host the ring may be too small."""
        failed = [run for run in self.hosts.runs() if run.ended.is_set() and run.code != 0 and not run.stopped_by_us]
        own = [run for run in failed if not run.ending and run.host not in self._removed]
        if not own:
            return None
        run = min(own, key=lambda run: run.ended_at)
        return Verdict(run.code, "exited", f"The rank in slot {run.slot} of {run.host} ended with exit code {run.code}")

    def _reason(self, code: int) -> str:
        """A ring that broke because a host was stopped, fenced or lost did not fail: its driver hears it a little later.

        What a ring before the present one lost, the present one did without.
        """
        if code != 0:
            for run in self.hosts.runs():
                present = run.ended_at >= self._formed_at and run.host not in self._removed
                if run.ending and run.code != 0 and present:
                    return run.ending
        return "exited"

    # What the user should know

    def _tell_ring(self, hosts: Sequence[str]) -> None:
        """``hosts``: that of each rank."""
        ranks = len(hosts)
        self.scribe.say(f"The ring has {ranks} rank{'s' if ranks != 1 else ''}")
        self._phase, self._ranks, self._formed_at = "running", ranks, time.monotonic()
        self.ring_log.formed(hosts)

    def _watch(self) -> None:
        present = self.hosts.present()
        if self.hosts.losses != self._losses:
            self._losses = self.hosts.losses
            self._break_off()
        for run in self._hurry():
            self.scribe.say(f"The rank in slot {run.slot} of {run.host} hangs, the others wait for it: it is ended")
        wanted = {host.name for host in self.control.hosts}
        self._known |= wanted
        for name in self._known.intersection(present) - self._left:
            if wanted and (name not in wanted or self._blacklisted(name)):
                self._left.add(name)
                if name not in wanted:
                    self._removed.add(name)
                self.scribe.say(f"{name} leaves the ring")
                self.hosts.leave(name)
                self._turn_away(name)
        runs = self.hosts.runs()
        for run in runs:
            if run.ended.is_set():
                self._tell_exit(run, runs)

    def _tell_exit(self, run: RankRun, runs: list[RankRun]) -> None:
        """Once for each exit; and once more when a rank ended normally and left others behind."""
        if run.number not in self._told:
            self._told.add(run.number)
            if self.spec.elastic and not (run.stopped_by_us and self.spec.launcher == "torchrun"):
                expected = run.host in self._removed or run.stopped_by_us
                how = "has left the ring" if expected else f"ended with exit code {run.code}"
                self.scribe.say(f"The rank in slot {run.slot} of {run.host} {how}")
        others = [other for other in runs if not other.ended.is_set()]
        late = time.monotonic() - run.ended_at > EARLY_SECONDS
        if run.code == 0 and others and late and run.number not in self._early and run.host not in self._left:
            self._early.add(run.number)
            self.scribe.say(
                f"The rank in slot {run.slot} of {run.host} ended normally while others still run. "
                "All ranks must take the same number of steps, or the others wait for it in vain"
            )

    def _tell_status(self, phase: str) -> None:
        self._phase, self._ranks = phase, 0
        self._write_status()

    def _write_status(self) -> None:
        status = {
            "phase": self._phase,
            "ranks": self._ranks,
            "rings": self.ring_log.told(),
            "lease": COUNTS_FROM_THE_REPORT,
        }
        try:
            write_json(self.paths.scribe / "status.json", status)
        except OSError:
            pass  # a full disk must not end the ring


if __name__ == "__main__":
    sys.exit(carry_out(Driver))
