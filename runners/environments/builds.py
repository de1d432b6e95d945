"""Prepares curated environments on this node: as an image for Docker, or as a virtual environment for processes.

Preparing an environment is slow once and may be repeated at any time: unchanged parts are found by their content.
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
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

from runners.environments import horovod_wheel, image_digests, images
from runners.environments.docker_images import DockerImages
from runners.environments.images import Entry
from runners.environments.installing import current_download, make_environment, uv_program
from runners.environments.layers.base import Base, find_python
from runners.environments.layers.docker_sandbox import DockerSandbox
from runners.environments.layers.sandbox import BuildSandbox, process_sandbox
from runners.environments.preparing import (
    TICK_SECONDS,
    PrepareError,
    ProgramError,
    Progress,
    cache_home,
    content_key,
    exclusive_lock,
    explain,
    require_space,
    run,
    temporary_folder,
)
from runners.environments.targets import Target, this_machine
from runners.environments.wheels import Pins, find_framework, make_folder, pinned_packages, recipe_key, wheelhouse
from runners.host.exclusive import ExclusiveSection
from runners.messages import Message
from runners.messages.environment_failures import (
    CannotPullCompiler,
    EngineFailed,
    Stage,
    SystemRefused,
    UnknownEnvironment,
)
from runners.messages.environments import (
    BuildingImage,
    CheckingPackages,
    DownloadingPackage,
    Gone,
    InstallingPackages,
    PullingBaseImage,
    PullingBuildImage,
    Starting,
)
from runners.messages.layer_failures import NeedsPython
from runners.runtime import LAUNCH_PATHS, EngineError

PUBLIC_BASE = "python:3.11-slim-bookworm"
PUBLIC_BASE_OF = "python:{python}-slim-bookworm"
IMAGE_PYTHON = "/opt/env/bin/python"
"""The interpreter in the images that are made here."""
LOCAL_BASE = "schedulearn-base:bookworm"
"""The image that deploy/base-image.sh makes."""
PUBLIC_BUILDER = "python:3.11-bookworm"
"""An image with a compiler, for hosts without a suitable one."""

RUNNERS = Path(__file__).resolve().parents[1]

PREPARE_SECONDS = 3600.0
"""The maximum time that one environment waits for another."""
INSTALL_SECONDS = 20
"""After this time an installation is shown as half done: its duration is unknown beforehand."""
CHECK_PERCENT = 90
"""The progress of a virtual environment whose packages are installed; the rest is their check."""


KEEP_BYTECODE = dict.fromkeys(("PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX"))
"""Variables that are removed for the check of an environment. The check writes the bytecode of what most jobs import, so
that each rank starts PyTorch in half the time; compiling all packages would take half a minute."""


@dataclass(frozen=True, slots=True)
class Report:
    """The state of one environment, as in the agent's report."""

    key: str
    digest: str = ""
    state: Literal["waiting", "preparing", "ready", "failed"] = "waiting"
    progress_percent: int = 0
    message: Message | None = None
    """The step, the failure, or what a ready environment was made from."""

    @property
    def detail(self) -> str:
        """Return the message as text, empty without one."""
        return self.message.text if self.message else ""

    def to_json(self) -> dict[str, Any]:
        """Return the report as the agent sends it. Portals of the previous release read the text."""
        message = self.message.data() if self.message else None
        return {
            "key": self.key,
            "digest": self.digest,
            "state": self.state,
            "progress_percent": self.progress_percent,
            "message": message,
            "detail": self.detail,
        }


@dataclass(frozen=True, slots=True)
class PreparedEnvironment:
    """A prepared environment. ``reference`` is what runs it: an image's tag, or the path of a python."""

    digest: str
    reference: str
    origin: Message | None = None
    """The base image that it was made from, with its digest."""
    target: Target | None = None
    packages: tuple[str, ...] = ()
    """Its exact packages."""


class Environments(Protocol):
    def prepare(self, key: str, progress: Progress | None = None) -> Report:
        """Prepare an environment: minutes the first time, then a second or two. Returns a report that it is ready or has
        failed; failures of the machine raise nothing. One is prepared at a time; call it in a separate thread."""
        ...

    def reports(self) -> list[Report]:
        """Return the state of each environment that was requested so far. Quick, from any thread."""
        ...

    def reference_of(self, key: str) -> str | None:
        """Return what ``create`` needs; None while the environment is not ready, or if it has been deleted."""
        ...


