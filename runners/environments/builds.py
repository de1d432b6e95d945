"""Making a curated environment ready on this node: as an image for Docker, as a virtual environment for processes.

Preparing is slow once and may be repeated at any time: what is unchanged is found again by its content.
"""

import os
import platform
import shutil
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

from runners.environments import horovod_wheel, image_digests, images
from runners.environments.docker_images import DockerImages
from runners.environments.images import Entry
from runners.environments.installing import downloaded, make_environment, uv_program
from runners.environments.preparing import (
    TICK_SECONDS,
    PrepareError,
    ProgramError,
    Progress,
    alone,
    cache_home,
    content_key,
    elapsed,
    explain,
    need_space,
    run,
    temporary_folder,
)
from runners.environments.targets import Target, this_machine
from runners.environments.wheels import Pins, framework_of, make, pins_of, recipe_key, wheelhouse
from runners.host.exclusive import ExclusiveSection
from runners.runtime import LAUNCH, EngineError

PUBLIC_BASE = "python:3.11-slim-bookworm"
LOCAL_BASE = "schedulearn-base:bookworm"
"""What deploy/base-image.sh makes."""
PUBLIC_BUILDER = "python:3.11-bookworm"
"""Has a compiler; used when the host has none that suits."""

RUNNERS = Path(__file__).resolve().parents[1]

PREPARE_SECONDS = 3600.0
"""Most seconds that one environment waits for another."""
INSTALL_SECONDS = 20
"""After this long an installation is shown as half done: nobody knows its length beforehand."""
CHECK_PERCENT = 90
"""Of a virtual environment whose packages are installed; the rest is trying them."""


KEEP_BYTECODE = dict.fromkeys(("PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX"))
"""Variables that the check of an environment runs without. It leaves the bytecode of what most jobs import, which takes
half the time of a start of PyTorch off each rank; compiling all packages would take half a minute."""


@dataclass(frozen=True, slots=True)
class Report:
    """One line of the agent's report about environments."""

    key: str
    digest: str = ""
    state: Literal["waiting", "preparing", "ready", "failed"] = "waiting"
    progress_percent: int = 0
    detail: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Prepared:
    """``reference`` is what runs the environment: an image's tag, or the path of a python."""

    digest: str
    reference: str
    origin: str = ""
    """The base image that it was made from, with its digest: a sentence."""


class Environments(Protocol):
    def prepare(self, key: str, progress: Progress | None = None) -> Report:
        """Slow (minutes) the first time, a second or two after. Returns READY or FAILED, never raises for what can go
        wrong on a machine. One at a time; call it in a thread of its own."""
        ...

    def reports(self) -> list[Report]:
        """What is known of each environment asked for so far. Quick, from any thread."""
        ...

    def reference_of(self, key: str) -> str | None:
        """What ``create`` needs; None while it is not ready, or is no longer there."""
        ...


