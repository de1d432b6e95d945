"""Packages on machines with Docker: one builds them, the others fetch them, and jobs find them on each."""

import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from runners.environments.preparing import cache_home
from tests.cluster.lab import Lab, lab_on
from tests.cluster.machines import Machine, cluster
from tests.runners.environments.layers.packages import make_index, make_wheel, serving
from tests.system.product import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.thorough, pytest.mark.timeout(900)]

BASE = "python"
GREETING = "import socket\ndef greet():\n    print('hello from', socket.gethostname())\n"
PROGRAM = """
import greeting
greeting.greet()
try:
    open(greeting.__file__, "a").write("import os")
except OSError as error:
    print("kept:", error.strerror)
"""


@dataclass
class Packages:
    """A lab whose nodes share no files and know one package index, in the network of the machines."""

    it: Lab
    index: Path
    away: ExitStack
    """Ends the index."""

    def publish(self, name: str, text: str) -> None:
        make_wheel(self.index / "files", name, files={f"{name}.py": text}, scripts={f"{name}-run": f"{name}:greet"})
        make_index(self.index)

    def make(self, code: dict[str, int], *lines: str) -> str:
        return str(
            self.it.post("environments/", json={"project": code["project"], "base": BASE, "packages": list(lines)})[
                "key"
            ]
        )

    def environment(self, key: str) -> Any:
        return self.it.get(f"environments/{key}/")

    def wait_until_ready(self, key: str, *machines: Machine, seconds: float = 120) -> None:
        names = {machine.name for machine in machines}
        wait_for(f"{key} is ready on {names}", lambda: names <= set(self.environment(key)["ready_on"]), seconds)

    def run_on(self, machine: Machine, code: dict[str, int], key: str, command: str = "python main.py") -> str:
        """Return what a job prints that cannot run on another machine."""
        others = [each for each in self.it.lan.machines if each != machine]
        for each in others:
            self.node(each, "cordon")
        try:
            job = self.it.submit(code, command, environment=key)
            self.it.succeeds(job)
        finally:
            for each in others:
                self.node(each, "resume")
        return self.it.log(job).decode()

    def node(self, machine: Machine, verb: str) -> None:
        number = next(node["id"] for node in self.it.get("nodes/") if node["name"] == machine.name)
        self.it.post(f"nodes/{number}/{verb}/")

    def cache_of(self, machine: Machine) -> Path:
        return machine.folder / "cache"

    def restart_without_layers(self, machine: Machine) -> None:
        """Restart an agent whose cache has the wheels of the release and no layer."""
        self.it.kill(f"agent:{machine.name}")
        cache = self.cache_of(machine)
        shutil.rmtree(cache, ignore_errors=True)
        cache.mkdir()
        for name in ("wheelhouse", "wheels", "pins"):
            (cache / name).symlink_to(cache_home() / name)
        self.it.start(f"agent:{machine.name}")


@pytest.fixture(scope="module")
def packages() -> Iterator[Packages]:
    with cluster(2, [BASE]) as lan, lab_on(lan, [BASE]) as it, ExitStack() as away:
        index = lan.folder / "index"
        (index / "files").mkdir(parents=True)
        address, _ = away.enter_context(serving(index, lan.address))
        made = Packages(it, index, away)
        for machine in lan.machines:
            it.agent_env[machine.name] = {
                "SCHEDULEARN_CACHE": str(made.cache_of(machine)),
                "PIP_INDEX_URL": f"{address}/simple",
                "PIP_TRUSTED_HOST": lan.address,
                "PIP_CONFIG_FILE": "/dev/null",
            }
            made.restart_without_layers(machine)
        wait_for("all nodes are ready again", it.nodes_ready, 300, every=0.5)
        yield made


def test_one_node_builds_and_each_has_the_packages(packages: Packages) -> None:
    first, second = packages.it.lan.machines
    packages.publish("greeting", GREETING)
    code = packages.it.upload("Greetings", main=PROGRAM)
    key = packages.make(code, "greeting")
    packages.wait_until_ready(key, first, second)
    builds = packages.it.get(f"environments/{key}/builds/")
    assert [build["state"] for build in builds] == ["done"], builds
    for machine in (first, second):
        printed = packages.run_on(machine, code, key)
        assert "hello from" in printed and "kept:" in printed, printed
        assert "hello from" in packages.run_on(machine, code, key, "greeting-run")


def test_a_new_node_needs_no_index(packages: Packages) -> None:
    """The portal keeps what was built, so a node that comes later is ready in seconds, even while the index is away."""
    first, second = packages.it.lan.machines
    packages.publish("farewell", GREETING)
    code = packages.it.upload("Farewells", main=PROGRAM.replace("greeting", "farewell"))
    key = packages.make(code, "farewell")
    packages.wait_until_ready(key, first, second)
    packages.away.close()
    packages.restart_without_layers(second)
    wait_for("the second node reports", lambda: packages.environment(key)["ready_on"] == [first.name], 60, every=0.02)
    began = time.monotonic()
    packages.wait_until_ready(key, second)
    print(f"ready after {time.monotonic() - began:.1f} s")
    assert "hello from" in packages.run_on(second, code, key)
    assert len(packages.it.get(f"environments/{key}/builds/")) == 1
