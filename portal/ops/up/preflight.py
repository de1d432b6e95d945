"""Checks of ``manage.py up`` at its start. ``make run`` has checked more before (``portal.ops.prerequisites``)."""

import fcntl
import socket
from pathlib import Path
from typing import IO

from portal.ops.prerequisites import HOME_MIB, Finding, port_findings, space_findings

CONNECT_SECONDS = 0.5
ANSWER_SECONDS = 5.0
"""Connections are accepted before the web process is ready, and it warns about each request that is aborted then."""
ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104
"""The address at which to reach a server that listens on all addresses."""


class AlreadyRunningError(Exception):
    """Another ``manage.py up`` holds the lock of this home."""


def lock_home(home: Path) -> IO[str]:
    """Lock the home for one ``manage.py up``, as long as the returned file is open. Raises AlreadyRunningError."""
    file = (home / "up.lock").open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise AlreadyRunningError from error
    return file


def findings(home: Path, host: str, port: int) -> list[Finding]:
    """Return what keeps it from starting."""
    space = space_findings(home, HOME_MIB, "Schedulearn's data", "SCHEDULEARN_HOME=FOLDER")
    return [*port_findings(host, str(port)), *space]


def listen(host: str, port: int) -> socket.socket:
    """Listen at the portal's address. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=512, dualstack_ipv6=host == "::")


def portal_responds(host: str, port: int) -> bool:
    """Return whether the web process answers."""
    request = b"HEAD / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    try:
        with socket.create_connection((ANY_ADDRESS.get(host, host), port), CONNECT_SECONDS) as connection:
            connection.settimeout(ANSWER_SECONDS)
            connection.sendall(request)
            return connection.recv(1) != b""
    except OSError:
        return False
