"""The runtime's verbs on a real engine: each may be repeated, and none touches containers of other installations."""

import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from runners.runtime import ContainerRuntime, CreateError, EngineError, Folders, ObservedContainer
from runners.runtimes.docker import DockerRuntime, connect
from runners.runtimes.host_config import container_config, network_config, owner_for
from runners.spec import Resources, RunSpec
from tests.cluster.between import Between
from tests.runners.conftest import GROUP, make_folders, make_spec

pytestmark = [pytest.mark.docker, pytest.mark.timeout(900)]


@pytest.fixture
def runtime(pretender: str, tmp_path: Path) -> Iterator[DockerRuntime]:
    """An installation of its own, emptied at the end."""
    runtime = DockerRuntime(f"test {tmp_path}", "node", lambda key: pretender)
    yield runtime
    for seen in runtime.list():
        runtime.remove(seen.name)


def run(runtime: ContainerRuntime, spec: RunSpec, folders: Folders, script: str) -> None:
    (folders.workspace / "main.py").write_text(script)
    runtime.create(spec, folders)
    runtime.start(spec.name)


def wait(
    runtime: ContainerRuntime, until: Callable[[list[ObservedContainer]], bool], seconds: float = 30
) -> list[ObservedContainer]:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if until(seen := runtime.list()):
            return seen
        time.sleep(0.1)
    raise AssertionError(f"still {runtime.list()} after {seconds} s")


def exited(seen: list[ObservedContainer]) -> bool:
    return bool(seen) and all(one.state == "exited" for one in seen)


def test_every_verb_may_be_repeated(runtime: DockerRuntime, folders: Folders) -> None:
    spec = make_spec()
    (folders.workspace / "main.py").write_text("print('hello', flush=True); raise SystemExit(3)")
    for _ in range(2):
        runtime.create(spec, folders)
        assert [one.state for one in runtime.list()] == ["created"]
    runtime.start(spec.name)
    runtime.start(spec.name)
    (seen,) = wait(runtime, exited)
    runtime.start(spec.name)  # one that has ended must not run again
    assert [one.state for one in runtime.list()] == ["exited"]
    assert (seen.name, seen.job, seen.attempt, seen.epoch) == (spec.name, spec.job, spec.attempt, spec.number)
    assert seen.exit_code == 3 and not seen.oom_killed
    assert runtime.logs(spec.name, 1000).endswith(b"hello\n")
    for _ in range(2):
        runtime.stop(spec.name, 1)
        runtime.signal(spec.name, 15)
        runtime.remove(spec.name)
        assert runtime.list() == []
    with pytest.raises(CreateError):
        runtime.start(spec.name)


def test_stop_asks_first_and_kills_after_the_grace(runtime: DockerRuntime, folders: Folders) -> None:
    script = (
        "import signal, time\nsignal.signal(15, lambda *a: print('asked', flush=True))\n"
        "print('up', flush=True)\nwhile True: time.sleep(0.1)"
    )
    run(runtime, make_spec(), folders, script)
    wait(runtime, lambda seen: b"up" in runtime.logs(seen[0].name, 100))
    runtime.stop("sl-42-a1-0", 1)
    (seen,) = runtime.list()
    assert seen.state == "exited" and seen.exit_code == 137
    assert b"asked" in runtime.logs(seen.name, 100)


def test_a_job_over_its_memory_limit_is_reported_as_oom_killed(runtime: DockerRuntime, folders: Folders) -> None:
    run(runtime, make_spec(), folders, "data = []\nwhile True: data.append(bytearray(2**24))")
    (seen,) = wait(runtime, exited)
    assert seen.oom_killed and seen.exit_code == 137


def test_the_greedy_job_is_killed_and_the_other_on_the_node_lives(runtime: DockerRuntime, tmp_path: Path) -> None:
    modest, greedy = make_spec("sl-1-a1-0"), make_spec("sl-2-a1-0")
    run(
        runtime,
        modest,
        make_folders(tmp_path / "1"),
        "import time\nkept = bytearray(2**25)\nwhile True: time.sleep(0.1)",
    )
    run(runtime, greedy, make_folders(tmp_path / "2"), "data = []\nwhile True: data.append(bytearray(2**24))")
    seen = {one.name: one for one in wait(runtime, lambda seen: any(one.state == "exited" for one in seen))}
    assert seen[greedy.name].oom_killed and seen[greedy.name].exit_code == 137
    assert seen[modest.name].state == "running" and not seen[modest.name].oom_killed


