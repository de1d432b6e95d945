"""Runs the tests that may notice a mutant, in a throw-away copy of the tree, layer after layer until one fails."""

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from tests import servers
from tests.mutation.catalogue import Mutant, Place, Sources
from tests.mutation.forking import JOBS, PLAN, RESULTS, Task
from tests.mutation.plugin import REPORT, TESTS
from tests.mutation.selection import Covered

MEMORY = Path("/dev/shm")  # noqa: S108 - each run makes a folder of its own in it
MEMORY_BYTES = 2 << 30
POLL_SECONDS = 0.2

Outcome = Literal["caught", "survived", "undecided", "not covered", "heavy"]


@dataclass(frozen=True, slots=True)
class Layer:
    """A pytest run of the suite, with the coverage that it left. ``args`` are its own, e.g. its markers."""

    name: str
    paths: tuple[str, ...]
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    servers: bool = False
    """It needs PostgreSQL and Redis."""
    covered: Covered | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a mutant."""

    outcome: Outcome
    layer: str = ""
    test: str = ""
    message: str = ""
    ran: int = 0
    """Tests until the first failure, in all layers."""
    seconds: float = 0.0
    confirmed: bool | None = None
    """Whether the test that caught it passes without it; None until that was tried."""


Note = Callable[[str, Verdict], None]
"""Takes the name of a mutant and its verdict."""


@dataclass(frozen=True, slots=True)
class Round:
    """The result of one pytest process."""

    ran: int
    failed: tuple[tuple[str, str], ...]
    timed_out: bool


class Copy:
    """A copy of the tree's files that may be changed. It is deleted in the end."""

    def __init__(self, stack: ExitStack, tree: Path, python: str) -> None:
        in_memory = (
            "TMPDIR" not in os.environ
            and MEMORY.is_dir()
            and os.access(MEMORY, os.W_OK)
            and shutil.disk_usage(MEMORY).free >= MEMORY_BYTES
        )
        folder = tempfile.TemporaryDirectory(prefix="sl-mutation-", dir=MEMORY if in_memory else None)
        self.folder = Path(stack.enter_context(folder))
        self.folder.chmod(0o755)  # as open as /tmp: some tests start programs as other users
        self.root, self._tree, self._python, self._stack = self.folder / "tree", tree, python, stack
        self._servers: dict[str, str] = {}
        self._program: subprocess.Popen[bytes] | None = None
        stack.callback(self.stop)
        self.sources = Sources(tree)
        for name in _files(tree):
            target = self.root / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(tree / name, target)
        own = Path(__file__).parent
        shutil.copytree(own, self.root / "tests" / "mutation", dirs_exist_ok=True)

    @contextmanager
    def changed(self, place: Place) -> Iterator[None]:
        """Apply a mutant, and take it back afterwards."""
        file = self.root / place.path.relative_to(self._tree)
        before = file.read_text()
        try:
            self._write(file, place.source)
            yield
        finally:
            self._write(file, before)

    def _write(self, file: Path, text: str) -> None:
        file.write_text(text)
        # Compiled code is known by its source's size and second: two versions may have the same.
        for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*.pyc"):
            compiled.unlink()

    def pytest(self, layer: Layer, tests: Sequence[str], seconds: float, *, stop: bool = True) -> Round:
        """Run tests, given as ids or as files, for so long at most. ``stop``: after the first failure."""
        with tempfile.TemporaryDirectory(prefix="run-", dir=self.folder) as name:
            scratch = Path(name)
            scratch.chmod(0o755)
            env = self._env(layer, name) | {REPORT: f"{name}/report"}
            if any("::" in test for test in tests):
                (scratch / "tests").write_text("\n".join(tests))
                env[TESTS] = f"{name}/tests"
            files = list(dict.fromkeys(test.partition("::")[0] for test in tests))
            options = ["-p", "tests.mutation.plugin", "-q", "--no-header", *(["-x"] if stop else [])]
            command = [self._python, "-m", "pytest", *options, *layer.args, *files]
            with (scratch / "output").open("wb") as output:
                code = self._within(seconds, command, env, output.fileno())
            report = Path(f"{name}/report")
            if not report.exists() or code in (3, 4):
                text = (scratch / "output").read_text(errors="replace")
                raise RuntimeError(f"pytest ended with {code} in layer {layer.name}: {text[-2000:]}")
            found = json.loads(report.read_text() or "{}")
        failed = [*found.get("broken", []), *found.get("failed", [])]
        return Round(found.get("ran", 0), tuple((test, message) for test, message in failed), code is None)

    def fork(self, layer: Layer, tasks: Sequence[Task], jobs: int) -> Iterator[dict[str, Any]]:
        """Judge mutants in forks of one session, and yield what it notes of each, as soon as it does."""
        left = list(tasks)
        while left:
            before = len(left)
            for result in self._session(layer, left, jobs):
                left = [task for task in left if task.name != result["name"]]
                yield result
            if len(left) == before:
                raise RuntimeError(f"the session of layer {layer.name} ended before its first mutant")

    def _session(self, layer: Layer, tasks: Sequence[Task], jobs: int) -> Iterator[dict[str, Any]]:
        with tempfile.TemporaryDirectory(prefix="session-", dir=self.folder) as name:
            scratch = Path(name)
            scratch.chmod(0o755)
            plan, results, output = scratch / "plan", scratch / "results", scratch / "output"
            plan.write_text(json.dumps([asdict(task) for task in tasks]))
            results.touch()
            jobs = 1 if layer.servers else jobs  # forks share the database of a server
            env = self._env(layer, name) | {PLAN: str(plan), RESULTS: str(results), JOBS: str(jobs)}
            files = sorted({test.partition("::")[0] for task in tasks for test in task.tests})
            options = ["-p", "tests.mutation.forking", "-q", "--no-header"]
            command = [self._python, "-m", "pytest", *options, *layer.args, *files]
            with output.open("wb") as log, results.open() as lines:
                self._program = subprocess.Popen(
                    command, cwd=self.root, env=env, stdout=log, stderr=log, start_new_session=True
                )
                found = 0
                while True:
                    ended = self._program.poll() is not None
                    for line in lines.read().splitlines():  # lines are written as a whole
                        found += 1
                        yield json.loads(line)
                    if ended:
                        break
                    time.sleep(POLL_SECONDS)
                self.stop()
            if not found:
                raise RuntimeError(f"layer {layer.name}: {output.read_text(errors='replace')[-3000:]}")

    def _env(self, layer: Layer, scratch: str) -> dict[str, str]:
        env = {**os.environ, **layer.env, **self._server_urls(layer), "TMPDIR": scratch}
        env.pop("SCHEDULEARN_HOME", None)  # each session makes one
        return env

    def _within(self, seconds: float, command: Sequence[str], env: Mapping[str, str], output: int) -> int | None:
        """Return the exit code; None when it was killed, as its time was up."""
        with subprocess.Popen(
            command, cwd=self.root, env=env, stdout=output, stderr=output, start_new_session=True
        ) as program:
            self._program = program
            try:
                return program.wait(seconds)
            except subprocess.TimeoutExpired:
                return None
            finally:
                self.stop()

    def stop(self) -> None:
        """End pytest and what it started. A mutant may leave processes that its test would have ended."""
        if self._program is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._program.pid, signal.SIGKILL)
            self._program = None

    def _server_urls(self, layer: Layer) -> Mapping[str, str]:
        if layer.servers and not self._servers:
            self._servers = {
                "DATABASE_URL": self._stack.enter_context(servers.postgres()),
                "REDIS_URL": self._stack.enter_context(servers.redis()),
                "SECRET_KEY": "only-for-tests-and-longer-than-thirty-two-characters",
            }
        return self._servers if layer.servers else {}


