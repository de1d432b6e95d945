"""Resolves a recipe against its base to a lock: exact packages with the hashes of their files.

The packages of the base are constraints, and none of them gets into the lock, so a layer cannot replace one. uv never reads
a file that a person wrote (see ``recipe``).
"""

import base64
import hashlib
import json
import re
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from runners.environments import images
from runners.environments.installing import Tick, pins_in, report_nothing
from runners.environments.layers.base import describe_kind, kind_of
from runners.environments.layers.explaining import Question, explain_output
from runners.environments.layers.indexes import cpu_indexes
from runners.environments.layers.workshop import Workshop
from runners.environments.preparing import PrepareError, ProgramError
from runners.environments.wheels import cuda_packages
from runners.host.node_files import read_beneath
from runners.messages.environment_failures import OnlyGpuBuilds, SystemRefused
from runners.messages.layer_failures import HidesBase

REQUIREMENTS = "requirements.in"
ONLY_WHEELS = ("--only-binary", ":all:")
RESOLVE_SECONDS = 900
RESOLVE_WITH_SOURCE_SECONDS = 3600
CPU_INDEX_SECONDS = 120
IMPATIENT = {"UV_HTTP_RETRIES": "0", "UV_HTTP_TIMEOUT": "20"}
"""For an index that may be away: there is another way."""
MAX_LOCK_BYTES = 8 * 2**20
LOCK_LINE = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9._-]*(\[[A-Za-z0-9._,-]+\])?( @ https?://\S+|==\S+)( ;[^\\]*)?( \\)?|    --hash=sha256:[0-9a-f]{64}( \\)?"
)
BESIDE_TORCH = ("torchvision", "torchaudio")
"""Packages with separate builds for a PyTorch for CPUs, on PyTorch's own index."""
HOROVOD_NEEDS = ("cloudpickle", "psutil", "pyyaml", "packaging", "cffi")


@dataclass(frozen=True)
class Probe:
    """What an environment has, as ``probe.py`` reports it from inside."""

    markers: Mapping[str, str]
    packages: Mapping[str, str]
    """name: version"""
    metadata: Mapping[str, str]
    """The metadata of each package."""
    modules: tuple[str, ...]
    standard: frozenset[str]

    @property
    def pins(self) -> tuple[str, ...]:
        return tuple(f"{name}=={version}" for name, version in sorted(self.packages.items()))


@dataclass(frozen=True)
class Resolved:
    """A lock, and the index that it needs in addition to the usual ones."""

    lock: str
    index: str = ""

    @property
    def pins(self) -> tuple[str, ...]:
        return pins_in(self.lock)

    @property
    def count(self) -> int:
        return sum(1 for line in self.lock.splitlines() if line[:1].isalnum())


def probe_base(shop: Workshop) -> Probe:
    """Return what the base has. Raises ProgramError or PrepareError."""
    shop.run_script("probe.py", shop.work / "probe.json")
    found = read_json(shop, "probe.json")
    packages = {canonicalize_name(each["name"]): each for each in found["distributions"]}
    return Probe(
        markers=found["markers"],
        packages={name: each["version"] for name, each in packages.items()},
        metadata={name: each["metadata"] for name, each in packages.items() if each["metadata"]},
        modules=tuple(found["modules"]),
        standard=frozenset(found["standard"]),
    )


def read_json(shop: Workshop, name: str) -> Any:
    """Read what one of our scripts wrote. Raises PrepareError."""
    try:
        return json.loads(read_work(shop, name))
    except ValueError as error:
        raise PrepareError(SystemRefused(f"{name} cannot be read: {error}")) from error


def read_work(shop: Workshop, name: str) -> str:
    """Read a file that the sandbox wrote, which may be anything. Raises PrepareError if it is not a file of text."""
    try:
        content = read_beneath(shop.work, name, MAX_LOCK_BYTES)
    except OSError as error:
        raise PrepareError(SystemRefused(f"{name} cannot be read: {error.strerror}")) from error
    if content is None:
        raise PrepareError(SystemRefused(f"{name} was not written, or is too long"))
    return content.decode(errors="replace")


