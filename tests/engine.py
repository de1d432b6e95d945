"""A Docker Engine, a base image and prepared environments for tests; found again by content, so made once per machine.

    running_engine()                 context manager for test runners: "" when an engine answers and the environments
                                     are ready, else a sentence saying why not
    docker_engine()                  context manager: the same without environments; raises NoEngineError
    base_image()                     name of an image with Python and nothing else
    job_environment_image(key)       tag of a job image of the catalogue, as the agent would make it
    job_environment_python(key)      python of the same environment for the process runtime
    pretender_image()                a small image whose PID 1 runs the workspace's main.py instead of a supervisor

Tests take them as fixtures from tests/runners/conftest.py (``engine``, ``job_image``, ``job_python``,
``pretender``). By hand: ``python -m tests.engine COMMAND ...`` runs a command with everything ready.
"""

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from runners.docker_images import DockerImages
from runners.docker_runtime import connect
from runners.environments import LOCAL_BASE, PUBLIC_BASE, DockerEnvironments, ProcessEnvironments
from runners.launch.ranks import KEEP_MEMORY
from runners.preparing import cache_home, content_key
from runners.runtime import EngineError
from tests.programs import call

ROOT = Path(__file__).resolve().parent.parent
START_SECONDS = 60
ENDS_WITH_US = ("setpriv", "--pdeathsig", "TERM", "--")
"""Else the engine of a run that was killed would keep its data folder, and no other one could start."""
KEY = "pytorch-horovod"


class NoEngineError(Exception):
    """Why there is no engine to test with."""


def answers() -> bool:
    try:
        connect(timeout_seconds=10).close()
    except EngineError:
        return False
    return True


@contextmanager
def alone() -> Iterator[None]:
    """One engine of ours at a time: two would share a data folder, and the first to end takes the bridge of both."""
    place = cache_home() / "test-engine.lock"
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            print(
                "Another test run has the engine of this machine: waiting until it ends.", file=sys.stderr, flush=True
            )
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def docker_engine() -> Iterator[None]:
    """The engine that answers, else one of our own that ends with this. Its images stay in the cache folder."""
    if answers():
        yield
        return
    dockerd = shutil.which("dockerd")
    if dockerd is None:
        raise NoEngineError("No Docker Engine answers and dockerd is not installed: apt-get install docker.io iptables")
    if os.geteuid() != 0:
        raise NoEngineError("No Docker Engine answers, and only root can start one.")
    with (
        alone(),
        tempfile.TemporaryDirectory(prefix="sl-engine-") as folder,
        (Path(folder) / "log").open("wb") as log,
    ):
        socket = f"unix://{folder}/docker.sock"
        data = cache_home() / "test-engine"
        data.mkdir(parents=True, exist_ok=True)
        argv = [*ENDS_WITH_US, dockerd, "--live-restore", "--host", socket]
        argv += ["--data-root", str(data), "--exec-root", f"{folder}/exec"]
        process = subprocess.Popen(
            [*argv, "--pidfile", f"{folder}/pid"], stdout=log, stderr=log, start_new_session=True
        )
        before = os.environ.get("DOCKER_HOST")
        os.environ["DOCKER_HOST"] = socket
        try:
            wait_until_it_answers(process, Path(folder) / "log")
            yield
        finally:
            process.terminate()
            process.wait(60)
            unmount_beneath(Path(folder))
            if before is None:
                del os.environ["DOCKER_HOST"]
            else:
                os.environ["DOCKER_HOST"] = before


def unmount_beneath(folder: Path) -> None:
    """An engine that had containers on the host's network leaves that mounted."""
    mounted = [Path(line.split()[1]) for line in Path("/proc/mounts").read_text().splitlines()]
    for path in mounted:
        if folder in path.parents:
            subprocess.run(["umount", path], check=False)


def wait_until_it_answers(process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until and process.poll() is None:
        if answers():
            return
        time.sleep(0.2)
    raise NoEngineError(f"dockerd did not come up: {log.read_text(errors='replace')[-500:]}")


@contextmanager
def running_engine() -> Iterator[str]:
    try:
        with docker_engine():
            job_environment_image(KEY)
            job_environment_python(KEY)
            yield ""
    except NoEngineError as problem:
        yield str(problem)


@cache
def base_image() -> str:
    images = DockerImages()
    named = os.environ.get("SCHEDULEARN_BASE_IMAGE")
    for image in [named] if named else [PUBLIC_BASE, LOCAL_BASE]:
        if images.id_of(image):
            return image
    made = subprocess.run([ROOT / "deploy" / "base-image.sh"], capture_output=True, text=True, check=False)
    if made.returncode:
        raise NoEngineError(f"No base image: {made.stderr.strip()[-500:]}")
    return LOCAL_BASE


@cache
def job_environment_image(key: str = KEY) -> str:
    return prepared(DockerEnvironments(base_image=base_image()), key)


def rank_env(python: str) -> dict[str, str]:
    """For ranks of that job environment, started by hand on this machine, as a supervisor would in a CPU slot."""
    return {
        "PATH": f"{Path(python).parent}:{os.environ['PATH']}",
        "HOME": os.environ.get("HOME", "/tmp"),
        "PYTHONPATH": str(ROOT / "runners" / "training"),
        "OMP_NUM_THREADS": "1",
        **KEEP_MEMORY,
    }


@cache
def job_environment_python(key: str = KEY, cuda: bool = False) -> str:
    return prepared(ProcessEnvironments(cuda), key)


def prepared(environments: DockerEnvironments | ProcessEnvironments, key: str) -> str:
    seen = ""

    def say(percent: int, words: str) -> None:
        nonlocal seen
        if (what := words.split(":")[0].split(" for ")[0]) != seen:
            seen = what
            print(f"  {key}: {percent} % {words}", file=sys.stderr, flush=True)

    report = environments.prepare(key, say)
    reference = environments.reference_of(key)
    if reference is None:
        raise NoEngineError(f"The environment {key} could not be prepared: {report.detail}")
    return reference


PRETENDER = b"""
import os, runpy
os.chdir("/workspace")
runpy.run_path("main.py", run_name="__main__")
"""
PRETENDER_DOCKERFILE = """
FROM {base}
RUN cp "$(readlink -f "$(command -v python3)")" /usr/local/bin/python-as-root && chmod 4755 /usr/local/bin/python-as-root
COPY schedulearn /opt/schedulearn
"""


@cache
def pretender_image() -> str:
    """Everything else (configuration, mounts, network) is the real thing. It also holds a setuid interpreter."""
    base = base_image()
    files: dict[str, Path | bytes] = {
        "Dockerfile": PRETENDER_DOCKERFILE.format(base=base).encode(),
        "schedulearn/runners/__init__.py": b"",
        "schedulearn/runners/launch/__init__.py": b"",
        "schedulearn/runners/launch/supervisor.py": PRETENDER,
        "schedulearn/runners/launch/driver.py": PRETENDER,
    }
    images = DockerImages()
    tag = f"schedulearn-pretender:{content_key(PRETENDER, files['Dockerfile'], images.id_of(base) or '')[:12]}"  # type: ignore[arg-type]
    if images.id_of(tag) is None:
        images.build(files, "Dockerfile", tag, {}, cache_home() / "logs" / "pretender.log", lambda step, steps: None)
    return tag


def main() -> int:
    with running_engine() as problem:
        if problem:
            print(problem, file=sys.stderr)
            return 1
        return call(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
