"""The agent's calls are bounded, report what went wrong, and trust only what is configured."""

import io
import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from runners.agent import portal_client
from runners.agent.portal_client import (
    Backoff,
    LogAnswer,
    PortalClient,
    PortalRefusedError,
    PortalUnavailableError,
    checked_url,
    response_error,
)
from runners.messages import Message, Quotation
from runners.messages.portal import CodeLost, HttpStatus
from tests.fake_portal import FakePortal


@pytest.fixture
def portal() -> Iterator[FakePortal]:
    with FakePortal() as portal:
        yield portal


@pytest.fixture
def client(portal: FakePortal) -> Iterator[PortalClient]:
    client = PortalClient(portal.url, "sln_fake")
    yield client
    client.close()


def test_it_speaks_the_protocol(portal: FakePortal, client: PortalClient) -> None:
    assert client.join("slj_good", "n", "fake", {}) == (3, "sln_joined")
    assert client.sync({"containers": []})["approved"] is True
    assert client.wait_for_change("other") == "0"
    assert client.append_log("c", "0", 0, b"ab", marks=((0, 5),), label="rank 0") == LogAnswer(2, True)
    assert client.append_log("c", "0", 0, b"ab") == LogAnswer(2, False)
    client.put_output("c", "a b/ä?#%2F.txt", io.BytesIO(b"123456"), 6)
    assert portal.outputs == {("c", "a b/ä?#%2F.txt"): b"123456"}
    client.put_output("c", "empty", io.BytesIO(b""), 0)
    assert portal.outputs["c", "empty"] == b""


class Counting(BaseHTTPRequestHandler):
    """Answers everything, and counts connections."""

    protocol_version = "HTTP/1.1"
    connections = 0

    def setup(self) -> None:
        type(self).connections += 1
        super().setup()

    def log_message(self, *_: object) -> None:
        pass

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")


def test_reports_share_a_connection_that_does_not_get_old(monkeypatch: pytest.MonkeyPatch) -> None:
    # what is sent in each period; a cut network
    assert 5 < portal_client.KEEPALIVE_SECONDS < portal_client.ANSWER_SECONDS
    real, later = time.monotonic, [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: real() + later[0])  # httpx asks it how old a connection is
    with ThreadingHTTPServer(("127.0.0.1", 0), Counting) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        client = PortalClient(f"http://127.0.0.1:{server.server_port}", "sln_x")
        for _ in range(5):
            client.sync({})
        assert Counting.connections == 1
        later[0] = portal_client.KEEPALIVE_SECONDS
        client.sync({})
        assert Counting.connections == 2
        client.close()
        server.shutdown()


class Breaking(BaseHTTPRequestHandler):
    """Sends a few bytes of an archive each time, then breaks off; after ``stops`` bytes none arrive any more."""

    content = bytes(range(90))
    stops = len(content)
    asked: list[int]

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        offset = int(self.path.rpartition("offset=")[2])
        self.asked.append(offset)
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.content) - offset))
        self.send_header("Layer-SHA256", "f00d")
        self.end_headers()
        self.wfile.write(self.content[offset : min(offset + 10, self.stops)])


@pytest.fixture
def breaking(monkeypatch: pytest.MonkeyPatch) -> Iterator[PortalClient]:
    monkeypatch.setattr(portal_client, "LAYER_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(Breaking, "asked", [], raising=False)
    with ThreadingHTTPServer(("127.0.0.1", 0), Breaking) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        client = PortalClient(f"http://127.0.0.1:{server.server_port}", "sln_x")
        yield client
        client.close()
        server.shutdown()


def test_an_archive_is_fetched_over_a_connection_that_breaks_often(breaking: PortalClient) -> None:
    file = io.BytesIO()
    assert breaking.fetch_layer("d", file, lambda done, total: None) == "f00d"
    assert file.getvalue() == Breaking.content
    assert Breaking.asked == list(range(0, 90, 10))


def test_an_archive_of_which_nothing_arrives_any_more_is_given_up(
    breaking: PortalClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Breaking, "stops", 30)
    with pytest.raises(PortalUnavailableError):
        breaking.fetch_layer("d", io.BytesIO(), lambda done, total: None)
    assert Breaking.asked == [0, 10, 20] + [30] * portal_client.LAYER_TRIES


def test_a_refusal_is_distinguished_from_a_temporary_failure(portal: FakePortal, client: PortalClient) -> None:
    with pytest.raises(PortalRefusedError, match="unknown, used or expired") as refused:
        client.join("slj_bad", "n", "fake", {})
    assert (refused.value.status, refused.value.code) == (403, "join_token")
    portal.largest_output = 3
    with pytest.raises(PortalRefusedError, match="over the limit"):
        client.put_output("c", "big", io.BytesIO(b"123456"), 6)
    portal.fail_next = 1
    with pytest.raises(PortalUnavailableError, match="Something went wrong here"):
        client.sync({})
    portal.down = True
    with pytest.raises(PortalUnavailableError, match="does not answer"):
        client.sync({})
    portal.down = False
    assert client.sync({"containers": []})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"message": "It is gone.", "reason": CodeLost().data()}, CodeLost()),
        ({"message": "It is gone."}, Quotation("It is gone.")),
        ({"message": "It is gone.", "reason": {"code": "of.a_later_release"}}, Quotation("It is gone.")),
        ({}, HttpStatus(404, "Not Found")),
    ],
    ids=["data", "earlier portal", "later portal", "proxy"],
)
def test_a_refusal_has_the_portals_reason_as_data(content: dict[str, Any], message: Message) -> None:
    error = response_error(httpx.Response(404, json={"error": {"code": "code_lost", **content}}))
    assert isinstance(error, PortalRefusedError) and error.message == message


