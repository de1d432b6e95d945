"""The first process of a driver container: gathers the supervisors of an attempt and leads its ranks.

``python -m runners.launch.driver``

1. read control/job.json; 2. listen at ``collective.port`` for this attempt's supervisors and ranks; 3. when the hosts
of control.json have connected, run the rank group, static or elastic; 4. send every supervisor the end of the attempt and
write exit.json. It holds no GPU and has no more rights than the user's code, which it must not trust.
"""

import os
import signal
import site
import sys
import threading
import time
from collections.abc import Callable, Sequence
from importlib import import_module

from runners.launch.discovery import Discovery
from runners.launch.fence import COUNTS_FROM_REPORT, Fence, seconds_from_env
from runners.launch.files import ContainerPaths, Control, write_json
from runners.launch.group_host_worker import FORM_SECONDS
from runners.launch.group_log import GroupLog
from runners.launch.host_updates import HostUpdates, regroup_timeout_seconds
from runners.launch.host_worker import Verdict
from runners.launch.hosts import Hosts, RankRun
from runners.launch.log_writer import LogWriter
from runners.launch.network import bind_address
from runners.launch.processes import Wakeup
from runners.launch.rendezvous import Routes, serve
from runners.launch.static import run_static
from runners.launch.supervisor import TICK_SECONDS, run_first_process, stop_message
from runners.launch.torch_group import TorchGroup
from runners.messages import Message
from runners.messages.launch import (
    AwaitingHosts,
    DriverCannotListen,
    HostsDidNotCome,
    RankInSlotEnded,
    RanksNotRun,
    Running,
    Stopping,
)
from runners.spec import LAYER_VARIABLE, CollectiveGroup, RunSpec

NUMBERS_PER_DRIVER = 1_000_000
"""How many numbers of runs and host updates each driver of an attempt has, by the index of its container: those of a
later driver are higher."""
SETTLE_SECONDS = 20.0
"""An elastic job that could start waits this long for the rest of its hosts: starting together saves a resize."""
FAREWELL_SECONDS = 5.0
"""Time for all hosts to receive the end. ``SCHEDULEARN_FAREWELL_SECONDS`` shortens it in tests where a host is gone."""
MAX_EXIT_GAP_SECONDS = 30.0
"""Ranks end within this time of each other (rank 0 may still write files); a rank that ended earlier has left the others
behind."""