class Preparing(ABC):
    """What both kinds share: keeping book of each environment."""

    def __init__(self) -> None:
        self._reports: dict[str, Report] = {}
        self._prepared: dict[str, Prepared] = {}
        self._books = threading.Lock()
        self._section = ExclusiveSection("preparing an environment")

    def prepare(self, key: str, progress: Progress | None = None) -> Report:
        with self._section.entered(PREPARE_SECONDS):
            entry = images.find(key)
            if entry is None:
                return self._note(
                    Report(key, state="failed", detail=f"There is no environment “{key}” in this release.")
                )

            reached = 0

            def tell(percent: int, words: str) -> None:
                """Progress never goes back, whatever each step estimates."""
                nonlocal reached
                reached = max(reached, min(99, percent))
                self._note(Report(key, state="preparing", progress_percent=reached, detail=words))
                if progress is not None:
                    progress(reached, words)

            tell(0, "starting")
            try:
                prepared = self._make(entry, tell)
            except PrepareError as error:
                return self._note(Report(key, state="failed", detail=f"{error.text} {error.mend}"))
            except EngineError as error:
                return self._note(Report(key, state="failed", detail=f"{error} Start the engine; it is tried again."))
            except OSError as error:
                return self._note(Report(key, state="failed", detail=f"The system refused: {error}."))
            with self._books:
                self._prepared[key] = prepared
            return self._note(Report(key, prepared.digest, "ready", 100, prepared.origin))

    def reports(self) -> list[Report]:
        with self._books:
            return [self._reports[key] for key in sorted(self._reports)]

    def reference_of(self, key: str) -> str | None:
        with self._books:
            prepared = self._prepared.get(key)
        if prepared is None:
            return None
        if self._is_there(prepared):
            return prepared.reference
        with self._books:
            self._prepared.pop(key, None)
            self._reports[key] = replace(self._reports[key], state="waiting", progress_percent=0, detail="it is gone")
        return None

    def _note(self, report: Report) -> Report:
        with self._books:
            self._reports[report.key] = report
        return report

    @abstractmethod
    def _make(self, entry: Entry, tell: Progress) -> Prepared:
        """Raises PrepareError with what would mend it."""

    @abstractmethod
    def _is_there(self, prepared: Prepared) -> bool:
        """Whether what was made has not been deleted since."""


class ProcessEnvironments(Preparing):
    """A virtual environment per recipe under the cache folder, shared by all installations of this user."""

    def __init__(self, cuda: bool = False) -> None:
        super().__init__()
        self.target = this_machine(cuda)

    def _make(self, entry: Entry, tell: Progress) -> Prepared:
        pins = pins_of(entry, self.target, tell, 1)
        compiles = entry.horovod is not None and horovod_wheel.find(entry, self.target, pins) is None
        if compiles and (lacking := horovod_wheel.missing_tools(self.target)):
            raise lacking
        begin = 80 if compiles else 5
        wheel = horovod_wheel.ensure(entry, self.target, pins, tell, horovod_wheel.build_here, (5, begin))
        digest = content_key(
            "venv 2",
            *pins.packages,
            entry.check,
            self.target.words,
            recipe_key(entry, self.target),
            name_of(wheel),
            sys.prefix,
        )
        folder = cache_home() / "envs" / f"{entry.key}-{digest[:12]}"
        python, done = folder / "bin" / "python", folder / ".complete"
        with alone(cache_home() / "locks" / f"env-{folder.name}", tell, begin):
            if not done.exists():
                need_space(cache_home(), entry.disk_mib)
                shutil.rmtree(folder, ignore_errors=True)
                self._install(entry, folder, pins, wheel, tell, begin)
                done.touch()
        return Prepared(digest, str(python))

    def _install(self, entry: Entry, folder: Path, pins: Pins, wheel: Path | None, tell: Progress, begin: int) -> None:
        """``begin`` is the percentage that is done already."""
        log = make(cache_home() / "logs") / f"install-{entry.key}.log"
        log.unlink(missing_ok=True)

        def installing(seconds: float, said: str) -> None:
            share = seconds / (seconds + INSTALL_SECONDS)
            what = downloaded(said)
            words = f"downloading {what}" if what else f"installing {len(pins.packages)} packages"
            tell(begin + int((CHECK_PERCENT - begin) * share), elapsed(words, seconds))

        def checking(seconds: float, said: str) -> None:
            tell(CHECK_PERCENT, elapsed("checking that the packages work", seconds))

        try:
            tell(begin, f"installing {len(pins.packages)} packages")
            packages = [*pins.packages, *([str(wheel)] if wheel is not None else [])]
            python = make_environment(folder, packages, log, installing, pins.index)
            tell(CHECK_PERCENT, "checking that the packages work")
            run([python, "-c", entry.check or "pass"], log, checking, env=KEEP_BYTECODE, cwd=folder, seconds=300)
        except ProgramError as error:
            raise explain(error, "Installing the packages", log) from error

    def _is_there(self, prepared: Prepared) -> bool:
        return Path(prepared.reference).exists()