def test_an_unknown_token_is_refused(portal: FakePortal) -> None:
    client = PortalClient(portal.url, "sln_wrong")
    with pytest.raises(PortalRefusedError) as refused:
        client.sync({})
    assert refused.value.status == 401
    client.close()


def test_a_portal_that_hangs_is_given_up_in_time(portal: FakePortal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runners.agent.portal_client.ANSWER_SECONDS", 0.3)
    client = PortalClient(portal.url, "sln_fake")
    given_up = threading.Event()

    def hang(_path: str) -> str:
        given_up.wait(60)
        return ""

    portal.faults = hang
    with pytest.raises(PortalUnavailableError):
        client.sync({})
    assert not portal.reports, "the client waited for the answer"
    given_up.set()
    client.close()


@pytest.mark.parametrize(
    "url", ["https://portal.example.org", "http://localhost:8000/", "http://127.0.0.1:1", "http://[::1]:9"]
)
def test_a_token_travels_encrypted_or_not_at_all_over_a_network(url: str) -> None:
    assert checked_url(url, allow_http=False) == url.rstrip("/")


@pytest.mark.parametrize("url", ["http://portal.example.org", "http://10.0.0.5:8000", "http://localhost.evil.org"])
def test_plain_http_to_another_machine_must_be_allowed(url: str) -> None:
    with pytest.raises(ValueError, match="unencrypted"):
        checked_url(url, allow_http=False)
    assert checked_url(url, allow_http=True) == url


@pytest.mark.parametrize(
    "url",
    [
        "",
        "portal",
        "ftp://x",
        "https://",
        "https://user:pw@x",
        "https://x/?a=b",
        "file:///etc/passwd",
        "https://x:port",
        "https://x:99999",
        "https://[::1",
    ],
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="not the address"):
        checked_url(url, allow_http=True)


def test_the_environments_proxy_is_not_used(portal: FakePortal, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    client = PortalClient(portal.url, "sln_fake")
    assert client.sync({"containers": []})
    client.close()
    proxied = PortalClient(portal.url, "sln_fake", use_proxy=True)
    with pytest.raises(PortalUnavailableError):
        proxied.sync({})
    proxied.close()


def make_certificate(folder: Path, name: str) -> Path:
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1",
         "-keyout", f"{name}.key", "-out", f"{name}.pem", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"],
        cwd=folder, check=True, capture_output=True,
    )  # fmt: skip
    return folder / f"{name}.pem"


def test_only_the_authority_that_was_named_is_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good, other = make_certificate(tmp_path, "good"), make_certificate(tmp_path, "other")
    with FakePortal(certificate=(good, tmp_path / "good.key")) as portal:
        url = portal.url.replace("http://127.0.0.1", "https://localhost")
        client = PortalClient(url, "sln_fake", ca_file=good)
        assert client.sync({"containers": []})
        client.close()
        for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
            monkeypatch.setenv(name, str(good))  # the environment must not widen it
        for wrong in (
            PortalClient(url, "sln_fake", ca_file=other),
            PortalClient(url.replace("localhost", "127.0.0.1"), ca_file=good),
        ):
            with pytest.raises(PortalUnavailableError, match="(?i)certificate"):
                wrong.sync({})
            wrong.close()


def test_pauses_grow_are_jittered_and_bounded() -> None:
    backoff = Backoff(1.0, 8.0)
    pauses = [backoff.next_pause() for _ in range(2000)]
    assert all(0.5 <= pause <= 8.0 for pause in pauses)
    assert len({round(pause, 6) for pause in pauses[10:]}) > 1000
    backoff.reset()
    assert backoff.next_pause() <= 1.0
