"""What a job can reach from inside: nothing (security.md C2, N1, N2)."""

import ipaddress
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from runners.runtime import Folders
from runners.runtimes.docker import DockerRuntime
from runners.runtimes.host_config import owner_for
from runners.spec import RunSpec
from tests.runners.conftest import GROUP, make_folders, make_spec

pytestmark = [
    pytest.mark.docker,
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can close the firewall and make another machine"),
]

PROBES = Path(__file__).parents[1] / "inside" / "probes.py"
LISTEN = (
    "import socket, time\nserver = socket.create_server(('', 4000))\nprint('up', flush=True)\n"
    "while True: server.accept()[0].close()"
)


@pytest.fixture
def runtime(pretender: str, tmp_path: Path) -> Iterator[DockerRuntime]:
    runtime = DockerRuntime(f"probes {tmp_path}", "node", lambda key: pretender)
    yield runtime
    for seen in runtime.list():
        runtime.remove(seen.name)


@contextmanager
def service_of_the_host() -> Iterator[int]:
    """Something that listens on every address of this machine, as a database may."""
    with socket.create_server(("", 0)) as server:
        server.settimeout(0.2)
        stopped = threading.Event()

        def accept() -> None:
            while not stopped.is_set():
                try:
                    server.accept()[0].close()
                except TimeoutError:
                    pass

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            stopped.set()
            thread.join()


OUTSIDE = ipaddress.ip_network("198.18.0.0/15")
"""Reserved for network benchmarks (RFC 2544): no real machine has such an address."""