class DockerEnvironments(Preparing):
    """Two images per recipe: its packages, and on top of them what runs first. A change of ours rebuilds the second."""

    def __init__(
        self,
        engine: DockerImages | None = None,
        base_image: str | None = None,
        build_image: str | None = None,
        cuda: bool = False,
        host_can_build: Callable[[Target], bool] = horovod_wheel.host_can_build,
    ) -> None:
        super().__init__()
        self._engine = engine
        self.base_image = base_image or os.environ.get("SCHEDULEARN_BASE_IMAGE")
        self.build_image = build_image or os.environ.get("SCHEDULEARN_BUILD_IMAGE") or PUBLIC_BUILDER
        self.cuda = cuda
        self.host_can_build = host_can_build

    @property
    def engine(self) -> DockerImages:
        """Connected when first needed: an agent may start before its engine."""
        if self._engine is None:
            self._engine = DockerImages()
        return self._engine

    def _make(self, entry: Entry, tell: Progress) -> Prepared:
        base = self._base(tell)
        target = self.engine.target(base, self.cuda)
        pins = pins_of(entry, target, tell, 3)
        house = wheelhouse(entry, target, pins, tell, (4, 25 if entry.horovod else 70))
        wheel = horovod_wheel.ensure(entry, target, pins, tell, self._builder(target, house), (25, 70))
        packages = self._packages(entry, base, target, house, wheel, tell)
        launch = {f"schedulearn/runners/{name}": RUNNERS / name for name in LAUNCH}
        recipe = (images.FOLDER / "job.Dockerfile").read_bytes()
        digest = content_key("job 2", packages, self.engine.id_of(packages) or "", recipe, tree(launch))
        tag = f"schedulearn-job:{entry.key}-{digest[:12]}"
        if self.engine.id_of(tag) is None:
            with building(tell, "building the job image", "building the job image", (94, 99)) as step:
                self.engine.build(
                    {**launch, "Dockerfile": recipe},
                    "Dockerfile",
                    tag,
                    {"PACKAGES_IMAGE": packages},
                    cache_home() / "logs" / f"image-{entry.key}.log",
                    step,
                )
            self.engine.drop_old("schedulearn-job", entry.key, keep=tag)
            self.engine.drop_old("schedulearn-packages", entry.key, keep=packages)
        origin = image_digests.origin(base, self.engine.repo_digests(base), self.engine.id_of(base) or "")
        return Prepared(self.engine.id_of(tag) or digest, tag, origin)

    def _base(self, tell: Progress) -> str:
        """The image named by the settings, with its digest if they pin one; else the public one, or what
        deploy/base-image.sh made."""
        wanted = [self.base_image] if self.base_image else [PUBLIC_BASE, LOCAL_BASE]
        image_digests.pinned_digest(wanted[0])
        image = next((image for image in wanted if self.engine.id_of(image)), wanted[0])
        if self.engine.id_of(image) is None:
            self.engine.pull(image, lambda status: tell(1, f"downloading the base image {image}: {status}"))
        image_digests.verify(image, self.engine.repo_digests(image))
        return image

    def _packages(
        self, entry: Entry, base: str, target: Target, house: Path, wheel: Path | None, tell: Progress
    ) -> str:
        script = (images.FOLDER / "packages.sh").read_text()
        requirements = entry.requirements_on(self.cuda)
        base_id = self.engine.id_of(base) or ""
        ours = (script, entry.check, requirements.read_bytes())
        digest = content_key("packages 3", *ours, base_id, house.name, name_of(wheel))
        tag = f"schedulearn-packages:{entry.key}-{digest[:12]}"
        if self.engine.id_of(tag) is None:
            with temporary_folder(cache_home(), "schedulearn-own-") as own:
                shutil.copy(requirements, own / "requirements.txt")
                (own / "check.py").write_text(f"{entry.check}\n")
                if wheel is not None:
                    shutil.copy(wheel, own)
                if target.machine == platform.machine() and (uv := uv_program()) is not None:
                    shutil.copy(uv, own / "uv")
                what = "building the image of the packages"
                with building(tell, what, what, (71, 92)) as step:
                    self.engine.install(
                        base,
                        script,
                        {house: "/mnt", own: "/srv"},
                        tag,
                        "/opt/env/bin",
                        cache_home() / "logs" / f"packages-{entry.key}.log",
                        step,
                    )
        return tag

    def _builder(self, target: Target, house: Path) -> horovod_wheel.Build:
        """This machine's compiler when its product runs in the image, else a container that has one."""
        return horovod_wheel.build_here if self.host_can_build(target) else partial(self._build_in_container, house)

    def _build_in_container(
        self, house: Path, source: Path, pins: Pins, out: Path, variables: dict[str, str], progress: Progress
    ) -> None:
        image = self.build_image
        image_digests.pinned_digest(image)
        if self.engine.id_of(image) is None:
            lacking = horovod_wheel.missing_tools(this_machine(self.cuda))
            try:
                self.engine.pull(
                    image, lambda status: progress(1, f"downloading the compiler's image {image}: {status}")
                )
            except PrepareError as error:
                raise lacking or PrepareError(
                    f"Horovod must be compiled once, and the image with the compiler ({image}) cannot be pulled.",
                    "Set SCHEDULEARN_BUILD_IMAGE to an image with the same Python, g++ and make.",
                ) from error
        image_digests.verify(image, self.engine.repo_digests(image))
        target = self.engine.target(image, self.cuda)
        with tempfile.TemporaryDirectory(prefix="schedulearn-tools-") as folder:
            tools = horovod_wheel.tools_house(target, Path(folder), progress)
            mounts = {
                source: ("/source", True),
                house: ("/house", False),
                tools: ("/tools", False),
                out: ("/out", True),
            }
            began = time.monotonic()
            script = horovod_wheel.container_script(framework_of(pins))
            log = make(cache_home() / "logs") / "build-horovod-in-container.log"
            for said in self.engine.run_mounted(image, script, mounts, variables, log):
                progress(*horovod_wheel.compiling(time.monotonic() - began, said))

    def _is_there(self, prepared: Prepared) -> bool:
        return self.engine.id_of(prepared.reference) is not None


