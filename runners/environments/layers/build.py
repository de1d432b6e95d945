"""Builds a layer: resolves a recipe, installs the lock into a folder, makes that portable, checks it and keeps it.

Each step runs in the sandbox of the base; only cleaning, which runs nothing, is done from outside, after all that was started
inside has ended.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from runners.environments import horovod_wheel, images
from runners.environments.images import Entry
from runners.environments.installing import Tick, current_download
from runners.environments.layers import store
from runners.environments.layers.base import Base, kind_of
from runners.environments.layers.checking import inconsistencies
from runners.environments.layers.cleaning import clean, hidden_modules, top_level
from runners.environments.layers.disk_watch import MIN_FREE_BYTES, measure
from runners.environments.layers.explaining import explain_output
from runners.environments.layers.recipe import Recipe
from runners.environments.layers.resolving import (
    BESIDE_TORCH,
    ONLY_WHEELS,
    Probe,
    Resolved,
    framework_pins,
    probe_base,
    question_of,
    read_json,
    resolve,
)
from runners.environments.layers.sandbox import build_owner
from runners.environments.layers.store import BuiltLayer
from runners.environments.layers.workshop import Workshop, workshop
from runners.environments.preparing import (
    PrepareError,
    ProgramError,
    Progress,
    exclusive_lock,
    last_error,
    require_space,
)
from runners.environments.wheels import Pins
from runners.messages import Message
from runners.messages.environments import (
    CheckingPackages,
    CompilingBytecode,
    DownloadingPackage,
    InstallingPackages,
    KeepingLayer,
    ResolvingPackages,
    Starting,
)
from runners.messages.layer_failures import (
    BadRecipe,
    CannotConfine,
    CannotImport,
    CommandFailed,
    HidesBase,
    HorovodNotHere,
    Inconsistent,
    NeedsPython,
)
from runners.runtimes.host_config import Owner

START_MIB = 2 * MIN_FREE_BYTES // 2**20
"""Free space without which no build is started."""
INSTALL_SECONDS = 4 * 3600
USUAL_INSTALL_SECONDS = 20
"""After this time an installation is shown as half done: its duration is unknown beforehand."""
RESOLVED, INSTALLED, COMPILED, CHECKED = 20, 75, 90, 97
"""Percentages at the ends of the steps."""
StepOf = Callable[[int, str], Message]
"""(seconds so far, end of the output): what is being done."""
COMPILE = """
import compileall, py_compile, sys
mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
compileall.compile_dir(sys.argv[1], maxlevels=64, quiet=2, workers=0, invalidation_mode=mode, stripdir=sys.argv[1])
"""
"""Compiles all files. Some packages have files of other Python versions on purpose, so errors are ignored. A hash takes the
place of the time of each source, and no path of this build is in the result: both change when a layer is sent to a node."""
CHECK_IMPORT = """
import importlib, sys
name = sys.argv[1]
module = importlib.import_module(name)
if name == "torchvision" and not module.extension._has_ops():
    raise ImportError("its compiled operators do not load beside this PyTorch")