class BaseEnvironments(ABC):
    """What both kinds of environments share: the state of each environment."""

    def __init__(self) -> None:
        self._reports: dict[str, Report] = {}
        self._prepared: dict[str, PreparedEnvironment] = {}
        self._lock = threading.Lock()
        self._section = ExclusiveSection("preparing an environment")
        self._sandboxes: dict[str, BuildSandbox] = {}
        """By interpreter: the portal is asked about a layer every few seconds, and to find one starts several processes."""

    def prepare(self, key: str, progress: Progress | None = None) -> Report:
        with self._section.enter(PREPARE_SECONDS):
            entry = images.find(key)
            if entry is None:
                return self._record(Report(key, state="failed", message=UnknownEnvironment(key)))

            reached = 0

            def report(percent: int, step: Message) -> None:
                """Report the progress, which never decreases, whatever each step estimates."""
                nonlocal reached
                reached = max(reached, min(99, percent))
                self._record(Report(key, state="preparing", progress_percent=reached, message=step))
                if progress is not None:
                    progress(reached, step)

            report(0, Starting())
            try:
                prepared = self._make(entry, report)
            except PrepareError as error:
                return self._record(Report(key, state="failed", message=error.failure))
            except EngineError as error:
                return self._record(Report(key, state="failed", message=EngineFailed(error.message)))
            except OSError as error:
                return self._record(Report(key, state="failed", message=SystemRefused(str(error))))
            with self._lock:
                self._prepared[key] = prepared
            return self._record(Report(key, prepared.digest, "ready", 100, prepared.origin))

    def reports(self) -> list[Report]:
        with self._lock:
            return [self._reports[key] for key in sorted(self._reports)]

    def reference_of(self, key: str) -> str | None:
        with self._lock:
            prepared = self._prepared.get(key)
        if prepared is None:
            return None
        if self._exists(prepared):
            return prepared.reference
        with self._lock:
            self._prepared.pop(key, None)
            self._reports[key] = replace(self._reports[key], state="waiting", progress_percent=0, message=Gone())
        return None

    def base_of(self, key: str) -> Base | None:
        """Return what a layer on an environment is built with; None while the environment is not ready. Not quick."""
        reference = self.reference_of(key)
        with self._lock:
            prepared = self._prepared.get(key)
        if reference is None or prepared is None or prepared.target is None:
            return None
        return self._base(reference, prepared.target, prepared.packages)

    def _record(self, report: Report) -> Report:
        with self._lock:
            self._reports[report.key] = report
        return report

    @abstractmethod
    def _make(self, entry: Entry, progress: Progress) -> PreparedEnvironment:
        """Make an environment. Raises PrepareError with what would fix it."""

    def _base(self, reference: str, target: Target, packages: tuple[str, ...]) -> Base:
        """Return the base with its sandbox: by default that of a python of this machine."""
        sandbox = self._sandboxes.get(reference) or process_sandbox(reference)
        if sandbox.confined:  # else another may be found later
            self._sandboxes[reference] = sandbox
        return Base(reference, target, packages, sandbox)

    @abstractmethod
    def _exists(self, prepared: PreparedEnvironment) -> bool:
        """Whether a prepared environment still exists."""


