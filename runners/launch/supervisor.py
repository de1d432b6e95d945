"""The first process of a host container: starts ranks, records what they print and how they end, and fences them.

``python -m runners.launch.supervisor``

1. read control/job.json; 2. start the worker (a command, torchrun, or the ranks that the driver asks for); 3. until it has
ended: reap ended processes, end stopped ones, check control.json and the lease, and at a stop or an expired lease: notice
and SIGTERM, then SIGKILL after the grace; 4. write exit.json, as the very last thing.
"""

import json
import math
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from runners.launch.fence import COUNTS_FROM_REPORT, Fence, seconds_from_env
from runners.launch.files import ContainerPaths, Control, Stop, write_atomic, write_json
from runners.launch.hang_detector import HangDetector
from runners.launch.host_worker import CommandWorker, HostWorker, TorchrunWorker, Verdict, WorkerContext
from runners.launch.job_secrets import JobSecrets
from runners.launch.joining import JoinCheck
from runners.launch.log_writer import LogWriter
from runners.launch.masking import NO_MASKING
from runners.launch.processes import Processes, Wakeup, adopt_orphans
from runners.launch.ranks import BATCH_FILE, METRICS_PIPE
from runners.launch.tensorboard import EventFiles
from runners.messages import Message, launch
from runners.spec import CACHE_VARIABLE, NETWORK_VARIABLE, RunSpec

TICK_SECONDS = 0.5
"""The interval at which the agent's files are read. ``SCHEDULEARN_TURN_SECONDS`` shortens it in tests."""
UNKILLABLE_SECONDS = 10.0
"""A killed process that is still there after this time hangs in the kernel; waiting longer is useless."""
DRAIN_SECONDS = 5.0
"""Time for output that is still in the pipes when all ranks have ended."""

STOP_MESSAGES: dict[str, Message] = {
    "preempted": launch.Preempted(),
    "cancelled": launch.Cancelled(),
    "timed_out": launch.TimedOut(),
    "drained": launch.Drained(),
    "peer_lost": launch.PeerLost(),
    "done": launch.JobEnded(),
    "held": launch.Held(),
    "stuck": launch.Stuck(),
    "gpu_fault": launch.GpuFailed(),
    "disk": launch.DiskOverLimit(),
    "stopped": launch.AskedToStop(),
    "fenced": launch.Fenced(),
}
"""Messages for the portal's reasons to stop, the agent's (``disk``) and our own (``stopped``, ``fenced``)."""


def stop_message(reason: str) -> Message:
    """Return the message for a reason to stop. A portal or agent newer than this image may send one that it does not know."""
    return STOP_MESSAGES.get(reason) or launch.AskedToStop(reason)


@dataclass(slots=True)
class PendingStop:
    exit_reason: str
    stop: Stop
    term_at: float
    kill_at: float
    sigterm_sent: bool = False
    readers_term_at: float = math.inf
    """When SIGTERM is sent to all, also to those that read from the pipe of another process."""


