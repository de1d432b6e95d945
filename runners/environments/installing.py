"""Resolves and installs pinned packages: with uv where it finds what pip would find, else with pip.

uv does not read pip's configuration, so that is translated for it (``pip_settings``). What uv refuses is tried again with
pip, whose messages then explain a failure. ``python -m runners.environments.installing LOG LOCK`` installs the portal's own
packages, with the hashes of a lock file, into the virtual environment whose python runs it (``make run``); before that, only
the standard library is available.
"""

import json
import logging
import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from subprocess import SubprocessError

from runners.environments import pip_settings
from runners.environments.pip_settings import UntranslatableError, UvSettings
from runners.environments.preparing import ProgramError, cache_home, read_tail, run
from runners.environments.targets import Target, cross_install_options

logger = logging.getLogger(__name__)

PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input")
ONLY_WHEELS = "--only-binary=:all:"
"""The option with which no code from a package index runs during an installation."""
RESOLVE_SECONDS = 600
Tick = Callable[[float, str], None]
"""(seconds so far, end of the output), called each second."""


def report_nothing(seconds: float, output: str) -> None:
    """Report nothing: for short steps."""


@dataclass(frozen=True, slots=True)
class Uv:
    """A uv program with settings that make it find what pip finds."""

    program: str
    settings: UvSettings

    def run(self, command: Sequence[str | Path], log: Path, tick: Tick = report_nothing, seconds: float = 3600) -> None:
        """``uv COMMAND`` with output to ``log``. Raises ProgramError."""
        variables = pip_settings.environment(self.settings, cache_home() / "uv")
        run([self.program, *command], log, tick, env=variables, seconds=seconds)

    def pip(
        self, command: str, *arguments: str | Path, log: Path, tick: Tick = report_nothing, seconds: float = 3600
    ) -> None:
        self.run(["pip", command, *self.settings.options, *arguments], log, tick, seconds)

    def install_locked(self, lock: Path, python: str, log: Path) -> None:
        """Install exactly the files of a lock file, known by their hashes. Raises ProgramError.

        pip's constraints do not apply: the lock has the versions, and uv refuses to combine hashes with version ranges.
        """
        variables = {name: value for name, value in self.settings.variables.items() if name != "UV_CONSTRAINT"}
        unconstrained = Uv(self.program, UvSettings(self.settings.options, variables))
        unconstrained.pip("install", "--python", python, "--require-hashes", "-r", lock, log=log)


def uv_program() -> str | None:
    """Return the path of the uv beside this python, else of the machine's."""
    beside = Path(sys.executable).with_name("uv")
    return str(beside) if beside.exists() else shutil.which("uv")


def find_uv(extra_index: str = "") -> Uv | None:
    """Return uv with its settings, None if it is not installed or cannot follow this machine's pip configuration."""
    if (program := uv_program()) is None:
        return None
    try:
        return Uv(program, pip_settings.translate(pip_settings.read(), extra_index))
    except UntranslatableError as error:
        logger.info("pip is configured with %s, which uv does not support: packages are installed with pip.", error)
    except (OSError, SubprocessError, ValueError, SyntaxError) as error:
        logger.info("pip's configuration cannot be read (%s): packages are installed with pip.", error)
    return None


# --- resolving ---------------------------------------------------------------------------------------------------------


def resolve(requirements: Sequence[str], target: Target, log: Path, extra_index: str = "") -> tuple[str, ...]:
    """Return the exact packages (``torch==2.13.0+cpu``) of an installation on ``target``; only their metadata is fetched.
    Raises ProgramError."""
    with tempfile.TemporaryDirectory(prefix="schedulearn-resolve-") as folder:
        wanted = Path(folder) / "requirements.txt"
        wanted.write_text("".join(f"{line}\n" for line in requirements))
        if (uv := find_uv(extra_index)) is not None:
            try:
                return _resolve_with_uv(uv, wanted, target, log)
            except ProgramError as error:
                logger.info("uv could not resolve the packages, pip is tried: %s", error.tail[-300:])
        return _resolve_with_pip(wanted, target, log, extra_index)


def _resolve_with_uv(uv: Uv, wanted: Path, target: Target, log: Path) -> tuple[str, ...]:
    found = wanted.with_name("found.txt")
    where: list[str] = ["--python", sys.executable]
    if cross_install_options(target):
        where += ["--python-version", target.python]
        where += ["--python-platform", f"{target.machine}-manylinux_{target.glibc[0]}_{target.glibc[1]}"]
    form = ["--quiet", "--no-header", "--no-annotate", ONLY_WHEELS, "--output-file", str(found)]
    uv.pip("compile", *form, *where, wanted, log=log, seconds=RESOLVE_SECONDS)
    return pins_in(found.read_text())


def pins_in(text: str) -> tuple[str, ...]:
    return tuple(line.split(" ")[0].strip() for line in text.splitlines() if re.match(r"[A-Za-z0-9].*==", line))


