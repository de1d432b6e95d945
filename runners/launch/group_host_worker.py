"""What the supervisor of a host does when a driver leads the job: it starts and ends ranks as the driver commands."""

import os
import queue
import signal
import time
from typing import Any

from runners.launch import network
from runners.launch.driver_client import DriverClient
from runners.launch.forwarder import MAX_DRIVER_ABSENCE_SECONDS, start_forwarder
from runners.launch.host_worker import Verdict, WorkerContext
from runners.launch.joining_ranks import ASKS_FOR_PLACE
from runners.launch.prestart import PrestartedRanks, expected_slots
from runners.launch.processes import Exit, Wakeup
from runners.launch.ranks import horovod_env, torch_env
from runners.launch.rendezvous import Server
from runners.launch.restart_costs import STEPS_VARIABLE, RestartCosts
from runners.launch.slots import slot_env
from runners.messages import Message
from runners.messages.launch import (
    AwaitingOtherHosts,
    DriverNeverAnswered,
    DriverStoppedAnswering,
    HostHasNoAddress,
    LeftJob,
    NoWayToDriver,
    Running,
    read_message,
)
from runners.spec import CollectiveGroup

FORM_SECONDS = 600.0
"""Hosts of one attempt start within this time of each other, or the attempt fails."""
DRIVER_SILENT_SECONDS = 60.0
RESOLVER_OPTIONS = "timeout:1 attempts:1"
"""Options for resolving names: the name of a driver that is not up yet is unknown, and the engine may not answer at all."""
KILL_SECONDS = 5.0
"""The time between SIGTERM and SIGKILL when the driver ends one rank."""
REPORT_SECONDS = 3.0
"""Time for the driver to receive how the last ranks here ended."""


