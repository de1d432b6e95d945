"""The rendezvous: what it answers, and to whom."""

import ast
import http.client
import json
import pickle
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runners.launch import signing
from runners.launch.forwarder import send_request, start_forwarder
from runners.launch.host_updates import HostUpdates
from runners.launch.hosts import Hosts
from runners.launch.rendezvous import BODY_LIMIT_BYTES, RefusedError, Routes, Server, Store, is_allowed_for_ranks, serve
from runners.launch.rendezvous import STORE_LIMIT_BYTES as STORE_LIMIT

SECRET = "this attempt's secret"
LAUNCH = Path(__file__).resolve().parents[3] / "runners" / "launch"

Ask = Callable[..., tuple[int, bytes]]


@pytest.fixture(scope="module")
def routes() -> Routes:
    hosts = Hosts()
    return Routes(poll=hosts.poll, record_exit=hosts.record_exit, host_updates=HostUpdates().read)


@pytest.fixture(autouse=True)
def fresh(routes: Routes) -> None:
    routes.store.clear()
    routes.place = lambda host, slot, request: f"{host},{slot}"


@pytest.fixture(scope="module")
def server(routes: Routes) -> Iterator[Server]:
    made = serve(SECRET, routes, "127.0.0.1", 0)
    yield made
    made.shutdown()
    made.server_close()


@pytest.fixture
def ask(server: Server) -> Ask:
    def ask(method: str, path: str, body: bytes = b"", secret: str = SECRET) -> tuple[int, bytes]:
        return send_request("127.0.0.1", server.server_port, secret, method, path, body, 10)

    return ask


def raw(port: int, method: str, path: str, body: bytes = b"", **headers: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, body, headers)
        return connection.getresponse().status
    finally:
        connection.close()


# The known exploit: CVE-2024-10190 and CVE-2026-31234


class Payload:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, tuple[str]]:
        import os

        return os.system, (f"touch {self.marker}",)


PATHS = [
    "/worker_addresses/h0:0",
    "/global/0",
    "/local_h0/0",
    "/cross_0/0",
    "/global_process_set_hash_1f/0",
    "/rank_and_size/h0:0",
    "/hosts_updated/h0:0:0",
    "/went_on/h0:0:0",
    "/runfunc/func",
    "/runfunc_result/0",
    "/ring/poll",
    "/ring/exit",
    "/anything/else",
    "/",
    "/global/0/../../worker_addresses/h0:0",
]


def malicious(marker: Path) -> list[bytes]:
    """As Horovod sends it (base64 of a pickle) and plain."""
    import base64

    pickled = pickle.dumps((Payload(marker), b"key"))
    return [base64.b64encode(pickled), pickled]


def test_the_payload_would_run_if_anyone_unpickled_it(tmp_path: Path) -> None:
    pickle.loads(malicious(tmp_path / "ran")[1])
    assert (tmp_path / "ran").exists()


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "POST"])
@pytest.mark.parametrize("path", PATHS)
def test_the_known_exploit_without_the_secret_runs_nothing(
    tmp_path: Path, server: Server, routes: Routes, method: str, path: str
) -> None:
    marker = tmp_path / "ran"
    for body in malicious(marker):
        right = signing.sign(SECRET, method, path, body)
        attempts = [
            {},
            {signing.HEADER: ""},
            {signing.HEADER: "0" * 64},
            {signing.HEADER: signing.sign("the secret of an older attempt", method, path, body)},
            {signing.HEADER: signing.sign(SECRET, method, path, b"another body")},
            {signing.HEADER: signing.sign(SECRET, "PATCH", path, body)},
            {signing.HEADER: right.upper()},
        ]
        for headers in attempts:
            assert raw(server.server_port, method, path, body, **headers) == 401
    print(f"code executed: {marker.exists()}")
    assert not marker.exists()
    assert routes.store.get("global", "0") is None


