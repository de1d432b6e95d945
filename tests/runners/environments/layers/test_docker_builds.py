"""Builds in containers of a base image, on nodes that run jobs with Docker."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from runners.environments.docker_images import BUILD_LABEL, DockerImages, waiting_process
from runners.environments.layers import docker_sandbox
from runners.environments.layers.base import Base
from runners.environments.layers.docker_sandbox import DockerSandbox
from runners.environments.layers.sandbox import BUILD_UID_BASE, memory_mib
from runners.environments.layers.store import BuiltLayer
from runners.messages import Message
from runners.messages.builds import OverBuildMemory
from runners.messages.layer_failures import OnlySource, SourceBuildFailed
from tests import engine as engines
from tests.runners.environments.layers.conftest import Lab
from tests.runners.environments.layers.packages import make_sdist, make_wheel
from tests.runners.environments.layers.test_confined_builds import LOOK, REPORT

pytestmark = [pytest.mark.docker, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def images(engine: None) -> DockerImages:
    return DockerImages()


@pytest.fixture
def node(lab: Lab, images: DockerImages) -> Iterator[Lab]:
    """A node whose base is an image with Python alone: full environments."""
    image = engines.base_image()
    target = images.target(image, cuda=False)
    python = images.output(image, ["python", "-c", "import sys; print(sys.executable)"]).strip()
    lab.base = Base(python, target, (), DockerSandbox(images, image, python))
    yield lab
    assert not containers(images)


def containers(images: DockerImages) -> list[str]:
    return [str(each.id) for each in images.client.containers.list(all=True, filters={"label": BUILD_LABEL})]


def build(lab: Lab, *lines: str, source_builds: bool = False) -> BuiltLayer:
    return lab.build(*lines, base="", source_builds=source_builds)


def test_wheels_are_installed_in_a_container_of_the_image(node: Lab) -> None:
    make_wheel(node.files, "demo", needs=["helper"], scripts={"run": "demo:main"})
    make_wheel(node.files, "helper")
    node.publish()
    layer = build(node, "demo")
    assert layer.modules == ("demo", "helper") and (layer.folder / "bin" / "run").exists()
    assert list((layer.folder / "__pycache__").glob("demo.*.pyc"))
    assert {path.lstat().st_uid for path in layer.folder.rglob("*")} == {os.geteuid()}
    assert "demo==1.0" in node.log.read_text() and not node.left_over()


def test_source_is_built_only_when_it_is_allowed_and_reaches_only_the_index(node: Lab, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("of this node")
    port = int(node.address.rpartition(":")[2])
    given = f"SECRET, PORT, ADDRESS = {str(secret)!r}, {port}, {node.address!r}\n"
    make_sdist(node.files, "demo", f"{given}{LOOK}\nimport zipfile\n{REPORT}")
    node.publish()
    assert node.failure("demo", base="") == OnlySource("demo==1.0")
    layer = build(node, "demo", source_builds=True)
    seen = eval((layer.folder / "demo.py").read_text().removeprefix("SEEN = "))  # noqa: S307
    for name in ("secret", "above", "inputs", "python", "direct", "other"):
        assert seen[name].startswith("refused"), (name, seen[name])
    assert seen["index"] == "200" and (os.geteuid() != 0 or seen["uid"] >= BUILD_UID_BASE)


def test_a_failed_build_is_quoted_and_a_cancelled_one_ends(node: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    make_sdist(node.files, "demo", "raise RuntimeError('it cannot be built here')")
    make_sdist(node.files, "slow", "import time; print('now', flush=True); time.sleep(600)")
    node.publish()
    failure = node.failure("demo", base="", source_builds=True)
    assert isinstance(failure, SourceBuildFailed) and "it cannot be built here" in failure.text

    class CancelledError(Exception):
        pass

    calls = 0

    def progress(percent: int, step: Message) -> None:
        nonlocal calls
        calls += 1
        if calls > 8:
            raise CancelledError

    monkeypatch.setattr(node, "progress", progress)
    with pytest.raises(CancelledError):
        build(node, "slow", source_builds=True)
    assert not node.left_over()


def test_the_container_of_a_killed_agent_is_removed_by_the_next_build(node: Lab, images: DockerImages) -> None:
    dead, elsewhere = waiting_process() | {"started": "1"}, waiting_process() | {"namespace": "pid:[1]", "started": "1"}
    left, other = (
        images.client.containers.create(engines.base_image(), ["sleep", "600"], labels={BUILD_LABEL: json.dumps(each)})
        for each in (dead, elsewhere)
    )
    left.start()
    make_wheel(node.files, "demo")
    node.publish()
    build(node, "demo")
    assert containers(images) == [other.id], "it may be that of an agent in a container"
    other.remove()


def test_a_build_that_needs_too_much_memory_is_ended_and_explained(node: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docker_sandbox, "memory_mib", lambda: 320)
    make_sdist(node.files, "demo", "held = bytearray(900 * 2**20)\nheld[::4096] = b'x' * len(held[::4096])\n")
    node.publish()
    assert node.failure("demo", base="", source_builds=True) == OverBuildMemory(320)


def test_the_container_of_a_build_is_limited_and_yields_to_jobs(node: Lab, images: DockerImages) -> None:
    make_sdist(node.files, "slow", "import time; print('now', flush=True); time.sleep(600)")
    node.publish()
    seen: list[dict[str, object]] = []

    class EnoughError(Exception):
        pass

    def progress(percent: int, step: Message) -> None:
        for each in images.client.containers.list(filters={"label": BUILD_LABEL}):
            seen.append(each.attrs["HostConfig"])
            raise EnoughError

    node.patch.setattr(node, "progress", progress)
    with pytest.raises(EnoughError):
        build(node, "slow", source_builds=True)
    memory = memory_mib() * 2**20
    limits = {"Memory": memory, "MemorySwap": memory, "PidsLimit": 1024, "CpuShares": 256}
    assert {name: seen[0][name] for name in limits} == limits
