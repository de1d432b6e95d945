"""The folders, the network and the log of one build, and how its commands run."""

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from runners.environments import pip_settings
from runners.environments.installing import Tick, report_nothing
from runners.environments.layers.base import Base, require_uv
from runners.environments.layers.indexes import IndexAccess, find_access
from runners.environments.layers.recipe import Recipe
from runners.environments.layers.sandbox import Command
from runners.environments.pip_settings import UvSettings
from runners.environments.preparing import PrepareError, ProgramError, temporary_folder
from runners.host.egress import Connection, EgressProxy
from runners.messages.environment_failures import SystemRefused

HEAD_OUTPUT_BYTES = 64 * 1024
TAIL_OUTPUT_BYTES = 256 * 1024
"""How much of the beginning and of the end of a command's output is searched for the cause of its failure: uv names the
package whose build failed before all that this build printed."""
SCRIPTS = Path(__file__).parent
NETWORK_MARK = "network: "
MAX_TROUBLES = 100


@dataclass
class Workshop:
    """One build. ``inputs`` has what we wrote, and is read by the sandbox; ``work`` is where it writes."""

    base: Base
    recipe: Recipe
    access: IndexAccess
    inputs: Path
    work: Path
    log: Path
    uv: str
    socket: Path
    """Of the proxy."""
    troubles: list[Connection] = field(default_factory=list)
    """Connections of the last command that were refused or failed."""

    def run(
        self,
        argv: Sequence[str | Path],
        *,
        online: bool = False,
        env: Mapping[str, str] | None = None,
        tick: Tick = report_nothing,
        seconds: float = 600,
    ) -> None:
        """Run a command in the sandbox. Raises ProgramError with its output, PrepareError when a limit stops it."""
        start = self.log.stat().st_size if self.log.exists() else 0
        self.troubles.clear()
        try:
            self.base.sandbox.run(
                Command(
                    tuple(argv),
                    self.work,
                    self.log,
                    env or {},
                    socket=self.socket if online else None,
                    read_only=(self.inputs, SCRIPTS, Path(self.uv), *(self.access.folders if online else ())),
                    tick=tick,
                    seconds=seconds,
                )
            )
        except ProgramError as error:
            raise ProgramError(self.output_since(start) or error.tail) from error

    def run_uv(
        self,
        *argv: str | Path,
        variables: Mapping[str, str] | None = None,
        tick: Tick = report_nothing,
        seconds: float = 3600,
    ) -> None:
        """Run ``uv pip ...`` with the settings of this machine's pip and the network. Its cache ends with the build, as
        what one build has left in a cache must not get into another."""
        settings = UvSettings((), {**self.access.variables, **(variables or {})})
        changes = pip_settings.environment(settings, self.work / "cache")
        env = {name: value for name, value in changes.items() if value is not None}
        env |= {"UV_CACHE_DIR": str(self.work / "cache"), "UV_NO_PROGRESS": "1", "UV_LINK_MODE": "hardlink"}
        self.run([self.uv, "pip", *argv], online=True, env=env, tick=tick, seconds=seconds)

    def apart(self, name: str) -> "Workshop":
        """Return the same build with another folder to write to, where no package that is built from source has left anything."""
        work = self.work.with_name(name)
        work.mkdir(exist_ok=True)
        return replace(self, work=work)

    def run_script(self, name: str, *argv: str | Path, path: Path | None = None) -> None:
        """Run a script of this package with the interpreter of the base, without a network. ``path``: for PYTHONPATH."""
        env = {"PYTHONPATH": str(path)} if path else {}
        isolated = [] if path else ["-I"]
        self.run([self.base.python, *isolated, SCRIPTS / name, *argv], env=env)

    def note(self, text: str) -> None:
        """Write a line to the build's log, from any thread: one write to the end of a file is not divided."""
        log = os.open(self.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(log, f"{text}\n".encode())
        finally:
            os.close(log)

    def output_since(self, start: int) -> str:
        """Return what was printed since then, without the middle of a long output and the lines of the proxy."""
        with self.log.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(start)
            content = file.read(HEAD_OUTPUT_BYTES)
            if end - start > HEAD_OUTPUT_BYTES + TAIL_OUTPUT_BYTES:
                content += b"\n"
                file.seek(end - TAIL_OUTPUT_BYTES)
            content += file.read(TAIL_OUTPUT_BYTES)
        text = content.decode(errors="replace")
        return "".join(line for line in text.splitlines(keepends=True) if not line.startswith(NETWORK_MARK))

    def record(self, connection: Connection) -> None:
        """Note a connection of the proxy in the log, from one of its threads."""
        if (connection.refusal or connection.error) and len(self.troubles) < MAX_TROUBLES:
            self.troubles.append(connection)
        self.note(f"{NETWORK_MARK}{connection.text}")


@contextmanager
def workshop(recipe: Recipe, base: Base, log: Path, home: Path) -> Iterator[Workshop]:
    """Make the folders and the proxy of a build in ``home``, and remove them at its end. Raises PrepareError."""
    uv = require_uv()
    log.parent.mkdir(parents=True, exist_ok=True)
    try:
        with temporary_folder(home, ".build-") as top, socket_folder() as sockets:
            top.chmod(0o755)
            inputs, work = top / "inputs", top / "work"
            inputs.mkdir()
            work.mkdir()
            access = find_access(recipe, inputs)
            made = Workshop(base, recipe, access, inputs, work, log, uv, sockets / "proxy")
            with EgressProxy(made.socket, access.rules, made.record, access.upstream):
                yield made
    except OSError as error:
        raise PrepareError(SystemRefused(str(error))) from error


@contextmanager
def socket_folder() -> Iterator[Path]:
    """Make a folder with a short path, because the path of a socket has 107 characters at most. Only its owner may enter."""
    folder = Path(tempfile.mkdtemp(prefix="schedulearn-egress-", dir="/tmp"))  # noqa: S108  mode 0700
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
