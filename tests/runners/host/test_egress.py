"""The proxy of sandboxes: which hosts it reaches, and what it makes of requests that are not what they seem."""

import http.server
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from runners.host import egress
from runners.host.egress import REFUSED_NETWORKS, Connection, EgressProxy, HostRule, is_in
from runners.host.upstream import Upstream, environment_upstream

NO_PROXY = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")


class Echo(http.server.BaseHTTPRequestHandler):
    """Answers with the request that it received."""

    def do_GET(self) -> None:
        headers = "".join(f"{name}: {value}\n" for name, value in self.headers.items())
        body = f"{self.path}\n{headers}".lower().encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(f"{self.headers['cookie']} {content!r}".encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[int]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Echo) as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield made.server_address[1]
        made.shutdown()


@pytest.fixture(autouse=True)
def no_upstream(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NO_PROXY:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.fixture
def seen() -> list[Connection]:
    return []


@contextmanager
def proxy(tmp_path: Path, seen: list[Connection], *rules: HostRule, **options: object) -> Iterator[Path]:
    path = tmp_path / "s"
    with EgressProxy(path, rules, seen.append, **options):  # type: ignore[arg-type]
        yield path


def ask(path: Path, request: str, then: bytes = b"") -> str:
    """Send a request and return all that is answered."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(20)
        client.connect(str(path))
        client.sendall(request.replace("\n", "\r\n").encode())
        if then:
            assert client.recv(1000).startswith(b"HTTP/1.1 200")
            client.sendall(then)
        answer = b""
        while data := client.recv(65536):
            answer += data
        return answer.decode()


def local(port: int, internal: bool = True) -> HostRule:
    return HostRule("localhost", frozenset({port}), internal)


def test_a_plain_request_reaches_an_allowed_host(tmp_path: Path, seen: list[Connection], server: int) -> None:
    with proxy(tmp_path, seen, local(server)) as path:
        answer = ask(
            path, f"GET http://LocalHost:{server}/a?b=c HTTP/1.1\nAccept: x\nProxy-Authorization: p\nCookie: c\n\n"
        )
    assert "200 OK" in answer and "/a?b=c" in answer and "accept: x" in answer
    assert f"host: localhost:{server}" in answer
    assert "cookie" not in answer and "proxy-authorization" not in answer
    assert [(each.host, each.port, each.refusal) for each in seen] == [("localhost", server, "")]
    assert seen[0].received_bytes > 50 and seen[0].sent_bytes > 50
    assert "bytes in" in seen[0].text


def test_a_tunnel_passes_bytes_both_ways(tmp_path: Path, seen: list[Connection], server: int) -> None:
    with proxy(tmp_path, seen, local(server)) as path:
        request = b"GET /through HTTP/1.0\r\n\r\n"
        assert "/through" in ask(path, f"CONNECT localhost:{server} HTTP/1.1\n\n", request)
    assert seen[0].sent_bytes == len(request)


@pytest.fixture
def returner() -> Iterator[int]:
    """A server that sends back what it gets while it gets it, and then its length."""

    def serve(connection: socket.socket) -> None:
        total = 0
        with connection:
            while data := connection.recv(65536):
                total += len(data)
                connection.sendall(data)
            connection.sendall(f" {total}".encode())

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=lambda: serve(listener.accept()[0]), daemon=True).start()
        yield listener.getsockname()[1]


def test_a_client_that_has_ended_its_part_gets_the_rest(tmp_path: Path, seen: list[Connection], returner: int) -> None:
    """Also when both sides send more than fits in between before either reads."""
    size = 20_000_000
    with proxy(tmp_path, seen, local(returner), idle_seconds=10) as path, socket.socket(socket.AF_UNIX) as client:
        client.settimeout(30)
        client.connect(str(path))
        client.sendall(f"CONNECT localhost:{returner} HTTP/1.1\r\n\r\n".encode())
        assert client.recv(1000).startswith(b"HTTP/1.1 200")

        def send() -> None:
            client.sendall(b"x" * size)
            client.shutdown(socket.SHUT_WR)

        sender = threading.Thread(target=send)
        sender.start()
        answer = bytearray()
        while data := client.recv(1_000_000):
            answer += data
        sender.join(30)
    assert len(answer) == size + len(f" {size}") and answer.endswith(f" {size}".encode())
    assert [(each.sent_bytes, each.refusal) for each in seen] == [(size, "")]


def test_a_client_that_goes_frees_its_place_at_once(tmp_path: Path, seen: list[Connection], returner: int) -> None:
    with proxy(tmp_path, seen, local(returner), idle_seconds=60) as path:
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
            client.sendall(f"CONNECT localhost:{returner} HTTP/1.1\r\n\r\n".encode())
            client.recv(1000)
        end = time.monotonic() + 10
        while not seen and time.monotonic() < end:
            time.sleep(0.01)
    assert [each.refusal for each in seen] == [""]


@pytest.fixture
def servers_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets jobs reach the servers of these tests, which listen on the loopback."""
    monkeypatch.setattr(egress, "MACHINE_NETWORKS", ())


POST = "POST http://localhost:{port}/ HTTP/1.1\nCookie: c\nContent-Length: 5\n\nhello"


@pytest.mark.usefixtures("servers_of_this_machine")
def test_programs_in_jobs_send_content_and_headers(tmp_path: Path, seen: list[Connection], server: int) -> None:
    with proxy(tmp_path, seen, local(server), for_job=True) as path:
        assert "c b'hello'" in ask(path, POST.format(port=server))
        twice = "POST http://localhost/ HTTP/1.1\nContent-Length: 5\nTransfer-Encoding: chunked\n\n"
        assert "400 Bad Request" in ask(path, twice)
    with proxy(tmp_path, seen, local(server)) as path:
        assert "400 Bad Request" in ask(path, POST.format(port=server))


@pytest.mark.usefixtures("servers_of_this_machine")
def test_content_passes_the_machines_own_proxy_in_a_tunnel(tmp_path: Path, seen: list[Connection], server: int) -> None:
    """Its content might be another request, which that proxy would serve."""
    outer = tmp_path / "outer"
    with (
        EgressProxy(outer, [local(server)], seen.append),
        bridged(outer) as port,
        proxy(tmp_path, [], local(server), for_job=True, upstream=Upstream("127.0.0.1", port)) as path,
    ):
        assert "c b'hello'" in ask(path, POST.format(port=server))
    assert [each.reason for each in seen] == [""]


def test_a_closed_proxy_has_recorded_its_open_connections(tmp_path: Path, seen: list[Connection], server: int) -> None:
    with proxy(tmp_path, seen, local(server)) as path, socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        client.sendall(f"CONNECT localhost:{server} HTTP/1.1\r\n\r\n".encode())
        assert client.recv(100).startswith(b"HTTP/1.1 200")
    assert [each.host for each in seen] == ["localhost"]


def test_the_path_of_its_socket_may_be_long(tmp_path: Path, seen: list[Connection], server: int) -> None:
    folder = tmp_path / ("long" * 40)
    folder.mkdir()
    with proxy(folder, seen, local(server)) as path:
        short = tmp_path / "link"
        short.symlink_to(folder)
        assert "200 OK" in ask(short / path.name, f"GET http://localhost:{server}/ HTTP/1.1\n\n")


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("pypi.org", HostRule("pypi.org")),
        ("*.example.org:8443", HostRule("*.example.org", frozenset({8443}))),
        ("mlflow.lab:5000 internal", HostRule("mlflow.lab", frozenset({5000}), internal=True)),
    ],
)
def test_rules_are_read_from_text(text: str, rule: HostRule) -> None:
    assert HostRule.parse(text) == rule


