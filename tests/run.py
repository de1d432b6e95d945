"""Runs the tests layer by layer, installing and starting what each needs, and prints the count by layer.

``python -m tests.run [all | lint | LAYER ...]``. Needs root (or passwordless sudo) to install Debian
packages and to start a Docker Engine; without, it runs what it can and says plainly what it did not. Layers that need an
engine run one after the other, and beside them, one after the other too, those that need none. The layer *gpu* needs a
machine with NVIDIA's driver, which nothing here can install.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tests.programs import call

ROOT = Path(__file__).resolve().parent.parent
DRIVER = Path("/proc/driver/nvidia/version")
"""Only where it is, *all* includes the layer *gpu*."""
MEMORY = Path("/dev/shm")  # noqa: S108 - each layer makes a folder of its own in it
MEMORY_BYTES = 6 << 30
"""So much must be free for layers without engines to keep their small files there, which makes a tenth of their time."""
PYTEST = [sys.executable, "-m", "pytest", "-q"]
NOT_RUN = "NOT RUN"
NICE = ("nice", "-n", "10")
TWO = ("-n", "2", "--dist=worksteal")
"""Workers; the longest tests are among those that come first, so that neither waits for the other in the end."""
SLOW = "postgres or docker or horovod or system or browser or gpu"
ENGINE = frozenset({"engine"})
ALL = frozenset({"servers", "engine", "chromium"})


@dataclass(frozen=True)
class Layer:
    """One pytest run. ``needs`` names what must be there first."""

    name: str
    title: str
    args: tuple[str, ...]
    needs: frozenset[str] = frozenset()
    env: tuple[tuple[str, str], ...] = ()


LAYERS = (
    Layer(
        "fast",
        "pure: scheduling, the training library's rules, and the house itself",
        ("-m", f"not ({SLOW})", *TWO, "tests/scheduling", "tests/training", "tests/architecture"),
    ),
    Layer(
        "laws",
        "thousands of random worlds for every policy",
        (*TWO, "--timeout=900", "-k", "laws", "tests/scheduling"),
        env=(("LAW_EXAMPLES", "300"),),
    ),
    Layer(
        "portal",
        "the portal on SQLite, agents and supervisors as processes",
        ("-m", f"not ({SLOW})", *TWO, "tests/laws", "tests/portal", "tests/runners"),
    ),
    Layer(
        "postgres",
        "the portal on PostgreSQL and Redis",
        ("-m", "not (docker or horovod or system or browser or gpu)", *TWO, "tests/laws", "tests/portal"),
        frozenset({"servers"}),
    ),
    Layer(
        "docker",
        "containers on a Docker Engine",
        ("-m", "docker and not (system or browser or gpu)", "tests/runners"),
        ENGINE,
    ),
    Layer(
        "horovod",
        "real Horovod and torchrun",
        ("-m", "horovod and not (docker or system or browser or gpu)", *TWO, "tests/runners", "tests/training"),
        ENGINE,
    ),
    Layer(
        "system", "the whole product, real processes", ("-m", "system and not (browser or gpu)", "--timeout=900"), ALL
    ),
    Layer(
        "cluster",
        "machines that break, each with its own engine",
        ("-m", "not gpu", "--timeout=600", "tests/cluster"),
        frozenset({"servers", "engine", "namespaces"}),
    ),
    Layer("browser", "Chromium", ("-m", "browser and not gpu", "--timeout=900", "tests/browser", "tests/js"), ALL),
    Layer("gpu", "CUDA devices, in containers and in training", ("-m", "gpu", "tests/gpu"), ENGINE),
)

PACKAGES = {
    "servers": {"/usr/lib/postgresql": "postgresql", "redis-server": "redis-server"},
    "engine": {
        "dockerd": "docker.io",
        "setpriv": "util-linux",
        "iptables": "iptables",
        "debootstrap": "debootstrap",
        "g++": "g++",
        "cmake": "cmake",
    },
    "namespaces": {
        "setpriv": "util-linux",
        "nsenter": "util-linux",
        "ip": "iproute2",
        "faketime": "faketime",
    },
    "chromium": {
        "chromium": "chromium",
        "/usr/share/fonts/truetype/dejavu": "fonts-dejavu-core",
        "node": "nodejs",
    },
}
"""What a need is called on this machine -> the Debian package that brings it."""


@dataclass
class Result:
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0
    note: str = ""


def missing_packages(needs: frozenset[str]) -> list[str]:
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    wanted = {program: package for need in sorted(needs) for program, package in PACKAGES[need].items()}
    return [
        package
        for program, package in wanted.items()
        if not (Path(program).exists() if program.startswith("/") else shutil.which(program, path=path))
    ]


def install(packages: list[str]) -> str:
    """Empty when done, else what stood in the way."""
    if shutil.which("apt-get") is None:
        return f"install these by hand: {' '.join(packages)}"
    sudo: list[str] = [] if os.geteuid() == 0 else ["sudo", "-n"]
    if sudo and (
        shutil.which("sudo") is None or subprocess.run([*sudo, "true"], capture_output=True, check=False).returncode
    ):
        return f"not root: install {' '.join(packages)}"
    print(f"Installing {' '.join(packages)} ...", flush=True)
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (
        ["apt-get", "update", "-q"],
        ["apt-get", "install", "-y", "-q", "--no-install-recommends", *packages],
    ):
        run = subprocess.run([*sudo, *command], env=env, capture_output=True, text=True, check=False)
        if run.returncode:
            return f"{' '.join(command)} failed: {run.stderr.strip()[-300:]}"
    return ""


def run_layer(layer: Layer, env: dict[str, str], aside: bool = False) -> Result:
    """``aside``: with what time others leave, and told of when it is over."""
    title = f"\n=== {layer.name}: {layer.title} ==="
    if not aside:
        print(title, flush=True)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="sl-", dir=MEMORY if (fast := fits_in_memory(layer)) else None) as folder:
        if fast:
            Path(folder).chmod(0o755)  # as open as /tmp
            env = {**env, "TMPDIR": folder}
        report, said = Path(folder) / "report.xml", Path(folder) / "said"
        command = [*(NICE if aside else ()), *PYTEST, *layer.args, f"--junitxml={report}"]
        with said.open("wb") as output:
            to = output if aside else None
            code = call(command, cwd=ROOT, env=env, stdout=to, stderr=to)
        if aside:
            print(f"{title}\n{said.read_text(errors='replace')}", flush=True)
        result = count(report) if report.exists() else Result(failed=1, note=f"pytest ended with {code}")
    if code not in (0, 1) and not result.failed:
        result.failed, result.note = 1, f"pytest ended with {code}"
    result.seconds = time.monotonic() - started
    return result


def fits_in_memory(layer: Layer) -> bool:
    """Engines keep their files on a disk."""
    room = MEMORY.is_dir() and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free >= MEMORY_BYTES
    return room and not layer.needs - {"servers"}


def count(report: Path) -> Result:
    suites = ET.parse(report).getroot().iter("testsuite")  # noqa: S314 - written by pytest just now
    result = Result()
    for suite in suites:
        bad = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
        skipped = int(suite.get("skipped", 0))
        result.failed += bad
        result.skipped += skipped
        result.passed += int(suite.get("tests", 0)) - bad - skipped
    return result


LINTERS = (
    ("ruff check .", [sys.executable, "-m", "ruff", "check", "."]),
    ("ruff format --check .", [sys.executable, "-m", "ruff", "format", "--check", "."]),
    ("mypy", [sys.executable, "-m", "mypy"]),
    ("import contracts", [str(Path(sys.executable).parent / "lint-imports")]),
    ("missing migrations", [sys.executable, "manage.py", "makemigrations", "--check", "--dry-run"]),
)


def lint() -> Result:
    print("=== lint ===", flush=True)
    result, started = Result(), time.monotonic()
    with tempfile.TemporaryDirectory() as home:
        for title, command in LINTERS:
            run = subprocess.run(
                command,
                cwd=ROOT,
                env={**os.environ, "SCHEDULEARN_HOME": home},
                capture_output=True,
                text=True,
                check=False,
            )
            print(f"{title}: {'ok' if run.returncode == 0 else 'FAILED'}", flush=True)
            if run.returncode:
                print(run.stdout[-6000:], run.stderr[-3000:], flush=True)
            result.failed += run.returncode != 0
            result.passed += run.returncode == 0
    result.seconds = time.monotonic() - started
    return result


def run_watched(layer: Layer, env: dict[str, str]) -> Result:
    """While it runs, every container that Schedulearn starts is inspected; each that breaks the policy is a failure."""
    from tests.watch import watching

    with watching() as watch:
        result = run_layer(layer, env)
    for line in watch.broken:
        print(f"POLICY BROKEN: {line}", flush=True)
    result.failed += len(watch.broken)
    result.note = f"{result.note} {len(watch.seen)} containers inspected, {len(watch.broken)} rules broken".strip()
    return result


def prepare(layer: Layer, stack: ExitStack, ready: dict[str, dict[str, str]]) -> tuple[dict[str, str], str]:
    """Installs and starts what the layer needs. Returns its environment, and why it cannot run, or nothing."""
    missing = missing_packages(layer.needs)
    if missing and (problem := install(missing)):
        return {}, problem
    if "servers" in layer.needs and "servers" not in ready:
        from tests import servers

        ready["servers"] = {
            "DATABASE_URL": stack.enter_context(servers.postgres()),
            "REDIS_URL": stack.enter_context(servers.redis()),
            "REDIS_URL_OF_GW1": stack.enter_context(servers.redis()),  # what is published knows no databases
            "SECRET_KEY": "only-for-tests-and-longer-than-thirty-two-characters",
        }
    if "engine" in layer.needs and "engine" not in ready:
        from tests import engine

        if problem := stack.enter_context(engine.running_engine()):  # names itself in DOCKER_HOST
            return {}, problem
        ready["engine"] = {}
    return {**os.environ, **dict(layer.env), **(ready["servers"] if layer.name == "postgres" else {})}, ""


def not_run(layer: Layer, problem: str) -> Result:
    print(f"\n=== {layer.name}: {NOT_RUN}: {problem} ===", flush=True)
    return Result(note=f"{NOT_RUN}: {problem}")


def main(names: list[str]) -> int:
    wanted = names or ["all"]
    known = ["all", "lint", *(layer.name for layer in LAYERS)]
    if unknown := set(wanted) - set(known):
        print(f"There is no layer {', '.join(sorted(unknown))}; there are {', '.join(known)}.")
        return 2
    results: dict[str, Result] = {}
    if "lint" in wanted or "all" in wanted:
        results["lint"] = lint()
    everything = [layer for layer in LAYERS if layer.name != "gpu" or DRIVER.exists()]
    layers = everything if "all" in wanted else [layer for layer in LAYERS if layer.name in wanted]
    with ExitStack() as stack:
        ready: dict[str, dict[str, str]] = {}
        # Those of engines mostly wait: for containers, for processes that import torch, for clocks. The others compute.
        light = [(layer, *prepare(layer, stack, ready)) for layer in layers if "engine" not in layer.needs]
        heavy = [(layer, *prepare(layer, stack, ready)) for layer in layers if "engine" in layer.needs]
        lane = stack.enter_context(ThreadPoolExecutor(1))
        running = {
            layer.name: lane.submit(run_layer, layer, env, aside=bool(heavy))
            for layer, env, problem in light
            if not problem
        }
        results |= {layer.name: not_run(layer, problem) for layer, _, problem in light if problem}
        for layer, env, problem in heavy:
            results[layer.name] = not_run(layer, problem) if problem else run_watched(layer, env)
        results |= {name: run.result() for name, run in running.items()}
    print("\nlayer      passed failed skipped seconds", flush=True)
    for name, result in sorted(results.items(), key=lambda item: known.index(item[0])):
        print(f"{name:10} {result.passed:6} {result.failed:6} {result.skipped:7} {result.seconds:7.0f}  {result.note}")
    passed, failed = sum(r.passed for r in results.values()), sum(r.failed for r in results.values())
    skipped = sum(r.skipped for r in results.values())
    left_out = [name for name, result in results.items() if result.note.startswith(NOT_RUN)]
    if left_out and os.environ.get("CI"):
        failed += len(left_out)  # CI has root: a layer that did not run there is a failure
    if "all" in wanted and not DRIVER.exists():
        print("\nThe layer gpu is for machines with NVIDIA's driver, which this one does not have: make test-gpu.")
    print(f"\n{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