def resolve(shop: Workshop, probe: Probe, tick: Tick = report_nothing) -> Resolved:
    """Return the lock of the shop's recipe. Raises PrepareError with the line that is wrong."""
    write_inputs(shop, probe)
    try:
        found = Resolved(compile_lock(shop, probe, (), tick=tick))
    except ProgramError as error:
        raise PrepareError(explain_output(error.tail, question_of(shop, probe), tuple(shop.troubles))) from error
    if not shop.base.target.cuda:
        found = with_cpu_builds(shop, probe, found, tick)
    check_lock(found.lock, probe)
    return found


def question_of(shop: Workshop, probe: Probe) -> Question:
    kind = describe_kind(kind_of(shop.base))
    return Question(shop.recipe.lines, probe.pins, shop.base.target.python, kind)


def write_inputs(shop: Workshop, probe: Probe) -> None:
    """Write the files that uv reads: requirements, constraints, and wheels for what no index has."""
    extra = HOROVOD_NEEDS if shop.recipe.horovod else ()
    write_lines(shop.inputs / REQUIREMENTS, [*(str(Requirement(line)) for line in shop.recipe.lines), *extra])
    write_lines(shop.inputs / "constraints.txt", [str(Requirement(line)) for line in shop.recipe.constraints])
    write_lines(shop.inputs / "base.txt", probe.pins)
    wheels = shop.inputs / "base-wheels"
    wheels.mkdir(exist_ok=True)
    for name, metadata in probe.metadata.items():
        write_metadata_wheel(wheels, name, probe.packages[name], metadata)


def write_lines(path: Path, lines: Sequence[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines))


def write_metadata_wheel(folder: Path, name: str, version: str, metadata: str) -> None:
    """Write a wheel that has only the metadata of an installed package. It lets uv resolve against what the index does not
    have, such as ``torch==2.13.0+cpu`` and our Horovod. It is never installed: no package of the base gets into a lock."""
    stem = f"{name.replace('-', '_')}-{version}"
    files = {
        f"{stem}.dist-info/METADATA": metadata,
        f"{stem}.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: schedulearn\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},sha256={record_hash(text)},{len(text.encode())}\n" for path, text in files.items())
    files[f"{stem}.dist-info/RECORD"] = f"{record}{stem}.dist-info/RECORD,,\n"
    with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as wheel:
        for path, text in files.items():
            wheel.writestr(zipfile.ZipInfo(path), text)


