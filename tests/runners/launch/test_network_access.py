"""What ranks get of the hosts that an admin allowed: variables, and a local port that leads to the agent's proxy."""

import json
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from runners.launch.network_access import direct_places, proxy_variables, start_forwarder
from runners.spec import NETWORK_VARIABLE, PROXY_SOCKET, CollectiveGroup
from tests.runners.conftest import make_spec
from tests.runners.launching import attempt

GROUP = CollectiveGroup("10.192.4.1", 21_000, "secret", 1, 2, 1, "10.192.4.0/22", "10.192.4.2")


class Proxy:
    """Answers each connection with what it received, in capitals, once its client has ended."""

    def __init__(self, folder: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.bind(str(folder / PROXY_SOCKET))
        self.socket.listen(100)
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self.socket.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(client,), daemon=True).start()

    def _answer(self, client: socket.socket) -> None:
        with client:
            data = b""
            while more := client.recv(65536):
                data += more
            client.sendall(data.upper())

    def close(self) -> None:
        self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def proxy(folder: Path) -> Iterator[Proxy]:
    made = Proxy(folder)
    yield made
    made.close()


def answer(port: int, content: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), 20) as client:
        client.sendall(content)
        with suppress(OSError):  # the other side may have ended the connection already
            client.shutdown(socket.SHUT_WR)
        received = b""
        while data := client.recv(65536):
            received += data
        return received


def test_many_connections_pass_in_both_directions(folder: Path, proxy: Proxy) -> None:
    port = start_forwarder(folder)
    content = [f"hello {number} ".encode() * 20_000 for number in range(20)]
    got: list[bytes] = [b""] * len(content)

    def fetch(number: int) -> None:
        got[number] = answer(port, content[number])

    threads = [threading.Thread(target=fetch, args=(number,)) for number in range(len(content))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert got == [each.upper() for each in content]


def test_while_the_agent_is_away_connections_end_and_later_ones_reach_the_next_proxy(folder: Path) -> None:
    port = start_forwarder(folder)
    with suppress(ConnectionResetError):
        assert answer(port, b"hello") == b""
    made = Proxy(folder)
    assert answer(port, b"hello") == b"HELLO"
    made.close()


def test_the_path_of_the_folder_may_be_long(tmp_path: Path) -> None:
    deep = tmp_path / ("deep" * 50)
    deep.mkdir()
    made = Proxy(tmp_path)
    shutil.move(tmp_path / PROXY_SOCKET, deep / PROXY_SOCKET)
    assert answer(start_forwarder(deep), b"hello") == b"HELLO"
    made.close()


def test_ranks_find_the_proxy_unless_their_user_chose_another(tmp_path: Path) -> None:
    inherited = {NETWORK_VARIABLE: str(tmp_path)}
    variables = proxy_variables(make_spec(env=(("https_proxy", "http://mine:1"), ("NO_PROXY", "*"))), inherited)
    assert set(variables) == {"HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"}
    assert all(value.startswith("http://127.0.0.1:") for value in variables.values())
    variables = proxy_variables(replace(make_spec(), collective=GROUP), inherited)
    assert variables["NO_PROXY"] == "localhost,127.0.0.1,::1,h0,10.192.4.1,10.192.4.2,10.192.4.0/22"


def test_without_allowed_hosts_there_is_nothing(tmp_path: Path) -> None:
    assert proxy_variables(make_spec(), {}) == {}
    assert proxy_variables(make_spec(role="driver"), {NETWORK_VARIABLE: str(tmp_path)}) == {}
    assert direct_places(make_spec()) == ["localhost", "127.0.0.1", "::1", "h0"]


SHOW = "import json, os; print(json.dumps({name: os.environ[name] for name in os.environ if 'PROXY' in name.upper()}))"


def test_a_supervisor_gives_them_to_its_ranks(tmp_path: Path, folder: Path, proxy: Proxy) -> None:
    with attempt(tmp_path / "attempt") as made:
        container = made.container(("python", "-c", f"{SHOW}\nassert 'SCHEDULEARN_NETWORK' not in os.environ"))
        container.start(SCHEDULEARN_NETWORK=str(folder))
        assert container.wait()["code"] == 0
    shown = json.loads(container.log())
    assert set(shown) == {
        each for name in ("HTTP", "HTTPS", "ALL", "NO") for each in (f"{name}_PROXY", f"{name.lower()}_proxy")
    }
    with attempt(tmp_path / "other") as made:
        container = made.container(("python", "-c", SHOW)).start()
        container.wait()
    assert json.loads(container.log()) == {}
