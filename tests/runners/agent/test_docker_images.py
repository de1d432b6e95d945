"""A job in an image of a registry: the agent with a real engine, Debian's docker-registry and a real supervisor."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from runners.agent.own_images import digest_of
from runners.environments.own_images import OwnImageStore
from runners.environments.registry_images import RegistryAccess
from runners.messages import Message
from runners.runtimes.docker import DockerRuntime
from runners.spec import OWN_IMAGE, Resources
from tests import engine as engines
from tests.fake_portal import FakePortal
from tests.registry import TOKEN, USER, image_from, registry
from tests.runners.agent_bench import NAME, Bench, entry, give_code, spec_of

pytestmark = [pytest.mark.docker, pytest.mark.timeout(600)]
SMALL = Resources(memory_mib=256, shm_mib=64, tmp_mib=16, disk_mib=64)
CHANGES = (
    'ENTRYPOINT ["/bin/false"]',
    "ENV NVIDIA_VISIBLE_DEVICES=all CUDA_VISIBLE_DEVICES=0,1,2,3 LD_LIBRARY_PATH=/opt/lab/lib LAB=here",
    "USER 65534",
    "WORKDIR /nowhere",
    "HEALTHCHECK CMD exit 1",
)
REPORT = """
import json, os, sys
names = ("NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH", "LAB")
def writable(path):
    try:
        open(path, "w").close()
    except OSError:
        return False
    return True
print(json.dumps({
    "env": {name: os.environ.get(name) for name in names},
    "which": open("/which").read(),
    "uid": os.getuid(),
    "folder": os.getcwd(),
    "writable": [path for path in ("/probe", "/usr/probe", "/tmp/probe", "/outputs/probe") if writable(path)],
    "root": os.system("/usr/local/bin/python-as-root -c 'import os, sys; sys.exit(os.geteuid() == 0)'"),
}))
"""
SETUID = (
    'echo lab > /which; cp "$(readlink -f "$(command -v python3)")" /usr/local/bin/python-as-root; '
    "chmod 4755 /usr/local/bin/python-as-root"
)


def ignore(percent: int, step: Message) -> None:
    """Report nothing."""


@pytest.fixture(scope="module")
def digest(engine: None) -> Iterator[str]:
    """An image that a node has pulled with credentials, and checked."""
    access, store = RegistryAccess(USER, TOKEN, insecure=True), OwnImageStore()
    with registry(5590, with_sign_in=True) as lab:
        lab.push(image_from(engines.base_image(), CHANGES, SETUID), "lab/train")
        exact = store.resolve(f"{lab.address}/lab/train:1", access)
        made = digest_of(store.kind(), exact)
        store.pull(exact, made, access, ignore)
    store.prepare(exact, made, ignore)  # without the registry
    yield made
    store.tidy((), -1)


def test_a_job_runs_in_an_image_of_its_project(
    digest: str, portal: FakePortal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runners.agent.program.SYNC_SECONDS", 1.0)
    runtime = DockerRuntime(f"test {tmp_path}", "node", lambda key: None, own_image_of=OwnImageStore().reference_of)
    bench = Bench(tmp_path / "agent", portal, runtime)
    sha256 = give_code(portal, {"report.py": REPORT.encode()})
    spec = spec_of(sha256, command=("python", "report.py"), resources=SMALL)
    portal.want(entry(replace(spec, environment=OWN_IMAGE, layer=digest)))
    try:
        bench.start()
        portal.until(lambda: not portal.desired, 90)
    finally:
        bench.stop()
        for seen in runtime.list():
            runtime.remove(seen.name)
    ended = portal.container(NAME)
    assert (ended["exit_code"], ended["exit_reason"]) == (0, "exited"), portal.log(NAME)
    found = json.loads(portal.log(NAME).splitlines()[-1])
    assert found["which"] == "lab\n" and found["folder"] == "/workspace" and found["uid"] >= 10_000
    assert found["env"]["LAB"] == "here" and "/opt/lab/lib" in (found["env"]["LD_LIBRARY_PATH"] or "")
    assert found["env"]["NVIDIA_VISIBLE_DEVICES"] is None
    assert found["env"]["CUDA_VISIBLE_DEVICES"] in (None, "")
    assert found["writable"] == ["/tmp/probe", "/outputs/probe"]
    assert found["root"] == 0  # setuid bits give nothing