class ProcessEnvironments(BaseEnvironments):
    """A virtual environment per recipe under the cache folder, shared by all installations of this user."""

    def __init__(self, cuda: bool = False) -> None:
        super().__init__()
        self.target = this_machine(cuda)

    def _make(self, entry: Entry, progress: Progress) -> PreparedEnvironment:
        if entry.is_bare:
            interpreter = find_python(entry.python)
            version = entry.python or self.target.python
            return PreparedEnvironment(
                content_key("bare", interpreter), interpreter, target=replace(self.target, python=version)
            )
        pins = pinned_packages(entry, self.target, progress, 1)
        compiles = entry.horovod is not None and horovod_wheel.find(entry, self.target, pins) is None
        if compiles and (lacking := horovod_wheel.missing_tools(self.target)):
            raise lacking
        begin = 80 if compiles else 5
        wheel = horovod_wheel.ensure(entry, self.target, pins, progress, horovod_wheel.build_here, (5, begin))
        digest = content_key(
            "venv 2",
            *pins.packages,
            entry.check,
            self.target.key_text,
            recipe_key(entry, self.target),
            wheel_name(wheel),
            sys.prefix,
        )
        folder = cache_home() / "envs" / f"{entry.key}-{digest[:12]}"
        python, done = folder / "bin" / "python", folder / ".complete"
        with exclusive_lock(cache_home() / "locks" / f"env-{folder.name}", progress, begin):
            if not done.exists():
                require_space(cache_home(), entry.disk_mib)
                shutil.rmtree(folder, ignore_errors=True)
                self._install(entry, folder, pins, wheel, progress, begin)
                done.touch()
        return PreparedEnvironment(digest, str(python), target=self.target, packages=pins.packages)

    def _install(
        self, entry: Entry, folder: Path, pins: Pins, wheel: Path | None, progress: Progress, begin: int
    ) -> None:
        """Install and check the packages. ``begin`` is the percentage that is done already."""
        log = make_folder(cache_home() / "logs") / f"install-{entry.key}.log"
        log.unlink(missing_ok=True)

        def installing(seconds: float, output: str) -> None:
            share = seconds / (seconds + INSTALL_SECONDS)
            what = current_download(output)
            step = (
                DownloadingPackage(what, seconds=int(seconds))
                if what
                else InstallingPackages(len(pins.packages), seconds=int(seconds))
            )
            progress(begin + int((CHECK_PERCENT - begin) * share), step)

        def checking(seconds: float, output: str) -> None:
            progress(CHECK_PERCENT, CheckingPackages(seconds=int(seconds)))

        try:
            progress(begin, InstallingPackages(len(pins.packages)))
            packages = [*pins.packages, *([str(wheel)] if wheel is not None else [])]
            python = make_environment(folder, packages, log, installing, pins.index)
            progress(CHECK_PERCENT, CheckingPackages())
            run([python, "-c", entry.check or "pass"], log, checking, env=KEEP_BYTECODE, cwd=folder, seconds=300)
        except ProgramError as error:
            raise explain(error, Stage("installing"), log) from error

    def _exists(self, prepared: PreparedEnvironment) -> bool:
        return Path(prepared.reference).exists()