def test_the_known_exploit_signed_by_a_rank_runs_nothing_in_the_driver(tmp_path: Path, ask: Ask) -> None:
    marker = tmp_path / "ran"
    for body in malicious(marker):
        for path in PATHS:
            for method in ("PUT", "POST", "GET", "DELETE"):
                if not (method == "GET" and path.startswith("/hosts_updated")):  # it would wait for news
                    ask(method, path, body)
        assert ask("PUT", "/worker_addresses/h0:0", body)[0] == 403
        assert ask("POST", "/ring/poll", body)[0] == 400
        assert ask("PUT", "/global/0", body) == (200, b"")  # stored as the bytes it is
        assert ask("GET", "/global/0") == (200, body)
    print(f"code executed: {marker.exists()}")
    assert not marker.exists()


def test_no_code_that_could_unpickle_is_in_reach() -> None:
    """Horovod's handlers and clients for pickles are not imported either."""
    forbidden = {"pickle", "cloudpickle", "marshal", "shelve", "dill"}
    allowed_of_horovod = {"horovod.runner.elastic", "horovod.runner.elastic.discovery", "horovod.runner.elastic.worker"}
    for path in LAUNCH.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
                if node.module == "horovod.runner.elastic":
                    assert [alias.name for alias in node.names] == ["driver"], path
                if node.module == "horovod.runner.elastic.worker":
                    assert [alias.name for alias in node.names] == ["HostUpdateResult"], path
            for name in names:
                assert name.split(".")[0] not in forbidden, path
                assert not name.startswith("horovod") or name in allowed_of_horovod, path


# Signatures


@given(st.text(min_size=1), st.binary(), st.binary())
def test_a_signature_is_of_one_body_only(secret: str, body: bytes, other: bytes) -> None:
    signature = signing.sign(secret, "PUT", "/global/0", body)
    assert signing.verify(secret, signature, "PUT", "/global/0", body)
    assert signing.verify(secret, signature, "PUT", "/global/0", other) == (body == other)
    assert not signing.verify(secret, signature, "PUT", "/global/1", body)
    assert not signing.verify(secret, signature, "GET", "/global/0", body)
    assert not signing.verify(secret + "x", signature, "PUT", "/global/0", body)


@pytest.mark.parametrize("signature", [None, "", "é" * 64, "0" * 64])
def test_junk_is_no_signature(signature: str | None) -> None:
    assert not signing.verify(SECRET, signature, "GET", "/global/0")
    assert not signing.verify("", signing.sign("", "GET", "/global/0"), "GET", "/global/0")


# What it answers


def test_the_store_gives_back_what_was_put(ask: Ask) -> None:
    assert ask("GET", "/global/0")[0] == 404
    assert ask("PUT", "/global/0", b"\x00\xffaddress")[0] == 200
    assert ask("PUT", "/global/rank_0", b"h0")[0] == 200
    assert ask("GET", "/global/0") == (200, b"\x00\xffaddress")
    assert ask("DELETE", "/global/0")[0] == 200
    assert ask("GET", "/global/0")[0] == 404
    assert ask("GET", "/global/rank_0")[0] == 404
    assert ask("DELETE", "/global/0")[0] == 200  # twice is harmless


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PUT", "/rank_and_size/h0:0"),
        ("DELETE", "/hosts_updated/h0:0:0"),
        ("GET", "/global/key"),
        ("GET", "/global/1234567"),
        ("GET", "/local_../0"),
        ("GET", "/global_process_set_hash_xyz/0"),
        ("GET", "/global/0/1"),
        ("GET", "global/0"),
        ("GET", "/global/0?x=1"),
        ("GET", "/rank_and_size/h0"),
        ("POST", "/global/0"),
        ("POST", "/ring/other"),
    ],
)
def test_other_scopes_and_keys_are_refused(ask: Ask, method: str, path: str) -> None:
    assert ask(method, path)[0] == 403


@given(st.sampled_from(["GET", "PUT", "DELETE", "POST", "HEAD"]), st.text(max_size=30), st.text(max_size=30))
def test_ranks_reach_nothing_but_the_known_shapes(method: str, scope: str, key: str) -> None:
    if is_allowed_for_ranks(method, scope, key):
        assert method != "POST" and scope.isascii() and key.isascii() and "/" not in scope + key


