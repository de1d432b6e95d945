"""Real supervisors and drivers as processes of this machine, each with the files that the agent would keep for it."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from runners.spec import CollectiveGroup, Launcher, Resources, Role, RunSpec
from tests.servers import free_port

ROOT = Path(__file__).resolve().parent.parent.parent
STEPS = Path(__file__).resolve().parent / "scripts" / "steps.py"
GROUP_SECONDS = 120
"""For ranks that import torch on a busy machine."""
WAIT_FOR_RELEASE = """
import os, time
while not os.path.exists(os.path.join(os.environ["SCHEDULEARN_OUTPUTS"], "released")):
    time.sleep(0.02)
"""
"""Program text: a rank waits here until the test calls ``Attempt.release``."""


class Container:
    """One container's folders and its first process. ``renew`` in a thread plays the agent's lease."""

    def __init__(self, home: Path, spec: RunSpec, shared: Path, python: str = sys.executable) -> None:
        self.spec = spec
        self.python = python
        self.control, self.scribe = home / "control", home / "scribe"
        self.workspace, self.outputs, self.checkpoints = home / "workspace", shared / "outputs", shared / "checkpoints"
        for folder in (self.control, self.scribe, self.workspace, self.outputs, self.checkpoints):
            folder.mkdir(parents=True, exist_ok=True)
        self.write("job.json", json.dumps(spec.to_json()))
        self.process: subprocess.Popen[bytes] | None = None
        self._ended = threading.Event()
        self._renewals = 0

    def write(self, name: str, content: str) -> None:
        beside = self.control / f".{name}.new"
        beside.write_text(content)
        beside.replace(self.control / name)

    def tell(
        self,
        stop: dict[str, Any] | None = None,
        hosts: list[tuple[str, int]] = (),  # type: ignore[assignment]
        driver: str | None = None,
        batch: int | None = None,
    ) -> None:
        known_hosts = [{"name": name, "slots": slots} for name, slots in hosts]
        self.write("control.json", json.dumps({"stop": stop, "hosts": known_hosts, "driver": driver, "batch": batch}))

    def start(self, renew: bool = True, **env: str) -> "Container":
        module = "runners.launch.driver" if self.spec.role == "driver" else "runners.launch.supervisor"
        self.process = subprocess.Popen(
            [self.python, "-m", module],
            cwd=ROOT,
            env={
                "PATH": f"{Path(self.python).parent}:/usr/local/bin:/usr/bin:/bin",
                "HOME": str(self.scribe),
                "SCHEDULEARN_CONTROL": str(self.control),
                "SCHEDULEARN_SCRIBE": str(self.scribe),
                "SCHEDULEARN_WORKSPACE": str(self.workspace),
                "SCHEDULEARN_OUTPUTS": str(self.outputs),
                "SCHEDULEARN_CHECKPOINTS": str(self.checkpoints),
                "SCHEDULEARN_TURN_SECONDS": "0.1",
                **env,
            },
            start_new_session=True,
        )
        if renew:
            self.renew()
            threading.Thread(target=self._keep_renewing, daemon=True).start()
        return self

    def renew(self) -> None:
        self._renewals += 1
        self.write("lease", json.dumps({"renewal": self._renewals}))

    def _keep_renewing(self) -> None:
        while not self._ended.wait(0.5):
            self.renew()

    def stop_renewing(self) -> None:
        """From now on the lease gets older, as when the agent has lost the portal."""
        self._ended.set()

    def log(self, stream: str = "0") -> str:
        return self.raw(stream).decode(errors="replace")

    def raw(self, stream: str = "0") -> bytes:
        path = self.scribe / "log" / f"{stream}.log"
        return path.read_bytes() if path.exists() else b""

    def labels(self) -> dict[str, str]:
        content = json.loads((self.scribe / "log" / "streams.json").read_bytes())
        return {name: entry["label"] for name, entry in content.items()}

    def exit(self) -> dict[str, Any]:
        value: dict[str, Any] = json.loads((self.scribe / "exit.json").read_bytes())
        return value

    def wait(self, seconds: float = 30) -> dict[str, Any]:
        """The content of exit.json, once the first process has ended."""
        assert self.process is not None
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"{self.spec.hostname} still runs. {self.summary()}") from error
        return self.exit()

    def summary(self) -> str:
        logs = sorted((self.scribe / "log").glob("*.log"))
        return "\n".join(f"--- {self.spec.hostname} {path.name}\n{path.read_text(errors='replace')}" for path in logs)

    def terminate(self) -> None:
        self._ended.set()
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)

    def close(self) -> None:
        self.terminate()
        if self.process is not None:
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                pass
            if self.process.poll() is None:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()


class Attempt:
    """The containers of one attempt on this machine."""

    def __init__(self, home: Path, python: str = sys.executable) -> None:
        self.home = home
        self.python = python
        self.containers: list[Container] = []

    def container(
        self,
        command: tuple[str, ...],
        launcher: Launcher = "command",
        role: Role = "host",
        hostname: str = "h0",
        slots: int = 1,
        group: CollectiveGroup | None = None,
        elastic: bool = False,
        code: Path | None = None,
        **more: Any,
    ) -> Container:
        given: dict[str, Any] = {
            "gpus": tuple(f"cpu-{slot}" for slot in range(slots)),
            "resources": Resources(cpus=slots),
            "grace_seconds": 5,
            **more,
        }
        spec = RunSpec(
            name=f"sl-1-a1-{len(self.containers)}",
            job=1,
            attempt=1,
            number=1,
            role=role,
            hostname=hostname,
            environment="pytorch-horovod",
            code_sha256="0" * 64,
            launcher=launcher,
            command=command,
            slots=slots,
            collective=group,
            elastic=elastic,
            **given,
        )
        made = Container(self.home / spec.name, spec, self.home, self.python)
        if code is not None:
            (made.workspace / "train.py").write_text(code.read_text())
        self.containers.append(made)
        return made

    def release(self) -> None:
        """Let every rank go on that stands at ``WAIT_FOR_RELEASE``."""
        (self.home / "outputs" / "released").touch()

    def close(self) -> None:
        for container in self.containers:
            container.terminate()
        for container in self.containers:
            container.close()


def local_group(min_ranks: int, max_ranks: int) -> CollectiveGroup:
    return CollectiveGroup("127.0.0.1", free_port(), "a-secret-of-this-attempt", min_ranks, max_ranks)


class ElasticJob:
    """An elastic group of one attempt: its driver, and hosts with one rank each that run ``code``."""

    def __init__(
        self,
        made: Attempt,
        command: tuple[str, ...] = ("python", "train.py"),
        code: Path = STEPS,
        min_ranks: int = 1,
        max_ranks: int = 2,
        driver_env: tuple[tuple[str, str], ...] = (),
    ) -> None:
        self.made, self.command, self.code = made, command, code
        self.group = local_group(min_ranks, max_ranks)
        self.offered: tuple[str, ...] = ()
        self.driver = made.container(
            command, "horovod", "driver", "driver", 0, self.group, elastic=True, env=driver_env
        )

    def host(self, number: int, code: Path | None = None) -> Container:
        """It gets the list of the group's hosts, as from its agent, so it starts its rank at once."""
        name = f"h{number}"
        code = code or self.code
        made = self.made.container(self.command, "horovod", "host", name, 1, self.group, elastic=True, code=code)
        made.tell(hosts=[(each, 1) for each in dict.fromkeys((*self.offered, name))])
        return made.start()

    def offer(self, *names: str) -> None:
        self.offered = names
        self.driver.tell(hosts=[(name, 1) for name in names])

    def enough(self) -> None:
        (self.made.home / "outputs" / "enough").touch()

    def sees(self, host: Container, words: str, after: int = 0, seconds: float = GROUP_SECONDS) -> None:
        until(lambda: words in host.log()[after:], seconds, self.summary)

    def summary(self) -> str:
        return "\n".join(container.summary() for container in self.made.containers)


@contextmanager
def attempt(home: Path, python: str = sys.executable) -> Iterator[Attempt]:
    made = Attempt(home, python)
    try:
        yield made
    finally:
        made.close()


def until(true: Callable[[], Any], seconds: float = 30, summary: Callable[[], str] = str) -> Any:
    """Waits for something to become true; fails with the ``summary`` when it does not in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if value := true():
            return value
        time.sleep(0.05)
    raise AssertionError(f"not true within {seconds} s\n{summary()}")


def last_accuracy(text: str) -> float:
    found = re.findall(r"^accuracy: (\d\.\d{4})$", text, re.MULTILINE)
    assert found, text
    return float(found[-1])
