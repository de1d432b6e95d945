"""What tests of the runners share: specs, folders, an engine, prepared environments."""

import os
import shutil
import socketserver
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from runners.agent.portal_client import Backoff
from runners.runtime import Folders
from runners.spec import CollectiveGroup, Resources, RunSpec
from tests import engine as engines
from tests.fake_portal import FakePortal
from tests.runners.agent_bench import Bench, follow_protocol
from tests.runners.lock_guard import guarded

GROUP = CollectiveGroup(driver_host="driver", port=4000, secret="s" * 43, min_ranks=1, max_ranks=2)


def make_spec(name: str = "sl-42-a1-0", **changes: Any) -> RunSpec:
    """A plain command on one CPU slot."""
    given: dict[str, Any] = {
        "job": 42,
        "attempt": 7,
        "number": 1,
        "role": "host",
        "hostname": "h0",
        "environment": "python",
        "code_sha256": "0" * 64,
        "launcher": "command",
        "command": ("python", "main.py"),
        "slots": 1,
        "gpus": ("cpu-0",),
        "resources": Resources(cpus=1, memory_mib=256, shm_mib=64, tmp_mib=16, pids=64, disk_mib=256),
    }
    return RunSpec(name=name, **{**given, **changes})


def make_folders(top: Path) -> Folders:
    names = ("workspace", "control", "scribe", "outputs", "checkpoints")
    for name in names:
        (top / name).mkdir(parents=True, exist_ok=True)
    return Folders(*(top / name for name in names))


@contextmanager
def as_nobody(tmp_path: Path) -> Iterator[Path]:
    """Give up root where this process has it, and yield a folder of the user that it then acts as."""
    if os.geteuid() != 0:
        yield tmp_path
        return
    home = Path(tempfile.mkdtemp(prefix="schedulearn-nobody-"))  # tmp_path lies where only root may enter
    os.chown(home, 65534, 65534)
    os.seteuid(65534)
    try:
        yield home
    finally:
        os.seteuid(0)
        shutil.rmtree(home)


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    return make_folders(tmp_path)


@pytest.fixture(scope="session", autouse=True)
def servers_that_end_at_once() -> Iterator[None]:
    """Those in this process look every 0.02 s instead of 0.5 s whether they have been shut down."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socketserver.BaseServer.serve_forever, "__defaults__", (0.02,))
        yield


@pytest.fixture
def quick_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runners.agent.program.SYNC_SECONDS", 0.2)
    monkeypatch.setattr("runners.agent.program.OBSERVE_SECONDS", 0.05)
    monkeypatch.setattr("runners.agent.program.RETRY_SECONDS", 0.2)
    monkeypatch.setattr("runners.agent.program.ENGINE_RETRY_SECONDS", 0.2)
    failed = Backoff.next_pause
    monkeypatch.setattr(Backoff, "next_pause", lambda backoff: min(failed(backoff), 0.2))
    monkeypatch.setattr("runners.agent.program.DISK_LIMITS_SECONDS", 0.1)
    monkeypatch.setattr("runners.agent.program.OUTPUTS_SECONDS", 0.1)
    monkeypatch.setenv("SCHEDULEARN_CPU_SLOTS", "2")


@pytest.fixture
def portal() -> Iterator[FakePortal]:
    with FakePortal() as portal:
        follow_protocol(portal)
        yield portal


@pytest.fixture
def bench(tmp_path: Path, portal: FakePortal) -> Iterator[Bench]:
    bench = Bench(tmp_path / "agent", portal)
    yield bench
    bench.stop()


@pytest.fixture(scope="session")
def engine() -> Iterator[None]:
    """A Docker Engine that answers. ``make test`` leaves out the layers that need one on a machine that cannot have it."""
    with engines.docker_engine():
        yield


@pytest.fixture(scope="session")
def job_image(engine: None) -> str:
    return engines.job_environment_image()


@pytest.fixture(scope="session")
def pretender(engine: None) -> str:
    return engines.pretender_image()


@pytest.fixture(scope="session")
def job_python() -> str:
    return engines.job_environment_python()


@pytest.fixture(scope="session")
def plain_python() -> str:
    return engines.job_environment_python("pytorch")


@pytest.fixture(scope="session")
def keras_python() -> str:
    return engines.job_environment_python("tensorflow-horovod")


@pytest.fixture
def progress() -> Callable[[int, str], None]:
    return lambda percent, words: None


@pytest.fixture(autouse=True)
def no_slow_calls_under_locks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with guarded(monkeypatch) as guard:
        yield
    assert not guard.broken, "\n".join(guard.broken[:5])