"""
"""Without its operators, torchvision can be imported in some versions, and fails when a model is trained."""


def build_layer(recipe: Recipe, base: Base, log: Path, progress: Progress, *, fresh: bool = False) -> BuiltLayer:
    """Build a layer over ``base``, or return the one that was built before. ``fresh``: resolve again.

    ``log`` is emptied first, and grows while the build runs. ``progress`` may raise to cancel: everything that was started
    ends, and nothing remains. Raises PrepareError whose failure names the cause.
    """
    refuse_impossible(recipe, base)
    kind = kind_of(base)
    with exclusive_lock(store.recipe_lock(recipe, kind), progress, 0):
        if not fresh and (known := store.find(recipe, kind)):
            store.mark_used(known.digest)
            return known
        require_space(store.home(), START_MIB)
        store.home().chmod(0o755)
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text("")
        progress(0, Starting())
        with workshop(recipe, base, log, store.home()) as shop:
            return Build(shop, progress).run(kind)


def refuse_impossible(recipe: Recipe, base: Base) -> None:
    """Raise PrepareError for what this node cannot build at all. This is the only place that decides what runs unconfined:
    without a sandbox, wheels are unpacked and no code of theirs runs, so source builds are refused."""
    if recipe.source_builds and not base.sandbox.confined:
        raise PrepareError(CannotConfine())
    if recipe.python and recipe.python != base.target.python:
        raise PrepareError(NeedsPython(recipe.python, base.target.python))
    if bool(recipe.base) != bool(base.packages):
        raise PrepareError(BadRecipe("A layer has a base with packages, and a full environment has none."))
    if recipe.horovod and not horovod_wheel.host_can_build(base.target):
        raise horovod_wheel.missing_tools(base.target) or PrepareError(HorovodNotHere())


class Build:
    """The steps of one build in its workshop."""

    def __init__(self, shop: Workshop, progress: Progress) -> None:
        self.shop = shop
        self.progress = progress
        self.site = shop.work / "site"

    def run(self, kind: str) -> BuiltLayer:
        with self.step("Looking at the base"):
            probe = probe_base(self.shop)
        with self.step("Resolving the packages"):
            self.progress(1, ResolvingPackages())
            resolved = resolve(self.shop, probe, self.ticking(1, RESOLVED, resolving))
            self.shop.note(resolved.lock or "The base has all packages of the list.")
        wheel = self.horovod(resolved, probe)
        lock = resolved.lock + (f"# horovod {store_name(wheel)}\n" if wheel else "")
        digest = store.digest_of(kind, lock, self.shop.recipe)
        with exclusive_lock(store.home().parent / "locks" / f"layer-{digest}", self.progress, RESOLVED):
            if known := store.layer_of(digest):  # perhaps of another recipe, and in use by jobs now
                store.mark_used(digest)
                return known
            self.install(resolved, wheel, probe)
            return self.keep(digest, kind, lock, resolved)

    def horovod(self, resolved: Resolved, probe: Probe) -> Path | None:
        """Return Horovod's wheel for the torch of the list, compiled if this machine does not have it yet; None without."""
        if not self.shop.recipe.horovod:
            return None
        with self.step("Compiling Horovod"):
            return horovod_wheel.ensure(
                horovod_entry(),
                self.shop.base.target,
                Pins(framework_pins(self.shop, probe, resolved), resolved.index),
                self.progress,
                horovod_wheel.build_here,
                (RESOLVED, INSTALLED - 10),
            )

    def install(self, resolved: Resolved, wheel: Path | None, probe: Probe) -> None:
        """Fill the folder of packages, clean it and check it."""
        with self.step(InstallingPackages(resolved.count).text.capitalize()):
            self.fetch(resolved, probe)
            if wheel is not None:
                self.unpack_wheel(wheel)
        self.clean(probe, build_owner(self.shop.work))
        self.fit_torch(probe)
        with self.step("Compiling bytecode"):
            self.progress(INSTALLED, CompilingBytecode())
            self.shop.run(
                [self.shop.base.python, "-I", "-c", COMPILE, self.site],
                tick=self.ticking(INSTALLED, COMPILED, lambda seconds, output: CompilingBytecode(seconds=seconds)),
                seconds=1800,
            )
        with self.step("Checking the packages"):
            self.progress(COMPILED, CheckingPackages())
            self.check(probe)
        self.clean(probe, Owner(os.geteuid(), os.getegid()))

    def fetch(self, resolved: Resolved, probe: Probe) -> None:
        """Install the lock. Wheels are unpacked; a package that is built from source runs its code here."""
        # A build from source during the resolution may have put something there.
        self.shop.run(["sh", "-c", 'rm -rf -- "$1" && mkdir -- "$1"', "sh", self.site])
        if not resolved.lock.strip():
            return
        lock = self.shop.inputs / "lock.txt"
        lock.write_text(resolved.lock)

        def step(seconds: int, output: str) -> Message:
            what = current_download(output)
            counted = InstallingPackages(resolved.count, seconds=seconds)
            return DownloadingPackage(what, seconds=seconds) if what else counted

        self.progress(RESOLVED, InstallingPackages(resolved.count))
        try:
            self.shop.run_uv(
                *("install", "--python", self.shop.base.python, "--target", self.site, "--no-deps", "--require-hashes"),
                *self.shop.access.options,
                *(() if self.shop.recipe.source_builds else ONLY_WHEELS),
                *("-r", lock),
                variables=self.shop.access.with_index(resolved.index) if resolved.index else None,
                tick=self.ticking(RESOLVED, INSTALLED, step),
                seconds=INSTALL_SECONDS,
            )
        except ProgramError as error:
            failure = explain_output(error.tail, question_of(self.shop, probe), tuple(self.shop.troubles))
            raise PrepareError(failure) from error

    def unpack_wheel(self, wheel: Path) -> None:
        copy = self.shop.inputs / wheel.name
        shutil.copyfile(wheel, copy)
        options = ("--no-config", "--no-index", "--no-deps", "--no-cache", "--python", self.shop.base.python)
        self.shop.run([self.shop.uv, "pip", "install", *options, "--target", self.site, copy])

    def clean(self, probe: Probe, owner: Owner) -> None:
        """Clean the folder and give it to ``owner``. Raises PrepareError if a module would hide one of the base."""
        for line in clean(self.site, probe.standard, owner):
            self.shop.note(f"Removed {line}.")
        if hidden := hidden_modules(self.site, probe.modules):
            raise PrepareError(HidesBase(hidden))

    def fit_torch(self, probe: Probe) -> None:
        """Have extensions that need CUDA load beside a PyTorch for CPUs. They are loaded for that, so this needs a sandbox."""
        names = set(top_level(self.site))
        if self.shop.base.target.cuda or not self.shop.base.sandbox.confined or not needs_torch(names, probe):
            return
        with self.step("Fitting extensions to PyTorch"):
            self.shop.run_script("torch_stubs.py", self.site, self.shop.work / "stubs.json", path=self.site)
            for package in read_json(self.shop, "stubs.json"):
                self.shop.note(f"{package} was made for CUDA; its libraries load without.")

    def check(self, probe: Probe) -> None:
        """Check metadata, and import the packages that most often do not fit their PyTorch. Raises PrepareError."""
        if problems := inconsistencies(self.site, probe.packages, probe.markers):
            raise PrepareError(Inconsistent(tuple(problems)))
        if not self.shop.base.sandbox.confined:
            return
        for name in (*BESIDE_TORCH, "horovod.torch"):
            if name.partition(".")[0] not in top_level(self.site):
                continue
            try:
                self.shop.run([self.shop.base.python, "-c", CHECK_IMPORT, name], env={"PYTHONPATH": str(self.site)})
            except ProgramError as error:
                raise PrepareError(CannotImport(name, last_error(error.tail))) from error

    def keep(self, digest: str, kind: str, lock: str, resolved: Resolved) -> BuiltLayer:
        """Move the folder to the store."""
        self.progress(CHECKED, KeepingLayer())
        modules = tuple(sorted(name for name in top_level(self.site) if not name.startswith("_")))
        size, _ = measure(self.site)
        made = BuiltLayer(digest, lock, self.site, size, modules, resolved.count, kind, self.shop.recipe)
        return store.place(self.site, made)

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        """Name a step in the log. A command of ours that fails in it is a failure of the node."""
        self.shop.note(f"== {title}")
        try:
            yield
        except ProgramError as error:
            raise PrepareError(CommandFailed(last_error(error.tail))) from error

    def ticking(self, low: int, high: int, step: StepOf) -> Tick:
        """Return a tick that reports a step whose duration is unknown, from ``low`` towards ``high`` percent."""

        def tick(seconds: float, output: str) -> None:
            share = seconds / (seconds + USUAL_INSTALL_SECONDS)
            self.progress(low + int((high - low) * share), step(int(seconds), output))

        return tick


def resolving(seconds: int, output: str) -> Message:
    return ResolvingPackages()


def needs_torch(names: set[str], probe: Probe) -> bool:
    """Whether a layer may have extensions of PyTorch: there is one, and packages over it."""
    return "torch" in names or ("torch" in probe.packages and bool(names))


def horovod_entry() -> Entry:
    """Return the curated environment whose Horovod is compiled for others, too."""
    return next(entry for entry in images.catalogue() if entry.horovod is not None)


def store_name(wheel: Path) -> str:
    """Return the folder of a wheel, whose name is a hash of all that it was made from, and its name."""
    return f"{wheel.parent.name}/{wheel.name}"
