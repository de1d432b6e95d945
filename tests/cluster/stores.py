"""PostgreSQL and Redis that a test may stop, kill and start again on the same port with the same data."""

import os
import shutil
import signal
import subprocess
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg2

from tests.cluster.machines import DIE_WITH_US
from tests.servers import free_port, postgres_bin, unprivileged, wait_for_port


class Store(ABC):
    """One server. ``kill`` is kill -9 of all of it, ``freeze`` makes it hold its breath."""

    url = ""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def argv(self) -> list[str]: ...

    def who(self) -> dict[str, object]:
        return {}

    def start(self) -> None:
        quiet = subprocess.DEVNULL
        self.process = subprocess.Popen(  # type: ignore[call-overload]
            [*DIE_WITH_US, *self.argv()],
            cwd=self.folder,
            stdout=quiet,
            stderr=quiet,
            start_new_session=True,
            **self.who(),
        )
        assert self.process is not None
        wait_for_port(self.port, self.process)

    def stop(self, signum: int = signal.SIGTERM) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signum)
            self.process.wait(60)

    def kill(self) -> None:
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(30)

    def freeze(self) -> None:
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGCONT)


class Postgres(Store):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.url = f"postgres://schedulearn@127.0.0.1:{self.port}/schedulearn"
        if who := unprivileged():
            os.chown(folder, who["user"], who["group"])
        made = ["initdb", "-D", f"{folder}/data", "-U", "schedulearn", "--auth=trust", "-E", "UTF8", "--no-sync"]
        self._once(*made)
        self.start()
        self._once("createdb", "-h", "127.0.0.1", "-p", str(self.port), "-U", "schedulearn", "schedulearn")

    def _once(self, program: str, *args: str) -> None:
        quiet = subprocess.DEVNULL
        subprocess.run(  # type: ignore[call-overload]
            [postgres_bin() / program, *args], cwd=self.folder, check=True, stdout=quiet, stderr=quiet, **self.who()
        )

    def who(self) -> dict[str, object]:
        return unprivileged()

    def argv(self) -> list[str]:
        settings = [f"port={self.port}", "listen_addresses=127.0.0.1", f"unix_socket_directories={self.folder}"]
        settings += ["fsync=off", "max_connections=200"]
        options = [part for each in settings for part in ("-c", each)]
        return [str(postgres_bin() / "postgres"), "-D", f"{self.folder}/data", *options]

    def start(self) -> None:
        """A server that was killed may have left its lock file, and children that end on their own."""
        (self.folder / "data" / "postmaster.pid").unlink(missing_ok=True)
        super().start()
        ready = [str(postgres_bin() / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        while subprocess.run(ready, check=False, timeout=30).returncode:  # it recovers first
            assert self.process is not None and self.process.poll() is None, "PostgreSQL ended while it recovered"

    def depose(self) -> None:
        """Ends the session that holds the leader's lock, as a fail-over or an impatient firewall would."""
        with closing(psycopg2.connect(self.url)) as link, link, link.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted")

    def epoch(self) -> int:
        """Return the epoch of the scheduler that leads or led last; -1 while the database does not answer."""
        try:
            with closing(psycopg2.connect(self.url, connect_timeout=5)) as link, link.cursor() as cursor:
                cursor.execute("SELECT max(epoch) FROM control_leader")
                (epoch,) = cursor.fetchone()
        except psycopg2.Error:
            return -1
        return epoch or 0


class Redis(Store):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.start()

    def argv(self) -> list[str]:
        program = shutil.which("redis-server")
        assert program, "apt-get install redis-server"
        return [program, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder), "--save", ""]


@contextmanager
def stores() -> Iterator[tuple[Postgres, Redis]]:
    """In folders of their own: PostgreSQL runs as a user who may not enter everybody's."""
    started: list[Store] = []
    with (
        tempfile.TemporaryDirectory(prefix="sl-pg-") as first,
        tempfile.TemporaryDirectory(prefix="sl-redis-") as second,
    ):
        try:
            postgres = Postgres(Path(first))
            started.append(postgres)
            redis = Redis(Path(second))
            started.append(redis)
            yield postgres, redis
        finally:
            for store in started:
                if store.process is not None and store.process.poll() is None:
                    store.kill()
