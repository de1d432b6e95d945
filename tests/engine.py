"""A Docker Engine, a base image and prepared environments for tests; cached by content, so made once per machine.

    docker_engine()                  context manager: an engine of the tests' own; raises NoEngineError
    prepare_environments()           makes all job environments that tests use
    base_image()                     name of an image with Python and nothing else
    job_environment_image(key)       tag of a job image of the catalogue, as the agent would make it
    job_environment_python(key)      python of the same environment for the process runtime
    pretender_image()                a small image whose PID 1 runs the workspace's main.py instead of a supervisor

Tests take them as fixtures from tests/runners/conftest.py (``engine``, ``job_image``, ``job_python``,
``pretender``). By hand: ``python -m tests.engine COMMAND ...`` runs a command with everything ready.

The engine runs in network and mount namespaces of its own and reads no configuration of this machine, so an engine that
already runs here, its containers and its firewall rules are left alone.
"""

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path

from runners.environments.builds import LOCAL_BASE, PUBLIC_BASE, DockerEnvironments, ProcessEnvironments
from runners.environments.docker_images import DockerImages
from runners.environments.installing import PIP
from runners.environments.preparing import cache_home, content_key, temporary_folder
from runners.launch.ranks import MALLOC_VARIABLES
from runners.messages import Message
from runners.runtime import EngineError
from runners.runtimes.docker import connect
from tests.programs import call
from tests.run.isolation import isolated

ROOT = Path(__file__).resolve().parent.parent
START_SECONDS = 60
ENDS_WITH_US = ("setpriv", "--pdeathsig", "TERM", "--")
"""Else the engine of a run that was killed would keep its data folder, and no other one could start."""
KEY = "pytorch-horovod"
OWN_ENGINE = "SCHEDULEARN_TEST_ENGINE"
"""Set to the socket of an engine of ours, so that programs that tests start use it instead of starting another."""


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
def docker_engine(enter: Sequence[str] = ()) -> Iterator[None]:
    """An engine named by DOCKER_HOST that ends with this context; its images stay in the cache folder.

    ``enter`` is what leads into the namespaces it shall share with the tests (see ``tests.run.isolation``); without, it
    gets its own. A user who is not root can only use the engine that DOCKER_HOST names.
    """
    if answers() and (os.environ.get(OWN_ENGINE) or os.geteuid() != 0):
        yield
        return
    dockerd = shutil.which("dockerd", path=f"{os.environ['PATH']}:/usr/sbin")
    if dockerd is None:
        raise NoEngineError("dockerd is not installed: apt-get install docker.io iptables")
    if os.geteuid() != 0:
        raise NoEngineError("No Docker Engine answers, and only root can start one.")
    with ExitStack() as stack:
        stack.enter_context(alone())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sl-engine-")))
        inside = list(enter) or stack.enter_context(isolated())
        (folder / "daemon.json").write_text("{}")
        data = cache_home() / "test-engine"
        data.mkdir(parents=True, exist_ok=True)
        socket = f"unix://{folder}/docker.sock"
        argv = [*ENDS_WITH_US, *inside, dockerd, "--live-restore", "--host", socket]
        argv += ["--config-file", f"{folder}/daemon.json", "--pidfile", f"{folder}/pid"]
        argv += ["--data-root", str(data), "--exec-root", f"{folder}/exec"]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(argv, stdout=log, stderr=log, start_new_session=True)
        before = {name: os.environ.get(name) for name in ("DOCKER_HOST", OWN_ENGINE)}
        os.environ |= {"DOCKER_HOST": socket, OWN_ENGINE: socket}
        try:
            wait_until_it_answers(process, folder / "log")
            remove_left_overs()
            yield
        finally:
            process.terminate()
            process.wait(60)
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value


def wait_until_it_answers(process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until and process.poll() is None:
        if answers():
            return
        time.sleep(0.2)
    raise NoEngineError(f"dockerd did not come up: {log.read_text(errors='replace')[-500:]}")


def remove_left_overs() -> None:
    """The containers and networks of a run that was killed: its images are kept, and so were these."""
    client = DockerImages().client
    for container in client.containers.list(all=True):
        container.remove(force=True, v=True)
    client.networks.prune()


def prepare_environments(thorough: bool = False) -> None:
    """Make the job environments that tests use, as images and for the process runtime. Needs package indexes; the tests
    themselves do not. NoEngineError when one cannot be made."""
    for key in (KEY, "pytorch", "python", *(["tensorflow-horovod"] if thorough else [])):
        job_environment_image(key)
        job_environment_python(key)
    pretender_image()
    if thorough:
        layer_wheels()


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
        **MALLOC_VARIABLES,
    }


@cache
def job_environment_python(key: str = KEY, cuda: bool = False) -> str:
    return prepared(ProcessEnvironments(cuda), key)


def prepared(environments: DockerEnvironments | ProcessEnvironments, key: str) -> str:
    seen = ""

    def say(percent: int, step: Message) -> None:
        nonlocal seen
        words = step.text
        if (what := words.split(":")[0].split(" for ")[0]) != seen:
            seen = what
            print(f"  {key}: {percent} % {words}", file=sys.stderr, flush=True)

    report = environments.prepare(key, say)
    reference = environments.reference_of(key)
    if reference is None:
        raise NoEngineError(f"The environment {key} could not be prepared: {report.detail}")
    return reference


LAYER_WHEELS = (
    *("markdown-it-py==4.3.0", "mdurl==0.1.2", "pandas==3.1.1", "pillow==13.0.0", "pygments==2.21.0"),
    *("python-dateutil==4.0.0", "rich==15.0.0", "torchvision==0.28.0", "tzdata==2026.6"),
)
"""What a layer with pandas, rich and torchvision has over the environment "pytorch"."""


@cache
def layer_wheels() -> Path:
    """Return a folder with the wheels of such a layer."""
    folder = cache_home() / "test-wheels" / content_key(*LAYER_WHEELS)
    if not folder.is_dir():
        with temporary_folder(folder.parent, ".part-") as work:
            made = work / "wheels"
            fetch = [*PIP, "download", "--quiet", "--no-deps", "--only-binary=:all:", "-d", str(made), *LAYER_WHEELS]
            subprocess.run(fetch, check=True, timeout=600)
            made.rename(folder)
    return folder


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
    try:
        with docker_engine():
            prepare_environments()
            return call(sys.argv[1:])
    except NoEngineError as problem:
        print(problem, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