@pytest.mark.parametrize("text", ["", " ", "a b", "a internal b", ":80", "a:0", "a:65536", "a:http", "a:٣"])
def test_other_text_is_no_rule(text: str) -> None:
    with pytest.raises(ValueError, match="not a rule"):
        HostRule.parse(text)


@pytest.mark.parametrize(
    ("rules", "address"),
    [
        ((), "localhost:{port}"),
        ((HostRule("localhost"),), "localhost:{port}"),
        ((HostRule("*.localhost", frozenset({1})),), "localhost:{port}"),
        ((HostRule("pypi.org"),), "pypi.org.evil.example:443"),
        ((HostRule("*.pytorch.org"),), "evilpytorch.org:443"),
    ],
)
def test_other_hosts_and_ports_are_refused(
    tmp_path: Path, seen: list[Connection], server: int, rules: tuple[HostRule, ...], address: str
) -> None:
    with proxy(tmp_path, seen, *rules) as path:
        place = address.format(port=server)
        assert "403 Forbidden" in ask(path, f"CONNECT {place} HTTP/1.1\n\n")
        assert "403 Forbidden" in ask(path, f"GET http://{place}/ HTTP/1.1\n\n")
    assert [each.refusal for each in seen] == ["this host is not allowed"] * 2
    assert "refused" in seen[0].text


