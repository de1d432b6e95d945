"""An agent between a fake portal and a runtime, in this process or as one of its own, for the tests of this folder."""

import hashlib
import io
import math
import os
import signal
import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from runners.agent.environment_keeper import FakeEnvironments
from runners.agent.portal_client import PortalClient
from runners.agent.program import Agent
from runners.host.node_files import NodeFiles
from runners.runtime import ContainerRuntime
from runners.runtimes.fake import FakeRuntime
from runners.spec import Resources, RunSpec
from tests.fake_portal import FakePortal

ROOT = Path(__file__).resolve().parents[2]
NAME = "sl-1-a1-0"
FOREVER = {"FAKE_RUN_SECONDS": "never"}


def tar_of(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def give_code(portal: FakePortal, files: dict[str, bytes] | None = None) -> str:
    """The hash under which the portal now has this code."""
    tar = tar_of(files or {"train.py": b"print('hello')\n"})
    sha256 = hashlib.sha256(tar).hexdigest()
    portal.code[sha256] = tar
    return sha256


def spec_of(
    sha256: str, name: str = "sl-1-a1-0", *, job: int = 1, env: dict[str, str] | None = None, **more: Any
) -> RunSpec:
    spec = RunSpec(
        name=name,
        job=job,
        attempt=job * 10 + 1,
        number=1,
        role="host",
        hostname="h0",
        environment="plain",
        code_sha256=sha256,
        launcher="command",
        command=("python", "train.py"),
        slots=1,
        env=tuple((env or {}).items()),
        resources=Resources(disk_mib=64),
        grace_seconds=2,
    )
    return replace(spec, **more)


def entry(spec: RunSpec, wanted: str = "run", reason: str = "cancelled", **more: Any) -> dict[str, Any]:
    """What the portal lists."""
    stop = {"reason": reason, "grace_seconds": spec.grace_seconds} if wanted != "run" else None
    return {"spec": spec.to_json(), "wanted": wanted, "stop": stop, "hosts": [], **more}


def follow_protocol(portal: FakePortal) -> None:
    """Lists what has EXITED for collection, and no longer what was collected, as the real portal does."""

    def on_report(report: dict[str, Any]) -> None:
        states = {item["name"]: item for item in report["containers"]}
        kept = []
        for listed in portal.desired:
            reported = states.get(listed["spec"]["name"], {})
            if reported.get("state") == "EXITED" and reported.get("collected"):
                portal.version += 1
                continue
            if reported.get("state") == "EXITED" and listed["wanted"] != "collect":
                listed = {**listed, "wanted": "collect"}
                portal.version += 1
            kept.append(listed)
        portal.desired = kept

    portal.on_report = on_report


class Bench:
    """``start`` may be called again after ``crash``: the next agent finds the files and the runtime of the last."""

    def __init__(self, home: Path, portal: FakePortal, runtime: ContainerRuntime | None = None) -> None:
        self.home = home
        self.portal = portal
        self.runtime = runtime or FakeRuntime()
        self.files = NodeFiles(home)
        self.files.make()
        self.agent: Agent | None = None

    def start(self) -> Agent:
        client = PortalClient(self.portal.url, "sln_fake")
        self.agent = Agent(self.files, client, self.runtime, FakeEnvironments())
        self.agent.start()
        return self.agent

    def stop(self) -> None:
        if self.agent is not None:
            self.agent.stop()
            self.agent = None

    def pass_time(self, seconds: float) -> None:
        """For the pretended containers; that their leases get old meanwhile does not count."""
        assert isinstance(self.runtime, FakeRuntime)
        self.runtime.fence_seconds = math.inf
        before = self.runtime.clock
        self.runtime.clock = lambda: before() + seconds

    def lease(self, name: str) -> bytes:
        try:
            return (self.files.control(name) / "lease").read_bytes()
        except FileNotFoundError:
            return b""


class AgentProcess:
    """The agent as a program of its own, with real processes, to be killed."""

    module = "tests.runners.plain_agent"

    def __init__(self, home: Path, portal: FakePortal, **env: str) -> None:
        self.home = home
        self.root = ROOT
        """Where the code of the agent lies."""
        self.log = home.parent / "agent.log"
        self.env = {
            "PATH": os.environ["PATH"],
            "HOME": str(home.parent),
            "SCHEDULEARN_URL": portal.url,
            "SCHEDULEARN_JOIN_TOKEN": "slj_good",
            "AGENT_HOME": str(home),
            "RUNTIME": "process",
            "SCHEDULEARN_CPU_SLOTS": "2",
            "SCHEDULEARN_CONFINE": "no",
            "PYTHONFAULTHANDLER": "1",  # where each thread stood, in the log, if ``end`` has to abort it
            **env,
        }
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *flags: str) -> None:
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", self.module, *flags],
                cwd=self.root,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def end(self, seconds: float = 25) -> int:
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGABRT)
            self.process.wait(5)
            raise AssertionError(f"the agent did not end in {seconds} s:\n{self.log.read_text()[-8000:]}") from None


def starts(runtime: object) -> list[str]:
    return [name for verb, name in runtime.calls if verb == "start"]  # type: ignore[attr-defined]