@contextmanager
def building(tell: Progress, first: str, then: str, percent: tuple[int, int]) -> Iterator[Callable[[int, int], None]]:
    """Report each second how far the build of an image is: a step may take a minute without a word. Yields what to call
    with the step and their number; ``first`` describes what comes before step 1."""
    low, high = percent
    began, now = time.monotonic(), (low, first)
    over = threading.Event()

    def step(number: int, of: int) -> None:
        nonlocal now
        now = (low + (high - low) * number // of, f"{then}, step {number} of {of}")
        tell(now[0], elapsed(now[1], time.monotonic() - began))

    def report() -> None:
        while not over.wait(TICK_SECONDS):
            with suppress(Exception):  # the agent is ending: the build hears of it at its next step
                tell(now[0], elapsed(now[1], time.monotonic() - began))

    tell(low, first)
    thread = threading.Thread(target=report, name="image build", daemon=True)
    thread.start()
    try:
        yield step
    finally:
        over.set()
        thread.join()


def name_of(wheel: Path | None) -> str:
    """The folder is named by all that went into the wheel."""
    return f"{wheel.parent.name}/{wheel.name}" if wheel else ""


def tree(paths: dict[str, Path]) -> str:
    """The content of files and folders, without what Python leaves beside them."""
    parts: list[str | bytes] = []
    for name, path in sorted(paths.items()):
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in files:
            if file.is_file() and "__pycache__" not in file.parts:
                parts += [f"{name}/{file.relative_to(path)}", file.read_bytes()]
    return content_key(*parts)
