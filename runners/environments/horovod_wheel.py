"""Horovod's newest release does not compile against today's torch. Mended, it does: once, then the wheel is kept.

The wheel is found again by everything that went into it: version, torch or TensorFlow, Python, C library, GPU support,
mending.
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
    alone,
    cache_home,
    content_key,
    elapsed,
    explain,
    need_space,
    run,
    temporary_folder,
)
from runners.environments.targets import Target, cross, this_machine
from runners.environments.wheels import Framework, Pins, framework_of, make

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
"""setuptools 80 dropped what Horovod's setup.py uses; cmake 4 refuses the minimum versions of its third parties."""

BUILD_MIB = 3000
EXPECTED_SECONDS = 240
"""On two cores; only for a bar that moves before the compiler's own percentage is known."""


@dataclass(frozen=True, slots=True)
class Mend:
    path: str
    before: str
    after: str


MENDS = (
    # torch's headers need C++17 since 2.1
    Mend("CMakeLists.txt", "set(CMAKE_CXX_STANDARD 14)", "set(CMAKE_CXX_STANDARD 17)"),
    Mend("horovod/torch/CMakeLists.txt", "set(CMAKE_CXX_STANDARD 14)", "set(CMAKE_CXX_STANDARD 17)"),
    Mend("third_party/gloo/CMakeLists.txt", "-std=c++11 -fPIC", "-std=c++17 -fPIC"),
    # with Gloo the stall inspector looks through a list of ranks that stays empty, and so misses none of them
    Mend("horovod/common/gloo/gloo_controller.cc", "global_ranks_.reserve(size_)", "global_ranks_.resize(size_)"),
    # a rank that leaves a broken ring keeps that ring's connections open until it has formed the next one, which those wait
    # for who have not noticed yet
    Mend(
        "horovod/common/gloo/gloo_context.cc",
        "void GlooContext::Finalize() {\n  if (!enabled_) {\n    return;\n  }\n",
        "void GlooContext::Finalize() {\n",
    ),
    # who is still in a broken ring may be sent another message than it waits for: whoever waits hears of it, as of a
    # connection that broke, and the process lives
    Mend(
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
"""The compiler leaves the processors to running jobs, which are on the same machine."""

Build = Callable[[Path, Pins, Path, dict[str, str], Progress], None]
"""(patched source, packages to compile against, folder for the wheel, variables, progress): compiles."""


def settings(target: Target, framework: Framework) -> dict[str, str]:
    """Horovod's build switches. Gloo on processors; with GPUs NCCL does the reductions, Gloo the rest.

    Its sources name what only older compilers' headers bring along: from GCC 13 on they must be asked for.
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
    switches = sorted((name, value) for name, value in settings(target, framework).items() if name != "MAKEFLAGS")
    against = framework.version if framework.is_torch else framework.requirement
    return content_key("horovod 1", horovod.version, horovod.sha256, against, target.words, repr(MENDS), repr(switches))


def find(entry: Entry, target: Target, pins: Pins) -> Path | None:
    """The wheel, if it was compiled before."""
    if entry.horovod is None:
        return None
    folder = cache_home() / "wheels" / wheel_key(entry.horovod, framework_of(pins), target)
    return next(iter(sorted(folder.glob("horovod-*.whl"))), None)


def ensure(
    entry: Entry, target: Target, pins: Pins, progress: Progress, build: Build, percent: tuple[int, int] = (30, 80)
) -> Path | None:
    """The wheel for this target; compiled by ``build`` if it is not there yet. None if the recipe wants none."""
    if entry.horovod is None:
        return None
    low, high = percent
    framework = framework_of(pins)
    key = wheel_key(entry.horovod, framework, target)
    folder = cache_home() / "wheels" / key
    with alone(cache_home() / "locks" / f"horovod-{key}", progress, low):
        if found := find(entry, target, pins):
            return found
        need_space(cache_home(), BUILD_MIB)
        with temporary_folder(cache_home() / "wheels", ".horovod-") as work:
            source = mended_source(entry.horovod, work, progress, low)
            out = make(work / "out")

            def scaled(done: int, words: str) -> None:
                progress(low + (high - low) * done // 100, words)

            build(source, pins, out, settings(target, framework), scaled)
            if not list(out.glob("horovod-*.whl")):
                raise PrepareError("Compiling Horovod left no wheel.", "Look at the log in the cache folder.")
            shutil.rmtree(folder, ignore_errors=True)
            out.rename(folder)
    return find(entry, target, pins)


def mended_source(horovod: Horovod, work: Path, progress: Progress, percent: int) -> Path:
    """The release as published, checked by its hash, with the mends in."""
    progress(percent, "fetching Horovod's source")
    log = cache_home() / "logs" / "fetch-horovod.log"
    tools = work / "sdist-tools"
    try:
        # To learn its name pip runs the setup.py of a source: with setuptools that still suit it.
        run([*PIP, "install", "-q", "--target", tools, "setuptools<80", "wheel", "packaging"], log, seconds=600)
        fetch = ["download", "--no-deps", "--no-build-isolation", "--no-binary", "horovod", "-d", str(work)]
        run([*PIP, *fetch, f"horovod=={horovod.version}"], log, env={"PYTHONPATH": str(tools)}, seconds=600)
    except ProgramError as error:
        raise explain(error, "Fetching Horovod's source", log) from error
    archive = work / f"horovod-{horovod.version}.tar.gz"
    if not archive.exists() or hashlib.sha256(archive.read_bytes()).hexdigest() != horovod.sha256:
        raise PrepareError(
            f"The source of Horovod {horovod.version} is not the one this recipe was written for.",
            "Check where this machine's pip fetches from; the expected hash is in environment.toml.",
        )
    with tarfile.open(archive) as tar:
        tar.extraction_filter = getattr(tarfile, "data_filter", None)  # Debian 12's Python 3.11.2 has none
        tar.extractall(work)  # noqa: S202  # the archive is known by its hash
    source = work / f"horovod-{horovod.version}"
    mend(source)
    return source


def mend(source: Path) -> None:
    for one in MENDS:
        path = source / one.path
        text = path.read_text()
        if one.before not in text:
            raise PrepareError(
                f"Horovod's {one.path} is not as expected.", "Adapt runners/environments/horovod_wheel.py to it."
            )
        path.write_text(text.replace(one.before, one.after))


def missing_tools(target: Target) -> PrepareError | None:
    """What this machine lacks for compiling, with the packages that bring it."""
    programs = {"c++": shutil.which("c++") or shutil.which("g++"), "make": shutil.which("make")}
    missing = [name for name, found in programs.items() if not found]
    if not (Path(sysconfig.get_paths()["include"]) / "Python.h").exists():
        missing.append("Python.h")
    if target.cuda and nvcc() is None:
        missing.append("nvcc")
    if not missing:
        return None
    cuda = " and NVIDIA's CUDA toolkit (nvcc)" if "nvcc" in missing else ""
    return PrepareError(
        f"Horovod must be compiled once, and this machine lacks {', '.join(missing)}.",
        f"Debian or Ubuntu: apt-get install g++ make python3-dev{cuda}. "
        f"Fedora: dnf install gcc-c++ make python3-devel{cuda}.",
    )


def nvcc() -> str | None:
    usual = Path("/usr/local/cuda/bin/nvcc")
    return shutil.which("nvcc") or (str(usual) if usual.exists() else None)


def host_can_build(target: Target) -> bool:
    """A wheel made here runs there: same Python and processor, no newer C library."""
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

        def installing(seconds: float, said: str) -> None:
            progress(2, elapsed("installing what Horovod is compiled with", seconds))

        try:
            progress(1, "installing what Horovod is compiled with")
            tools = resolve(TOOLS, this_machine("HOROVOD_GPU" in variables), log)
            names = {each.partition("==")[0] for each in tools}
            packages = [each for each in pins.packages if each.partition("==")[0] not in names]
            python = make_environment(place, [*packages, *tools], log, installing, pins.index)
            pip = [str(python), *PIP[1:], "wheel", "-v", "--no-deps", "--no-build-isolation"]
            run(
                [*pip, "-w", out, source],
                log,
                lambda seconds, said: progress(*compiling(seconds, said)),
                env={**variables, **cuda_variables(python), "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"},
                niceness=BUILD_NICENESS,
            )
        except ProgramError as error:
            raise explain(error, "Compiling Horovod", log) from error


def cuda_variables(python: Path) -> dict[str, str]:
    """Where NCCL is: torch brings it as a package, headers and all. Empty when there is none."""
    found = sorted(python.parent.parent.glob("lib/python*/site-packages/nvidia/nccl"))
    if not found:
        return {}
    library = next(iter(sorted((found[0] / "lib").glob("libnccl.so*"))), None)
    plain = found[0] / "lib" / "libnccl.so"
    if library is not None and not plain.exists():
        plain.symlink_to(library.name)  # the linker asks for the name without a number
    return {"HOROVOD_NCCL_HOME": str(found[0]), "HOROVOD_NCCL_LINK": "SHARED"}


def compiling(seconds: float, said: str) -> tuple[int, str]:
    """Make's own "[ 45%]" if there is one, else a guess by time."""
    marks = [part.rpartition("[")[2].strip() for part in said.split("%]")[:-1]]
    numbers = [int(mark) for mark in marks if mark.isdecimal()]
    percent = numbers[-1] if numbers else min(10, int(10 * seconds / EXPECTED_SECONDS))
    return max(2, min(99, percent)), elapsed("compiling Horovod", seconds)


def container_script(framework: Framework) -> str:
    """The same as ``build_here``, inside an image with a compiler and without a network."""
    return f"""
export HOME=/tmp
python -m venv /tmp/build
. /tmp/build/bin/activate
pip install -q --no-index --find-links /house --find-links /tools '{framework.requirement}' numpy {tools_line()}
nccl=$(echo /tmp/build/lib/python*/site-packages/nvidia/nccl)
if [ -d "$nccl" ]; then
    [ -e "$nccl/lib/libnccl.so" ] || ln -s libnccl.so.2 "$nccl/lib/libnccl.so"
    export HOROVOD_NCCL_HOME="$nccl" HOROVOD_NCCL_LINK=SHARED
fi
pip wheel -v --no-index --no-deps --no-build-isolation -w /out /source
"""


def tools_line() -> str:
    return " ".join(f"'{tool}'" for tool in TOOLS)


def tools_house(target: Target, work: Path, progress: Progress) -> Path:
    """The build tools as wheels, for compiling inside a container without a network."""
    progress(0, "fetching build tools")
    log = cache_home() / "logs" / "fetch-tools.log"
    try:
        run([*PIP, "download", "--only-binary=:all:", "-d", work, *cross(target), *TOOLS], log, seconds=900)
    except ProgramError as error:
        raise explain(error, "Fetching build tools", log) from error
    return work
