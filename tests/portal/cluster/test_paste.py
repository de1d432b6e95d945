"""The pasted line, for real: a shell, a portal behind a certificate that no authority signed, and an agent that joins."""

import os
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from portal.cluster import agent_package, services
from portal.cluster.models import Node
from tests.cluster.authority import make_authority

pytestmark = pytest.mark.django_db(transaction=True)


class TlsProxy:
    """Passes on what comes over TLS. Its certificate is for another address, and its authority is unknown."""

    def __init__(self, folder: Path, behind: str) -> None:
        _, cert, key = make_authority(folder, ["192.0.2.1"])
        host, _, port = behind.removeprefix("http://").partition(":")
        self._behind = (host, int(port))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(cert, key)
        self._context = context
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"https://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                caller, _ = self._listener.accept()
                threading.Thread(target=self._carry, args=(caller,), daemon=True).start()

    def _carry(self, caller: socket.socket) -> None:
        with suppress(OSError):
            secure = self._context.wrap_socket(caller, server_side=True)
            portal = socket.create_connection(self._behind)
            threading.Thread(target=_pump, args=(secure, portal), daemon=True).start()
            _pump(portal, secure)

    def close(self) -> None:
        self._listener.close()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while piece := source.recv(65_536):
            sink.sendall(piece)
    for end in (sink, source):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)  # also wakes the other direction's thread, which a close would not


@pytest.fixture
def portal(live_server: Any, tmp_path: Path) -> Iterator[TlsProxy]:
    proxy = TlsProxy(tmp_path, live_server.url)
    yield proxy
    proxy.close()


def paste(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """In a shell that knows nothing of this one. Its environment of packages is ours, so that pip has nothing to fetch."""
    python = folder / "program" / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True, exist_ok=True)
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    places = {"SCHEDULEARN_AGENT_PREFIX": "program", "AGENT_HOME": "state", "SCHEDULEARN_CACHE": "cache", "HOME": "."}
    env = {name: str(folder / place) for name, place in places.items()}
    env |= {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "RUNTIME": "fake", "NODE_NAME": "new-one"}
    return subprocess.run(["bash", "-c", line], env=env, cwd=folder, capture_output=True, text=True, timeout=120)


def test_the_pasted_line_makes_a_machine_a_node_of_the_pinned_portal(portal: TlsProxy, tmp_path: Path) -> None:
    certificate = agent_package.check_certificate(portal.url)
    assert not certificate.trusted and len(certificate.pin) == 64
    token = services.issue_join_token(None)
    done = paste(agent_package.join_command(portal.url, token, certificate), tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"This machine is node {Node.objects.get().pk} (new-one)" in done.stdout
    kept = tmp_path / "program" / "agent.env"
    assert kept.stat().st_mode & 0o777 == 0o600 and f"SCHEDULEARN_PIN={certificate.pin}" in kept.read_text()
    assert token not in kept.read_text()
    # Pasted again it brings the agent and keeps the node, though its token is used up.
    again = paste(agent_package.join_command(portal.url, token, certificate), tmp_path)
    assert again.returncode == 0, again.stdout + again.stderr
    assert Node.objects.count() == 1


def test_a_portal_with_another_certificate_gets_no_token(portal: TlsProxy, tmp_path: Path) -> None:
    other = agent_package.Certificate(False, "ab" * 32)
    done = paste(agent_package.join_command(portal.url, services.issue_join_token(None), other), tmp_path)
    assert done.returncode != 0 and "another certificate" in done.stderr
    assert not Node.objects.exists()


def test_a_script_that_is_not_the_announced_one_does_not_run(portal: TlsProxy, tmp_path: Path) -> None:
    line = agent_package.join_command(portal.url, services.issue_join_token(None), agent_package.Certificate(False))
    done = paste(line.replace(agent_package.script_sha256(), "0" * 64), tmp_path)
    assert done.returncode != 0 and done.stdout == ""
    assert not (tmp_path / "state").exists()