@contextmanager
def world_outside() -> Iterator[tuple[str, int]]:
    """Another machine, as far as this one's routing knows: a network namespace behind a cable, with a listener.

    Its network is this process's own, so that what a killed run has left behind does not answer in its place.
    """
    first = 4 * (os.getpid() % (OUTSIDE.num_addresses // 4))
    near, far = str(OUTSIDE[first + 1]), str(OUTSIDE[first + 2])
    name = f"sl-out-{os.getpid()}"
    here, there = f"slo{os.getpid() % 10**6}a", f"slo{os.getpid() % 10**6}b"
    listen = "import socket; s = socket.create_server(('', 7000)); print('up', flush=True)\nwhile True: s.accept()[0].close()"

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True)

    ip("netns", "add", name)
    try:
        ip("link", "add", here, "type", "veth", "peer", "name", there, "netns", name)
        ip("address", "add", f"{near}/30", "dev", here)
        ip("link", "set", here, "up")
        ip("-n", name, "address", "add", f"{far}/30", "dev", there)
        ip("-n", name, "link", "set", there, "up")
        ip("-n", name, "route", "add", "default", "via", near)
        argv = ["ip", "netns", "exec", name, sys.executable, "-c", listen]
        process = subprocess.Popen(argv, stdout=subprocess.PIPE)
        try:
            assert process.stdout is not None and process.stdout.readline() == b"up\n"
            yield far, 7000
        finally:
            process.kill()
            process.wait()
    finally:
        ip("netns", "delete", name)


def addresses_of_the_host() -> list[str]:
    """Its own address towards the world, if it has one. Connecting a UDP socket sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return []
        return [probe.getsockname()[0]]


def wait_for(runtime: DockerRuntime, name: str, state: str, words: bytes = b"", seconds: float = 120) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        states = {seen.name: seen.state for seen in runtime.list()}
        if states.get(name) == state and words in runtime.logs(name, 10_000):
            return
        time.sleep(0.1)
    raise AssertionError(f"{name} is not {state}: {runtime.logs(name, 2000).decode()}")


def probe(runtime: DockerRuntime, spec: RunSpec, folders: Folders, settings: dict[str, object]) -> dict[str, str]:
    (folders.workspace / "main.py").write_bytes(PROBES.read_bytes())
    limits = {"tmp_mib": spec.resources.tmp_mib, "shm_mib": spec.resources.shm_mib}
    (folders.workspace / "settings.json").write_text(json.dumps({**limits, **settings}))
    runtime.create(spec, folders)
    runtime.start(spec.name)
    wait_for(runtime, spec.name, "exited")
    result = json.loads((folders.outputs / "answers.json").read_text())
    owner = owner_for(spec.job, os.geteuid(), os.getegid())
    assert result["user"] == [owner.uid, owner.gid, [owner.gid]] or os.geteuid() != 0
    answers: dict[str, str] = result["answers"]
    return answers


def gateway(runtime: DockerRuntime, network: str) -> str:
    (found,) = runtime._networks(runtime.identity.engine_name(network))
    config: list[dict[str, str]] = found["IPAM"]["Config"]
    return config[0]["Gateway"]


def address(runtime: DockerRuntime, name: str) -> str:
    found = runtime.client.api.inspect_container(runtime.identity.engine_name(name))
    (network,) = found["NetworkSettings"]["Networks"].values()
    return str(network["IPAddress"])


@pytest.mark.parametrize("group", [None, GROUP], ids=["without a network", "with a group"])
def test_a_job_cannot_leave_its_container(runtime: DockerRuntime, tmp_path: Path, group: object) -> None:
    victim = make_spec("sl-43-a1-0", job=43, collective=GROUP)
    runtime.check()  # closes the host to jobs where the agent may
    victim_folders = make_folders(tmp_path / "victim")
    (victim_folders.workspace / "main.py").write_text(LISTEN)
    runtime.create(victim, victim_folders)
    runtime.start(victim.name)
    wait_for(runtime, victim.name, "running", b"up")

    spec, folders = make_spec(collective=group), make_folders(tmp_path / "probe")
    runtime.create(spec, folders)
    gateways = {"its own gateway": gateway(runtime, "sl-42-a1")} if group else {}
    gateways["another job's gateway"] = gateway(runtime, "sl-43-a1")
    with service_of_the_host() as port, world_outside() as far:
        targets: dict[str, tuple[str, int]] = {
            **{f"a service of the host at {name}": (at, port) for name, at in gateways.items()},
            **{f"a service of the host at {at}": (at, port) for at in ["172.17.0.1", *addresses_of_the_host()]},
            "the world outside": far,
            "another job's container": (address(runtime, victim.name), 4000),
            "ssh of the host": (next(iter(gateways.values())), 22),
        }
        answers = probe(runtime, spec, folders, {"connect": targets})
    opened = {name: answer for name, answer in answers.items() if not answer.startswith("refused")}
    assert opened == {}
    assert len(answers) > 60


HARMLESS = {
    "raw socket",
    "packet socket",
    "make a memory device",
    "chroot",
    "be root",
    "be root's group",
    "be root by a setuid program",
    "capabilities",
    "gain privileges",
    "write to /",
    "write to /usr",
    "write to /etc/passwd",
    "write over the supervisor",
    "passwords",
    "the world outside",
    "more /tmp than allowed",
    "a service of the host",
}


def test_the_probes_find_what_an_ordinary_container_may(runtime: DockerRuntime, tmp_path: Path) -> None:
    """Probes that are refused whatever the container is allowed would prove nothing."""
    folders = make_folders(tmp_path)
    (folders.workspace / "main.py").write_bytes(PROBES.read_bytes())
    with service_of_the_host() as port, world_outside() as far:
        targets = {"a service of the host": ("172.17.0.1", port), "the world outside": far}
        settings = {"only": sorted(HARMLESS), "connect": targets}
        (folders.workspace / "settings.json").write_text(json.dumps(settings))
        image = runtime.image_of("python")
        assert image is not None
        runtime.client.containers.run(
            image,
            ["python", "/workspace/main.py"],
            remove=True,
            volumes={str(folders.workspace): {"bind": "/workspace"}, str(folders.outputs): {"bind": "/outputs"}},
        )
    answers = json.loads((folders.outputs / "answers.json").read_text())["answers"]
    assert answers == dict.fromkeys(HARMLESS, "OPEN")
