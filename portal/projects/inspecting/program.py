"""The program: select the Python files of the tar, guess how to start them, list what looks wrong."""

import json
import re
import shlex
import sys
import tarfile
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import IO, Any

from ..package_lists.gathering import ListFiles
from ..package_lists.model import as_json
from ..package_lists.reading import read_lists
from . import commands
from .commands import LaunchLine
from .entries import SOURCE_FOLDER, as_module, file_of, module_of
from .gpus import uses_one_gpu
from .rules import LIBRARY, RULES, Code
from .source import Source, is_standard, read

MAX_FILES = 500
MAX_FILE_BYTES = 512 * 1024
MAX_TEXTS = 50
MAX_WARNINGS = 40
MAX_WARNINGS_PER_RULE = 5
MAX_CANDIDATES = 50
ENTRY_NAME_POINTS = {"train": 40, "main": 30, "run": 20, "run_training": 20, "trainer": 10, "experiment": 10}
COMPILED = frozenset({"horovod", "numpy", "scipy", "sklearn", "tensorflow", "torch"})
"""Packages of the environments of which an upload has at most the source; the installed one is used (runners/launch/shim)."""
EXAMPLES = frozenset({"benchmarks", "demos", "example", "examples", "guides", "tutorial", "tutorials"})
"""Folders in the repository of a library for programs that use it."""
NOT_STARTED = re.compile(r"(test_.*|.*_test|conftest|setup|__init__|noxfile|utils?|models?|config|dataset)$")


@dataclass(slots=True)
class Upload:
    """What is read of an upload."""

    files: dict[str, bytes] = field(default_factory=dict)
    """The Python files by path."""
    paths: list[str] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)
    """The texts of shell scripts and Makefiles."""
    lists: ListFiles = field(default_factory=ListFiles)
    """The package lists, and what they may include."""


def read_upload(tar: IO[bytes]) -> Upload:
    found = Upload()
    with tarfile.open(fileobj=tar, mode="r|") as archive:  # our own tar; as a stream, its offsets are not used
        for member in archive:
            if not member.isreg():
                continue
            found.paths.append(member.name)
            if found.lists.wants(member.name):
                found.lists.add(member.name, archive.extractfile(member))
                continue
            is_python = member.name.endswith(".py") and len(found.files) < MAX_FILES
            is_text = commands.is_read(member.name) and len(found.texts) < MAX_TEXTS
            if (is_python or is_text) and member.size <= MAX_FILE_BYTES:
                file = archive.extractfile(member)
                content = file.read() if file else b""
                if is_python:
                    found.files[member.name] = content
                else:
                    found.texts[member.name] = content.decode(errors="replace")
    return found


def module_paths(module: str, importer: str) -> Iterable[str]:
    """Yield the files that an import may refer to: in the importing file's folder, at the top, or in ``src``."""
    dots = len(module) - len(module.lstrip("."))
    inner = module[dots:].replace(".", "/")
    folder = PurePosixPath(importer).parent
    for _ in range(dots - 1):
        folder = folder.parent
    for base in [folder] if dots else [folder, PurePosixPath(), PurePosixPath(SOURCE_FOLDER)]:
        target = base / inner
        yield f"{target}.py"
        yield str(target / "__init__.py")


def reachable(entry: str, sources: dict[str, Source]) -> list[str]:
    """Return the entry file and all files of the upload that it imports, directly or indirectly."""
    found = [entry]
    for path in found:
        for module in sorted(sources[path].all_imports):
            if module.partition(".")[0] in COMPILED:
                continue
            dots = "." * (len(module) - len(module.lstrip(".")))
            parts = module[len(dots) :].split(".")
            # importing a.b.c runs a/__init__.py, a/b/__init__.py and a/b/c.py
            for end in range(0 if dots else 1, len(parts) + 1):
                for target in module_paths(dots + ".".join(parts[:end]), path):
                    if target in sources and target not in found:
                        found.append(target)
    return found


def score(source: Source, imported: set[str], packages: Collection[str]) -> int:
    path = PurePosixPath(source.path)
    points = ENTRY_NAME_POINTS.get(path.stem, 0) - 10 * (len(path.parts) - 1)
    points += 10 if path.stem.startswith(("train", "main", "run")) else 0
    points += 15 if source.has_main else 0
    points += 15 if source.root_imports & {"horovod", "torch", "tensorflow", "keras", "jax", "sklearn"} else 0
    points += 10 if source.root_imports & {"horovod", LIBRARY} else 0
    points -= 45 if source.path in imported else 0
    points -= 15 if str(path.parent) in packages else 0  # rather part of a library than an example of its use
    points -= 60 if NOT_STARTED.match(path.stem) or {"tests", "test", "docs"} & set(path.parts[:-1]) else 0
    return points