def record_hash(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")


def compile_lock(
    shop: Workshop,
    probe: Probe,
    constraints: Sequence[str],
    index: str = "",
    tick: Tick = report_nothing,
    impatient: bool = False,
    requirements: str = REQUIREMENTS,
    source: bool = True,
) -> str:
    """Run ``uv pip compile`` and return its lock. Raises ProgramError when there is no solution. ``source``: whether packages
    may be built from source if the recipe allows that."""
    write_lines(shop.inputs / "more.txt", constraints)
    files = [shop.inputs / name for name in ("base.txt", "constraints.txt", "more.txt")]
    limits = [word for path in (*files, *shop.access.constraints) for word in ("--constraints", path)]
    variables = dict(shop.access.with_index(index) if index else shop.access.variables)
    variables["UV_FIND_LINKS"] = ",".join(
        filter(None, [variables.get("UV_FIND_LINKS", ""), str(shop.inputs / "base-wheels")])
    )
    source = source and shop.recipe.source_builds
    seconds = CPU_INDEX_SECONDS if impatient else RESOLVE_WITH_SOURCE_SECONDS if source else RESOLVE_SECONDS
    shop.run_uv(
        *("compile", "--quiet", "--no-header", "--no-annotate", "--generate-hashes"),
        *shop.access.options,
        *(() if source else ONLY_WHEELS),
        *(word for name in probe.packages for word in ("--no-emit-package", name)),
        *("--python", shop.base.python),
        *limits,
        *("--output-file", shop.work / "lock.txt", shop.inputs / requirements),
        variables={**variables, **(IMPATIENT if impatient else {})},
        tick=tick,
        seconds=seconds,
    )
    return read_work(shop, "lock.txt")


def framework_pins(shop: Workshop, probe: Probe, found: Resolved) -> tuple[str, ...]:
    """Return torch of a lock, NumPy and what they need: what Horovod is compiled against, outside of the sandbox.

    The other packages of the list stay away from there, because a package can run code wherever it is installed (``.pth``).
    Those that were built from source may have changed what uv has cached. So this resolution begins with nothing, and with
    wheels only. Raises ProgramError or PrepareError.
    """
    kept = [pin for pin in found.pins if pin.partition("==")[0] in ("torch", "numpy")]
    write_lines(shop.inputs / "framework.in", kept)
    apart = shop.apart("framework")
    return pins_in(compile_lock(apart, probe, found.pins, found.index, requirements="framework.in", source=False))


def check_lock(lock: str, probe: Probe) -> None:
    """Refuse a lock that has anything but packages and hashes, or a package of the base. uv wrote it, but a build from source
    could have changed it. Raises PrepareError."""
    for line in lock.splitlines():
        if not LOCK_LINE.fullmatch(line):
            raise PrepareError(SystemRefused(f"the lock has an unexpected line: {line[:120]!r}"))
    names = {canonicalize_name(name) for name in re.findall(r"^([A-Za-z0-9][A-Za-z0-9._-]*)", lock, re.MULTILINE)}
    if both := sorted(names & set(probe.packages)):
        raise PrepareError(HidesBase(tuple(both)))


# --- builds for CPUs --------------------------------------------------------------------------------------------------


def with_cpu_builds(shop: Workshop, probe: Probe, found: Resolved, tick: Tick) -> Resolved:
    """Return a lock with the builds for CPUs of PyTorch and its relatives where an index has them.

    Without, a full environment is refused, because its CUDA libraries take gigabytes on a machine without a GPU. Over a base,
    the builds for CUDA are kept and made to load (``torch_stubs.py``).
    """
    over_cpu_torch = probe.packages.get("torch", "").endswith("+cpu")
    wanted = [pin for pin in found.pins if pin.partition("==")[0] in BESIDE_TORCH and "+" not in pin]
    if over_cpu_torch and wanted:
        return try_cpu_builds(shop, probe, [[f"{pin}+cpu" for pin in wanted]], tick) or found
    if not shop.recipe.base and (heavy := cuda_packages(found.pins)) and "torch" in names_of(found.pins):
        chosen = next(pin for pin in found.pins if pin.startswith("torch==")).partition("+")[0]
        known = [f"torch=={entry.torch}+cpu" for entry in images.catalogue() if entry.torch]
        choices = [[pin] for pin in dict.fromkeys([f"{chosen}+cpu", *known])]
        smaller = try_cpu_builds(shop, probe, choices, tick)
        if smaller is None or cuda_packages(smaller.pins):
            raise PrepareError(OnlyGpuBuilds(heavy[0], next(iter(cpu_indexes()), "")))
        return smaller
    return found


def names_of(pins: Sequence[str]) -> set[str]:
    return {canonicalize_name(pin.partition("==")[0]) for pin in pins}


def try_cpu_builds(shop: Workshop, probe: Probe, choices: Sequence[Sequence[str]], tick: Tick) -> Resolved | None:
    """Return the first lock with one of these sets of versions, from the usual indexes or PyTorch's own; None without."""
    for constraints in choices:
        for index in ("", *cpu_indexes()):
            try:
                return Resolved(compile_lock(shop, probe, constraints, index, tick, impatient=True), index)
            except (ProgramError, PrepareError) as error:
                shop.note(f"There are no builds for CPUs ({', '.join(constraints)}) at {index or 'the usual index'}.")
                if isinstance(error, PrepareError) and not error.failure.transient:
                    raise
    return None