class Supervisor:
    def __init__(self, spec: RunSpec, paths: ContainerPaths, control: Control, logs: LogWriter) -> None:
        self.spec = spec
        self.paths = paths
        self.control = control
        self.logs = logs
        self.processes = Processes()
        self.wakeup = Wakeup()
        self.tick_seconds = seconds_from_env(os.environ, "SCHEDULEARN_TURN_SECONDS", TICK_SECONDS)
        self.fence = Fence.from_env(paths.control / "lease", os.environ)
        self.hang_detector = HangDetector.from_env(os.environ)
        if CACHE_VARIABLE in os.environ:
            os.umask(0o002)  # other jobs of the project, which have other users, share what ranks write there
        secrets = JobSecrets.read(os.environ)
        secrets.check(spec)
        inherited = {**os.environ, **self._proxy_variables()}
        self.context = WorkerContext(spec, paths, control, logs, self.processes, inherited, secrets.for_ranks())
        self.worker = self._choose_worker()
        self.joining = JoinCheck(paths.scribe, logs.report)
        self.stopping: PendingStop | None = None
        self.last_code = 0
        self._status: dict[str, object] = {}
        self._batch = 0
        self._metrics: int | None = None
        self._event_files = EventFiles((paths.outputs, paths.workspace), self._write_metric)

    def _proxy_variables(self) -> dict[str, str]:
        if NETWORK_VARIABLE not in os.environ:
            return {}
        from runners.launch.network_access import proxy_variables  # takes a moment, and few containers need it

        try:
            return proxy_variables(self.spec, os.environ)
        except OSError as error:
            self.logs.report(f"No host can be reached: {error}")
            return {}

    def _choose_worker(self) -> HostWorker:
        if self.spec.launcher == "command":
            return CommandWorker(self.context)
        if self.spec.launcher == "torchrun" and not self.spec.elastic:
            return TorchrunWorker(self.context)
        if self.spec.collective is None:
            raise ValueError("a host with a driver needs a collective group")
        from runners.launch.group_host_worker import GroupHostWorker  # takes a moment, and other workers do not need it

        return GroupHostWorker(self.context, self.spec.collective, self.wakeup)

    def run(self) -> Verdict:
        self.wakeup.on_signals(signal.SIGCHLD, signal.SIGTERM, signal.SIGINT)
        adopt_orphans()
        self.control.refresh()
        self._listen_to_metrics()
        threading.Thread(target=self._event_files.follow, name="event files", daemon=True).start()
        self._pass_on_batch_size()
        self.worker.begin()
        while True:
            self._write_status()
            arrived = self.wakeup.wait(self.tick_seconds)
            for exit in self.processes.reap():
                self.last_code = exit.code or self.last_code
                self.worker.record_exit(exit)
            self.worker.tick()
            self.joining.check()
            self._end_stopped_processes()
            self._check_for_stop(arrived)
            if verdict := self._verdict():
                verdict = self.joining.add_warning(verdict)
                self._clean_up()
                return verdict

    def _listen_to_metrics(self) -> None:
        try:
            pump, self._metrics = self.logs.listen(self.paths.scribe / METRICS_PIPE, "metrics", "metrics")
        except OSError:
            return  # curves are not worth a training
        self.context.pumps.append(pump)

    def _write_metric(self, line: bytes) -> None:
        self.logs.label("metrics", "metrics")
        self.logs.stream("metrics").write(line)

    def _end_stopped_processes(self) -> None:
        for pid in self.hang_detector.hung_processes():
            seconds = self.hang_detector.seconds
            self.logs.report(f"Process {pid} was stopped by a signal {seconds:g} s ago and not woken: it is ended")
            self.processes.kill(pid)

    def _check_for_stop(self, arrived: set[int]) -> None:
        """Check everything that may end this container, and pass on what ranks are to know."""
        self.control.refresh()
        self._pass_on_batch_size()
        now = time.monotonic()
        if self.stopping is None:
            if self.fence.has_expired():
                self._begin_stop("fenced", Stop("fenced", self.spec.grace_seconds), now)
            elif self.control.stop:
                self._begin_stop("stopped", self.control.stop, now)
            elif arrived & {signal.SIGTERM, signal.SIGINT}:
                self._begin_stop("stopped", Stop("stopped", self.spec.grace_seconds), now)
        elif self.stopping.exit_reason != "fenced" and self.fence.has_expired():
            self._begin_stop("fenced", Stop("fenced", self.stopping.stop.grace_seconds), now)
        if self.stopping:
            self._escalate_stop(self.stopping, now)

    def _pass_on_batch_size(self) -> None:
        if self.control.batch == self._batch:
            return
        self._batch = self.control.batch
        try:
            write_atomic(self.paths.scribe / BATCH_FILE, str(self._batch).encode())
        except OSError:
            pass  # the job trains on with the batch it has

    def _begin_stop(self, exit_reason: str, stop: Stop, now: float) -> None:
        self.logs.report(f"{stop_message(stop.reason).text}: the ranks have {stop.grace_seconds:g} seconds to end")
        self.context.announce_stop(stop.reason, stop.grace_seconds)
        # Ranks that may leave by themselves still get a few seconds between SIGTERM and SIGKILL.
        patience = max(stop.grace_seconds / 2, stop.grace_seconds - 3) if self._can_delay_sigterm(stop) else 0.0
        kill_at = now + stop.grace_seconds
        if self.stopping:
            kill_at = min(kill_at, self.stopping.kill_at)
        self.context.ending = exit_reason
        self.stopping = PendingStop(exit_reason, stop, min(now + patience, kill_at), kill_at)

    def _can_delay_sigterm(self, stop: Stop) -> bool:
        return stop.reason not in {"fenced", "cancelled", "done"} and self.worker.can_delay_sigterm()

    def _escalate_stop(self, stopping: PendingStop, now: float) -> None:
        if not stopping.sigterm_sent and (now >= stopping.term_at or not self._can_delay_sigterm(stopping.stop)):
            stopping.sigterm_sent = True
            if self.processes.signal_writers(signal.SIGTERM):
                stopping.readers_term_at = now + (stopping.kill_at - now) / 2
        if now >= stopping.readers_term_at:
            stopping.readers_term_at = math.inf
            self.processes.signal(signal.SIGTERM)
        if now >= stopping.kill_at:
            self.processes.kill_everything()

    def _verdict(self) -> Verdict | None:
        verdict = self.worker.verdict()
        if self.stopping is None:
            return verdict
        if self.processes.running() and time.monotonic() < self.stopping.kill_at + UNKILLABLE_SECONDS:
            return None
        code = verdict.code if verdict else self.last_code
        return Verdict(code, self.stopping.exit_reason, stop_message(self.stopping.stop.reason))

    def _clean_up(self) -> None:
        """Kill all processes of the job, and wait for the output that is still in pipes."""
        until = time.monotonic() + UNKILLABLE_SECONDS
        self.processes.kill_everything()
        while self.processes.has_descendants() and time.monotonic() < until:
            self.wakeup.wait(0.05)
            self.processes.reap()
            self.processes.kill_everything()
        self.worker.close()
        self._event_files.end()
        if self._metrics is not None:
            os.close(self._metrics)
        until = time.monotonic() + DRAIN_SECONDS
        for pump in self.context.pumps:
            pump.join(max(until - time.monotonic(), 0))

    def _write_status(self) -> None:
        phase: Message = launch.Stopping() if self.stopping else self.worker.phase
        status: dict[str, object] = {
            "message": phase.data(),
            "phase": phase.text,  # for agents of the previous release
            "ranks": len(self.processes.running()),
            "lease": COUNTS_FROM_REPORT,
        }
        if status != self._status:
            self._status = status
            try:
                write_json(self.paths.scribe / "status.json", status)
            except OSError:
                pass  # a full disk must not end the training


