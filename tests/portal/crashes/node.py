"""A node: an agent that may be killed, above an engine and a disk that stay."""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import httpx
from django.contrib.auth.models import AnonymousUser
from django.test import RequestFactory
from django.urls import resolve

from portal.accounts.models import digest
from portal.cluster import services as cluster
from portal.cluster.models import Node as NodeRow
from portal.environments.models import Environment
from portal.wake import node_channel
from runners.agent.log_shipper import LogShipper
from runners.agent.machine import Machine
from runners.agent.portal_client import PortalClient, PortalError
from runners.agent.program import Agent
from runners.environments.builds import Report
from runners.host.gpus import Gpu
from runners.host.node_files import NodeFiles
from runners.runtimes.fake import FakeContainer, FakeRuntime
from tests.portal.crashes.processes import Away, Process

if TYPE_CHECKING:
    from tests.portal.crashes.lab import Lab

GPUS = 2
DOWN = 255
"""The exit code that an engine reports for containers that it finds dead after its machine went down."""
VERBS = ("create", "start", "stop", "remove", "list", "connect")
LOOPS = ("observe", "sync", "reconcile", "networks", "outputs", "checkpoints")
"""Of an agent. The others write nothing that a job depends on."""
EMPTY_TAR = bytes(10_240)


class Node(Process):
    kind = "agent"

    def __init__(self, lab: "Lab", name: str, address: str) -> None:
        super().__init__(lab)
        self.name, self.cut = name, False
        self.engine = Engine(lab, name)
        self.files = NodeFiles(lab.home / name)
        self.files.make()
        (self.files.code / f"{lab.code.sha256}.tar").write_bytes(EMPTY_TAR)
        self.machine = Bare(self.files.home, self.engine)
        self.machine.name = name
        self.machine._facts = {"cpus": 4, "memory_mib": 16_384, "ring_address": address}
        joined = cluster.join(cluster.issue_join_token(None, approves=True), name, "fake", {})
        self.row, self.token = joined.node, f"sln_{name}"  # not by chance: when all rows are compared hangs on it
        NodeRow.objects.filter(pk=self.row.pk).update(token_digest=digest(self.token))
        self.background: list[Callable[[], None]] = []
        """Work that the agent has started in threads."""

    def begin(self) -> None:
        self.machine.refresh_gpus()
        watched: Any = Watched(self.engine)
        self.agent = Agent(self.files, Client(self), watched, Ready(), self.machine)
        self.due = dict.fromkeys(LOOPS, 0.0)

    def work(self) -> None:
        """Run the loops that are due, in any order; now and then one is late, or work of a thread proceeds."""
        chance, now = self.lab.chance, self.lab.clock.seconds
        if node_channel(self.row.pk) in self.lab.notified:
            self.lab.notified.discard(node_channel(self.row.pk))
            self.agent._wake("sync")
        for name in chance.sample(LOOPS, len(LOOPS)):
            loop = self.agent._loops[name]
            if (loop.wake.is_set() or now >= self.due[name]) and chance.random() < 0.8:
                loop.wake.clear()
                rest = loop._work()
                self.due[name] = now + (loop.seconds if rest is None else rest)
            if self.background and chance.random() < 0.7:
                self.background.pop(chance.randrange(len(self.background)))()
        self.agent.shipper.pump()  # type: ignore[attr-defined]

    def end(self) -> None:
        del self.agent
        self.background.clear()

    def power_off(self, seconds: float) -> None:
        self.engine.power_off()
        self.go_away(seconds)

    @property
    def rests(self) -> bool:
        left = self.engine.containers or any(self.files.containers.iterdir()) or self.background
        return self.up and self.agent._full_pass and not left

    def tidied(self) -> list[str]:
        """What is left on the disk an hour later."""
        self.agent._loops["tidy"]._work()
        return [str(path) for folder in (self.files.containers, self.files.attempts) for path in folder.iterdir()]


