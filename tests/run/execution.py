"""Starts what layers need and runs them: those that compute one after the other, beside those that mostly wait."""

import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from tests.programs import measured
from tests.run.isolation import isolated, plain_environment
from tests.run.layers import Layer, Level
from tests.run.lint import lint
from tests.run.packages import MissingError, Need, install, missing_packages
from tests.run.report import Result, count

ROOT = Path(__file__).resolve().parents[2]
REPORTS = ROOT / ".test-reports"
MEMORY = Path("/dev/shm")  # noqa: S108 - each layer makes a folder of its own in it
MEMORY_BYTES = 6 << 30
"""Must be free for layers without engines to keep their small files in memory, which saves a tenth of their time."""
PYTEST = (sys.executable, "-m", "pytest", "-q")
NICE = ("nice", "-n", "10")
SEED_LIMIT = 1_000_000


class Run:
    """One run of the suite. ``may_install`` is False for ``INSTALL=no``."""

    def __init__(self, level: Level, may_install: bool = True, seed: int | None = None) -> None:
        self.level = level
        self.may_install = may_install
        self.seed = random.SystemRandom().randrange(SEED_LIMIT) if seed is None else seed
        self.results: dict[str, Result] = {}
        self.enter: list[str] = []
        self.interrupted = False
        """Control-C ends the layers that run by itself; no other is begun."""

    def carry_out(self, layers: Sequence[Layer], with_lint: bool) -> dict[str, Result]:
        """Return the results in the order of the layers, lint first.

        Layers that compute run beside those that wait. In ``make test-all`` they run before them: its tests take so long
        that a time limit would end those that get only the processor time which others leave.
        """
        REPORTS.mkdir(exist_ok=True)
        runnable = self._provided(layers)
        computing = [layer for layer in runnable if not layer.waits]
        waiting = [layer for layer in runnable if layer.waits]
        with ExitStack() as stack:
            self.enter = stack.enter_context(isolated())
            side = stack.enter_context(ThreadPoolExecutor(1))
            beside_others = bool(waiting) and self.level != Level.ALL
            aside = side.submit(self._compute, computing, with_lint, beside_others)
            try:
                if not beside_others:
                    aside.result()
                self._wait_for_machines(waiting, stack)
                aside.result()
            except KeyboardInterrupt:
                self.interrupted = True
                raise
        order = ["lint", *(layer.name for layer in layers)]
        return {name: self.results[name] for name in order if name in self.results}

    def _provided(self, layers: Sequence[Layer]) -> list[Layer]:
        """Install what is missing. Layers that cannot run get a result with the reason."""
        runnable: list[Layer] = []
        needed = {layer.name: self._missing(layer) for layer in layers}
        packages = sorted({package for missing in needed.values() for package in missing or ()})
        problem = ""
        if packages and self.may_install:
            print(f"Installing Debian packages for the tests: {' '.join(packages)}", flush=True)
            try:
                install(packages)
            except MissingError as error:
                problem = str(error)
        for layer in layers:
            missing = needed[layer.name]
            if missing is None:
                continue
            if layer.waits and not self.may_install:
                self._leave_out(layer, "INSTALL=no, and it needs a Docker Engine of the tests' own")
            elif missing and (problem or not self.may_install):
                self._leave_out(layer, problem or f"INSTALL=no, and these packages are missing: {' '.join(missing)}")
            else:
                runnable.append(layer)
        return runnable

    def _missing(self, layer: Layer) -> list[str] | None:
        """Return the missing Debian packages; None, and a result with the reason, when no package would help."""
        try:
            return missing_packages(layer.needs)
        except MissingError as error:
            self._leave_out(layer, str(error))
            return None

    def _leave_out(self, layer: Layer, why: str) -> None:
        self.results[layer.name] = Result(not_run=why)

    def _compute(self, layers: Sequence[Layer], with_lint: bool, beside_others: bool) -> None:
        if with_lint:
            self.results["lint"] = lint()
        for layer in layers:
            if self.interrupted:
                return
            self.results[layer.name] = self._pytest(layer, aside=beside_others)

    def _wait_for_machines(self, layers: Sequence[Layer], stack: ExitStack) -> None:
        """Start the engine that these layers share, prepare its images, and run the layers under the eyes of a watch."""
        if not layers:
            return
        from tests import engine
        from tests.watch import watching

        print(
            "Starting a Docker Engine of the tests' own and preparing its images (kept for the next run).", flush=True
        )
        started = time.monotonic()
        try:
            stack.enter_context(engine.docker_engine(self.enter))
            engine.prepare_environments(thorough=self.level == Level.ALL)
        except engine.NoEngineError as problem:
            for layer in layers:
                self._leave_out(layer, str(problem))
            return
        print(f"Prepared after {time.monotonic() - started:.0f} s.", flush=True)
        for layer in layers:
            with watching() as watch:
                result = self._pytest(layer)
            for line in watch.broken:
                print(f"POLICY BROKEN: {line}", flush=True)
            result.failed += len(watch.broken)
            result.note = f"{len(watch.seen)} containers inspected, {len(watch.broken)} rules broken"
            self.results[layer.name] = result

    def _pytest(self, layer: Layer, aside: bool = False) -> Result:
        """``aside``: with what time others leave, and printed as a whole when it is over."""
        title = f"\n=== {layer.name}: {layer.title} ==="
        if not aside:
            print(title, flush=True)
        started = time.monotonic()
        in_memory = has_memory_for(layer)
        with tempfile.TemporaryDirectory(prefix="sl-", dir=MEMORY if in_memory else None) as folder:
            Path(folder).chmod(0o755)  # as open as /tmp
            report, output = REPORTS / f"{layer.name}.xml", Path(folder) / "output"
            report.unlink(missing_ok=True)
            env = self._environment(layer) | ({"TMPDIR": folder} if in_memory else {})
            with output.open("wb") as file:
                to = file if aside else None
                code, processors = measured(
                    [*self.enter, *self._command(layer, report, aside)], cwd=ROOT, env=env, stdout=to, stderr=to
                )
            if aside:
                print(f"{title}\n{output.read_text(errors='replace')}", flush=True)
            result = count(report) if report.exists() else Result(failed=1, note=f"pytest ended with {code}")
        if code not in (0, 1) and not result.failed:
            result.failed, result.note = 1, f"pytest ended with {code}"
        result.seconds, result.processor_seconds, result.aside = time.monotonic() - started, processors, aside
        return result

    def _command(self, layer: Layer, report: Path, aside: bool) -> list[str]:
        servers = [sys.executable, "-m", "tests.servers"] if layer.database else []
        seed = [f"--hypothesis-seed={self.seed}"] if self.level == Level.ALL else []
        pytest = [*PYTEST, *layer.arguments(self.level), *seed, f"--junitxml={report}"]
        return [*(NICE if aside else ()), *servers, *pytest]

    def _environment(self, layer: Layer) -> dict[str, str]:
        env = plain_environment(os.environ)
        if "DOCKER_HOST" in os.environ and layer.waits:
            from tests.engine import OWN_ENGINE

            env |= {name: os.environ[name] for name in ("DOCKER_HOST", OWN_ENGINE) if name in os.environ}
        if self.level == Level.ALL:
            env |= {"HUNT": "1", **({"ALL_ON_POSTGRES": "1"} if layer.database else {})}
        return env


def has_memory_for(layer: Layer) -> bool:
    """Whether the layer's temporary files fit into memory. Engines keep theirs on a disk."""
    room = MEMORY.is_dir() and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free >= MEMORY_BYTES
    return room and not layer.waits


def announce(layers: Collection[Layer], may_install: bool) -> None:
    """What is about to happen to this machine."""
    needs = {need for layer in layers for need in layer.needs}
    if not needs:
        return
    if not may_install:
        print("INSTALL=no: nothing is installed and no Docker Engine is started.", flush=True)
        return
    servers = ["PostgreSQL and Redis"] if Need.SERVERS in needs else []
    engines = ["its own Docker Engine"] if Need.ENGINE in needs else []
    print(
        f"This run starts {' and '.join(servers + engines)} in namespaces of its own, installs the Debian packages that\n"
        "they need when they are missing (as root or by passwordless sudo), and keeps images and wheels in the cache\n"
        "folder. INSTALL=no leaves all of that out.",
        flush=True,
    )