class Driver:
    def __init__(self, spec: RunSpec, paths: ContainerPaths, control: Control, logs: LogWriter) -> None:
        if spec.collective is None:
            raise ValueError("a driver needs a collective group")
        self.spec = spec
        self.group: CollectiveGroup = spec.collective
        self.paths = paths
        self.control = control
        self.logs = logs
        self.wakeup = Wakeup()
        self.tick_seconds = seconds_from_env(os.environ, "SCHEDULEARN_TURN_SECONDS", TICK_SECONDS)
        self.farewell_seconds = seconds_from_env(os.environ, "SCHEDULEARN_FAREWELL_SECONDS", FAREWELL_SECONDS)
        self.fence = Fence.from_env(paths.control / "lease", os.environ)
        first = NUMBERS_PER_DRIVER * int(spec.name.rpartition("-")[2])
        self.host_updates = HostUpdates(first)
        self._phase: Message = AwaitingHosts()
        self._ranks = 0
        self._formed_at = 0.0
        self._status_changed = threading.Event()
        self.group_log = GroupLog(self._request_status)
        self.hosts = Hosts(first=first, on_resumed=self.group_log.record_resume)
        self.routes = Routes(
            poll=self.hosts.poll,
            record_exit=self.hosts.record_exit,
            host_updates=self.host_updates.read,
            record_resume=self.group_log.record_resume,
        )
        self._group_exists = threading.Event()
        if spec.elastic:
            self.routes.place = self._place_when_formed
        self.outcome: Verdict | None = None
        self._known: set[str] = set()
        """Hosts that control.json has named; a supervisor may connect before its host is named there."""
        self._left: set[str] = set()
        self._removed: set[str] = set()
        self._blacklisted: Callable[[str], bool] = lambda _host: False
        self._drop_connections: Callable[[], None] = lambda: None
        self._end_stuck_ranks: Callable[[], list[RankRun]] = list
        self._cancel_join: Callable[[str], None] = lambda _host: None
        self._losses = 0
        self._reported_exits: set[int] = set()
        self._reported_early: set[int] = set()

    def run(self) -> Verdict:
        self.wakeup.on_signals(signal.SIGTERM, signal.SIGINT)
        self.control.refresh()
        address = bind_address(self.group.driver_host)
        try:
            server = serve(self.group.secret, self.routes, address, self.group.port)
        except OSError as error:
            return Verdict(1, "launch_error", DriverCannotListen(self.group.port, error.strerror or str(error)))
        threading.Thread(target=self._form_and_run, name="ranks", daemon=True).start()
        verdict = None
        while verdict is None:
            arrived = self.wakeup.wait(self.tick_seconds)
            self.control.refresh()
            self._watch()
            self._write_changed_status()
            stop, outcome = self._stop(arrived), self.outcome
            verdict = outcome if outcome and outcome.code == 0 else stop or outcome
        if verdict.detail:
            self.logs.report(verdict.detail)
        self._set_phase(Stopping())
        self._write_changed_status()
        if not self._ranks_continue(verdict):
            self.hosts.end_attempt(verdict.code, verdict.message, self.farewell_seconds)
        server.shutdown()
        self._write_changed_status()
        return verdict

    def _ranks_continue(self, verdict: Verdict) -> bool:
        """Whether the ranks continue without this driver: its node is drained or cut off, and another driver takes over."""
        if not (self.spec.elastic and self.group.outlives_driver):
            return False
        drained = self.control.stop is not None and self.control.stop.reason == "drained"
        return verdict.reason == "fenced" or (verdict.reason == "stopped" and drained)

    def _stop(self, arrived: set[int]) -> Verdict | None:
        if self.fence.has_expired():
            return Verdict(1, "fenced", stop_message("fenced"))
        if self.control.stop:
            return Verdict(1, "stopped", stop_message(self.control.stop.reason))
        if arrived & {signal.SIGTERM, signal.SIGINT}:
            return Verdict(1, "stopped", stop_message("stopped"))
        return None

    def _place_when_formed(self, host: str, slot: int, request: str) -> str:
        """Answer a rank that asks for its place before the group exists, as ranks of an earlier driver may."""
        self._group_exists.wait()
        return self.routes.place(host, slot, request)

    # The rank group, in its own thread

    def _form_and_run(self) -> None:
        try:
            if self.spec.elastic and self.spec.launcher == "horovod":
                if layer := os.environ.get(LAYER_VARIABLE):
                    site.addsitedir(layer)  # a full environment has Horovod there
                import_module("runners.launch.elastic")  # takes a moment, during which hosts connect
            outcome = self._wait_for_hosts() or self._run()
        except Exception as error:  # whatever it was, the attempt must end and report it
            outcome = Verdict(1, "launch_error", RanksNotRun(f"{type(error).__name__}: {error}"))
        self.outcome = outcome
        self.wakeup.notify()

    def _wait_for_hosts(self) -> Verdict | None:
        """Return None when the ranks can start, else the failure."""
        began = time.monotonic()
        enough_since = None
        reported = ""
        self._set_phase(AwaitingHosts())
        while True:
            wanted, present = self.control.hosts, self.hosts.connected_slots()
            here = [host for host in wanted if host.name in present]
            absent = [host.name for host in wanted if host.name not in present]
            missing = ", ".join(absent)
            enough = sum(host.slots for host in here) >= self.group.min_ranks
            now = time.monotonic()
            enough_since = (enough_since or now) if enough else None
            if enough and not missing:
                return None
            if self.spec.elastic and enough_since and now - enough_since > SETTLE_SECONDS:
                self.logs.report(f"Starting without {missing}, which may join later")
                return None
            sentence = f"Waiting for {missing}" if missing else "Waiting for hosts"
            if sentence != reported:
                reported = sentence
                self.logs.report(sentence)
            if now - began > FORM_SECONDS:
                return Verdict(1, "launch_error", HostsDidNotCome.among(absent, round(FORM_SECONDS)))
            self.hosts.wait(self.tick_seconds)

    def _run(self) -> Verdict:
        if not self.spec.elastic:
            plan = self.control.hosts
            self._record_group([host.name for host in plan for _ in range(host.slots)])
            code, message = run_static(self.hosts, plan, self.logs.report)
            return Verdict(code, self._exit_reason(code), message)
        discovery = Discovery(lambda: self.control.hosts, self.hosts.connected_slots)
        if self.spec.launcher == "torchrun":
            available = discovery.find_available_hosts_and_slots
            torch_group = TorchGroup(self.hosts, available, self.group, self.logs.report, self._record_group)
            return self._verdict(*torch_group.run(), torch_group.lacks_hosts)
        from runners.launch.elastic import (  # needs Horovod, which takes a moment
            ElasticGroup,
            restart_limit,
            run_elastic,
        )

        if found := self.hosts.slots_to_take_over():
            self.logs.report(f"Taking over the ranks on {', '.join(sorted(found))}")
        env = dict(self.spec.env)
        group = ElasticGroup(
            self.hosts,
            self.routes.store,
            self.host_updates,
            discovery,
            self.group,
            self._record_group,
            regroup_timeout_seconds(env),
            self.group_log.restarts_without_commit,
            restart_limit(env),
        )
        self.routes.place = group.place
        self._group_exists.set()
        self.routes.first_place = group.joining_ranks.first_place
        self._blacklisted, self._cancel_join = group.is_blacklisted, group.joining_ranks.cancel_join
        self._drop_connections, self._end_stuck_ranks = group.drop_connections, group.end_stuck_ranks
        return self._verdict(*run_elastic(group), group.lacks_hosts)

    def _verdict(self, code: int, message: Message | None, lacks_hosts: bool) -> Verdict:
        """Return the verdict on an attempt. A lack of hosts is not the job's fault, unless a rank failed before."""
        if lacks_hosts:
            return self._first_failure() or Verdict(code, "launch_error", message)
        return Verdict(code, self._exit_reason(code), message)

    def _first_failure(self) -> Verdict | None:
        """Return the exit of the rank that failed first by itself: without its host too few ranks may be left."""
        failed = [run for run in self.hosts.runs() if run.ended.is_set() and run.code != 0 and not run.stopped_by_us]
        own = [run for run in failed if not run.ending and run.host not in self._removed]
        if not own:
            return None
        run = min(own, key=lambda run: run.ended_at)
        return Verdict(run.code, "exited", RankInSlotEnded(run.slot, run.host, run.code))

    def _exit_reason(self, code: int) -> str:
        """Return the exit reason. Ranks that failed because a host was stopped, fenced or lost are not to blame.

        A host that was lost before the present group formed does not count: the group did without it.
        """
        if code != 0:
            for run in self.hosts.runs():
                present = run.ended_at >= self._formed_at and run.host not in self._removed
                if run.ending and run.code != 0 and present:
                    return run.ending
        return "exited"

    # Reports for the user

    def _record_group(self, hosts: Sequence[str]) -> None:
        """Record a new rank group. ``hosts`` has the host of each rank."""
        ranks = len(hosts)
        self.logs.report(f"The job now has {ranks} rank{'s' if ranks != 1 else ''}")
        self._phase, self._ranks, self._formed_at = Running(), ranks, time.monotonic()
        self.group_log.record_group(hosts)

    def _watch(self) -> None:
        present = self.hosts.connected_slots()
        if self.hosts.losses != self._losses:
            self._losses = self.hosts.losses
            self._drop_connections()
        for run in self._end_stuck_ranks():
            self.logs.report(f"The rank in slot {run.slot} of {run.host} hangs, the others wait for it: it is ended")
        wanted = {host.name for host in self.control.hosts}
        self._known |= wanted
        for name in self._known.intersection(present) - self._left:
            if wanted and (name not in wanted or self._blacklisted(name)):
                self._left.add(name)
                if name not in wanted:
                    self._removed.add(name)
                self.logs.report(f"{name} leaves the job")
                self.hosts.release(name)
                self._cancel_join(name)
        runs = self.hosts.runs()
        for run in runs:
            if run.ended.is_set():
                self._report_exit(run, runs)

    def _report_exit(self, run: RankRun, runs: list[RankRun]) -> None:
        """Report each exit once, and once more when a rank ended normally and left others behind."""
        if run.number not in self._reported_exits:
            self._reported_exits.add(run.number)
            if self.spec.elastic and not (run.stopped_by_us and self.spec.launcher == "torchrun"):
                expected = run.host in self._removed or run.stopped_by_us
                how = "has left the job" if expected else f"ended with exit code {run.code}"
                self.logs.report(f"The rank in slot {run.slot} of {run.host} {how}")
        others = [other for other in runs if not other.ended.is_set()]
        late = time.monotonic() - run.ended_at > MAX_EXIT_GAP_SECONDS
        if run.code == 0 and others and late and run.number not in self._reported_early and run.host not in self._left:
            self._reported_early.add(run.number)
            self.logs.report(
                f"The rank in slot {run.slot} of {run.host} ended normally while others still run. "
                "All ranks must take the same number of steps, or the others wait for one that has ended"
            )

    def _set_phase(self, phase: Message) -> None:
        self._phase, self._ranks = phase, 0
        self._request_status()

    def _request_status(self) -> None:
        """Have the main thread write status.json, since callers have the lock of the hosts or answer a supervisor."""
        self._status_changed.set()
        self.wakeup.notify()

    def _write_changed_status(self) -> None:
        if not self._status_changed.is_set():
            return
        self._status_changed.clear()
        status = {
            "message": self._phase.data(),
            "phase": self._phase.text,  # for agents of the previous release
            "ranks": self._ranks,
            "rings": self.group_log.to_json(),  # the agent reads this key
            "lease": COUNTS_FROM_REPORT,
        }
        try:
            write_json(self.paths.scribe / "status.json", status)
        except OSError:
            pass  # a full disk must not end the training


if __name__ == "__main__":
    sys.exit(run_first_process(Driver))