def test_dev_shm_has_the_size_that_was_asked_for(runtime: DockerRuntime, folders: Folders) -> None:
    script = (
        "import os\nprint(os.statvfs('/dev/shm').f_blocks * os.statvfs('/dev/shm').f_frsize >> 20, flush=True)\n"
        "open('/dev/shm/full', 'wb').write(bytes(100 << 20))"
    )
    run(runtime, make_spec(resources=Resources(cpus=1, memory_mib=256, shm_mib=64)), folders, script)
    (seen,) = wait(runtime, exited)
    printed = runtime.logs(seen.name, 5000)
    assert printed.startswith(b"64\n") and b"No space left on device" in printed


def test_a_fork_bomb_meets_its_limit(runtime: DockerRuntime, folders: Folders) -> None:
    script = (
        "import os, sys, time\nborn = 0\ntry:\n  for _ in range(1000):\n    if os.fork() == 0: time.sleep(60)\n"
        "    born += 1\nexcept OSError:\n  print('born', born, flush=True)\n  os._exit(0)\nos._exit(1)"
    )
    spec = make_spec(resources=Resources(cpus=1, memory_mib=256, pids=32))
    run(runtime, spec, folders, script)
    (seen,) = wait(runtime, exited)
    assert seen.exit_code == 0
    assert 16 < int(runtime.logs(spec.name, 100).split()[-1]) < 32


