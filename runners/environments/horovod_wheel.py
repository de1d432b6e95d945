"""Compiles Horovod, whose newest release needs patches for today's torch, once; then the wheel is kept.

The wheel is found again by all that it was made from: versions of Horovod, torch or TensorFlow, Python and C library, GPU
support, and the patches.
"""

import hashlib
import os
import shutil
import sysconfig
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from runners.environments.images import Entry, Horovod
from runners.environments.installing import PIP, make_environment, resolve
from runners.environments.preparing import (
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
from runners.environments.targets import Target, cross_install_options, this_machine
from runners.environments.wheels import Framework, Pins, find_framework, make_folder
from runners.messages import Message
from runners.messages.environment_failures import MissingTools, NoWheel, OtherFile, OtherSource, Stage
from runners.messages.environments import CompilingHorovod, FetchingHorovod, FetchingTools, InstallingTools

TOOLS = (
    "setuptools==79.0.1",
    "wheel==0.48.0",
    "cmake==3.31.10",
    "packaging==26.3",
    "cffi==2.1.1",
    "pycparser==3.12",
    "cloudpickle==3.1.2",
    "psutil==7.2.2",
    "PyYAML==6.0.3",
)
"""setuptools 80 removed what Horovod's setup.py uses; cmake 4 refuses the minimum versions of its third-party code."""

BUILD_MIB = 3000
EXPECTED_SECONDS = 240
"""The compile time on two cores; only for a progress bar that moves before the compiler's own percentage is known."""


@dataclass(frozen=True, slots=True)
class SourcePatch:
    """A replacement in one file of Horovod's source."""

    path: str
    before: str
    after: str


PATCHES = (
    # torch's headers need C++17 since 2.1
    SourcePatch("CMakeLists.txt", "set(CMAKE_CXX_STANDARD 14)", "set(CMAKE_CXX_STANDARD 17)"),
    SourcePatch("horovod/torch/CMakeLists.txt", "set(CMAKE_CXX_STANDARD 14)", "set(CMAKE_CXX_STANDARD 17)"),
    SourcePatch("third_party/gloo/CMakeLists.txt", "-std=c++11 -fPIC", "-std=c++17 -fPIC"),
    # with Gloo the stall inspector checks a list of ranks that stays empty, and so reports none of them as missing
    SourcePatch(
        "horovod/common/gloo/gloo_controller.cc", "global_ranks_.reserve(size_)", "global_ranks_.resize(size_)"
    ),
    # a rank that leaves a broken ring keeps the connections of that ring open until it has formed the next one, while ranks
    # that have not noticed yet wait for its answer
    SourcePatch(
        "horovod/common/gloo/gloo_context.cc",
        "void GlooContext::Finalize() {\n  if (!enabled_) {\n    return;\n  }\n",
        "void GlooContext::Finalize() {\n",
    ),
    # a rank that is still in a broken ring may receive another message than it expects: that becomes an error, as for a
    # broken connection, instead of the end of the process
    SourcePatch(
        "third_party/gloo/gloo/transport/tcp/pair.cc",
        "    GLOO_ENFORCE_LE(op.preamble.length, op.nbytes);\n",
        "    if (op.preamble.length > op.nbytes) {\n"
        "      const auto ex = std::make_exception_ptr(\n"
        '          ::gloo::IoException(GLOO_ERROR_MSG("Unexpected message from ", peer_.str())));\n'
        "      buf->signalException(ex);\n"
        "      signalException(ex);\n"
        "      return -1;\n"
        "    }\n",
    ),
)

BUILD_NICENESS = 10
"""The compiler yields the processors to the jobs that run on this machine."""

Build = Callable[[Path, Pins, Path, dict[str, str], Progress], None]
"""(patched source, packages to compile against, folder for the wheel, variables, progress): compiles."""


def build_switches(target: Target, framework: Framework) -> dict[str, str]:
    """Return Horovod's build switches. Gloo on processors; with GPUs, NCCL does the reductions and Gloo the rest.

    Its sources use headers without including them, which older compilers include by themselves: GCC 13 does not.
    """
    one, other = ("PYTORCH", "TENSORFLOW") if framework.is_torch else ("TENSORFLOW", "PYTORCH")
    common = {
        f"HOROVOD_WITH_{one}": "1",
        f"HOROVOD_WITHOUT_{other}": "1",
        "HOROVOD_WITHOUT_MXNET": "1",
        "HOROVOD_WITH_GLOO": "1",
        "HOROVOD_WITHOUT_MPI": "1",
        "CMAKE_POLICY_VERSION_MINIMUM": "3.5",
        "CXXFLAGS": "-include string -include stdexcept -include cstdint",
        "MAKEFLAGS": f"-j{os.cpu_count() or 1}",
    }
    if not target.cuda:
        return common
    return {**common, "HOROVOD_GPU": "CUDA", "HOROVOD_GPU_OPERATIONS": "NCCL", "HOROVOD_WITHOUT_NVTX": "1"}


def wheel_key(horovod: Horovod, framework: Framework, target: Target) -> str:
    switches = sorted((name, value) for name, value in build_switches(target, framework).items() if name != "MAKEFLAGS")
    against = framework.version if framework.is_torch else framework.requirement
    return content_key(
        "horovod 1", horovod.version, horovod.sha256, against, target.key_text, _patches_text(), repr(switches)
    )


def _patches_text() -> str:
    """Return the patches as text for ``wheel_key``, with the class's earlier name: nodes keep the wheels they have."""
    return repr(PATCHES).replace(SourcePatch.__name__, "Mend")


def find(entry: Entry, target: Target, pins: Pins) -> Path | None:
    """Return the wheel, if it was compiled before."""
    if entry.horovod is None:
        return None
    folder = cache_home() / "wheels" / wheel_key(entry.horovod, find_framework(pins), target)
    return next(iter(sorted(folder.glob("horovod-*.whl"))), None)


def ensure(
    entry: Entry, target: Target, pins: Pins, progress: Progress, build: Build, percent: tuple[int, int] = (30, 80)
) -> Path | None:
    """Return the wheel for this target, compiled by ``build`` if it does not exist yet; None if the recipe needs none."""
    if entry.horovod is None:
        return None
    low, high = percent
    framework = find_framework(pins)
    key = wheel_key(entry.horovod, framework, target)
    folder = cache_home() / "wheels" / key
    with exclusive_lock(cache_home() / "locks" / f"horovod-{key}", progress, low):
        if found := find(entry, target, pins):
            return found
        require_space(cache_home(), BUILD_MIB)
        with temporary_folder(cache_home() / "wheels", ".horovod-") as work:
            source = patched_source(entry.horovod, work, progress, low)
            out = make_folder(work / "out")

            def report_scaled(done: int, step: Message) -> None:
                progress(low + (high - low) * done // 100, step)

            build(source, pins, out, build_switches(target, framework), report_scaled)
            if not list(out.glob("horovod-*.whl")):
                raise PrepareError(NoWheel())
            shutil.rmtree(folder, ignore_errors=True)
            out.rename(folder)
    return find(entry, target, pins)


def patched_source(horovod: Horovod, work: Path, progress: Progress, percent: int) -> Path:
    """Fetch the published release, check its hash and apply the patches. Returns the folder with the source."""
    progress(percent, FetchingHorovod())
    log = cache_home() / "logs" / "fetch-horovod.log"
    tools = work / "sdist-tools"
    try:
        # To find the package's name, pip runs its setup.py: with a setuptools release that works for it.
        run([*PIP, "install", "-q", "--target", tools, "setuptools<80", "wheel", "packaging"], log, seconds=600)
        fetch = ["download", "--no-deps", "--no-build-isolation", "--no-binary", "horovod", "-d", str(work)]
        run([*PIP, *fetch, f"horovod=={horovod.version}"], log, env={"PYTHONPATH": str(tools)}, seconds=600)
    except ProgramError as error:
        raise explain(error, Stage("fetching_horovod"), log) from error
    archive = work / f"horovod-{horovod.version}.tar.gz"
    if not archive.exists() or hashlib.sha256(archive.read_bytes()).hexdigest() != horovod.sha256:
        raise PrepareError(OtherSource(horovod.version))
    with tarfile.open(archive) as tar:
        tar.extraction_filter = getattr(tarfile, "data_filter", None)  # Debian 12's Python 3.11.2 has none
        tar.extractall(work)  # noqa: S202  # the archive is known by its hash
    source = work / f"horovod-{horovod.version}"
    apply_patches(source)
    return source


def apply_patches(source: Path) -> None:
    for patch in PATCHES:
        path = source / patch.path
        text = path.read_text()
        if patch.before not in text:
            raise PrepareError(OtherFile(str(patch.path)))
        path.write_text(text.replace(patch.before, patch.after))


def missing_tools(target: Target) -> PrepareError | None:
    """Return an error with what this machine lacks for compiling and the packages that provide it, None if nothing."""
    programs = {"c++": shutil.which("c++") or shutil.which("g++"), "make": shutil.which("make")}
    missing = [name for name, found in programs.items() if not found]
    if not (Path(sysconfig.get_paths()["include"]) / "Python.h").exists():
        missing.append("Python.h")
    if target.cuda and nvcc() is None:
        missing.append("nvcc")
    return PrepareError(MissingTools(tuple(missing))) if missing else None


def nvcc() -> str | None:
    usual = Path("/usr/local/cuda/bin/nvcc")
    return shutil.which("nvcc") or (str(usual) if usual.exists() else None)


def host_can_build(target: Target) -> bool:
    """Whether a wheel made here runs there: same Python and processor, no newer C library."""
    here = this_machine(target.cuda)
    same = (here.python, here.machine) == (target.python, target.machine)
    return same and here.glibc <= target.glibc and missing_tools(target) is None


def build_here(source: Path, pins: Pins, out: Path, variables: dict[str, str], progress: Progress) -> None:
    """Compile with this machine's compiler, in a virtual environment that is deleted afterwards."""
    lacking = missing_tools(this_machine("HOROVOD_GPU" in variables))
    if lacking:
        raise lacking
    log = cache_home() / "logs" / "build-horovod.log"
    log.unlink(missing_ok=True)
    with temporary_folder(cache_home(), "schedulearn-build-") as folder:
        place = folder / "environment"

        def installing(seconds: float, output: str) -> None:
            progress(2, InstallingTools(seconds=int(seconds)))

        try:
            progress(1, InstallingTools())
            tools = resolve(TOOLS, this_machine("HOROVOD_GPU" in variables), log)
            names = {each.partition("==")[0] for each in tools}
            packages = [each for each in pins.packages if each.partition("==")[0] not in names]
            python = make_environment(place, [*packages, *tools], log, installing, pins.index)
            pip = [str(python), *PIP[1:], "wheel", "-v", "--no-deps", "--no-build-isolation"]
            run(
                [*pip, "-w", out, source],
                log,
                lambda seconds, output: progress(*compile_progress(seconds, output)),
                env={**variables, **cuda_variables(python), "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"},
                niceness=BUILD_NICENESS,
            )
        except ProgramError as error:
            raise explain(error, Stage("compiling"), log) from error


def cuda_variables(python: Path) -> dict[str, str]:
    """Return the variables with the place of NCCL, which torch installs as a package with headers; empty without it."""
    found = sorted(python.parent.parent.glob("lib/python*/site-packages/nvidia/nccl"))
    if not found:
        return {}
    library = next(iter(sorted((found[0] / "lib").glob("libnccl.so*"))), None)
    plain = found[0] / "lib" / "libnccl.so"
    if library is not None and not plain.exists():
        plain.symlink_to(library.name)  # the linker needs the name without a number
    return {"HOROVOD_NCCL_HOME": str(found[0]), "HOROVOD_NCCL_LINK": "SHARED"}


def compile_progress(seconds: float, output: str) -> tuple[int, Message]:
    """Return the progress: Make's own "[ 45%]" if there is one, else an estimate by time."""
    marks = [part.rpartition("[")[2].strip() for part in output.split("%]")[:-1]]
    numbers = [int(mark) for mark in marks if mark.isdecimal()]
    percent = numbers[-1] if numbers else min(10, int(10 * seconds / EXPECTED_SECONDS))
    return max(2, min(99, percent)), CompilingHorovod(seconds=int(seconds))


def container_script(framework: Framework) -> str:
    """Return a script that does the same as ``build_here`` in an image with a compiler and without a network."""
    return f"""
export HOME=/tmp
python -m venv /tmp/build
. /tmp/build/bin/activate
pip install -q --no-index --find-links /house --find-links /tools '{framework.requirement}' numpy {quoted_tools()}
nccl=$(echo /tmp/build/lib/python*/site-packages/nvidia/nccl)
if [ -d "$nccl" ]; then
    [ -e "$nccl/lib/libnccl.so" ] || ln -s libnccl.so.2 "$nccl/lib/libnccl.so"
    export HOROVOD_NCCL_HOME="$nccl" HOROVOD_NCCL_LINK=SHARED
fi
pip wheel -v --no-index --no-deps --no-build-isolation -w /out /source
"""


def quoted_tools() -> str:
    return " ".join(f"'{tool}'" for tool in TOOLS)


def fetch_tools(target: Target, work: Path, progress: Progress) -> Path:
    """Fetch the build tools as wheels, for compiling in a container without a network."""
    progress(0, FetchingTools())
    log = cache_home() / "logs" / "fetch-tools.log"
    try:
        run(
            [*PIP, "download", "--only-binary=:all:", "-d", work, *cross_install_options(target), *TOOLS],
            log,
            seconds=900,
        )
    except ProgramError as error:
        raise explain(error, Stage("fetching_tools"), log) from error
    return work
