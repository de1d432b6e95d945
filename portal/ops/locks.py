"""Locks the versions and the hashes of all packages, direct and transitive (``make lock``).

Developers edit ``requirements.txt``, ``requirements-docs.txt``, which includes it, and ``requirements-dev.txt``, which includes
both; installations read the lock files made from them. A lock file is valid for Python 3.11 and newer on every platform, and
names no package index: hashes identify the files wherever they come from. Versions that are locked already stay unless a
source requires another one or ``--upgrade`` is given.
"""

import argparse
import logging
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from portal.cluster import agent_package
from runners.environments import pip_settings
from runners.environments.installing import Uv, uv_program
from runners.environments.preparing import ProgramError, read_tail

ROOT = Path(__file__).resolve().parents[2]
OLDEST_PYTHON = "3.11"
LOCAL_ONLY = frozenset({"find-links", "constraint", "no-index", "no-binary", "only-binary", "pre", "require-hashes"})
"""Options of the local pip that would lock files which other machines cannot fetch or do not want."""
HEADER = "# Made by `make lock` from {source}. Edit that file instead.\n"
PORTAL_LOCK = "requirements.lock"


@dataclass(frozen=True, slots=True)
class Lock:
    """A lock file and what it is made from, relative to the repository."""

    path: str
    source: str
    requirements: str
    """The text of the source, with whatever it includes."""


def locks(root: Path) -> tuple[Lock, ...]:
    """Return every lock file; the portal's is first, because the versions of the others follow it."""
    portal = (root / "requirements.txt").read_text()
    docs = (root / "requirements-docs.txt").read_text().replace("-r requirements.txt\n", portal)
    tests = (root / "requirements-dev.txt").read_text().replace("-r requirements-docs.txt\n", docs)
    agent = agent_package.requirements(root)
    return (
        Lock(PORTAL_LOCK, "requirements.txt", portal),
        Lock("requirements-docs.lock", "requirements-docs.txt", docs),
        Lock("requirements-dev.lock", "requirements-dev.txt", tests),
        Lock(agent_package.LOCK, "requirements.txt (the packages of the agent)", agent),
    )


def find_locking_uv() -> Uv:
    """Return uv with the package indexes that pip is configured with, and nothing else of that configuration."""
    program = uv_program()
    if program is None:
        raise ProgramError("error: uv is not installed beside this Python; make lock needs it")
    config = {name: value for name, value in pip_settings.read().items() if name not in LOCAL_ONLY}
    return Uv(program, pip_settings.translate(config))


def write(lock: Lock, root: Path, uv: Uv, log: Path, upgrade: bool) -> None:
    """Resolve one lock file for all platforms and replace it. Raises ProgramError."""
    with tempfile.TemporaryDirectory(prefix="schedulearn-lock-") as folder:
        source, made = Path(folder) / "requirements.txt", Path(folder) / "requirements.lock"
        source.write_text(lock.requirements)
        options = ["--universal", "--python-version", OLDEST_PYTHON, "--python", sys.executable]
        options += ["--generate-hashes", "--no-header", "--no-annotate", "--quiet", "--output-file", str(made)]
        if (root / lock.path).exists() and not upgrade:
            made.write_text((root / lock.path).read_text())  # uv prefers the versions it finds in its output file
        if lock.path != PORTAL_LOCK:
            options += ["--constraint", str(root / PORTAL_LOCK)]
        uv.pip("compile", *options, source, log=log)
        (root / lock.path).write_text(HEADER.format(source=lock.source) + made.read_text())


def main(words: Sequence[str]) -> int:
    parsing = argparse.ArgumentParser(prog="make lock", description=__doc__.partition("\n")[0])
    parsing.add_argument("--upgrade", action="store_true", help="take the newest transitive versions")
    given = parsing.parse_args(words)
    with tempfile.NamedTemporaryFile(prefix="schedulearn-lock-", suffix=".log") as output:
        log = Path(output.name)
        try:
            uv = find_locking_uv()
            for lock in locks(ROOT):
                write(lock, ROOT, uv, log, given.upgrade)
                sys.stdout.write(f"{lock.path} is locked.\n")
        except ProgramError as error:
            sys.stderr.write(f"Locking the packages failed.\n{read_tail(log) or error}\n")
            return 1
        except pip_settings.UntranslatableError as error:
            sys.stderr.write(
                f"pip is configured with {error}, which uv does not support. Unset it, then run make lock.\n"
            )
            return 1
    return 0


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    sys.exit(main(sys.argv[1:]))