def test_a_network_whose_containers_were_never_made_is_removed_in_time(
    runtime: DockerRuntime, folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, used = make_spec("sl-43-a1-0", collective=GROUP, job=43), make_spec(collective=GROUP)
    other = DockerRuntime("another installation", "node", runtime.image_of)
    for each in (runtime, other):
        each.client.api.create_network(**network_config(str(left.network), each.identity))
    runtime.create(used, folders)
    runtime.check()
    assert runtime._networks(runtime.identity.engine_name(str(left.network))), "it may be about to be used"
    monkeypatch.setattr("runners.runtimes.docker.UNUSED_NETWORK_SECONDS", 0.0)
    runtime.check()
    assert not runtime._networks(runtime.identity.engine_name(str(left.network)))
    assert runtime._networks(runtime.identity.engine_name(str(used.network)))
    assert other._networks(other.identity.engine_name(str(left.network)))
    other._drop_network(other.identity.engine_name(str(left.network)))


def test_another_installation_is_neither_seen_nor_touched(runtime: DockerRuntime, folders: Folders) -> None:
    run(runtime, make_spec(collective=GROUP), folders, "import time; time.sleep(60)")
    for other in (
        DockerRuntime("another installation", "node", runtime.image_of),
        DockerRuntime(runtime.identity.installation, "another node", runtime.image_of),
    ):
        assert other.list() == []
        other.stop("sl-42-a1-0", 0)
        other.remove("sl-42-a1-0")
    assert [one.state for one in runtime.list()] == ["running"]


def test_an_attempt_has_a_network_as_long_as_it_has_containers(runtime: DockerRuntime, tmp_path: Path) -> None:
    networks = lambda: runtime._networks(runtime.identity.engine_name("sl-42-a1"))  # noqa: E731
    first, second = make_spec(collective=GROUP), make_spec("sl-42-a1-1", hostname="h1", collective=GROUP)
    for spec in (first, second):
        runtime.create(spec, make_folders(tmp_path / spec.name))
    assert len(networks()) == 1
    runtime.remove(first.name)
    assert len(networks()) == 1
    runtime.remove(second.name)
    assert networks() == ()


def test_a_network_that_is_being_made_just_now_is_a_reason_to_try_again(
    runtime: DockerRuntime, folders: Folders
) -> None:
    """Two threads make containers of one attempt: the engine knows the bridge of its network before it lists it."""
    spec = make_spec(collective=GROUP)
    assert spec.network
    half_made = network_config(spec.network, runtime.identity, GROUP) | {"name": "half-made"}
    network = runtime.client.api.create_network(**half_made)
    try:
        with pytest.raises(EngineError, match="right now"):
            runtime.create(spec, folders)
    finally:
        runtime.client.api.remove_network(network["Id"])
    runtime.create(spec, folders)
    assert [seen.name for seen in runtime.list()] == [spec.name]


def test_containers_of_an_attempt_find_each_other_by_name(runtime: DockerRuntime, tmp_path: Path) -> None:
    listen = (
        "import socket\nserver = socket.create_server(('', 4000))\nprint('up', flush=True)\n"
        "server.accept()[0].sendall(b'hello from the driver')"
    )
    ask = (
        "import socket\nassert socket.gethostbyname(socket.gethostname()) != '127.0.0.1'\n"
        "print(socket.create_connection(('driver', 4000), 5).recv(100).decode(), flush=True)"
    )
    driver = make_spec(hostname="driver", role="driver", collective=GROUP, slots=0, gpus=())
    host = make_spec("sl-42-a1-1", collective=GROUP)
    run(runtime, driver, make_folders(tmp_path / "driver"), listen)
    wait(runtime, lambda seen: b"up" in runtime.logs(driver.name, 100))
    run(runtime, host, make_folders(tmp_path / "host"), ask)
    wait(runtime, exited)
    assert runtime.logs(host.name, 100) == b"hello from the driver\n"


def test_a_missing_environment_is_refused_with_a_reason(runtime: DockerRuntime, folders: Folders) -> None:
    runtime.image_of = lambda key: None
    with pytest.raises(CreateError, match="not prepared"):
        runtime.create(make_spec(), folders)
    runtime.image_of = lambda key: "schedulearn-job:was-removed"
    with pytest.raises(CreateError, match="gone from this node"):
        runtime.create(make_spec(), folders)


def test_what_was_started_equals_the_policy(runtime: DockerRuntime, folders: Folders, pretender: str) -> None:
    for spec in (make_spec(), make_spec("sl-42-a1-1", collective=GROUP)):
        run(runtime, spec, folders, "import time; time.sleep(60)")
        assert_equals_policy(runtime, spec, folders, pretender)


def assert_equals_policy(runtime: DockerRuntime, spec: RunSpec, folders: Folders, image: str) -> None:
    found = runtime.client.api.inspect_container(runtime.identity.engine_name(spec.name))
    owner = owner_for(spec.job, os.geteuid(), os.getegid())
    wanted = container_config(spec, folders, image, owner, runtime.identity, runtime.host())
    host, wanted_host = found["HostConfig"], wanted.pop("HostConfig")
    for key, value in wanted_host.items():
        assert (host[key] or None) == (with_defaults(key, value) or None), key
    nothing = ("Binds", "CapAdd", "Devices", "PortBindings", "VolumesFrom", "GroupAdd", "Links", "CgroupParent")
    for key in (*nothing, "PidMode", "UTSMode", "UsernsMode", "DeviceCgroupRules", "PublishAllPorts"):
        assert not host.get(key), key
    assert "seccomp" not in str(host["SecurityOpt"]) and host["MaskedPaths"] and host["ReadonlyPaths"]
    seen = {mount["Destination"]: (mount["Type"], mount["RW"]) for mount in found["Mounts"]}
    assert seen == {mount["Target"]: ("bind", not mount["ReadOnly"]) for mount in wanted_host["Mounts"]}
    for key in ("User", "WorkingDir", "Entrypoint", "Hostname"):
        assert found["Config"][key] == wanted[key], key
    extra = set(found["Config"]["Env"]) - set(wanted["Env"])
    assert {line.split("=")[0] for line in extra} <= {"PATH", "GPG_KEY", "PYTHON_VERSION", "PYTHON_SHA256"}
    networks = set(found["NetworkSettings"]["Networks"])
    assert networks == {wanted_host["NetworkMode"]}


def with_defaults(key: str, value: Any) -> Any:
    """The engine writes out what we leave at zero, and leaves out what we say is false."""
    if key == "Mounts":
        return [{name: word for name, word in mount.items() if word is not False} for mount in value]
    if key == "RestartPolicy":
        return {**value, "MaximumRetryCount": 0}
    return value


def test_user_code_reads_its_control_folder_but_cannot_write_there(runtime: DockerRuntime, folders: Folders) -> None:
    if os.geteuid() != 0:
        pytest.skip("an agent that is not root shares its user id with jobs")
    (folders.control / "job.json").write_text("secret of the group")
    run(runtime, make_spec(), folders, "print(open('/run/schedulearn/control/job.json').read(), flush=True)")
    wait(runtime, exited)
    assert runtime.logs("sl-42-a1-0", 100) == b"secret of the group\n"
    held = folders.control.stat()
    assert held.st_uid == 0 and held.st_mode & 0o007 == 0
    assert folders.workspace.stat().st_uid == owner_for(42, 0, 0).uid


def test_a_link_in_the_workspace_leads_the_agent_nowhere(
    runtime: DockerRuntime, folders: Folders, tmp_path: Path
) -> None:
    """Giving the folders away must not give away what a link points to."""
    outside = tmp_path / "outside"
    outside.write_text("mine")
    (folders.workspace / "link").symlink_to(outside)
    before = outside.stat().st_uid
    runtime.create(make_spec(), folders)
    assert outside.stat().st_uid == before
    folders.outputs.rmdir()
    folders.outputs.symlink_to(tmp_path)
    if os.geteuid() == 0:
        with pytest.raises(CreateError, match="could not be prepared"):
            runtime.create(make_spec("sl-42-a1-1"), folders)


def test_certificates_of_the_environment_change_nothing(engine: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """requests would let REQUESTS_CA_BUNDLE replace an authority that was pinned."""
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/tmp/other-authority.pem")
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    client = connect()
    assert client.api.trust_env is False
    settings = client.api.merge_environment_settings("https://engine:2376", {}, None, "/pinned.pem", None)
    assert settings["verify"] == "/pinned.pem" and not settings["proxies"]
    assert client.ping()


def test_an_engine_that_is_away_is_an_error_not_a_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr("time.sleep", waits.append)
    runtime = DockerRuntime("test", "node", lambda key: "image", f"unix://{tmp_path}/none.sock")
    with pytest.raises(EngineError, match="does not answer"):
        runtime.list()
    (problem,) = runtime.check()
    assert problem.blocking and problem.fix
    assert waits == []


def test_an_engine_that_never_answers_is_left_in_time(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{tmp_path}/silent.sock")
        server.listen()
        with pytest.raises(EngineError):  # that it comes at all shows a limit: nothing else ends the wait
            connect(f"unix://{tmp_path}/silent.sock", timeout_seconds=1)


def test_an_answer_that_is_cut_off_is_asked_for_again(pretender: str, tmp_path: Path, folders: Folders) -> None:
    """A cut-off request to create may have made the container: the error does not mean that the job cannot run."""
    address, spec = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock"), make_spec()
    between = Between(tmp_path / "between.sock", Path(address.removeprefix("unix://")))
    runtime = DockerRuntime(f"test {tmp_path}", "node", lambda key: pretender, f"unix://{tmp_path}/between.sock")
    assert runtime.host().cpus >= 1
    runtime.client.close()  # its connections: each keeps the mood that it began with
    between.mood = "cut"
    with pytest.raises(EngineError, match="does not answer"):
        runtime.create(spec, folders)
    between.mood = "well"
    runtime.create(spec, folders)
    assert [one.state for one in runtime.list()] == ["created"]
    runtime.remove(spec.name)
    between.close()


def test_facts_describe_the_engine_and_the_machine(runtime: DockerRuntime) -> None:
    facts = runtime.facts()
    assert facts["engine"].startswith("Docker") and facts["cpus"] >= 1 and facts["memory_mib"] > 0
    assert not [problem for problem in runtime.check() if problem.blocking]


def test_the_rule_that_closes_the_host_is_made_once(runtime: DockerRuntime) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root looks after the firewall")
    runtime.check()
    runtime.check()
    rules = subprocess.run(["iptables", "-S", "INPUT"], capture_output=True, text=True, check=True).stdout
    assert rules.count("-i slj-+ -j DROP") == 1


def test_processes_of_our_containers_are_recognised(runtime: DockerRuntime, folders: Folders) -> None:
    run(runtime, make_spec(), folders, "import time\nprint('up', flush=True)\ntime.sleep(600)")
    pid = int(runtime.client.api.inspect_container(runtime.identity.engine_name("sl-42-a1-0"))["State"]["Pid"])
    assert runtime.is_ours(pid)  # asked for before it was listed
    runtime.list()
    assert runtime.is_ours(pid) and not runtime.is_ours(os.getpid())
    stranger = DockerRuntime("another installation", "node", lambda key: None)
    assert not stranger.is_ours(pid)
