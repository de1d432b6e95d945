"""Images of a project on two machines, of which only one reaches their registry."""

import json
import time
from collections.abc import Iterator

import pytest

from runners.environments.docker_images import DockerImages
from tests.cluster.lab import Lab, lab
from tests.cluster.machines import Machine, until
from tests.registry import TOKEN, USER, Registry, image_from
from tests.system.product import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.thorough, pytest.mark.timeout(900)]

PORT = 5591
PROGRAM = "import os; print('of', open('/which').read().strip(), 'by', os.environ['LAB'])"


@pytest.fixture(scope="module")
def it() -> Iterator[Lab]:
    with lab(2) as made:
        yield made


@pytest.fixture(scope="module")
def registry(it: Lab) -> Registry:
    """It listens on the loopback of the first machine, and wants a sign-in."""
    machine = it.lan.machines[0]
    folder = machine.folder / "registry"
    (folder / "data").mkdir(parents=True)
    made = Registry(PORT, folder, with_sign_in=True, engine=DockerImages(machine.engine.url))
    log = folder / "log"
    machine.spawn(["docker-registry", "serve", str(made.configure(folder, folder / "data"))], log)
    until("the registry listens", lambda: "listening on" in log.read_text(), 30)
    return made


def push(it: Lab, registry: Registry, text: str) -> str:
    image = image_from(it.base_image, ("ENV LAB=hand",), f"echo {text} > /which", registry.engine)
    return registry.push(image, "lab/train")


def run_on(it: Lab, machine: Machine, code: dict[str, int], key: str) -> str:
    """Return what a job prints that cannot run on another machine."""
    numbers = {node["name"]: node["id"] for node in it.get("nodes/")}
    others = [number for name, number in numbers.items() if name != machine.name]
    for number in others:
        it.post(f"nodes/{number}/cordon/")
    try:
        job = it.submit(code, "python main.py", environment=key)
        it.succeeds(job)
    finally:
        for number in others:
            it.post(f"nodes/{number}/resume/")
    return it.log(job).decode()


def test_a_node_without_the_registry_gets_the_image_from_another_one(it: Lab, registry: Registry) -> None:
    first, second = it.lan.machines
    digest = push(it, registry, "release-1")
    code = it.upload("Images", main=PROGRAM)
    asked = {"project": code["project"], "image": f"{registry.address}/lab/train:1"}
    refused = it.api("POST", "images/", json=asked)
    assert refused.status_code in (400, 403) and "admin" in refused.text, refused.text
    allowed = {"allowed": [f"{registry.address}/lab"], "archives": "needed"}
    assert it.api("PUT", "images/", json=allowed).status_code == 200
    secret = {"host": registry.address, "user": USER, "token": TOKEN, "insecure": True}
    it.post("registries/", json=secret)
    key = it.post("images/", json=asked)["key"]
    began = time.monotonic()
    wait_for("ready on both", lambda: len(it.get(f"environments/{key}/")["ready_on"]) == 2, 240, every=0.5)
    print(f"ready on both after {time.monotonic() - began:.0f} s")
    locks = it.get(f"environments/{key}/")["locks"]
    assert [lock["image"].rpartition("@")[2] for lock in locks] == [digest], locks
    for machine in (first, second):
        assert "of release-1 by hand" in run_on(it, machine, code, key)
    push(it, registry, "release-2")
    assert "of release-1" in run_on(it, first, code, key)  # the tag means another image now, the environment does not
    assert TOKEN not in json.dumps([it.get("registries/"), it.get(f"environments/{key}/"), it.get("nodes/")])
