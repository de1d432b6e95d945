"""A runtime in memory: nothing runs, but the files appear that a supervisor would write.

Variables in the RunSpec's environment determine what happens:

    FAKE_RUN_SECONDS   how long it runs (default 0); "never": it runs for ever
    FAKE_EXIT_CODE     its exit code (default 0)
    FAKE_OUTPUT        what each rank prints
    FAKE_OOM           any value: killed by the memory limit

A stop in control.json ends it as ``stopped``, a lease that no longer changes as ``fenced``. Containers end only when
they are listed or stopped, so a test may use its own clock.
"""

import json
import math
import os
import signal
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from runners.host.node_files import write_atomic
from runners.messages.containers import GoneBeforeStart
from runners.messages.launch import Running
from runners.messages.problems import Problem
from runners.runtime import AttemptNetwork, CreateError, EngineError, Folders, ObservedContainer, RunError
from runners.spec import RunSpec

FENCE_SECONDS = 34.0
KILLED_EXIT_CODE = 128 + signal.SIGKILL
TERMINATED_EXIT_CODE = 128 + signal.SIGTERM


@dataclass(slots=True)
class FakeContainer:
    """A pretended container."""

    spec: RunSpec
    folders: Folders
    started_at: float | None = None
    exit_code: int | None = None
    oom_killed: bool = False
    lease: bytes = b""
    lease_at: float = 0.0

    @property
    def state(self) -> Literal["created", "running", "exited"]:
        if self.exit_code is not None:
            return "exited"
        return "created" if self.started_at is None else "running"

    def setting(self, name: str, default: str = "") -> str:
        return dict(self.spec.env).get(name, default)

    @property
    def run_seconds(self) -> float:
        wanted = self.setting("FAKE_RUN_SECONDS", "0")
        return math.inf if wanted == "never" else float(wanted)


class FakeRuntime:
    """A ContainerRuntime in memory. To simulate an agent's restart, give the same object to the next agent."""

    kind: Literal["fake"] = "fake"

    def __init__(self, clock: Callable[[], float] = time.monotonic, fence_seconds: float = FENCE_SECONDS) -> None:
        self.clock = clock
        self.fence_seconds = fence_seconds
        self.containers: dict[str, FakeContainer] = {}
        self.calls: list[tuple[str, str]] = []
        self.connected: list[AttemptNetwork] = []

    def check(self) -> list[Problem]:
        return []

    def facts(self) -> dict[str, Any]:
        return {"engine": "pretended", "cpus": os.cpu_count() or 1}

    def is_ours(self, pid: int) -> bool:
        return True

    def create(self, spec: RunSpec, folders: Folders) -> None:
        self._record_call("create", spec.name)
        self.containers.setdefault(spec.name, FakeContainer(spec, folders))

    def start(self, name: str) -> None:
        self._record_call("start", name)
        if name not in self.containers:
            raise CreateError(GoneBeforeStart())
        run = self.containers[name]
        if run.state != "created":
            return
        phase = Running()
        status = {"message": phase.data(), "phase": phase.text, "ranks": run.spec.slots}
        write_json(run.folders.scribe / "status.json", status)
        self._write_first_lines(run)
        run.started_at = run.lease_at = self.clock()  # last: from then on a test may replace its files

    def _write_first_lines(self, run: FakeContainer) -> None:
        """Write the first lines of its log."""
        append_output(run.folders.scribe, "setup", "set-up", b"pretending to run\n")
        for rank in range(run.spec.slots):
            output = run.setting("FAKE_OUTPUT").encode()
            append_output(run.folders.scribe, str(rank), f"rank {rank}", output)

    def signal(self, name: str, signum: int) -> None:
        self._record_call("signal", name)
        run = self.containers.get(name)
        if run is None or run.state != "running":
            return
        if signum == signal.SIGKILL:
            run.exit_code = KILLED_EXIT_CODE
        elif signum == signal.SIGTERM:
            self._end(run, TERMINATED_EXIT_CODE, "stopped", "")

    def stop(self, name: str, grace_seconds: int) -> None:
        self._record_call("stop", name)
        self._advance()
        run = self.containers.get(name)
        if run is not None and run.state == "running":
            self._end(run, TERMINATED_EXIT_CODE, "stopped", "")

    def remove(self, name: str) -> None:
        self._record_call("remove", name)
        self.containers.pop(name, None)

    def list(self) -> list[ObservedContainer]:
        self._record_call("list", "")
        self._advance()
        return [
            ObservedContainer(
                name=name,
                job=run.spec.job,
                attempt=run.spec.attempt,
                epoch=run.spec.number,
                state=run.state,
                exit_code=run.exit_code,
                oom_killed=run.oom_killed,
            )
            for name, run in sorted(self.containers.items())
        ]

    def connect(self, attempts: Sequence[AttemptNetwork]) -> None:
        """Record the networks for tests: pretended containers do not communicate."""
        self.connected = list(attempts)

    def logs(self, name: str, limit_bytes: int) -> bytes:
        return b"pretended\n"[-limit_bytes:] if name in self.containers else b""

    def _record_call(self, verb: str, name: str) -> None:
        """Record a call. The failing runtimes below override this."""
        self.calls.append((verb, name))

    def _advance(self) -> None:
        now = self.clock()
        for run in tuple(self.containers.values()):  # another thread may add or remove one meanwhile
            if run.state != "running" or run.started_at is None:
                continue
            stop = read_json(run.folders.control / "control.json").get("stop")
            if stop:
                self._end(run, TERMINATED_EXIT_CODE, "stopped", str(stop.get("reason", "")))
            elif self._is_fenced(run, now):
                self._end(run, TERMINATED_EXIT_CODE, "fenced", "no fresh lease")
            elif now - run.started_at >= run.run_seconds:
                if run.setting("FAKE_OOM"):
                    run.exit_code, run.oom_killed = KILLED_EXIT_CODE, True
                else:
                    self._end(run, int(run.setting("FAKE_EXIT_CODE", "0")), "exited", "")

    def _is_fenced(self, run: FakeContainer, now: float) -> bool:
        try:
            lease = (run.folders.control / "lease").read_bytes()
        except FileNotFoundError:
            lease = b""
        if lease != run.lease:
            run.lease, run.lease_at = lease, now
        return now - run.lease_at > self.fence_seconds

    def _end(self, run: FakeContainer, code: int, reason: str, detail: str) -> None:
        write_json(run.folders.scribe / "exit.json", {"code": code, "reason": reason, "detail": detail})
        run.exit_code = code