def candidates(sources: dict[str, Source]) -> list[str]:
    imported: set[str] = set()
    for source in sources.values():
        for module in source.all_imports:
            imported.update(path for path in module_paths(module, source.path) if path != source.path)
    packages = {path.removesuffix("/__init__.py") for path in sources if path.endswith("/__init__.py")}
    return sorted(sources, key=lambda path: (-score(sources[path], imported, packages), path))


def starts_ranks(entry: Source) -> bool:
    """Return whether a program starts its own ranks on one machine, and could not be one of torchrun's."""
    starts = {"torch.multiprocessing.spawn", "torch.multiprocessing.start_processes"}
    return not starts.isdisjoint(call.name for call in entry.calls) and all(
        text != "LOCAL_RANK" for text, _ in entry.strings
    )


def without_library(running: list[Source]) -> list[Source]:
    """Return the files that run, without those of the library whose repository this is, if the entry is one of its examples.

    A library has code for many cases, most of which no example meets; and it is not its user who would correct it.
    """
    top = f"{running[0].path.partition('/')[0]}/"
    return [source for source in running if source.path.startswith(top)] if top.rstrip("/") in EXAMPLES else running


PARAMETER_SERVER_MODES = frozenset({"ksync", "adaptive_ksync", "kasync", "adaptive_kasync", "asp"})


def launcher_of(running: list[Source]) -> tuple[str, bool]:
    """Return the launcher that the code is written for, and whether its GPUs may change while it runs."""
    modules = {name for source in running for name in source.all_imports}
    dotted = {name for source in running for name in source.dotted}
    if f"{LIBRARY}.Run" in dotted:  # runs with both launchers; modes with a parameter server need torchrun
        served = any(text in PARAMETER_SERVER_MODES for source in running for text, _ in source.strings)
        return "torchrun" if served else "horovod", any("elastic" in source.names for source in running)
    if any(name == "horovod" or name.startswith("horovod.") for name in modules):
        elastic = any(re.fullmatch(r"horovod\.(.+\.)?elastic\.run", name) for name in dotted)
        elastic = elastic or f"{LIBRARY}.keras.Training" in dotted
        return "horovod", elastic
    torch_distributed = re.compile(
        r"torch\.distributed(\..*)?|torch\.nn\.parallel\.(distributed\.)?DistributedDataParallel"
    )
    if starts_ranks(running[0]):
        return "command", False
    if any(torch_distributed.fullmatch(name) for name in modules | dotted):
        own = {name for source in without_library(running) for name in source.dotted}
        # it handles a stop and restarts from a checkpoint
        return "torchrun", own >= {"signal.SIGTERM", "torch.save", "torch.load"}
    return "command", False


def needs_package(source: Source) -> bool:
    """Return whether a file has relative imports, with which it runs only as a module of its package."""
    return any(module.startswith(".") for module in source.needed_imports)


@dataclass(slots=True)
class ExternalModules:
    """The modules that an environment must provide."""

    places: dict[str, list[Any]] = field(default_factory=dict)
    """Each with file and line: {"torch": ["train.py", 3]}."""
    in_functions: list[str] = field(default_factory=list)
    """Those that are imported only inside functions."""


def external_modules(running: list[Source], sources: dict[str, Source]) -> ExternalModules:
    found = ExternalModules()
    for source in running:
        for module, line in source.imports.items():
            if _is_external(module, source, sources):
                found.places.setdefault(module.split(".")[0], [source.path, line])
    for source in running:
        for module, line in source.lazy.items():
            top = module.split(".")[0]
            if top not in found.places and _is_external(module, source, sources):
                found.places[top] = [source.path, line]
                found.in_functions.append(top)
    return found


def _is_external(module: str, source: Source, sources: dict[str, Source]) -> bool:
    """Return whether an import needs a package of the environment: not Python's own, not a file of the upload."""
    top = module.split(".")[0]
    if module.startswith(".") or is_standard(module) or top == LIBRARY:
        return False
    if module in source.optional:  # the file goes on without it, as a converted notebook does without IPython
        return False
    ours = any(path in sources for path in module_paths(top, source.path))
    places = (f"{top}/", f"{SOURCE_FOLDER}/{top}/", f"{PurePosixPath(source.path).parent}/{top}/")
    folder = any(path.startswith(places) for path in sources)
    return top in COMPILED or not (ours or folder)


def required_packages(requirements: str) -> list[str]:
    names = (re.match(r"[A-Za-z0-9][A-Za-z0-9._-]*", line.strip()) for line in requirements.splitlines())
    return sorted({match[0].lower().replace("_", "-") for match in names if match})[:200]


def warnings_of(code: Code) -> list[dict[str, Any]]:
    found = []
    judged = {source.path for source in without_library(code.sources)}
    for name, rule in RULES.items():
        seen: set[tuple[str, int]] = set()
        for source, line, text in rule(code):
            if source.path in judged and (source.path, line) not in seen and len(seen) < MAX_WARNINGS_PER_RULE:
                seen.add((source.path, line))
                found.append({"code": name, "path": source.path, "line": line, "text": text})
    return found[:MAX_WARNINGS]