def judge_all(
    mutants: Sequence[Mutant],
    copy: Copy,
    layers: Sequence[Layer],
    seconds: float,
    jobs: int,
    note: Note,
    hints: Mapping[str, str] | None = None,
) -> None:
    """Judge mutants by one layer after the other, and ``note`` each as soon as its verdict is sure.

    ``hints`` names for some mutants a test that has caught them before, to be run first.
    """
    places = {mutant.name: copy.sources.place(mutant) for mutant in mutants}
    tried = {mutant.name: Verdict("not covered") for mutant in mutants}
    for layer in layers:
        left = [mutant for mutant in mutants if tried[mutant.name].outcome != "caught"]
        tasks = [
            task
            for mutant in left
            if (task := task_of(mutant, copy, layer, places[mutant.name], seconds, (hints or {}).get(mutant.name)))
        ]
        stubborn = {task.name for task in tasks}
        for result in copy.fork(layer, tasks, jobs) if tasks else ():
            if result["outcome"] != "cannot swap":
                name = result.pop("name")
                stubborn.discard(name)
                tried[name] = _further(tried[name], Verdict(layer=layer.name, **result))
                if tried[name].outcome == "caught":
                    note(name, tried[name])
        for mutant in left:
            if tried[mutant.name].outcome == "caught":
                continue
            ids = next((task.tests for task in tasks if task.name == mutant.name and mutant.name in stubborn), ())
            files = [file for name in mutant.tests for file in test_files(copy.root, layer, name)]
            for tests in (ids, files):
                if tests and tried[mutant.name].outcome != "caught":
                    tried[mutant.name] = _further(
                        tried[mutant.name], in_new_process(copy, layer, places[mutant.name], tests, seconds)
                    )
            if tried[mutant.name].outcome == "caught":
                note(mutant.name, tried[mutant.name])
    for mutant in mutants:
        verdict = tried[mutant.name]
        if verdict.outcome != "caught":
            note(mutant.name, replace(verdict, outcome="heavy", layer=mutant.heavy) if mutant.heavy else verdict)


