"""The agent with a real engine and real supervisors in hardened containers."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from runners.agent.job_secrets import memory_folder
from runners.runtimes.docker import DockerRuntime
from runners.spec import Resources
from tests import engine as engines
from tests.datasets import content_of
from tests.fake_portal import FakePortal
from tests.runners.agent.test_job_datasets import DIGITS, FACES, FOUND, READ, give_datasets, reading
from tests.runners.agent.test_job_secrets import FORMS, GIVEN, NOSY, PRINT, PRINTED, holds_no_secret, secret_spec
from tests.runners.agent.test_process import COUNT, FETCH, greeter, lines  # noqa: F401  a fixture
from tests.runners.agent_bench import NAME, Bench, entry, follow_protocol, give_code, spec_of

pytestmark = pytest.mark.docker

SLEEP = ("python", "-c", "import time; time.sleep(600)")
SMALL = Resources(memory_mib=256, shm_mib=64, tmp_mib=16, disk_mib=64)


@pytest.fixture(scope="module")
def image(engine: None) -> str:
    return engines.job_environment_image("python")


@pytest.fixture
def bench(image: str, portal: FakePortal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr("runners.agent.program.SYNC_SECONDS", 1.0)
    monkeypatch.setattr("runners.agent.program.DISK_LIMITS_SECONDS", 0.5)
    runtime = DockerRuntime(f"test {tmp_path}", "node", lambda key: image)
    bench = Bench(tmp_path / "agent", portal, runtime)
    yield bench
    bench.stop()
    for seen in runtime.list():
        runtime.remove(seen.name)


def test_its_log_and_outputs_arrive_across_an_agents_restart(bench: Bench, portal: FakePortal) -> None:
    sha256 = give_code(portal, {"count.py": COUNT})
    portal.want(entry(spec_of(sha256, command=("python", "count.py"), resources=SMALL)))
    bench.start()
    portal.until(lambda: len(portal.log(NAME)) > 1000, 60)
    bench.stop()
    before = len(portal.log(NAME))
    bench.start()
    portal.until(lambda: len(portal.log(NAME)) > before, 60)
    (bench.files.container(NAME) / "workspace" / "enough").touch()
    portal.until(lambda: not portal.desired, 90)
    count = int(portal.outputs[NAME, "result.txt"])
    assert portal.log(NAME) == lines(count)
    assert count > before // len(lines(1))
    assert portal.outputs.keys() == {(NAME, "result.txt"), (NAME, "beside-code/enough")}
    assert (portal.container(NAME)["exit_code"], portal.container(NAME)["exit_reason"]) == (0, "exited")
    portal.until(lambda: not bench.runtime.list() and not bench.files.container(NAME).exists(), 20)


CACHING = b"""
import os, pathlib
kept = pathlib.Path(os.environ["TORCH_HOME"]) / "weights"
kept.parent.mkdir(exist_ok=True)
if kept.exists():
    print("found", kept, kept.read_text(), flush=True)
    kept.write_text("changed")
else:
    os.close(os.open(kept, os.O_WRONLY | os.O_CREAT, 0o600))
    kept.write_text("of the first")