def started_as(texts: dict[str, str], paths: Collection[str], launcher: str, entry: str) -> LaunchLine | None:
    """Return the line of a script or README that starts the entry with another launcher, or else the only program that any starts."""
    lines = [line for line in commands.launch_lines(texts, launcher) if file_of(line.translation.entry, paths)]
    of_entry = [line for line in lines if file_of(line.translation.entry, paths) == entry]
    others = lines if len({line.translation.entry for line in lines}) == 1 else []
    return next(iter(of_entry or others), None)


def line_found(found: LaunchLine) -> dict[str, Any]:
    """Return the note that the launcher and the entry are those of a line, with what it has beyond them."""
    line = found.translation
    more = [f"the arguments {shlex.join(line.arguments)}"] if line.arguments else []
    more += [f"the environment variable {name}={text}" for name, text in line.env_vars.items()]
    more += [f"{line.max_ranks} GPUs"] if line.max_ranks and line.max_ranks > 1 else []
    text = f"The launcher and the file are those of this line of {line.tool}."
    text += f" Enter what else it has: {', '.join(more)}." if more else ""
    text += " If you type the line as a plain command, the form for a new job offers all its values."
    return {"code": "started-with", "path": found.path, "line": found.number, "text": text[:1000]}


def nothing_to_run(paths: Collection[str]) -> dict[str, Any]:
    """Return the warning about an upload in which nothing that could be started was found, or nothing that certainly is."""
    notebook = next((path for path in paths if path.endswith(".ipynb")), None)
    script = min((path for path in paths if path.endswith(".sh") and "/" not in path), default=None)
    if script is not None:
        text = (
            "It is not certain which shell script starts your program. Enter the command line that does, such as "
            f"{commands.of_script(script)[:100]}."
        )
    elif notebook is None:
        text = (
            "There is no Python file, shell script or Makefile at the top of the upload. Enter the command line that starts "
            "your program."
        )
    else:
        text = (
            "There is no Python file in the upload, so there is nothing to run. Upload the notebook "
            f"“{notebook[:80]}” on its own; it is then converted to a script."
        )
    return {"code": "nothing-to-run", "path": "", "line": 0, "text": text}


def inspect(tar: IO[bytes]) -> dict[str, Any]:
    upload = read_upload(tar)
    paths, texts = upload.paths, upload.texts
    sources = {path: read(path, content) for path, content in upload.files.items()}
    guess: dict[str, Any] = {
        "entry": "", "command": "", "candidates": [], "launcher": "command", "elastic": False, "imports": {},
        "requirements": required_packages(upload.lists.text("requirements.txt")), "warnings": [],
        "package_lists": [as_json(found) for found in read_lists(paths, upload.lists.contents)],
    }  # fmt: skip
    if not sources:
        script = commands.shell_script(texts, ())
        command = commands.of_script(script) if script else commands.make_command(texts)
        warnings = list(commands.activations(script, texts[script])) if script else []
        return guess | {"command": command, "warnings": warnings if command else [nothing_to_run(paths)]}
    order = candidates(sources)
    running = [sources[path] for path in reachable(order[0], sources)]
    launcher, elastic = launcher_of(running)
    line = None if starts_ranks(running[0]) else started_as(texts, sources, launcher, order[0])
    if line is not None:
        path = str(file_of(line.translation.entry, sources))
        order = [path, *(other for other in order if other != path)]
        running = [sources[path] for path in reachable(path, sources)]
    entry = running[0]
    command, warnings = "", warnings_of(Code(running, launcher, elastic, frozenset(paths)))
    module = as_module(entry.path) if needs_package(entry) else None
    if line is not None:
        launcher, module = line.translation.launcher, module_of(line.translation.entry) or module
        warnings = [line_found(line), *warnings][:MAX_WARNINGS]
    script = commands.shell_script(texts, sources, entry.path)
    if launcher == "command" and script:
        command = commands.of_script(script)
        warnings = [*commands.activations(script, texts[script]), *warnings][:MAX_WARNINGS]
    elif launcher == "command" and not needs_package(entry) and commands.starts_in_its_folder(entry, running, paths):
        command = commands.in_folder(entry.path)
    external = external_modules(running, sources)
    return guess | {
        "entry": order[0],
        "command": command,
        "module": module,
        "candidates": order[:MAX_CANDIDATES],
        "launcher": launcher,
        "elastic": elastic,
        "imports": external.places,
        "in_functions": sorted(external.in_functions),
        "one_gpu": uses_one_gpu(sources.values()),
        "warnings": warnings,
    }


if __name__ == "__main__":
    json.dump(inspect(sys.stdin.buffer), sys.stdout)