def _further(before: Verdict, now: Verdict) -> Verdict:
    """Add up what several runs needed for a verdict."""
    if before.outcome == "undecided" and now.outcome != "caught":
        now = replace(now, outcome="undecided")
    return replace(
        now,
        layer=now.layer if now.outcome == "caught" else "",
        ran=before.ran + now.ran,
        seconds=round(before.seconds + now.seconds, 1),
    )


def task_of(
    mutant: Mutant, copy: Copy, layer: Layer, place: Place, seconds: float, hint: str | None = None
) -> Task | None:
    """Return what a fork has to do: nothing when no test of the layer ran the line."""
    if layer.covered is None:
        return None
    path = str(copy.sources.coverage_path(mutant).relative_to(copy.sources.root))
    tests = layer.covered.tests(path, place.lines) or layer.covered.tests(path, place.statement)
    tests = [hint, *(test for test in tests if test != hint)] if hint else tests
    # Coverage may be older than the tree: tests that are no longer in this layer are passed over.
    tests = [test for test in tests if _is_in(layer, copy.root, test.partition("::")[0])]
    changed = str(place.path.relative_to(copy.sources.root))
    return Task(mutant.name, changed, place.source, tuple(tests), seconds) if tests else None


def in_new_process(copy: Copy, layer: Layer, place: Place, tests: Sequence[str], seconds: float) -> Verdict:
    """Judge a mutant whose code runs in other processes than the test's, or cannot be changed in a running one."""
    began = time.monotonic()
    with copy.changed(place):
        done = copy.pytest(layer, tests, seconds)
    test, message = done.failed[0] if done.failed else ("", "")
    outcome: Outcome = "caught" if done.failed else "undecided" if done.timed_out else "survived"
    return Verdict(outcome, layer.name, test, message, done.ran, round(time.monotonic() - began, 1))


def test_files(root: Path, layer: Layer, name: str) -> list[str]:
    """Return the test modules of this name in the layer's folders."""
    found = [str(path.relative_to(root)) for path in sorted((root / "tests").rglob(f"{name}.py"))]
    return [file for file in found if _is_in(layer, root, file)]


def _is_in(layer: Layer, root: Path, file: str) -> bool:
    return (root / file).exists() and any(file == path or file.startswith(f"{path}/") for path in layer.paths)


def confirm(verdicts: Mapping[str, Verdict], copy: Copy, layers: Sequence[Layer]) -> dict[str, Verdict]:
    """Run the tests that caught something on the unchanged tree: one that fails there as well has caught nothing."""
    checked = dict(verdicts)
    for layer in layers:
        caught = {
            name: each for name, each in verdicts.items() if each.layer == layer.name and each.outcome == "caught"
        }
        tests = sorted({each.test for each in caught.values() if "::" in each.test})
        bad = {test for test, _ in copy.pytest(layer, tests, 1800, stop=False).failed} if tests else set()
        checked |= {
            name: Verdict(**{**asdict(each), "confirmed": each.test not in bad}) for name, each in caught.items()
        }
    return checked


def _files(tree: Path) -> list[str]:
    """The files of a working tree that git knows, or would know."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    out = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=True).stdout
    return [name for name in out.split("\0") if name and (tree / name).is_file()]
