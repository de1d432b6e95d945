"""Machines for tests: each a set of Linux namespaces (network, processes, mounts, name) with a Docker Engine of its own.

    with cluster(2, images=["python"]) as lan:
        one, two = lan.machines
        one.run("ip", "addr")                  a program inside, and its output
        one.docker("ps")                       the client, asked from outside
        program = one.spawn([...], log)        goes on; program.kill() is kill -9
        one.engine.kill(); one.engine.start()  the engine alone; containers live on (live-restore)
        one.unplug(); one.plug()               its cable
        one.power_off(); one.power_on()        everything in it dies at once; its disk stays

Each machine's first process reads a pipe that only the test holds: when the test dies, even by kill -9, the pipe
closes, the first process ends, and the kernel takes the whole machine with it: processes, mounts, interfaces. What
stays are folders, which the next run deletes. The cables meet in a namespace of their own (``Lan``), so nothing of the
host's firewall is touched; the host itself has one end, ``lan.address``.

Image layers are hard links to one store that is filled once (``images.py``), so a machine costs no copy.
"""

import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from runners.environments.preparing import cache_home
from tests.cluster.images import give_images, stocked
from tests.space import Space, children

READY_SECONDS = 60
PLACE = "machines"
"""Below the cache folder, where hard links to the store of images are possible."""

CGROUPS = Path("/sys/fs/cgroup")


DIE_WITH_US = ("setpriv", "--pdeathsig", "KILL", "--")
"""What to put before a command that runs on this host: the kernel kills it when the thread that started it is gone."""


def must(*argv: str | Path, seconds: float = 60) -> str:
    """What a program prints; AssertionError with its complaint when it fails."""
    done = subprocess.run(argv, capture_output=True, text=True, timeout=seconds, check=False)
    assert done.returncode == 0, f"{' '.join(map(str, argv))}: {done.stdout}{done.stderr}"
    return done.stdout


def alive(pid: int) -> bool:
    """Running, not merely unburied."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (OSError, IndexError):
        return False


def descendants(pid: int) -> list[int]:
    return [each for child in children(pid) for each in (child, *descendants(child))]


def kill_dead(pid: int) -> None:
    """kill -9 of whatever has this number on this host; gone already is well."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def until(what: str, true: Callable[[], bool], seconds: float = READY_SECONDS, every: float = 0.02) -> None:
    """Looks until ``true()``; AssertionError when the time is up."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"{what}: not within {seconds} s"
        time.sleep(every)


class Program:
    """One program inside a machine. Signals go to it, not to what entered the namespaces for it."""

    def __init__(self, entering: subprocess.Popen[bytes]) -> None:
        self._entering = entering
        found: list[int] = []

        def started() -> bool:
            found[:] = children(entering.pid)
            return bool(found) or entering.poll() is not None

        until(f"{entering.args!r} starts", started)
        self.pid = found[0] if found else 0

    def running(self) -> bool:
        return self._entering.poll() is None

    def signal(self, signum: int) -> None:
        if self.running() and self.pid:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signum)
            if signum in (signal.SIGKILL, signal.SIGCONT):
                self._entering.send_signal(signal.SIGCONT)  # it stops with what it waits for

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self._entering.wait(30)

    def terminate(self, seconds: float = 30) -> None:
        self.signal(signal.SIGTERM)
        try:
            self._entering.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()


class Engine:
    """The dockerd of one machine."""

    def __init__(self, machine: "Machine") -> None:
        self.machine = machine
        self.socket = machine.folder / "docker.sock"
        self.url = f"unix://{self.socket}"
        self.program: Program | None = None
        self.hooks: Path | None = None
        """A folder with what gives containers GPUs, for the next start."""

    def start(self) -> None:
        folder = self.machine.folder
        self.socket.unlink(missing_ok=True)
        (folder / "daemon.json").write_text("{}")  # this machine's own would be read otherwise
        argv = ["dockerd", f"--config-file={folder}/daemon.json", "--live-restore", "--bridge=none"]
        argv += [f"--host={self.url}", f"--data-root={folder}/engine"]
        argv += ["--exec-root=/run/docker", "--pidfile=/run/docker.pid", f"--cgroup-parent={self.machine.cgroup}"]
        path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
        if self.hooks is not None:
            argv.append(f"--add-runtime=nvidia={shutil.which('runc', path=path)}")
            path = f"{self.hooks}:{path}"
        self.program = self.machine.spawn(argv, folder / "dockerd.log", {**os.environ, "PATH": path})
        until(f"the engine of {self.machine.name} answers: see {folder}/dockerd.log", self.answers)

    def answers(self) -> bool:
        assert self.program is not None and self.program.running(), (
            f"dockerd ended: {(self.machine.folder / 'dockerd.log').read_text(errors='replace')[-1500:]}"
        )
        return self.machine.docker("version", check=False).returncode == 0

    def kill(self) -> None:
        """kill -9. Its containerd dies with it; a start before that is done would fail."""
        assert self.program is not None
        helpers = children(self.program.pid)
        self.program.kill()
        until("containerd is gone", lambda: not any(alive(pid) for pid in helpers))
        for stale in ("run/docker.pid", "run/docker/containerd/containerd.pid"):
            (self.machine.root / stale).unlink(missing_ok=True)

    def signal(self, signum: int) -> None:
        assert self.program is not None
        self.program.signal(signum)


class Machine:
    def __init__(self, lan: "Lan", number: int, images: Sequence[str]) -> None:
        self.lan = lan
        self.number = number
        self.name = f"n{number}"
        self.address = f"{lan.prefix}.{number + 1}"
        self.folder = lan.folder / self.name
        self.folder.mkdir()
        self.port = f"p{number}"
        """Its end of the cable in the lan's namespace."""
        self.cgroup = f"/{lan.mark}-{self.name}"
        give_images(images, self.folder / "engine")
        self.engine = Engine(self)
        self.space: Space | None = None

    @property
    def root(self) -> Path:
        """Its file system, seen from outside; other than ours below /run and /proc."""
        assert self.space is not None
        return Path(f"/proc/{self.space.pid}/root")

    def power_on(self) -> None:
        assert self.space is None
        kinds = ["--net", "--mount", "--uts", "--ipc", "--pid", "--mount-proc"]
        setup = f"mount -t tmpfs run /run && hostname {self.name} && ip link set lo up &&"
        self.space = Space(*kinds, setup=setup)
        cable = ["link", "add", self.port, "type", "veth", "peer", "name", "eth0", "netns", str(self.space.pid)]
        must(*self.lan.inside, "ip", *cable)
        must(*self.lan.inside, "ip", "link", "set", self.port, "master", "lan", "up")
        self.run("ip", "addr", "add", f"{self.address}/24", "dev", "eth0")
        self.run("ip", "link", "set", "eth0", "up")
        self.engine.start()

    def power_off(self) -> None:
        """As if the plug were pulled: no process gets to say a word, the disk stays as it is."""
        assert self.space is not None
        self.space.end()
        self.space = None
        until("its cable is gone", lambda: self.port not in must(*self.lan.inside, "ip", "link"))

    def unplug(self) -> None:
        must(*self.lan.inside, "ip", "link", "set", self.port, "down")

    def plug(self) -> None:
        must(*self.lan.inside, "ip", "link", "set", self.port, "up")

    def enter(self) -> list[str]:
        """What to put before a command to run it inside."""
        assert self.space is not None
        return self.space.enter("--net", "--mount", "--uts", "--ipc", "--pid")

    def run(self, *argv: str, seconds: float = 60) -> str:
        return must(*self.enter(), *argv, seconds=seconds)

    def spawn(
        self, argv: Sequence[str], log: Path, env: dict[str, str] | None = None, cwd: Path | None = None
    ) -> Program:
        """Goes on until it ends or is ended; what it prints is added to ``log``."""
        there = ["env", f"--chdir={cwd}"] if cwd else []  # entering leads to the machine's /
        with log.open("ab") as out:
            return Program(
                subprocess.Popen(
                    [*DIE_WITH_US, *self.enter(), *there, *argv],
                    env={**os.environ, "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"} if env is None else env,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    start_new_session=True,
                )
            )

    def docker(self, *args: str, check: bool = True, seconds: float = 60) -> subprocess.CompletedProcess[bytes]:
        argv = ["docker", "-H", self.engine.url, *args]
        return subprocess.run(argv, capture_output=True, check=check, timeout=seconds)

    def dispose(self) -> None:
        if self.space is not None:
            self.power_off()
        for top in CGROUPS.glob(f"*{self.cgroup}"):  # what died at once left its empty groups behind
            for group in sorted(top.rglob("*/"), reverse=True):
                with suppress(OSError):
                    group.rmdir()
            with suppress(OSError):
                top.rmdir()