def _resolve_with_pip(wanted: Path, target: Target, log: Path, extra_index: str) -> tuple[str, ...]:
    report = wanted.with_name("report.json")
    ask = ["install", "--dry-run", "--ignore-installed", ONLY_WHEELS, "--quiet", "--report", str(report)]
    where = [*cross_install_options(target), "--target", str(wanted.parent)] if cross_install_options(target) else []
    run([*PIP, *ask, *where, *index_option(extra_index), "-r", wanted], log, seconds=RESOLVE_SECONDS)
    try:
        found = [entry["metadata"] for entry in json.loads(report.read_text())["install"]]
        return tuple(sorted(f"{normalise_name(each['name'])}=={each['version']}" for each in found))
    except (OSError, ValueError, LookupError) as error:
        raise ProgramError(f"error: pip's report cannot be read: {error!r}") from error


def normalise_name(name: str) -> str:
    """Return a package's name in the normalised form that all indexes use."""
    return re.sub(r"[-_.]+", "-", name).lower()


def index_option(extra_index: str) -> list[str]:
    return ["--extra-index-url", extra_index] if extra_index else []


# --- installing --------------------------------------------------------------------------------------------------------


def make_environment(folder: Path, packages: Sequence[str], log: Path, tick: Tick, extra_index: str = "") -> Path:
    """Make a virtual environment with exactly these packages and pip. Returns its python. Raises ProgramError."""
    if (uv := find_uv(extra_index)) is not None:
        try:
            return _environment_with_uv(uv, folder, packages, log, tick)
        except ProgramError as error:
            logger.info("uv could not install the packages, pip is tried: %s", error.tail[-300:])
            shutil.rmtree(folder, ignore_errors=True)
    python = folder / "bin" / "python"
    run([sys.executable, "-m", "venv", folder], log)
    pip = [str(python), *PIP[1:], "install", "--quiet", ONLY_WHEELS, *index_option(extra_index)]
    run([*pip, "--no-deps", *packages], log, tick)
    return python


def _environment_with_uv(uv: Uv, folder: Path, packages: Sequence[str], log: Path, tick: Tick) -> Path:
    python = folder / "bin" / "python"
    uv.run(["venv", "--quiet", "--no-project", "--no-config", "--python", sys.executable, folder], log)
    uv.pip("install", "--python", python, ONLY_WHEELS, "--no-deps", *packages, "pip", log=log, tick=tick)
    return python


def current_download(output: str) -> str:
    """Return what uv is downloading, from its output: ``torch (183 MiB)``; empty when the output has no such line."""
    sizes = dict(re.findall(r"Downloading (\S+) \(([\d.]+)MiB\)", output))
    waiting = {name: size for name, size in sizes.items() if f"Downloaded {name}" not in output}
    if not waiting:
        return ""
    largest = max(waiting, key=lambda name: float(waiting[name]))
    return f"{largest} ({float(waiting[largest]):.0f} MiB)"


# --- the portal's own packages -----------------------------------------------------------------------------------------


def lock_entry(lock: Path, package: str) -> str:
    """Return the entry of a package in a lock file, with its hashes; empty if there is none."""
    entry = re.search(rf"^{re.escape(package)}==.*(?:\n    --hash=.*)*", lock.read_text(), re.MULTILINE)
    return entry[0] if entry else ""


def install_here(lock: Path, log: Path) -> None:
    """Install a lock file into the environment of this python; files with other hashes are refused. Raises ProgramError."""
    log.unlink(missing_ok=True)
    with_pip = [*PIP, "install", "--quiet", "--require-hashes", "-r"]
    try:
        with tempfile.TemporaryDirectory(prefix="schedulearn-uv-") as folder:
            of_uv = Path(folder) / "uv.lock"
            of_uv.write_text(lock_entry(lock, "uv"))
            run([*with_pip, of_uv], log)
        if (uv := find_uv()) is not None:
            uv.install_locked(lock, sys.executable, log)
            return
    except ProgramError:
        pass  # if pip fails as well, it reports what is wrong
    run([*with_pip, lock], log)


def main(log: Path, lock: Path) -> int:
    try:
        if find_spec("pip") is None:  # an earlier start was killed while it made the virtual environment
            run([sys.executable, "-m", "ensurepip", "--upgrade"], log)
        install_here(lock, log)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except ProgramError:
        lines = read_tail(log).splitlines()[-15:]
        sys.stderr.write("\n".join(["Installing the packages failed. The end of the log:", "", *lines, ""]))
        sys.stderr.write(
            f"\nThe whole log is {log}. Check that pip reaches a package index (pip config list; pip download six), "
            "then run make again.\n"
        )
        return 1
    return 0


if __name__ == "__main__":
    for each in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(each) != signal.SIG_IGN:  # as nohup has it
            signal.signal(each, lambda number, _: sys.exit(128 + number))  # so that pip or uv ends too
    logging.basicConfig(level=os.environ.get("LOG_LEVEL") or "WARNING", format="%(message)s")
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
