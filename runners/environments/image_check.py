"""What jobs need of an image, and what an image has: a script of ours that runs in it, confined as a job."""

import json
import re
from dataclasses import dataclass
from typing import Any

from runners.environments.preparing import PrepareError
from runners.messages.image_failures import DoesNotStart, HasVolumes, NoPython, PythonTooOld

OLDEST_PYTHON = (3, 10)
"""Of what starts jobs; tests/architecture/test_oldest_python.py checks it."""
MARK = "schedulearn-image "
"""At the beginning of each line of ours: a python may print something else first."""
FOUND = "schedulearn-python "
"""Before the facts of an interpreter, which may not start."""
MODULE = re.compile(r"[A-Za-z_]\w{0,99}", re.ASCII)
MAX_MODULES = 5000

# Runs in any Python, also in version 2.
_FACTS = """
import json, platform, sys
try:
    import pkgutil
    names = set(each[1] for each in pkgutil.iter_modules())
except Exception:
    names = set()
names -= set(getattr(sys, "stdlib_module_names", ())) | set(sys.builtin_module_names)
facts = {"version": list(sys.version_info[:3]), "libc": list(platform.libc_ver()), "modules": sorted(names)}
sys.stdout.write("schedulearn-image " + json.dumps({"name": sys.argv[1], "facts": facts}) + chr(10))
"""
FIND_PYTHONS = f"""
for name in python python3; do
    command -v "$name" >/dev/null 2>&1 && echo "{FOUND}$name" && "$name" -c '{_FACTS}' "$name"
done
exit 0
"""
"""A shell script that prints facts of the interpreters in PATH, each in a line of JSON."""
START = "import runners.launch.supervisor, runners.launch.driver; open('/tmp/probe', 'w').close(); print('ready')"
"""What a job begins with, in the folder of the launch package."""


@dataclass(frozen=True)
class ImageFacts:
    """What was found in an image."""

    python: str
    """``3.12.4``"""
    command: str
    """``python``, or ``python3`` if only that one is new enough."""
    libc: str
    """``glibc 2.36``; empty if unknown, such as musl in some versions of Python."""
    modules: tuple[str, ...]
    """Names that can be imported, without those of Python itself."""


def read_facts(image: str, output: str) -> ImageFacts:
    """Return the facts of the first interpreter that is new enough. Raises PrepareError."""
    found = [each for line in output.splitlines() if (each := _facts_of(line)) is not None]
    oldest = ".".join(map(str, OLDEST_PYTHON))
    if not found:
        rest = [line for line in output.splitlines() if not line.startswith(FOUND)]
        if len(rest) < len(output.splitlines()):
            raise does_not_start(image, "\n".join(rest))
        raise PrepareError(NoPython(image, oldest))
    for version, facts in found:
        if version >= OLDEST_PYTHON:
            return facts
    raise PrepareError(PythonTooOld(image, found[0][1].python, oldest))


def _facts_of(line: str) -> tuple[tuple[int, ...], ImageFacts] | None:
    """Read a line that the script printed; None for others. What an image prints is not trusted."""
    if not line.startswith(MARK):
        return None
    try:
        data: Any = json.loads(line.removeprefix(MARK))
        name, facts = data["name"], data["facts"]
        version = tuple(part for part in facts["version"] if type(part) is int)
        libc = " ".join(str(part)[:20] for part in facts["libc"] if part)
        modules = sorted({each for each in facts["modules"] if isinstance(each, str) and MODULE.fullmatch(each)})
    except (ValueError, LookupError, TypeError):
        return None
    if name not in ("python", "python3") or len(version) != 3:  # noqa: PLR2004
        return None
    return version, ImageFacts(".".join(map(str, version)), name, libc, tuple(modules[:MAX_MODULES]))


def refuse_volumes(image: str, config: dict[str, Any]) -> None:
    """Raise PrepareError for an image with volumes: the engine makes a writable folder for each, even under a read-only
    root file system, and nothing limits its size. Images made from it cannot undo that."""
    if volumes := config.get("Volumes"):
        raise PrepareError(HasVolumes(image, tuple(sorted(str(each)[:200] for each in volumes)[:10])))


def does_not_start(image: str, output: str) -> PrepareError:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return PrepareError(DoesNotStart(image, (lines or ["it ended without output"])[-1][:300]))
