"""Uploads through the real web process: flat memory, small temporary files, and kill -9 in the middle of a piece."""

import base64
import hashlib
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from portal.serving import __main__ as serving
from portal.storage import incoming
from tests.portal.homes import migrate
from tests.runners.launching import until

ROOT = Path(__file__).resolve().parents[3]
MIB = 1 << 20
PIECE = 8 * MIB
MOST_SECONDS = 120
"""For any step on a busy machine."""
MOST_GROWTH_KIB = 96 * 1024
SETUP = """
import django; django.setup()
from portal.accounts.models import ApiToken, User
from portal.storage import services
alice = User.objects.create(username="alice", password="!")
dataset = services.create(alice, {"name": "large"})
services.begin_version(alice, dataset)
print(dataset.pk, ApiToken.issue(alice, "test", scope="write")[1])
"""
CHECK = """
import django; django.setup()
from portal.storage import checking
from portal.storage.models import DatasetVersion
checking.run_queued()
version = DatasetVersion.objects.get()
print(version.state, version.files, version.size, version.why_refused)
"""


class Server:
    """A web process with its own home, which can be killed and started again."""

    def __init__(self, home: Path, scratch: Path) -> None:
        self.scratch = scratch
        self.env = {
            **{name: value for name, value in os.environ.items() if name not in ("DATABASE_URL", "REDIS_URL")},
            "SCHEDULEARN_HOME": str(home),
            "DJANGO_SETTINGS_MODULE": "portal.settings",
            "TMPDIR": str(scratch),
        }
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.dataset, token = self.run(SETUP).split()
        self.client = httpx.Client(
            base_url=f"http://127.0.0.1:{self.port}",
            headers={"Authorization": f"Bearer {token}", "Tus-Resumable": "1.0.0"},
            timeout=MOST_SECONDS,
            trust_env=False,
        )
        self.start()

    def run(self, program: str) -> str:
        command = [sys.executable, "-c", program]
        done = subprocess.run(command, cwd=ROOT, env=self.env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def start(self) -> None:
        command = [sys.executable, "-m", "portal.serving", "-e", f"tcp:{self.port}:interface=127.0.0.1"]
        self.process = subprocess.Popen(command, cwd=ROOT, env=self.env)
        until(self.answers, MOST_SECONDS)

    def answers(self) -> bool:
        assert self.process.poll() is None
        try:
            return self.client.get("/api/v1/me/").status_code == 200
        except httpx.TransportError:
            return False

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def peak_kib(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmHWM:\s+(\d+)", status)
        assert found
        return int(found[1])


@pytest.fixture
def server(django_db_setup: None, django_db_blocker: Any, tmp_path: Path) -> Iterator[Server]:
    home, scratch = tmp_path / "served", tmp_path / "scratch"
    home.mkdir(mode=0o700)
    scratch.mkdir()
    migrate(home, django_db_blocker)
    one = Server(home, scratch)
    yield one
    one.kill()


def begin(server: Server, length: int, sha256: str = "") -> str:
    about = {"path": "large.bin"} | ({"sha256": sha256} if sha256 else {})
    pairs = ",".join(f"{key} {base64.b64encode(value.encode()).decode()}" for key, value in about.items())
    headers = {"Upload-Length": str(length), "Upload-Metadata": pairs}
    created = server.client.post(f"/api/v1/datasets/{server.dataset}/versions/1/uploads/", headers=headers)
    assert created.status_code == 201, created.text
    return str(created.headers["Location"])


def send(server: Server, address: str, offset: int, data: bytes) -> httpx.Response:
    headers = {"Upload-Offset": str(offset), "Content-Type": "application/offset+octet-stream"}
    return server.client.patch(address, headers=headers, content=data)


def offset_of(server: Server, address: str) -> int:
    return int(server.client.head(address).headers["Upload-Offset"])


def break_off(server: Server, address: str, offset: int, data: bytes) -> None:
    """Send half of a piece, then kill the web process."""
    authorization = server.client.headers["Authorization"]
    head = (
        f"PATCH {address} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nAuthorization: {authorization}\r\n"
        f"Tus-Resumable: 1.0.0\r\nUpload-Offset: {offset}\r\nContent-Type: application/offset+octet-stream\r\n"
        f"Content-Length: {len(data)}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(head.encode() + data[: len(data) // 2])
        server.kill()


def piece(number: int, size: int = PIECE) -> bytes:
    """Return a piece that is cheap to make and like no other."""
    return hashlib.sha256(str(number).encode()).digest() * (size // 32)


def upload(server: Server, pieces: int, breaks: tuple[int, ...]) -> None:
    whole = hashlib.sha256()
    for number in range(pieces):
        whole.update(piece(number))
    address = begin(server, pieces * PIECE, whole.hexdigest())
    largest = before = 0
    for number in range(pieces):
        if number in breaks:
            break_off(server, address, number * PIECE, piece(number))
            server.start()
            assert offset_of(server, address) == number * PIECE
        if number == 1:
            before = server.peak_kib()
        answer = send(server, address, number * PIECE, piece(number))
        assert answer.status_code == 204, answer.text
        largest = max(largest, sum(path.stat().st_size for path in server.scratch.rglob("*") if path.is_file()))
    if not breaks:
        assert server.peak_kib() - before < MOST_GROWTH_KIB
    assert largest <= 4 * PIECE
    assert server.client.post(f"/api/v1/datasets/{server.dataset}/versions/1/finish/").status_code == 200
    assert server.run(CHECK) == f"ready 1 {pieces * PIECE}"


@pytest.mark.django_db  # pytest-django makes the database that ``migrate`` copies only for tests with this mark
def test_requests_and_pieces_have_one_limit() -> None:
    for path in (b"/api/v1/uploads/1/", b"/api/v1/datasets/1/versions/2/uploads/"):
        assert serving.max_body_bytes(path) == incoming.MAX_PIECE_BYTES
    assert serving.max_body_bytes(b"/api/v1/datasets/1/versions/2/") > incoming.MAX_PIECE_BYTES


@pytest.mark.timeout(600)
def test_a_web_process_that_is_killed_costs_one_piece(server: Server) -> None:
    upload(server, 4, (2,))


@pytest.mark.timeout(600)
def test_a_piece_beyond_the_limit_is_refused_and_not_kept_in_memory(server: Server) -> None:
    address = begin(server, 64 * MIB)
    before = server.peak_kib()
    assert send(server, address, 0, bytes(40 * MIB)).status_code == 413
    assert server.peak_kib() - before < 32 * 1024
    assert offset_of(server, address) == 0


@pytest.mark.thorough
@pytest.mark.timeout(3600)
def test_two_gigabytes_arrive_whole_though_the_web_process_is_killed_three_times(server: Server) -> None:
    upload(server, 256, (50, 120, 200))


@pytest.mark.thorough
@pytest.mark.timeout(3600)
def test_memory_stays_flat_over_two_gigabytes(server: Server) -> None:
    upload(server, 256, ())