class SlowRuntime(FakeRuntime):
    """A runtime whose operations take ``seconds`` each."""

    def __init__(self, seconds: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.seconds = seconds

    def _record_call(self, verb: str, name: str) -> None:
        super()._record_call(verb, name)
        time.sleep(self.seconds)


class StuckRuntime(FakeRuntime):
    """A runtime in which nothing that is started ever runs, and nothing stops until it is removed."""

    def start(self, name: str) -> None:
        self._record_call("start", name)

    def stop(self, name: str, grace_seconds: int) -> None:
        self._record_call("stop", name)


class FailingRuntime(FakeRuntime):
    """A runtime in which the named operations fail ``times`` times each: without an answer, or with another ``error``."""

    def __init__(self, verbs: tuple[str, ...], times: int = 1, error: RunError | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.left = dict.fromkeys(verbs, times)
        self.error = error or EngineError("The engine does not answer.")

    def _record_call(self, verb: str, name: str) -> None:
        super()._record_call(verb, name)
        if self.left.get(verb, 0) > 0:
            self.left[verb] -= 1
            raise self.error


def write_json(path: Path, data: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, json.dumps(data).encode(), sync=False)


def read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (FileNotFoundError, json.JSONDecodeError):
        return {}
    return found if isinstance(found, dict) else {}


def append_output(scribe: Path, stream: str, label: str, output: bytes) -> None:
    """Append output to a stream as the supervisor does: bytes, a time mark, a label."""
    folder = scribe / "log"
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / f"{stream}.log"
    offset = log.stat().st_size if log.exists() else 0
    with log.open("ab") as file:
        file.write(output)
    with (folder / f"{stream}.idx").open("ab") as file:
        file.write(struct.pack("<QQ", offset, time.time_ns() // 1_000_000))
    write_json(folder / "streams.json", {**read_json(folder / "streams.json"), stream: {"label": label}})