class Lan:
    """What the cables of all machines meet in, and the host with them as ``address``."""

    def __init__(self, folder: Path, number: int, base_image: str = "") -> None:
        self.folder = folder
        self.base_image = base_image
        self.mark = f"slc{number}"
        """Begins the names of all that is visible on the host."""
        self.prefix = f"10.231.{number}"
        self.address = f"{self.prefix}.1"
        self.machines: list[Machine] = []
        self.space = Space("--net")
        self.inside = self.space.enter("--net")
        must(*self.inside, "ip", "link", "set", "lo", "up")
        must(*self.inside, "ip", "link", "add", "lan", "type", "bridge")
        must(*self.inside, "ip", "link", "set", "lan", "up")
        must("ip", "link", "add", self.mark, "type", "veth", "peer", "name", "host", "netns", str(self.space.pid))
        must(*self.inside, "ip", "link", "set", "host", "master", "lan", "up")
        must("ip", "addr", "add", f"{self.address}/24", "dev", self.mark)
        must("ip", "link", "set", self.mark, "up")

    def dispose(self) -> None:
        for machine in self.machines:
            machine.dispose()
        self.space.end()


@contextmanager
def claimed() -> Iterator[tuple[int, Path]]:
    """A number and a folder that no other run on this host has; folders of runs that died are deleted."""
    place = cache_home() / PLACE
    place.mkdir(parents=True, exist_ok=True)
    held: IO[str] | None = None
    for number in range(1, 250):
        lock = (place / f"{number}.lock").open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            continue
        for old in place.glob(f"{number}-*"):
            shutil.rmtree(old, ignore_errors=True)
        if held is None:
            held, mine = lock, number
        else:
            lock.close()
        if not (place / f"{number + 1}.lock").exists():
            break
    assert held is not None, f"all numbers are taken: see {place}"
    folder = Path(tempfile.mkdtemp(prefix=f"{mine}-", dir=place))
    folder.chmod(0o755)
    try:
        yield mine, folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        held.close()


@contextmanager
def cluster(count: int, images: Sequence[str] = ("python",)) -> Iterator[Lan]:
    """Machines with running engines that have the job images of these environments."""
    names = stocked(images)
    with claimed() as (number, folder):
        lan = Lan(folder, number, names[0])
        try:
            for index in range(1, count + 1):
                machine = Machine(lan, index, names)
                lan.machines.append(machine)
                machine.power_on()
            yield lan
        finally:
            lan.dispose()