class DockerEnvironments(BaseEnvironments):
    """Two images per recipe: its packages, and on top of them what runs first. Changes of our code rebuild only the second."""

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
        """The engine, connected when first needed: an agent may start before its engine."""
        if self._engine is None:
            self._engine = DockerImages()
        return self._engine

    def _make(self, entry: Entry, progress: Progress) -> PreparedEnvironment:
        base = self._choose_base_image(progress, entry.python)
        target = self.engine.target(base, self.cuda)
        if entry.python and target.python != entry.python:
            raise PrepareError(NeedsPython(entry.python, target.python))
        pins = Pins(()) if entry.is_bare else pinned_packages(entry, target, progress, 3)
        house = wheelhouse(entry, target, pins, progress, (4, 25 if entry.horovod else 70))
        wheel = horovod_wheel.ensure(entry, target, pins, progress, self._choose_builder(target, house), (25, 70))
        packages = self._build_packages_image(entry, base, target, house, wheel, progress)
        launch = {f"schedulearn/runners/{name}": RUNNERS / name for name in LAUNCH_PATHS}
        recipe = (images.FOLDER / "job.Dockerfile").read_bytes()
        digest = content_key("job 2", packages, self.engine.id_of(packages) or "", recipe, hash_files(launch))
        tag = f"schedulearn-job:{entry.key}-{digest[:12]}"
        if self.engine.id_of(tag) is None:
            with report_build(progress, BuildingImage(packages=False), (94, 99)) as step:
                self.engine.build(
                    {**launch, "Dockerfile": recipe},
                    "Dockerfile",
                    tag,
                    {"PACKAGES_IMAGE": packages},
                    cache_home() / "logs" / f"image-{entry.key}.log",
                    step,
                )
            self.engine.remove_old_images("schedulearn-job", entry.key, keep=tag)
            self.engine.remove_old_images("schedulearn-packages", entry.key, keep=packages)
        origin = image_digests.origin(base, self.engine.repo_digests(base), self.engine.id_of(base) or "")
        return PreparedEnvironment(self.engine.id_of(tag) or digest, tag, origin, target, pins.packages)

    def _base(self, reference: str, target: Target, packages: tuple[str, ...]) -> Base:
        return Base(IMAGE_PYTHON, target, packages, DockerSandbox(self.engine, reference, IMAGE_PYTHON))

    def _choose_base_image(self, progress: Progress, python: str = "") -> str:
        """Return the image named by the settings, with its digest if they pin one; else the public one (of another version
        of Python if one is named), or what deploy/base-image.sh made."""
        public = PUBLIC_BASE_OF.format(python=python) if python else PUBLIC_BASE
        wanted = [self.base_image] if self.base_image else [public, LOCAL_BASE]
        image_digests.pinned_digest(wanted[0])
        image = next((image for image in wanted if self.engine.id_of(image)), wanted[0])
        if self.engine.id_of(image) is None:
            self.engine.pull(image, lambda arrived: progress(1, PullingBaseImage(image, arrived)))
        image_digests.verify(image, self.engine.repo_digests(image))
        return image

    def _build_packages_image(
        self, entry: Entry, base: str, target: Target, house: Path, wheel: Path | None, progress: Progress
    ) -> str:
        script = (images.FOLDER / "packages.sh").read_text()
        requirements = entry.requirements_on(self.cuda)
        base_id = self.engine.id_of(base) or ""
        ours = (script, entry.check, requirements.read_bytes())
        digest = content_key("packages 3", *ours, base_id, house.name, wheel_name(wheel))
        tag = f"schedulearn-packages:{entry.key}-{digest[:12]}"
        if self.engine.id_of(tag) is None:
            with temporary_folder(cache_home(), "schedulearn-own-") as own:
                shutil.copy(requirements, own / "requirements.txt")
                (own / "check.py").write_text(f"{entry.check}\n")
                if wheel is not None:
                    shutil.copy(wheel, own)
                if target.machine == platform.machine() and (uv := uv_program()) is not None:
                    shutil.copy(uv, own / "uv")
                with report_build(progress, BuildingImage(packages=True), (71, 92)) as step:
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

    def _choose_builder(self, target: Target, house: Path) -> horovod_wheel.Build:
        """Return how Horovod is compiled: by this machine's compiler if the result runs in the image, else in a container."""
        return horovod_wheel.build_here if self.host_can_build(target) else partial(self._build_in_container, house)

    def _build_in_container(
        self, house: Path, source: Path, pins: Pins, out: Path, variables: dict[str, str], progress: Progress
    ) -> None:
        image = self.build_image
        image_digests.pinned_digest(image)
        if self.engine.id_of(image) is None:
            lacking = horovod_wheel.missing_tools(this_machine(self.cuda))
            try:
                self.engine.pull(image, lambda arrived: progress(1, PullingBuildImage(image, arrived)))
            except PrepareError as error:
                raise lacking or PrepareError(CannotPullCompiler(image)) from error
        image_digests.verify(image, self.engine.repo_digests(image))
        target = self.engine.target(image, self.cuda)
        with tempfile.TemporaryDirectory(prefix="schedulearn-tools-") as folder:
            tools = horovod_wheel.fetch_tools(target, Path(folder), progress)
            mounts = {
                source: ("/source", True),
                house: ("/house", False),
                tools: ("/tools", False),
                out: ("/out", True),
            }
            began = time.monotonic()
            script = horovod_wheel.container_script(find_framework(pins))
            log = make_folder(cache_home() / "logs") / "build-horovod-in-container.log"
            for output in self.engine.run_mounted(image, script, mounts, variables, log):
                progress(*horovod_wheel.compile_progress(time.monotonic() - began, output))

    def _exists(self, prepared: PreparedEnvironment) -> bool:
        return self.engine.id_of(prepared.reference) is not None


@contextmanager
def report_build(
    progress: Progress, image: BuildingImage, percent: tuple[int, int]
) -> Iterator[Callable[[int, int], None]]:
    """Report the progress of an image build each second: a step may take a minute without any output. Yields a function to
    call with the step and the number of steps."""
    low, high = percent
    began, now = time.monotonic(), (low, image)
    over = threading.Event()

    def step(number: int, of: int) -> None:
        nonlocal now
        now = (low + (high - low) * number // of, replace(image, step=number, steps=of))
        show()

    def show() -> None:
        progress(now[0], replace(now[1], seconds=int(time.monotonic() - began)))

    def report() -> None:
        while not over.wait(TICK_SECONDS):
            with suppress(Exception):  # the agent is ending: the build notices it at its next step
                show()

    progress(low, image)
    thread = threading.Thread(target=report, name="image build", daemon=True)
    thread.start()
    try:
        yield step
    finally:
        over.set()
        thread.join()


def wheel_name(wheel: Path | None) -> str:
    """Return the wheel's folder and name. The name of the folder is a hash of all that the wheel was made from."""
    return f"{wheel.parent.name}/{wheel.name}" if wheel else ""


def hash_files(paths: dict[str, Path]) -> str:
    """Return a hash of the content of files and folders, without Python's bytecode."""
    parts: list[str | bytes] = []
    for name, path in sorted(paths.items()):
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in files:
            if file.is_file() and "__pycache__" not in file.parts:
                parts += [f"{name}/{file.relative_to(path)}", file.read_bytes()]
    return content_key(*parts)