class Engine(FakeRuntime):
    """In the place of Docker. What runs on it goes on while its agent is dead, and the judge sees all of it."""

    def __init__(self, lab: "Lab", node: str) -> None:
        super().__init__(clock=lab.clock.monotonic)
        self.lab, self.node = lab, node
        self.forced: set[str] = set()
        """Ended by the engine, not by themselves."""

    def start(self, name: str) -> None:
        waits = name in self.containers and self.containers[name].state == "created"
        super().start(name)
        if waits:
            spec, checkpoints = self.containers[name].spec, self.containers[name].folders.checkpoints / "starts"
            if spec.role == "host":
                with checkpoints.open("a") as file:
                    file.write(f"{spec.number}\n")
                os.utime(checkpoints, ns=(self.lab.node_clock.time_ns(),) * 2)
            self.lab.judge.began(self.node, spec, checkpoints)

    def stop(self, name: str, grace_seconds: int) -> None:
        self.forced.add(name)
        super().stop(name, grace_seconds)
        self.look()

    def remove(self, name: str) -> None:
        super().remove(name)
        self.look()

    def _end(self, run: FakeContainer, code: int, reason: str, detail: str) -> None:
        if reason == "stopped" and run.setting("DEAF") and run.spec.name not in self.forced:
            return  # it was asked to stop and ignores it
        super()._end(run, code, reason, detail)

    def look(self) -> None:
        self._advance()
        self.lab.judge.live(self.node, {name for name, run in self.containers.items() if run.state == "running"})

    def power_off(self) -> None:
        for run in self.containers.values():
            if run.state == "running":
                run.exit_code = DOWN
        self.look()


class Watched:
    """An engine as its agent calls it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self._engine, name)
        if name not in VERBS:
            return verb
        return lambda *args: self._engine.lab.points.around(f"engine {name}", lambda: verb(*args))


class Bare(Machine):
    """A machine that is nothing but its GPUs."""

    name = ""

    def inventory(self) -> list[Gpu]:
        return [Gpu(f"{self.name}-{index}", index, "cpu", "CPU slot") for index in range(GPUS)]


class Ready:
    """Every environment is there."""

    def prepare(self, key: str, progress: object = None) -> Report:
        return Report(key, "pretended", "ready", 100)

    def reports(self) -> list[Report]:
        return [self.prepare(key) for key in Environment.objects.values_list("key", flat=True)]

    def reference_of(self, key: str) -> str:
        return "pretended"


class Shipper(LogShipper):
    """Sends when it is asked to, in no threads of its own."""

    def finish(self, name: str, seconds: float) -> bool:
        if (turn := self._queued_logs.get(name)) is None:
            return True
        turn.log.ended = True
        try:
            while turn.log.send_batch(self._portal) is not None:
                pass
        except PortalError:
            return False
        return turn.log.is_drained

    def pump(self) -> None:
        for turn in self._queued_logs.values():
            try:
                turn.log.send_batch(self._portal)
            except PortalError:
                return


class Client(PortalClient):
    def __init__(self, node: Node) -> None:
        self.url = "http://portal"
        headers = {"Authorization": f"Bearer {node.token}"}
        self._http = httpx.Client(base_url=self.url, transport=Line(node), headers=headers, trust_env=False)


class Line(httpx.BaseTransport):
    """Between an agent and the portal."""

    def __init__(self, node: Node) -> None:
        self.node = node

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        first, *rest = request.url.path.removeprefix("/agent/v1/").split("/")
        about = "/".join([first, *rest[1:2]])  # without names and hashes
        return self.node.lab.points.around(f"{request.method} {about}", lambda: self._ask(request))

    def _ask(self, request: httpx.Request) -> httpx.Response:
        if self.node.cut:
            raise httpx.ConnectError("cut off", request=request)
        asked = RequestFactory().generic(
            request.method,
            request.url.raw_path.decode(),
            request.read(),
            content_type=request.headers.get("content-type", "application/octet-stream"),
            headers={name: value for name, value in request.headers.items() if not name.startswith("content-")},
        )
        asked.user = AnonymousUser()  # what the middleware makes of a request without a session
        view, args, named = resolve(request.url.path)
        try:
            answer = self.node.lab.web.answer(lambda: view(asked, *args, **named))
        except Away:
            raise httpx.ReadError("gone", request=request) from None
        content = b"".join(answer.streaming_content) if answer.streaming else answer.content
        return httpx.Response(answer.status_code, headers=dict(answer.items()), content=content)
