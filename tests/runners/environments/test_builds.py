"""Preparing environments: what is reused, what is rebuilt, and the message when it cannot be."""

import dataclasses
import io
import os
import re
import shutil
import sys
import tarfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from runners.environments import builds, horovod_wheel, images, preparing, wheels
from runners.environments.builds import (
    LOCAL_BASE,
    PUBLIC_BASE,
    BaseEnvironments,
    DockerEnvironments,
    PreparedEnvironment,
    ProcessEnvironments,
    hash_files,
    report_build,
)
from runners.environments.docker_images import packed_context
from runners.environments.images import Entry, Horovod
from runners.environments.preparing import (
    PrepareError,
    ProgramError,
    Progress,
    exclusive_lock,
    explain,
    require_space,
    temporary_folder,
)
from runners.environments.targets import Target, cross_install_options, this_machine
from runners.environments.wheels import Framework, Pins, find_framework, pinned_packages
from runners.host import processes
from runners.messages import Message
from runners.messages.environment_failures import CannotPull, NoWheel, Stage
from runners.messages.environments import BuildingImage, CompilingHorovod, Starting
from runners.runtime import EngineError

BOOKWORM = Target("3.11", (2, 36), "x86_64")
QUIET: Progress = lambda percent, words: None  # noqa: E731


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SCHEDULEARN_CACHE", str(tmp_path / "cache"))
    for name in ("SCHEDULEARN_TORCH_INDEX", "SCHEDULEARN_BASE_IMAGE", "SCHEDULEARN_BUILD_IMAGE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "cache"


def test_an_environment_keeps_the_bytecode_of_what_jobs_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where the agent runs with variables that forbid it."""

    def make_environment(folder: Path, *_: object) -> Path:
        folder.mkdir()
        (folder / "probe.py").touch()
        return Path(sys.executable)

    monkeypatch.setattr(builds, "make_environment", make_environment)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("PYTHONPYCACHEPREFIX", str(tmp_path / "elsewhere"))
    entry = dataclasses.replace(images.catalogue()[0], check="import probe")
    ProcessEnvironments()._install(entry, tmp_path / "env", Pins(()), None, QUIET, 0)
    assert [file.name.split(".")[0] for file in (tmp_path / "env" / "__pycache__").iterdir()] == ["probe"]


# The catalogue


def test_the_catalogue_is_complete_and_pinned() -> None:
    entries = images.catalogue()
    keys = "pytorch pytorch-horovod pytorch-vision pytorch-language python tensorflow-horovod bare"
    assert [entry.key for entry in entries] == keys.split()
    for entry in entries:
        assert entry.title and entry.description and bool(entry.packages) == (entry.key != "bare")
        assert bool(entry.check) == (not entry.base and entry.key != "bare")
        lines = [line for cuda in (False, True) for line in entry.requirements_on(cuda).read_text().splitlines()]
        assert all(re.fullmatch(r"#.*|[A-Za-z0-9_.-]+(\[[a-z]+\])?==[0-9.]+", line) for line in lines), entry.key
        with pytest.raises(dataclasses.FrozenInstanceError):
            entry.key = "other"  # type: ignore[misc]


def test_the_recipe_names_the_torch_that_is_required() -> None:
    for key in ("pytorch", "pytorch-horovod"):
        entry = images.find(key)
        assert entry is not None and f"torch=={entry.torch}" in entry.requirements.read_text()
    assert images.find("nothing") is None


def test_pytorch_without_horovod_has_the_same_versions_as_with_it() -> None:
    """A job may be moved from one to the other."""
    plain, horovod = (set(pinned_lines(key)) for key in ("pytorch", "pytorch-horovod"))
    assert plain < horovod


def pinned_lines(key: str) -> list[str]:
    entry = images.find(key)
    assert entry is not None
    return [line for line in entry.requirements.read_text().splitlines() if "==" in line]


# Fetching


def test_an_image_gets_wheels_of_its_own_interpreter() -> None:
    options = cross_install_options(Target("3.99", (2, 36), "x86_64"))
    assert "--only-binary=:all:" in options and "3.99" in options
    platforms = {after for option, after in zip(options, options[1:], strict=False) if option == "--platform"}
    assert {"manylinux_2_36_x86_64", "manylinux_2_28_x86_64", "manylinux2014_x86_64"} <= platforms
    assert "manylinux_2_37_x86_64" not in platforms  # its C library is too old for these


def test_this_machine_asks_pip_plainly() -> None:
    assert cross_install_options(this_machine(cuda=False)) == []


# Which packages


CPU_INDEX = "https://download.pytorch.org/whl/cpu"
SMALL = ("numpy==2.4.6", "torch==2.13.0+cpu")
BIG = ("cuda-bindings==13.0", "nvidia-nccl-cu13==2.27", "torch==2.13.0", "triton==3.7")
LABELLED = ("numpy==2.4.6", "torch==2.13.0+cu130")


class Indexes:
    """Plays what an installation would consist of, by the extra index and whether the CPU build is asked for."""

    def __init__(self, plain: tuple[str, ...], small: dict[str, tuple[str, ...]]) -> None:
        self.plain = plain
        self.small = small
        self.asked: list[str] = []
        self.constrained: list[bool] = []
        self.refuses_constraints = False

    def resolve(self, lines: list[str], target: Target, log: Path, extra_index: str = "") -> tuple[str, ...]:
        self.asked.append(extra_index)
        self.constrained.append(any(line.startswith("-c ") for line in lines))
        if self.refuses_constraints and self.constrained[-1]:
            raise ProgramError("no solution: torch needs cuda-bindings<13")
        if f"torch=={TORCH_VERSION}+cpu" not in lines:
            return self.plain
        if extra_index not in self.small:
            raise ProgramError("no such version")
        return self.small[extra_index]


TORCH_VERSION = "2.13.0"


def pins(indexes: Indexes, monkeypatch: pytest.MonkeyPatch, cuda: bool = False, chosen: str = "") -> Pins:
    monkeypatch.setattr(wheels, "resolve", indexes.resolve)
    monkeypatch.setenv("SCHEDULEARN_TORCH_INDEX", chosen)
    entry = images.find("pytorch")
    assert entry is not None
    return pinned_packages(entry, dataclasses.replace(BOOKWORM, cuda=cuda), QUIET, 0)


def test_a_cpu_build_that_the_usual_index_offers_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    indexes = Indexes(SMALL, {})
    assert pins(indexes, monkeypatch) == Pins(SMALL) and indexes.asked == [""]


@pytest.mark.parametrize("plain", [BIG, LABELLED])
def test_a_machine_without_gpus_asks_for_the_cpu_build(plain: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    assert pins(Indexes(plain, {CPU_INDEX: SMALL}), monkeypatch) == Pins(SMALL, CPU_INDEX)


def test_a_machine_with_gpus_takes_what_the_usual_index_offers(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pins(Indexes(BIG, {CPU_INDEX: SMALL}), monkeypatch, cuda=True) == Pins(BIG)


def test_what_pytorch_needs_for_gpus_has_exact_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    on_gpus, without = Indexes(BIG, {}), Indexes(SMALL, {})
    pins(on_gpus, monkeypatch, cuda=True)
    pins(without, monkeypatch)
    assert (on_gpus.constrained, without.constrained) == ([True], [False])
    lines = (images.FOLDER / "constraints-cuda.txt").read_text().splitlines()
    assert all(re.fullmatch(r"#.*|[a-z0-9-]+==[0-9.]+", line) for line in lines)
    assert {"nvidia-nccl-cu13", "nvidia-nvjitlink", "cuda-bindings", "triton"} <= {
        line.split("==")[0] for line in lines
    }


def test_pytorch_for_another_cuda_release_is_resolved_without_these_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    indexes = Indexes(BIG, {})
    indexes.refuses_constraints = True
    assert pins(indexes, monkeypatch, cuda=True) == Pins(BIG)
    assert indexes.constrained == [True, False]


def test_a_change_of_these_versions_takes_effect_on_machines_with_gpus_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry, on_gpus = images.find("pytorch"), dataclasses.replace(BOOKWORM, cuda=True)
    assert entry is not None
    before = wheels.recipe_key(entry, BOOKWORM), wheels.recipe_key(entry, on_gpus)
    (tmp_path / "constraints-cuda.txt").write_text("triton==9\n")
    monkeypatch.setattr(images, "FOLDER", tmp_path)
    assert wheels.recipe_key(entry, BOOKWORM) == before[0] and wheels.recipe_key(entry, on_gpus) != before[1]


def test_a_chosen_index_is_asked_first(monkeypatch: pytest.MonkeyPatch) -> None:
    indexes = Indexes(SMALL, {})
    assert pins(indexes, monkeypatch, chosen="https://mirror.example/torch").index == "https://mirror.example/torch"
    assert indexes.asked == ["https://mirror.example/torch"]


@pytest.mark.parametrize("small", [{}, {CPU_INDEX: BIG}])
def test_packages_for_gpus_never_reach_a_machine_without(
    small: dict[str, tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(PrepareError, match="only builds for GPUs") as refused:
        pins(Indexes(BIG, small), monkeypatch)
    assert "SCHEDULEARN_TORCH_INDEX" in refused.value.failure.fix and CPU_INDEX in refused.value.failure.fix


def test_what_was_resolved_is_kept_so_that_a_later_start_needs_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    indexes = Indexes(SMALL, {})
    assert pins(indexes, monkeypatch) == pins(indexes, monkeypatch)
    assert len(indexes.asked) == 1
    for kept in (preparing.cache_home() / "pins").iterdir():
        kept.write_text("{")
    assert pins(indexes, monkeypatch) == Pins(SMALL) and len(indexes.asked) == 2


# Horovod's wheel

HOROVOD = Horovod("0.28.1", "0" * 64)
TORCH = Framework("torch", "2.13.0+cpu")


def test_the_wheel_is_known_by_all_that_went_into_it(monkeypatch: pytest.MonkeyPatch) -> None:
    key = horovod_wheel.wheel_key(HOROVOD, TORCH, BOOKWORM)
    others = [
        horovod_wheel.wheel_key(dataclasses.replace(HOROVOD, version="0.28.2"), TORCH, BOOKWORM),
        horovod_wheel.wheel_key(HOROVOD, Framework("torch", "2.13.0+cu130"), BOOKWORM),
        horovod_wheel.wheel_key(HOROVOD, Framework("tensorflow-cpu", "2.13.0+cpu"), BOOKWORM),
        horovod_wheel.wheel_key(HOROVOD, Framework("tensorflow", "2.13.0+cpu"), BOOKWORM),
        horovod_wheel.wheel_key(HOROVOD, TORCH, dataclasses.replace(BOOKWORM, python="3.12")),
        horovod_wheel.wheel_key(HOROVOD, TORCH, dataclasses.replace(BOOKWORM, glibc=(2, 39))),
        horovod_wheel.wheel_key(HOROVOD, TORCH, dataclasses.replace(BOOKWORM, cuda=True)),
    ]
    monkeypatch.setattr(horovod_wheel.os, "cpu_count", lambda: 64)
    assert horovod_wheel.wheel_key(HOROVOD, TORCH, BOOKWORM) == key  # more processors make the same wheel
    monkeypatch.setattr(horovod_wheel, "PATCHES", horovod_wheel.PATCHES[:1])
    others.append(horovod_wheel.wheel_key(HOROVOD, TORCH, BOOKWORM))
    assert len({key, *others}) == 9


def test_gpus_reduce_by_nccl() -> None:
    cuda = horovod_wheel.build_switches(dataclasses.replace(BOOKWORM, cuda=True), TORCH)
    assert cuda["HOROVOD_GPU_OPERATIONS"] == "NCCL" and cuda["HOROVOD_WITH_GLOO"] == "1"
    assert "HOROVOD_GPU_OPERATIONS" not in horovod_wheel.build_switches(BOOKWORM, TORCH)


def test_it_is_compiled_for_the_framework_of_the_environment() -> None:
    for requirement, switch in (
        ("torch==2.13.0+cpu", "HOROVOD_WITH_PYTORCH"),
        ("tensorflow-cpu==2.15.1", "HOROVOD_WITH_TENSORFLOW"),
        ("tensorflow==2.15.1", "HOROVOD_WITH_TENSORFLOW"),
    ):
        framework = find_framework(Pins(("numpy==2.4.6", requirement, "tensorflow-estimator==2.15.0")))
        switches = horovod_wheel.build_switches(BOOKWORM, framework)
        assert framework.requirement == requirement and requirement in horovod_wheel.container_script(framework)
        assert [name for name in switches if name.startswith("HOROVOD_WITH_")] == [switch, "HOROVOD_WITH_GLOO"]
    with pytest.raises(PrepareError, match="neither torch nor TensorFlow"):
        find_framework(Pins(("numpy==2.4.6",)))


def test_it_finds_the_nccl_that_torch_brings(tmp_path: Path) -> None:
    nccl = tmp_path / "lib" / "python3.11" / "site-packages" / "nvidia" / "nccl"
    (nccl / "lib").mkdir(parents=True)
    (nccl / "lib" / "libnccl.so.2").touch()
    assert horovod_wheel.cuda_variables(tmp_path / "bin" / "python")["HOROVOD_NCCL_HOME"] == str(nccl)
    assert (nccl / "lib" / "libnccl.so").resolve().name == "libnccl.so.2"
    assert horovod_wheel.cuda_variables(tmp_path / "elsewhere" / "bin" / "python") == {}


def test_it_patches_the_source_and_notices_another_one(tmp_path: Path) -> None:
    for one in horovod_wheel.PATCHES:
        path = tmp_path / one.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"before\n{one.before}\nafter\n")
    horovod_wheel.apply_patches(tmp_path)
    assert "set(CMAKE_CXX_STANDARD 17)" in (tmp_path / "CMakeLists.txt").read_text()
    with pytest.raises(PrepareError, match="not as expected"):
        horovod_wheel.apply_patches(tmp_path)


def test_a_source_with_another_hash_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(argv: list[Any], *args: Any, **kwargs: Any) -> None:
        if "download" in argv:
            with tarfile.open(tmp_path / "horovod-0.28.1.tar.gz", "w:gz"):
                pass

    monkeypatch.setattr(horovod_wheel, "run", run)
    with pytest.raises(PrepareError, match="not the one this recipe was written for"):
        horovod_wheel.patched_source(HOROVOD, tmp_path, QUIET, 0)


def test_the_tools_that_compile_it_have_exact_versions() -> None:
    tools = dict(tool.split("==") for tool in horovod_wheel.TOOLS)
    assert tools["setuptools"].startswith("79.") and tools["cmake"].startswith("3.")
    entry = images.find("pytorch-horovod")
    assert entry is not None
    pinned = dict(line.split("==") for line in entry.requirements.read_text().splitlines() if "==" in line)
    shared = (tools.keys() & pinned.keys()) - {"setuptools"}
    assert shared and {name: tools[name] for name in shared} == {name: pinned[name] for name in shared}


def test_without_a_compiler_it_names_the_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(horovod_wheel.shutil, "which", lambda name: None)
    problem = horovod_wheel.missing_tools(this_machine(cuda=False))
    assert problem is not None
    assert "c++" in problem.failure.reason and "apt-get install g++ make" in problem.failure.fix
    assert not horovod_wheel.host_can_build(this_machine(cuda=False))


def test_a_host_with_a_newer_c_library_does_not_build_for_the_image(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(horovod_wheel, "missing_tools", lambda target: None)
    monkeypatch.setattr(horovod_wheel, "this_machine", lambda cuda: Target("3.11", (2, 39), "x86_64", cuda))
    assert not horovod_wheel.host_can_build(BOOKWORM)
    assert horovod_wheel.host_can_build(dataclasses.replace(BOOKWORM, glibc=(2, 39)))
    assert not horovod_wheel.host_can_build(dataclasses.replace(BOOKWORM, glibc=(2, 39), python="3.12"))


def test_compile_progress_reports_percent_and_seconds() -> None:
    assert horovod_wheel.compile_progress(190, "[ 12%] Building\n[ 45%] Building CXX") == (
        45,
        CompilingHorovod(seconds=190),
    )
    percent, step = horovod_wheel.compile_progress(5, "configuring")
    assert 0 < percent < 20 and step.text == "compiling Horovod: 5 s so far"


# Messages


@pytest.mark.parametrize(
    ("output", "text", "fix"),
    [
        ("OSError: [Errno 28] No space left on device", "no space is left", "Make room"),
        ("ERROR: No matching distribution found for torch==9", "No matching distribution", "package index"),
        ("c++: fatal error: Killed signal terminated program cc1plus", "memory ran out", "4 GiB"),
        ("fine\nx.cc:3: error: expected ';'", "expected ';'", "output is in /log"),
        ("", "no output", "/log"),
    ],
)
def test_a_failed_program_is_explained_with_its_fix(output: str, text: str, fix: str) -> None:
    failure = explain(ProgramError(output), Stage("installing"), Path("/log")).failure
    assert failure.reason.startswith("Installing the packages failed: ")
    assert text in failure.reason and fix in failure.fix


def test_it_looks_for_space_first(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(cache.parent)
    monkeypatch.setattr(preparing.shutil, "disk_usage", lambda path: usage._replace(free=100 * 2**20))
    with pytest.raises(PrepareError, match="Only 100 MiB are free"):
        require_space(cache, 200)
    require_space(cache, 50)


def test_what_a_killed_preparation_left_is_removed_by_a_later_one(tmp_path: Path) -> None:
    now = time.time()
    for name, hours in {"build-killed": 25, "build-running": 2, "wheels": 99}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "half.whl").touch()
        os.utime(tmp_path / name, (now - hours * 3600, now - hours * 3600))
    with temporary_folder(tmp_path, "build-") as mine:
        assert sorted(tmp_path.iterdir()) == sorted([mine, tmp_path / "build-running", tmp_path / "wheels"])
        (mine / "half.whl").touch()
    assert not mine.exists()


def test_only_one_prepares_the_same_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparing, "TICK_SECONDS", 0.01)
    order: list[str] = []
    waiting = threading.Event()

    def second() -> None:
        with exclusive_lock(tmp_path / "lock", lambda percent, words: waiting.set(), 0):
            order.append("second")

    with exclusive_lock(tmp_path / "lock", QUIET, 0):
        thread = threading.Thread(target=second)
        thread.start()
        assert waiting.wait(60)
        order.append("first")
    thread.join(60)
    assert order == ["first", "second"]


def test_a_program_that_takes_too_long_ends_with_its_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparing, "TICK_SECONDS", 0.05)
    script = "sleep 60 & echo $!; wait"
    with pytest.raises(ProgramError, match="stopped after"):
        preparing.run(["sh", "-c", script], tmp_path / "log", seconds=0.2)
    child = int((tmp_path / "log").read_text().split()[0])
    until = time.monotonic() + 60
    while processes.start_time(child) is not None:  # a killed process takes a moment to go
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_compiler_leaves_the_processors_to_jobs(tmp_path: Path) -> None:
    log = tmp_path / "log"
    ask = "import os; print(os.nice(0))"
    preparing.run([sys.executable, "-c", f"import time; time.sleep(0.2); {ask}"], log, niceness=10)
    assert log.read_text().split()[0] == "10"


# Keeping book


class Played(BaseEnvironments):
    def __init__(self, answer: PreparedEnvironment | Exception) -> None:
        super().__init__()
        self.answer = answer
        self.there = True

    def _make(self, entry: Entry, tell: Progress) -> PreparedEnvironment:
        tell(40, CompilingHorovod())
        assert self.reports()[0].to_json() == {
            "key": "python",
            "digest": "",
            "state": "preparing",
            "progress_percent": 40,
            "detail": "compiling Horovod",
            "message": {"code": "environment.compiling_horovod", "seconds": None},
        }
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def _exists(self, prepared: PreparedEnvironment) -> bool:
        return self.there


def test_it_keeps_book_of_each_environment() -> None:
    played = Played(PreparedEnvironment("digest", "image:tag"))
    assert played.reference_of("python") is None and played.reports() == []
    assert played.prepare("python").state == "ready"
    assert played.reference_of("python") == "image:tag"
    played.there = False
    assert played.reference_of("python") is None
    assert played.reports()[0].state == "waiting"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (PrepareError(NoWheel()), "left no wheel. See the log"),
        (EngineError("No engine."), "No engine. Start the engine"),
        (OSError(28, "No space left on device"), "No space left"),
    ],
)
def test_what_goes_wrong_is_reported_not_raised(error: Exception, words: str) -> None:
    report = Played(error).prepare("python")
    assert report.state == "failed" and words in report.detail


class Wavering(Played):
    def _make(self, entry: Entry, tell: Progress) -> PreparedEnvironment:
        for percent in (97, 87, 98, 200):
            tell(percent, Starting())
        return PreparedEnvironment("digest", "image:tag")


def test_progress_never_goes_back() -> None:
    shown: list[int] = []
    Wavering(PreparedEnvironment("", "")).prepare("python", lambda percent, words: shown.append(percent))
    assert shown == [0, 97, 97, 98, 99]


def test_an_unknown_environment_fails_with_a_sentence() -> None:
    assert "no environment “nothing”" in Played(PreparedEnvironment("", "")).prepare("nothing").detail


# Images


class Engine:
    """Holds images by name; notes what it is asked to build."""

    def __init__(self, *images: str) -> None:
        self.images = dict.fromkeys(images, "sha256:base")
        self.built: list[tuple[str, dict[str, str], list[str]]] = []
        self.digests: dict[str, tuple[str, ...]] = {}

    def id_of(self, image: str) -> str | None:
        return self.images.get(image)

    def repo_digests(self, image: str) -> tuple[str, ...]:
        return self.digests.get(image, ())

    def pull(self, image: str, tell: Any) -> None:
        raise PrepareError(CannotPull(image, "no registry"))

    def target(self, image: str, cuda: bool) -> Target:
        return dataclasses.replace(BOOKWORM, cuda=cuda)

    def build(
        self,
        files: Mapping[str, Path | bytes],
        dockerfile: str,
        tag: str,
        args: Mapping[str, str],
        log: Path,
        tell: Any,
    ) -> None:
        self.built.append((tag.split(":")[0], dict(args), sorted(files)))
        self.images[tag] = f"sha256:{len(self.built)}"

    def install(
        self, base: str, script: str, mounts: Mapping[Path, str], tag: str, programs: str, log: Path, tell: Any
    ) -> None:
        files = sorted(file.name for folder, to in mounts.items() if to == "/srv" for file in folder.iterdir())
        self.built.append((tag.split(":")[0], {"BASE_IMAGE": base}, files))
        self.images[tag] = f"sha256:{len(self.built)}"

    def remove_old_images(self, repository: str, environment: str, keep: str) -> None:
        assert keep in self.images


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Fetching and compiling are played: this notes who compiled."""
    compiled: list[str] = []

    def ensure(
        entry: Entry, target: Target, pins: Pins, tell: Progress, build: horovod_wheel.Build, percent: Any
    ) -> Path | None:
        if entry.horovod is None:
            return None
        compiled.append("here" if build is horovod_wheel.build_here else "in a container")
        wheel = tmp_path / "key" / "horovod-0.28.1-cp311-cp311-linux_x86_64.whl"
        wheel.parent.mkdir(exist_ok=True)
        wheel.touch()
        return wheel

    monkeypatch.setattr(builds, "pinned_packages", lambda entry, target, tell, percent: Pins(SMALL))
    monkeypatch.setattr(builds, "wheelhouse", lambda entry, target, pins, tell, percent: tmp_path)
    monkeypatch.setattr(horovod_wheel, "ensure", ensure)
    return compiled


def docker_environments(engine: Engine, **settings: Any) -> DockerEnvironments:
    return DockerEnvironments(engine, host_can_build=lambda target: True, **settings)  # type: ignore[arg-type]


def built(engine: Engine) -> list[str]:
    return [repository for repository, _, _ in engine.built]


def test_an_unchanged_recipe_is_not_built_again(fetched: list[str]) -> None:
    engine = Engine(LOCAL_BASE)
    first = docker_environments(engine).prepare("pytorch-horovod")
    assert first.state == "ready" and built(engine) == ["schedulearn-packages", "schedulearn-job"]
    again = docker_environments(engine)
    assert again.prepare("pytorch-horovod") == first and len(engine.built) == 2
    assert again.reference_of("pytorch-horovod") in engine.images


def test_a_change_of_ours_rebuilds_only_the_last_layer(
    fetched: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(LOCAL_BASE)
    docker_environments(engine).prepare("python")
    changed = tmp_path / "runners"
    shutil.copytree(builds.RUNNERS, changed, ignore=shutil.ignore_patterns("__pycache__"))
    (changed / "launch" / "supervisor.py").write_text("changed")
    monkeypatch.setattr(builds, "RUNNERS", changed)
    docker_environments(engine).prepare("python")
    assert built(engine) == ["schedulearn-packages", "schedulearn-job", "schedulearn-job"]


def test_another_base_rebuilds_all(fetched: list[str]) -> None:
    engine = Engine(LOCAL_BASE)
    docker_environments(engine).prepare("python")
    engine.images[LOCAL_BASE] = "sha256:newer"
    docker_environments(engine).prepare("python")
    assert built(engine) == ["schedulearn-packages", "schedulearn-job"] * 2


def test_what_goes_into_a_job_image_is_only_what_runs_first_and_the_training_library(fetched: list[str]) -> None:
    engine = Engine(PUBLIC_BASE, LOCAL_BASE)
    docker_environments(engine).prepare("python")
    (_, packages, own), (_, job, files) = engine.built
    assert packages == {"BASE_IMAGE": PUBLIC_BASE} and set(job) == {"PACKAGES_IMAGE"}
    assert own == ["check.py", "requirements.txt", "uv"]
    ours = ("__init__.py", "launch", "messages", "spec.py", "training")
    assert files == ["Dockerfile", *(f"schedulearn/runners/{name}" for name in ours)]


def test_a_missing_base_image_is_reported_with_its_fix(fetched: list[str]) -> None:
    report = docker_environments(Engine()).prepare("python")
    assert report.state == "failed" and "SCHEDULEARN_BASE_IMAGE" in report.detail
    named = docker_environments(Engine(LOCAL_BASE), base_image="lab/base:1").prepare("python")
    assert named.state == "failed" and "lab/base:1" in named.detail


PINNED = f"lab/base:1@sha256:{'a' * 64}"


def test_the_digest_that_a_base_image_resolved_to_is_recorded_with_the_environment(fetched: list[str]) -> None:
    engine = Engine(PUBLIC_BASE)
    engine.digests[PUBLIC_BASE] = (f"python@sha256:{'b' * 64}",)
    assert docker_environments(engine).prepare("python").detail == f"Made from {PUBLIC_BASE} (sha256:{'b' * 64})."
    local = docker_environments(Engine(LOCAL_BASE)).prepare("python")
    assert local.state == "ready" and "image ID sha256:base; it does not come from a registry" in local.detail


def test_a_base_image_pinned_by_its_digest_is_used_when_the_engine_has_that_digest(fetched: list[str]) -> None:
    engine = Engine(PINNED)
    engine.digests[PINNED] = (f"lab/base@sha256:{'c' * 64}", f"lab/base@sha256:{'a' * 64}")
    assert docker_environments(engine, base_image=PINNED).prepare("python").state == "ready"


@pytest.mark.parametrize("digests", [(), (f"lab/base@sha256:{'c' * 64}",)])
def test_a_base_image_with_another_digest_than_the_pinned_one_is_refused(
    fetched: list[str], digests: tuple[str, ...]
) -> None:
    engine = Engine(PINNED)
    engine.digests[PINNED] = digests
    report = docker_environments(engine, base_image=PINNED).prepare("python")
    assert report.state == "failed" and "does not have this digest" in report.detail
    assert engine.built == []


@pytest.mark.parametrize("image", ["lab/base:1@", "lab/base:1@sha256:abc", f"lab/base@sha512:{'a' * 64}"])
def test_an_incomplete_digest_is_refused_before_anything_is_pulled(fetched: list[str], image: str) -> None:
    report = docker_environments(Engine(image), base_image=image).prepare("python")
    assert report.state == "failed" and "no complete digest" in report.detail


def test_a_long_step_of_a_build_reports_how_long_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builds, "TICK_SECONDS", 0.01)
    steps: list[tuple[int, str]] = []
    again = threading.Event()

    def tell(percent: int, step: Message) -> None:
        steps.append((percent, step.text))
        if len(steps) > 3:
            again.set()

    with report_build(tell, BuildingImage(packages=False), (70, 90)) as step:
        step(5, 10)
        assert again.wait(60)
    assert steps[0] == (70, "building the job image")
    later = r"building the job image, step 5 of 10: .+ so far"
    assert all(percent == 80 and re.fullmatch(later, words) for percent, words in steps[1:])


def test_a_host_without_a_compiler_compiles_in_a_container(fetched: list[str]) -> None:
    engine = Engine(LOCAL_BASE)
    docker_environments(engine).prepare("pytorch-horovod")
    other = DockerEnvironments(engine, host_can_build=lambda target: False)  # type: ignore[arg-type]
    other.prepare("pytorch-horovod")
    assert fetched == ["here", "in a container"]


def test_a_build_context_holds_only_plain_files_and_is_reproducible(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "__pycache__").mkdir(parents=True)
    (source / "__pycache__" / "x.pyc").touch()
    (source / "a.py").write_text("a")
    (source / "link").symlink_to("/etc/passwd")

    def pack() -> bytes:
        with packed_context({"Dockerfile": b"FROM x", "code": source}) as file:
            content: bytes = file.read()
            return content

    first = pack()
    (source / "a.py").touch()
    (source / "a.py").chmod(0o600)
    assert pack() == first
    with tarfile.open(fileobj=io.BytesIO(first)) as tar:
        assert sorted(tar.getnames()) == ["Dockerfile", "code", "code/a.py"]
        assert all((member.uid, member.gid, member.mtime) == (0, 0, 0) for member in tar)


def test_the_digest_of_code_overlooks_what_python_leaves(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("a")
    before = hash_files({"code": tmp_path})
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "a.pyc").write_text("compiled")
    assert hash_files({"code": tmp_path}) == before
    (tmp_path / "a.py").write_text("b")
    assert hash_files({"code": tmp_path}) != before