"""


def test_allowed_hosts_are_reached_from_a_container_without_a_network_also_after_a_restart(
    bench: Bench,
    portal: FakePortal,
    greeter: str,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("runners.host.egress.MACHINE_NETWORKS", ())  # the greeter is on the loopback
    sha256 = give_code(portal, {"fetch.py": FETCH})
    command = ("python", "fetch.py", f"http://{greeter}/", "http://127.0.0.3:81/")
    portal.want(entry(spec_of(sha256, command=command, allowed_hosts=(f"{greeter} internal",), resources=SMALL)))
    bench.start()
    portal.until(lambda: b"first hello 403 Forbidden" in portal.log(NAME), 60)
    bench.stop()
    bench.start()
    (bench.files.container(NAME) / "workspace" / "enough").touch()
    portal.until(lambda: not portal.desired, 90)
    assert b"second hello" in portal.log(NAME)
    reached, refused = portal.networks[NAME]
    assert (reached["host"], reached["connections"], refused["reason"]) == ("127.0.0.2", 2, "not_allowed")


def test_jobs_with_users_of_their_own_share_the_cache_of_their_project(bench: Bench, portal: FakePortal) -> None:
    sha256 = give_code(portal, {"cache.py": CACHING})
    bench.start()
    for number in (1, 2):
        name, command = f"sl-{number}-a1-0", ("python", "cache.py")
        portal.want(entry(spec_of(sha256, name, job=number, command=command, cache=f"{'a' * 32}-1", resources=SMALL)))
        portal.until(lambda: not portal.desired, 90)
        assert portal.container(name)["exit_code"] == 0, portal.log(name)
    assert portal.log("sl-2-a1-0") == b"found /cache/torch/weights of the first\n"


def test_secrets_reach_the_ranks_and_no_one_else(bench: Bench, portal: FakePortal) -> None:
    memory = memory_folder(bench.home)
    assert memory is not None
    bench.files = replace(bench.files, memory=memory)
    portal.secrets = list(GIVEN)
    sha256 = give_code(portal, {"print.py": PRINT, "nosy.py": NOSY})
    try:
        portal.want(
            entry(secret_spec(sha256, command=("python", "print.py"), resources=SMALL)),
            entry(spec_of(sha256, "sl-2-a1-0", job=2, command=("python", "nosy.py"), resources=SMALL)),
        )
        bench.start()
        portal.until(lambda: PRINTED[0] + b"read-only\n" in portal.log(NAME), 60)
        portal.until(lambda: portal.log("sl-2-a1-0") == b"[]\n[]\n", 60)
        assert isinstance(bench.runtime, DockerRuntime)
        inspected = json.dumps(bench.runtime.client.api.inspect_container(bench.runtime.identity.engine_name(NAME)))
        assert "/run/secrets" in inspected and not [form for form in FORMS if form in inspected]
        holds_no_secret(bench.home)
        bench.stop()
        bench.start()
        (bench.files.container(NAME) / "workspace" / "enough").touch()
        portal.until(lambda: not portal.desired, 90)
        assert portal.container(NAME)["exit_code"] == 0
        assert portal.log(NAME) == b"read-only\n".join(PRINTED)
        assert not list(memory.iterdir())
        holds_no_secret(bench.home)
    finally:
        bench.stop()
        shutil.rmtree(memory, ignore_errors=True)


def test_a_program_finds_its_datasets_where_it_expects_them(bench: Bench, portal: FakePortal) -> None:
    give_datasets(portal)
    sha256 = give_code(portal, {"read.py": READ, "inputs/faces/.gitkeep": b""})
    portal.want(entry(reading(sha256, resources=SMALL)))
    bench.start()
    portal.until(lambda: not portal.desired, 90)
    assert portal.container(NAME)["exit_code"] == 0, portal.log(NAME)
    assert json.loads(portal.log(NAME)) == FOUND
    assert not portal.outputs, "no part of a dataset is an output"
    for made in (DIGITS, FACES):
        assert content_of(bench.files.cached_datasets / made.sha256 / "files") == made.files
    portal.until(lambda: not bench.files.container(NAME).exists(), 20)


def test_two_nodes_fetch_a_dataset_once_each(bench: Bench, portal: FakePortal, image: str, tmp_path: Path) -> None:
    runtime = DockerRuntime(f"test {tmp_path}", "other", lambda key: image)
    with FakePortal() as other_portal:
        other = Bench(tmp_path / "other", other_portal, runtime)
        try:
            for node, asked in ((bench, portal), (other, other_portal)):
                follow_protocol(asked)
                give_datasets(asked)
                sha256 = give_code(asked, {"read.py": READ, "inputs/faces/.gitkeep": b""})
                parts = [
                    entry(reading(sha256, name=f"sl-1-a1-{number}", resources=SMALL, hostname=f"h{number}"))
                    for number in range(2)
                ]
                asked.want(*parts)
                node.start()
            for asked in (portal, other_portal):
                asked.until(lambda asked=asked: not asked.desired, 120)  # type: ignore[misc]
                for number in range(2):
                    assert json.loads(asked.log(f"sl-1-a1-{number}")) == FOUND
                fetched = [path for path in asked.requests.elements() if path.endswith("/contents")]
                assert len(fetched) == 2, "each dataset once, for both containers"
        finally:
            other.stop()
            for seen in runtime.list():
                runtime.remove(seen.name)


def test_memory_and_disk_limits_are_named(bench: Bench, portal: FakePortal) -> None:
    sha256 = give_code(portal)
    greedy = ("python", "-c", "x = bytearray(1 << 30)")
    filling = ("python", "-c", "import os, time; open('junk', 'wb').write(os.urandom(80 << 20)); time.sleep(600)")
    portal.want(
        entry(spec_of(sha256, command=greedy, resources=SMALL)),
        entry(spec_of(sha256, "sl-2-a1-0", job=2, command=filling, resources=SMALL)),
    )
    bench.start()
    portal.until(lambda: not portal.desired, 90)
    assert portal.container(NAME)["exit_reason"] == "oom"
    assert portal.container("sl-2-a1-0")["exit_reason"] == "disk"


def test_orphans_go_and_what_is_not_ours_stays(bench: Bench, portal: FakePortal, image: str, tmp_path: Path) -> None:
    sha256 = give_code(portal)
    foreign = DockerRuntime(f"other {tmp_path}", "node", lambda key: image)
    try:
        for job, runtime in ((7, bench.runtime), (8, bench.runtime), (9, foreign)):
            spec = spec_of(sha256, f"sl-{job}-a1-0", job=job, command=SLEEP, resources=SMALL)
            runtime.create(spec, bench.files.make_container(spec))
            if job != 8:
                runtime.start(spec.name)
        bench.start()
        portal.until(lambda: portal.reports and portal.reports[-1]["full_pass"], 60)
        assert bench.runtime.list() == []
        assert [seen.name for seen in foreign.list()] == ["sl-9-a1-0"]
    finally:
        foreign.remove("sl-9-a1-0")


def test_a_stop_reaches_the_ranks_through_the_supervisor(bench: Bench, portal: FakePortal) -> None:
    wanted = entry(spec_of(give_code(portal), command=SLEEP, resources=SMALL))
    portal.want(wanted)
    bench.start()
    portal.until(lambda: portal.container(NAME).get("state") == "RUNNING", 60)
    portal.want({**wanted, "wanted": "stop", "stop": {"reason": "cancelled", "grace_seconds": 2}})
    portal.until(lambda: not portal.desired, 30)
    assert portal.container(NAME)["exit_reason"] == "stopped"
    assert b"cancelled" in portal.log(NAME, "setup")
