"""Private PostgreSQL and Redis servers for a test run: own folders, free ports, ended with the run.

They read no configuration of this machine. ``python -m tests.servers COMMAND ...`` runs a command with DATABASE_URL and
REDIS_URL set, and REDIS_URL_OF_GW1 for the second of two pytest workers.
"""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.programs import call
from tests.run.isolation import plain_environment

START_SECONDS = 30


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for_port(port: int, process: subprocess.Popen[bytes], seconds: float = START_SECONDS) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if process.poll() is not None:
            raise RuntimeError(f"{process.args!r} ended with {process.returncode} before it listened")
        try:
            socket.create_connection(("127.0.0.1", port), timeout=0.5).close()
            return
        except OSError:
            time.sleep(0.05)
    raise RuntimeError(f"{process.args!r} did not listen on port {port} within {seconds} s")


def stop(process: subprocess.Popen[bytes], signum: int = signal.SIGINT) -> None:
    if process.poll() is None:
        process.send_signal(signum)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def postgres_bin() -> Path:
    """Debian keeps the server's programs outside PATH."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    initdb = str(found[-1]) if found else shutil.which("initdb")
    if initdb is None:
        raise RuntimeError("PostgreSQL's server is not installed: apt-get install postgresql")
    return Path(initdb).parent


def unprivileged() -> dict[str, Any]:
    """PostgreSQL refuses to run as root; as root we run it as the user its package made."""
    if os.geteuid() != 0:
        return {}
    user = pwd.getpwnam("postgres")
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


@contextmanager
def postgres() -> Iterator[str]:
    """Yields the URL of a fresh cluster with a database ``schedulearn``."""
    programs, who, port = postgres_bin(), unprivileged(), free_port()
    with tempfile.TemporaryDirectory(prefix="sl-pg-") as folder:
        if who:
            os.chown(folder, who["user"], who["group"])
        data = Path(folder) / "data"
        run: dict[str, Any] = {"cwd": folder, "stdout": subprocess.DEVNULL, "env": plain_environment(os.environ), **who}
        subprocess.run(
            [
                programs / "initdb",
                "-D",
                data,
                "-U",
                "schedulearn",
                "--auth=trust",
                "-E",
                "UTF8",
                "--no-locale",
                "--no-sync",
            ],
            check=True,
            **run,
        )
        options = [
            "-c",
            f"port={port}",
            "-c",
            "listen_addresses=127.0.0.1",
            "-c",
            f"unix_socket_directories={folder}",
            "-c",
            "fsync=off",
        ]
        process = subprocess.Popen([programs / "postgres", "-D", data, *options], stderr=subprocess.DEVNULL, **run)
        try:
            wait_for_port(port, process)
            wait_until_ready(programs, folder, port)
            subprocess.run(
                [programs / "createdb", "-h", folder, "-p", str(port), "-U", "schedulearn", "schedulearn"],
                check=True,
                **run,
            )
            yield f"postgres://schedulearn@127.0.0.1:{port}/schedulearn"
        finally:
            stop(process)


def wait_until_ready(programs: Path, folder: str, port: int) -> None:
    """PostgreSQL listens before it accepts clients."""
    until = time.monotonic() + START_SECONDS
    ask = [str(programs / "pg_isready"), "-q", "-h", folder, "-p", str(port)]
    while subprocess.run(ask, check=False).returncode:
        if time.monotonic() > until:
            raise RuntimeError(f"PostgreSQL on port {port} did not accept clients within {START_SECONDS} s")
        time.sleep(0.05)


def analyse() -> None:
    """Gives PostgreSQL the statistics that autovacuum would have gathered by now, after many rows came at once."""
    from django.db import connection

    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE")


@contextmanager
def redis() -> Iterator[str]:
    program, port = shutil.which("redis-server"), free_port()
    if program is None:
        raise RuntimeError("Redis is not installed: apt-get install redis-server")
    with tempfile.TemporaryDirectory(prefix="sl-redis-") as folder:
        process = subprocess.Popen(
            [program, "--port", str(port), "--bind", "127.0.0.1", "--dir", folder, "--save", ""],
            stdout=subprocess.DEVNULL,
        )
        try:
            wait_for_port(port, process)
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            stop(process, signal.SIGTERM)


def main() -> int:
    with ExitStack() as stack:
        env = {
            **os.environ,
            "DATABASE_URL": stack.enter_context(postgres()),
            "REDIS_URL": stack.enter_context(redis()),
            "REDIS_URL_OF_GW1": stack.enter_context(redis()),  # published messages do not keep to a database
            "SECRET_KEY": "only-for-tests-and-longer-than-thirty-two-characters",
        }
        return call(sys.argv[1:], env=env)


if __name__ == "__main__":
    sys.exit(main())
