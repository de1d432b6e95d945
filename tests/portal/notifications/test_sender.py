"""The program that sends to channels, with a real server: signatures, redirects, slow and large answers, apprise."""

import base64
import hashlib
import hmac
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from portal import outbound, sandbox
from portal.notifications import sending
from portal.notifications.channel_types import TYPES
from portal.notifications.sending import ChatMessage, Outcome, WebhookRequest, new_secret, send
from tests.portal.notifications.servers import Request, Sink, web_sink

SECRET = new_secret()


def webhook(
    sink: Sink, path: str = "/hook", host: str = "127.0.0.1", allowed: tuple[str, ...] = ("127.0.0.1",)
) -> Outcome:
    return send(WebhookRequest(uuid4(), f"http://{host}:{sink.port}{path}", SECRET, '{"a": 1}', allowed))


def is_signed(request: Request, secret: str) -> bool:
    """Verify as the documentation describes it."""
    headers = {name.lower(): value for name, value in request.headers.items()}
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + request.body
    digest = hmac.new(base64.b64decode(secret.removeprefix("whsec_")), signed, hashlib.sha256).digest()
    return hmac.compare_digest(headers["webhook-signature"], "v1," + base64.b64encode(digest).decode())


def test_a_webhook_is_signed_and_names_its_id_and_time() -> None:
    with web_sink() as sink:
        assert webhook(sink) == Outcome(True)
    [request] = sink.requests
    assert is_signed(request, SECRET) and not is_signed(request, new_secret())
    assert abs(int(request.headers["webhook-timestamp"]) - time.time()) < 60
    assert json.loads(request.body) == {"a": 1}


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.1", "2130706433"])
def test_the_machine_itself_is_not_contacted(host: str) -> None:
    with web_sink() as sink:
        found = webhook(sink, host=host, allowed=())
    assert not found.sent and found.final and not sink.requests


def redirect(handler: Any) -> None:
    handler.send_response(307)
    handler.send_header("Location", "/secret")
    handler.end_headers()


def status(code: int) -> Callable[[Any], None]:
    def answer(handler: Any) -> None:
        handler.send_response(code)
        handler.end_headers()

    return answer


def drip(handler: Any) -> None:
    for _ in range(200):
        handler.wfile.write(b"H")
        handler.wfile.flush()
        time.sleep(0.1)  # a receiver that keeps the connection busy


def flood(handler: Any) -> None:
    handler.send_response(200)
    handler.end_headers()
    try:
        for _ in range(2000):
            handler.wfile.write(bytes(1024 * 1024))
    except OSError:
        return


def test_redirects_are_not_followed() -> None:
    with web_sink({"/hook": redirect}) as sink:
        found = webhook(sink)
    assert found == Outcome(False, "The receiver redirects (307), which is not followed.", final=True)
    assert [request.path for request in sink.requests] == ["/hook"]


@pytest.mark.parametrize(("code", "final"), [(500, False), (503, False), (429, False), (404, True), (410, True)])
def test_an_answer_decides_whether_to_try_again(code: int, final: bool) -> None:
    with web_sink({"/hook": status(code)}) as sink:
        assert webhook(sink) == Outcome(False, f"The receiver answered {code}.", final)


def test_a_receiver_that_drips_is_given_up_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "LIMITS", sandbox.Limits(3, 1024**3, 1024**2, sending.LIMITS.at_once))
    with web_sink({"/hook": drip}) as sink:
        started = time.monotonic()
        found = webhook(sink)
    assert found == Outcome(False, "The receiver did not answer within 3 s.") and time.monotonic() - started < 15


def test_a_flood_is_not_read() -> None:
    with web_sink({"/hook": flood}) as sink:
        assert webhook(sink) == Outcome(True)


def test_nothing_listens_there() -> None:
    with web_sink() as sink:
        pass
    found = webhook(sink)
    assert not found.sent and not found.final and "could not be reached" in found.error


# --- apprise -----------------------------------------------------------------------------------------------------

TOKEN = "abcdefghij0123456789abcdef"


def chat(url: str, *schemes: str, allowed: tuple[str, ...] = ("127.0.0.1",)) -> Outcome:
    return send(ChatMessage(url, schemes, "Job 5 failed", "CUDA out of memory", allowed, [TOKEN]))


def test_apprise_reaches_an_allowed_host() -> None:
    with web_sink() as sink:
        target = TYPES["mattermost"].target({"url": f"http://127.0.0.1:{sink.port}/hooks/{TOKEN}"}, {"127.0.0.1"})
        found = chat(target.url, *target.schemes)
    assert found.sent, found
    [request] = sink.requests
    assert request.path == f"/hooks/{TOKEN}" and b"CUDA out of memory" in request.body


def test_apprise_reaches_no_host_that_is_not_allowed() -> None:
    with web_sink() as sink:
        found = chat(f"mmost://127.0.0.1:{sink.port}/{TOKEN}", "mmost", allowed=())
        assert not found.sent and not sink.requests
        assert TOKEN not in found.error


def test_apprise_follows_no_redirect() -> None:
    with web_sink({f"/hooks/{TOKEN}": redirect}) as sink:
        found = chat(f"mmost://127.0.0.1:{sink.port}/{TOKEN}", "mmost")
    assert not found.sent and len(sink.requests) == 1


@pytest.mark.parametrize(
    "url",
    ["json://127.0.0.1:1/x", "syslog://", "dbus://", "windows://", "file:///etc/passwd", "mailto://x:y@example.org"],
)
def test_schemes_that_are_not_enabled_are_refused(url: str) -> None:
    found = chat(url, "mmost")
    assert not found.sent and found.final


def test_local_programs_are_not_started_even_if_their_scheme_is_enabled() -> None:
    assert not chat("gnome://", "gnome").sent
    assert not chat("syslog://", "syslog").sent


# --- files -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["discord", "slack"])
def test_files_of_the_portal_are_not_read_even_if_a_url_with_one_gets_here(tmp_path: Path, scheme: str) -> None:
    secret = tmp_path / "registry_key"
    secret.write_text('{"type": "the key of the portal"}')
    tokens = {
        "discord": "12345678901/abcDEF_-abcdefghijklmnop",
        "slack": "T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ",
    }
    found = chat(f"{scheme}://{tokens[scheme]}?template={secret}", scheme)
    assert not found.sent and "could not be read" in found.error and "the key" not in found.error


@pytest.mark.parametrize(
    ("path", "may"),
    [
        (json.__file__, True),
        (pytest.__file__, True),
        (sending.__file__, True),
        (3, True),
        ("/etc/passwd", False),
        (b"/etc/passwd", False),
        ("/proc/self/environ", False),
        (f"{sys.prefix}/../../../../../../etc/passwd", False),
        (f"{sys.prefix}x", False),
        (Path("/root/.ssh"), False),
        (None, False),
    ],
)
def test_only_the_files_of_python_and_its_packages_are_read(path: Any, may: bool) -> None:
    assert outbound._may_open(path, "r", os.O_RDONLY) == may


def test_no_file_is_written() -> None:
    assert not outbound._may_open(json.__file__, "w", os.O_WRONLY | os.O_CREAT)