class GroupHostWorker:
    phase: Message = AwaitingOtherHosts()

    def __init__(self, context: WorkerContext, group: CollectiveGroup, wakeup: Wakeup) -> None:
        os.environ["RES_OPTIONS"] = RESOLVER_OPTIONS  # for this process only: the ranks' variables were copied before
        self.context = context
        self.group = group
        self.client = DriverClient(
            group, context.spec.hostname, context.spec.slots, wakeup.notify, self._driver_address
        )
        self._patience = (
            MAX_DRIVER_ABSENCE_SECONDS if group.outlives_driver and context.spec.elastic else DRIVER_SILENT_SECONDS
        )
        self._forwarder: Server | None = None
        self._interface = ""
        self._torch = context.spec.launcher == "torchrun"
        self._prestarted = PrestartedRanks()
        self._costs = RestartCosts(context.paths.scribe)
        self._runs: dict[str, int] = {}
        """The numbers, by slot, of the ranks that run and that the driver has asked for."""
        self._next: dict[str, dict[str, Any]] = {}
        """What to start in a slot as soon as the rank that still runs there has ended."""
        self._kill_at: dict[str, float] = {}
        self._leaving = False
        self._over: Verdict | None = None
        self._failed: Verdict | None = None
        self._began_at = time.monotonic()

    def begin(self) -> None:
        if not self._torch:
            may_move = self.group.outlives_driver and self.context.spec.elastic
            group, first_place = self.group, self._prestarted.wait_for_place
            self._forwarder = start_forwarder(self._driver_address, group.port, group.secret, may_move, first_place)
            self._prestart()
        self.context.logs.report("Waiting for the other hosts")
        self.client.begin()

    def _prestart(self) -> None:
        spec = self.context.spec
        slots = expected_slots(self.context.control.hosts, spec.hostname, spec.slots)
        if not slots or not self._find_interface():
            return
        for slot in slots:
            key, label = str(slot.local_rank), f"rank {slot.rank}"
            self.context.logs.label(key, label)
            self.context.logs.report(f"Starting {label} of {' '.join(spec.command)} with Horovod")
            env = {**self._env(), **slot_env(slot), ASKS_FOR_PLACE: "1"}
            self._prestarted.expect(key)
            if failed := self.context.start_rank(slot.local_rank, env):
                self._prestarted.record_exit(key, failed)

    def _driver_address(self) -> str:
        return self.context.control.driver or self.group.driver_host

    def tick(self) -> None:
        while True:
            try:
                self._execute(self.client.commands.get_nowait())
            except queue.Empty:
                break
        now = time.monotonic()
        for key, at in list(self._kill_at.items()):
            if now >= at:
                self.context.processes.signal(signal.SIGKILL, key)
        self._record_costs()
        self._watch_driver(now)

    def record_exit(self, exit: Exit) -> None:
        run = self._runs.pop(exit.key, None)
        self._kill_at.pop(exit.key, None)
        self._prestarted.record_exit(exit.key, exit.code)
        self._record_costs()
        self._costs.record_exit(exit.key)
        if self._leaving:
            self.context.logs.report(f"The rank in slot {exit.key} has left the job")
        else:
            self.context.logs.report_exit(f"The rank in slot {exit.key} ended with exit code {exit.code}", exit.key)
        if run is None:
            return  # the driver learns of a prestarted rank's end when it claims the rank
        recorded = {**self._recorded_run(int(exit.key)), "code": exit.code}
        self._record_run(recorded)
        self.client.report_exit(run, exit.code, self.context.ending, recorded.get("cost_ms"))
        if command := self._next.pop(exit.key, None):
            self._start(command)

    def _record_run(self, entry: dict[str, Any]) -> None:
        """Record a run for a driver that takes over from the present one."""
        others = [other for other in self.client.runs if other["slot"] != entry["slot"]]
        self.client.runs = (*others, entry)

    def _recorded_run(self, slot: int) -> dict[str, Any]:
        return next(entry for entry in self.client.runs if entry["slot"] == slot)

    def _record_costs(self) -> None:
        for key, seconds in self._costs.take_new().items():
            self._record_run({**self._recorded_run(int(key)), "cost_ms": round(seconds * 1000)})

    def verdict(self) -> Verdict | None:
        if self._failed:
            return self._failed
        if self.context.processes.running():
            return None
        if self._over:
            return self._over
        return Verdict(0, "stopped", LeftJob()) if self._leaving else None

    def can_delay_sigterm(self) -> bool:
        """Whether ranks may leave by themselves: those of a host that an elastic job loses do so at their next commit."""
        return self.context.spec.elastic and self._over is None and bool(self._runs)

    def close(self) -> None:
        if not (self._over or self._failed):
            self.client.wait_until_reported(REPORT_SECONDS)
        self.client.end()
        if self._forwarder:
            self._forwarder.shutdown()
            self._forwarder.server_close()

    def _watch_driver(self, now: float) -> None:
        if self._over or self._failed:
            return
        answered_at = self.client.answered_at
        if answered_at is None and now - self._began_at > FORM_SECONDS:
            self._fail(DriverNeverAnswered(round(FORM_SECONDS)))
        elif answered_at is not None and now - answered_at > self._patience:
            self._fail(DriverStoppedAnswering(round(self._patience)))

    def _fail(self, message: Message) -> None:
        self.context.logs.report(message.text)
        self._failed = Verdict(1, "launch_error", message)

    def _execute(self, command: dict[str, Any]) -> None:
        match command.get("do"):
            case "start":
                self._start(command)
            case "stop":
                for key, run in self._runs.items():
                    if run == command.get("run"):
                        self._end_rank(key)
            case "label":
                self.context.logs.label(str(command.get("slot")), str(command.get("label")))
            case "leave":
                self._leaving = True
                for key in self._prestarted.unclaimed_slots():
                    self._end_rank(key)
            case "end":
                message = read_message(command.get("message"), command.get("sentence"))
                self._over = Verdict(int(command.get("code", 1)), "exited", message)
                # When an attempt is stopped, this may arrive before the agent's stop, which grants the same time.
                patience = max(KILL_SECONDS, self.context.spec.grace_seconds)
                for key in self.context.processes.running():
                    self.context.processes.signal(signal.SIGTERM, key)
                    self._kill_at.setdefault(key, time.monotonic() + patience)

    def _end_rank(self, key: str) -> None:
        """End a rank. torchrun's ranks save a snapshot then; Horovod's are ended only when they no longer count."""
        if key in self._kill_at:
            return
        patience = KILL_SECONDS
        if self._torch:
            patience = max(KILL_SECONDS, self.context.spec.grace_seconds)
            if not self.context.ending:
                self.context.announce_stop("resized", patience)
        self.context.processes.signal(signal.SIGTERM, key)
        self._kill_at[key] = time.monotonic() + patience

    def _start(self, command: dict[str, Any]) -> None:
        spec, run, slot = self.context.spec, int(command["run"]), int(command["slot"])
        key = str(slot)
        if self._torch and key in self._runs and not self._is_ending():
            self._next[key] = command  # the driver believed this host to be lost
            self._end_rank(key)
            return
        if not 0 <= slot < spec.slots or key in self._runs or self._is_ending():
            self.client.report_exit(run, 1, self.context.ending)
            return
        if key in self._prestarted.unclaimed_slots():
            self._adopt(command)
            return
        if not self._find_interface():
            self.client.report_exit(run, 1)
            return
        self.context.logs.label(key, str(command["label"]))
        with_what = "torchrun" if self._torch else "Horovod"
        self.context.logs.report(f"Starting {command['label']} of {' '.join(spec.command)} with {with_what}")
        env = {**self._env(), **_command_env(command)}
        if self._torch:
            self.context.remove_notice()
            self._costs.expect(key)
            env[STEPS_VARIABLE] = str(self._costs.file(key))
        if failed := self.context.start_rank(slot, env):
            self.client.report_exit(run, failed)
            return
        self._runs[key] = run
        self._record_run({"run": run, "slot": slot, "code": None, **command.get("together", {})})
        self.phase = Running()

    def _adopt(self, command: dict[str, Any]) -> None:
        """Make a prestarted rank the one that the driver asks for."""
        run, slot = int(command["run"]), int(command["slot"])
        self.context.logs.label(str(slot), str(command["label"]))
        code = self._prestarted.claim(str(slot), _command_env(command))
        self._record_run({"run": run, "slot": slot, "code": code})
        self.phase = Running()
        if code is None:
            self._runs[str(slot)] = run
        else:
            self.client.report_exit(run, code)

    def _is_ending(self) -> bool:
        return bool(self._over or self._leaving or self.context.ending)

    def _env(self) -> dict[str, str]:
        if self._torch:
            return torch_env(self.context.env(), self._interface, self.context.spec)
        assert self._forwarder is not None  # noqa: S101 - begin() comes first
        return horovod_env(self.context.env(), self._interface, self._forwarder.server_port, self.context.spec.elastic)

    def _find_interface(self) -> bool:
        if not self._torch and not network.own_name_resolves():
            self._fail(HostHasNoAddress())
            return False
        try:
            self._interface = network.interface_of(network.own_address_in(self._driver_address(), self.group.port))
        except OSError as error:
            self._fail(NoWayToDriver(str(error)))
            return False
        return True


def _command_env(command: dict[str, Any]) -> dict[str, str]:
    return {str(name): str(value) for name, value in command["env"].items()}