def test_large_bodies_are_refused_unread(server: Server, ask: Ask) -> None:
    assert ask("PUT", "/global/0", b"x" * BODY_LIMIT_BYTES)[0] == 200
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=60) as connection:
        connection.sendall(b"PUT /global/0 HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (BODY_LIMIT_BYTES + 1))
        assert b" 413 " in connection.recv(100)


@pytest.mark.parametrize("length", ["-1", "1e3", "²", "9" * 5000])
def test_a_strange_length_is_refused(server: Server, length: str) -> None:
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=60) as connection:
        connection.sendall(f"PUT /global/0 HTTP/1.1\r\nContent-Length: {length}\r\n\r\n".encode("latin-1"))
        assert connection.recv(100).split()[1] in {b"400", b"413"}


def test_the_store_is_bounded() -> None:
    store = Store()
    piece = b"x" * 2**20
    for number in range(STORE_LIMIT // len(piece)):
        store.put("global", str(number), piece)
    with pytest.raises(RefusedError):
        store.put("global", "one more", b"x")
    store.put("global", "0", b"smaller")
    store.put("global", "one more", b"x")
    store.clear()
    store.put("global", "0", piece)


@pytest.mark.parametrize(
    "message",
    [b"", b"[]", b"{}", b'{"host": "h0"}', b'{"host": "../h", "slots": 1, "boot": "b", "seen": 0}', b"[" * 100_000],
)
def test_a_message_that_is_not_what_it_should_be_is_refused(ask: Ask, message: bytes) -> None:
    assert ask("POST", "/ring/poll", message)[0] == 400
    assert ask("POST", "/ring/exit", message)[0] == 400


def test_a_broken_answer_breaks_one_request_only(routes: Routes, ask: Ask) -> None:
    def broken(host: str, slot: int, request: str) -> str:
        raise RuntimeError("the barrier is broken")

    routes.place = broken
    assert ask("GET", "/rank_and_size/h0:0")[0] == 500
    assert ask("PUT", "/global/0", b"x")[0] == 200


# The forwarder


@pytest.fixture(scope="module")
def forwarder(server: Server) -> Iterator[int]:
    made = start_forwarder(lambda: "127.0.0.1", server.server_port, SECRET)
    yield made.server_port
    made.shutdown()
    made.server_close()


def test_the_forwarder_signs_what_ranks_may_ask(forwarder: int, ask: Ask) -> None:
    assert raw(forwarder, "PUT", "/global/0", b"address") == 200
    assert ask("GET", "/global/0") == (200, b"address")
    assert raw(forwarder, "GET", "/rank_and_size/h0:0") == 200
    assert raw(forwarder, "GET", "/global/7") == 404


@pytest.mark.parametrize("path", ["/ring/poll", "/ring/exit", "/worker_addresses/h0:0", "/runfunc/func"])
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "POST"])
def test_the_forwarder_passes_nothing_else(forwarder: int, method: str, path: str) -> None:
    assert raw(forwarder, method, path, json.dumps({"host": "h0"}).encode()) == 403


def test_the_forwarder_answers_502_while_the_driver_is_away() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        made = start_forwarder(lambda: "127.0.0.1", unused.getsockname()[1], SECRET)
        assert raw(made.server_port, "GET", "/global/0") == 502
        made.shutdown()
        made.server_close()


def test_a_rank_that_asks_for_its_place_is_held_until_another_driver_answers(routes: Routes) -> None:
    asked = []
    routes.place = lambda host, slot, request: asked.append((host, slot, request)) or "0,1,0,1,0,1"  # type: ignore[func-returns-value]
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    made = start_forwarder(lambda: "127.0.0.1", port, SECRET, driver_may_move=True)
    answers: list[int] = []
    rank = threading.Thread(target=lambda: answers.append(raw(made.server_port, "GET", "/rank_and_size/h1:0")))
    rank.start()
    rank.join(0.2)
    assert rank.is_alive()
    later = serve(SECRET, routes, "127.0.0.1", port)
    rank.join(60)
    assert answers == [200]
    ((host, slot, request),) = asked
    assert (host, slot) == ("h1", 0) and len(request) == 32  # so that the driver counts a repeated one once
    for server in (made, later):
        server.shutdown()
        server.server_close()