def test_a_name_of_this_machine_is_refused_unless_its_rule_is_internal(
    tmp_path: Path, seen: list[Connection], server: int
) -> None:
    with proxy(tmp_path, seen, local(server, internal=False)) as path:
        assert "403 Forbidden" in ask(path, f"CONNECT localhost:{server} HTTP/1.1\n\n")
    assert "the node itself" in seen[0].refusal


def test_a_job_never_reaches_its_node_itself(tmp_path: Path, seen: list[Connection], server: int) -> None:
    """A name of the local network may be one of the node, by its /etc/hosts."""
    with proxy(tmp_path, seen, local(server), HostRule("127.0.0.1", frozenset({server}), True), for_job=True) as path:
        assert "403 Forbidden" in ask(path, f"CONNECT localhost:{server} HTTP/1.1\n\n")
        assert "403 Forbidden" in ask(path, f"GET http://127.0.0.1:{server}/ HTTP/1.1\n\n")
    assert all("the node itself" in each.refusal and each.reason == "internal" for each in seen) and len(seen) == 2


@pytest.mark.parametrize(
    ("address", "refused"),
    [
        *(
            (each, True)
            for each in ("127.0.0.1", "10.1.2.3", "172.31.0.1", "192.168.1.1", "169.254.169.254", "0.0.0.0")
        ),  # noqa: S104
        *(
            (each, True)
            for each in ("100.64.0.1", "224.0.0.1", "255.255.255.255", "::1", "::", "fe80::1%eth0", "fd00::1")
        ),
        *((each, True) for each in ("::ffff:127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "::127.0.0.1")),
        *((each, False) for each in ("151.101.0.223", "8.8.8.8", "172.32.0.1", "2a04:4e42::223", "::ffff:8.8.8.8")),
    ],
)
def test_internal_addresses_are_known_in_every_notation(address: str, refused: bool) -> None:
    assert is_in(REFUSED_NETWORKS, address) is refused


@pytest.mark.parametrize(
    "request_text",
    [
        "POST http://localhost/ HTTP/1.1\n\n",
        "GET / HTTP/1.1\nHost: localhost\n\n",
        "GET https://localhost/ HTTP/1.1\n\n",
        "GET file:///etc/passwd HTTP/1.1\n\n",
        "GET http://user@localhost/ HTTP/1.1\n\n",
        "GET http://localhost:x/ HTTP/1.1\n\n",
        "GET http://local\x1b[31mhost/ HTTP/1.1\n\n",
        "CONNECT [fe80::1%25eth0]:443 HTTP/1.1\n\n",
        "CONNECT :443 HTTP/1.1\n\n",
        "GET http://localhost/ HTTP/1.1\nContent-Length: 3\n\nabc",
        "GET http://localhost/ HTTP/1.1\nTransfer-Encoding: chunked\n\n",
        "GET http://localhost/ HTTP/1.1\n folded: x\n\n",
        "GET http://localhost/ HTTP/1.1\nno colon\n\n",
        "GET http://localhost/ HTTP/1.1\nname : x\n\n",
        "GET http://localhost/ HTTP/2\n\n",
        "CONNECT localhost HTTP/1.1\n\n",
        "CONNECT localhost:80/x HTTP/1.1\n\n",
        "nonsense\n\n",
        "GET http://localhost/\u00e4 HTTP/1.1\n\n",
        "GET http://localhost/ HTTP/1.1\n" + "a: b\n" * 20_000 + "\n",
    ],
)
def test_malformed_requests_are_refused(tmp_path: Path, seen: list[Connection], request_text: str) -> None:
    with proxy(tmp_path, seen, HostRule("localhost", internal=True)) as path:
        try:
            assert ask(path, request_text).startswith("HTTP/1.1 400")
        except (BrokenPipeError, ConnectionResetError):
            assert len(request_text) > egress.MAX_HEAD_BYTES, "it is not read to its end"
    assert not seen


def test_only_the_first_request_of_a_connection_is_forwarded(
    tmp_path: Path, seen: list[Connection], server: int
) -> None:
    smuggled = f"GET http://localhost:{server}/one HTTP/1.1\n\nGET http://localhost:{server}/two HTTP/1.1\n\n"
    with proxy(tmp_path, seen, local(server)) as path:
        answer = ask(path, smuggled)
    assert "/one" in answer and "/two" not in answer


def test_a_quiet_connection_is_closed(tmp_path: Path, seen: list[Connection]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        rule = HostRule("127.0.0.1", frozenset({silent.getsockname()[1]}), internal=True)
        with proxy(tmp_path, seen, rule, idle_seconds=0.2) as path:
            ask(path, f"CONNECT 127.0.0.1:{silent.getsockname()[1]} HTTP/1.1\n\n")
    assert "idle" in seen[0].refusal


def test_what_a_host_sent_before_it_broke_off_is_counted(tmp_path: Path, seen: list[Connection]) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        proxy(tmp_path, seen, local(port_of(listener))) as path,
        socket.socket(socket.AF_UNIX) as client,
        client.makefile("rb") as answer,
    ):
        client.connect(str(path))
        client.sendall(f"CONNECT localhost:{port_of(listener)} HTTP/1.1\r\n\r\n".encode())
        server, _ = listener.accept()
        with server:
            server.sendall(b"x" * 1000)
            assert b"200" in answer.readline() and answer.readline() == b"\r\n"
            assert answer.read(1000) == b"x" * 1000
            server.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # its end is a reset
        assert answer.read() == b""
    assert [each.received_bytes for each in seen] == [1000]


def port_of(listener: socket.socket) -> int:
    return int(listener.getsockname()[1])


def test_all_connections_together_have_a_maximum_size(tmp_path: Path, seen: list[Connection], server: int) -> None:
    with proxy(tmp_path, seen, local(server), max_total_bytes=10) as path:
        assert ask(path, f"GET http://localhost:{server}/ HTTP/1.1\n\n") == ""
    assert "maximum size" in seen[0].refusal


def test_a_host_that_does_not_answer_is_an_error_and_recorded(tmp_path: Path, seen: list[Connection]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    with proxy(tmp_path, seen, local(port)) as path:
        assert ask(path, f"CONNECT localhost:{port} HTTP/1.1\n\n").startswith("HTTP/1.1 502")
    assert seen[0].error == "Connection refused" and "cannot be reached" in seen[0].text


def test_the_machines_own_proxy_is_used(tmp_path: Path, seen: list[Connection], server: int) -> None:
    """A second proxy of ours plays it; it is reached by TCP through a small bridge."""
    others: list[Connection] = []
    (tmp_path / "upper").mkdir()
    with (
        proxy(tmp_path / "upper", others, local(server)) as upper,
        bridged(upper) as port,
        proxy(tmp_path, seen, local(server), upstream=Upstream("127.0.0.1", port, "Basic eDp5")) as path,
    ):
        assert "/plain" in ask(path, f"GET http://localhost:{server}/plain HTTP/1.1\n\n")
        assert "/tunnel" in ask(path, f"CONNECT localhost:{server} HTTP/1.1\n\n", b"GET /tunnel HTTP/1.0\r\n\r\n")
        assert "403" in ask(path, "CONNECT 10.0.0.1:443 HTTP/1.1\n\n")
    assert len(others) == 2


@contextmanager
def bridged(path: Path) -> Iterator[int]:
    """Serve a unix socket at a TCP port."""
    from runners.environments.layers import inside

    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    client, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(target=inside.forward, args=(client, str(path)), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


def test_the_proxy_of_the_environment_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    assert environment_upstream() is None
    monkeypatch.setenv("HTTPS_PROXY", "http://ada:se%40cret@proxy.lab:3128")
    assert environment_upstream() == Upstream("proxy.lab", 3128, "Basic YWRhOnNlQGNyZXQ=")
    assert environment_upstream("proxy.other:8080") == Upstream("proxy.other", 8080)
    with pytest.raises(ValueError, match=r"socks5://proxy\.lab") as refusal:
        environment_upstream("socks5://ada:secret@proxy.lab:1080")
    assert "secret" not in str(refusal.value)


def test_closing_ends_connections_and_removes_the_socket(tmp_path: Path, seen: list[Connection], server: int) -> None:
    with proxy(tmp_path, seen, local(server)) as path:
        client = socket.socket(socket.AF_UNIX)
        client.connect(str(path))
        client.sendall(f"CONNECT localhost:{server} HTTP/1.1\r\n\r\n".encode())
        assert client.recv(100)
    assert client.recv(100) == b""
    client.close()
    assert not path.exists()