class FirstProcess(Protocol):
    def run(self) -> Verdict: ...


def run_first_process(first: Callable[[RunSpec, ContainerPaths, Control, LogWriter], FirstProcess]) -> int:
    """Run a container's first process and return its exit code. Whatever happens, exit.json contains how it ended.

    What it prints goes to the engine's own log, and is masked like the logs.
    """
    paths = ContainerPaths.from_env(dict(os.environ))
    control = Control(paths.control)
    logs = LogWriter.from_env(paths.scribe, os.environ)
    masking = NO_MASKING
    try:
        masking = JobSecrets.read(os.environ).masking()
        logs.mask(masking)
        verdict = first(control.spec(), paths, control, logs).run()
    except Exception as error:
        sys.stderr.write(masking.mask_text(traceback.format_exc()))
        message = launch.ContainerNotRun(masking.mask_text(str(error)))
        logs.report(message.text)
        verdict = Verdict(1, "launch_error", message)
    logs.close()  # before exit.json: a reader of that then has the whole log
    content = masking.mask_json(verdict.to_json())
    try:
        write_json(paths.scribe / "exit.json", content)
    except OSError as error:
        sys.stderr.write(f"exit.json could not be written: {error}; its content: {json.dumps(content)}\n")
    return verdict.code if 0 <= verdict.code <= 255 else 1


if __name__ == "__main__":
    sys.exit(run_first_process(Supervisor))
