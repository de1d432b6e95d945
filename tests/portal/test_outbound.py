"""Which addresses are contacted: a corpus of hostile ones, and what a connection is allowed at the moment it is made."""

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from portal import outbound
from portal.outbound import OutboundError, check_host, read_url, refusal_of

REFUSED_ADDRESSES = [
    "127.0.0.1",
    "127.8.9.1",
    "0.0.0.0",
    "0.1.2.3",
    "10.0.0.1",
    "172.16.0.1",
    "172.31.255.255",
    "192.168.1.1",
    "169.254.169.254",
    "100.64.0.1",
    "100.127.255.255",
    "192.0.0.1",
    "192.0.2.1",
    "198.18.0.1",
    "198.51.100.1",
    "203.0.113.1",
    "192.88.99.1",
    "224.0.0.1",
    "239.255.255.255",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::ffff:127.0.0.1",
    "::ffff:8.8.8.8",
    "::127.0.0.1",
    "64:ff9b::7f00:1",
    "64:ff9b::808:808",
    "64:ff9b:1::1",
    "2002:7f00:1::",
    "2002:808:808::1",
    "2001::1",
    "2001:0:53aa::1",
    "2001:db8::1",
    "fe80::1",
    "fe80::1%eth0",
    "fec0::1",
    "fc00::1",
    "fd12:3456::1",
    "ff02::1",
    "100::1",
    "3fff::1",
    "5f00::1",
]


@pytest.mark.parametrize("address", REFUSED_ADDRESSES)
def test_an_address_that_is_not_public_is_refused(address: str) -> None:
    assert refusal_of(address)


@pytest.mark.parametrize(
    "address", ["8.8.8.8", "1.1.1.1", "93.184.216.34", "2606:4700:4700::1111", "2a00:1450:4001:80b::200e"]
)
def test_a_public_address_is_contacted(address: str) -> None:
    assert not refusal_of(address)


@pytest.mark.parametrize(
    "url",
    [
        "http://hooks.example.org/x",
        "https://127.0.0.1/",
        "https://[::1]/",
        "https://[::ffff:127.0.0.1]/",
        "https://169.254.169.254/latest/meta-data/",
        "https://2130706433/",
        "https://0x7f000001/",
        "https://0177.0.0.1/",
        "https://127.1/",
        "https://localhost/",
        "https://portal.local/",
        "https://db.internal/",
        "https://router/",
        "https://user:secret@hooks.example.org/",
        "https://hooks.example.org@10.0.0.1/",
        "https://hooks.example.org:22/",
        "https://hooks.example.org:99999/",
        "https://hooks.example.org/#x",
        "https://hooks.example.org/\r\nHost: x",
        "https://hooks.example.org\\@10.0.0.1/",
        "https://ｅxample.org/",
        "https://example.org/ä",
        "https:///x",
        "https://.example.org/",
        "https://-x.example.org/",
        "file:///etc/passwd",
        "gopher://example.org/",
        "ftp://example.org/",
        "//example.org/",
        "example.org",
        "",
        "https://example.org/" + "x" * 3000,
    ],
)
def test_a_url_that_is_hostile_or_odd_is_refused(url: str) -> None:
    with pytest.raises(OutboundError):
        read_url(url)


def test_a_url_is_read_into_its_parts() -> None:
    url = read_url("https://Hooks.Example.org:8443/a/b?key=secret")
    assert (url.scheme, url.host, url.port, url.target) == ("https", "hooks.example.org", 8443, "/a/b?key=secret")
    assert url.place == "hooks.example.org:8443"
    assert read_url("https://example.org").target == "/"


def test_an_admin_allows_a_host_of_the_local_network() -> None:
    allowed = {"chat", "10.0.0.7"}
    assert read_url("http://chat:8065/hooks/x", allowed).port == 8065
    assert read_url("http://10.0.0.7/x", allowed).host == "10.0.0.7"
    for url in ("http://chat2/x", "http://10.0.0.8/x", "http://chat.evil.example/x"):
        with pytest.raises(OutboundError):
            read_url(url, allowed)
    with pytest.raises(OutboundError):
        check_host("chat.local", allowed)


def in_guarded_process(code: str, allowed: Sequence[str] = ()) -> dict[str, Any]:
    """Run code after ``guard`` in a process of its own, with names that a dictionary resolves; return what it printed."""
    program = f"""
import json, socket, sys, types
sys.modules["portal"] = types.ModuleType("portal")
sys.modules["portal"].__path__ = [{outbound.__file__.rpartition("/")[0]!r}]
answers = {{}}
real = socket.getaddrinfo
def fake(host, port, *args, **named):
    found = answers.get(host)
    if found is None:
        return real(host, port, *args, **named)
    return real(found.pop(0) if len(found) > 1 else found[0], port, *args, **named)
socket.getaddrinfo = fake
from portal.outbound import OutboundError, guard
listener = socket.create_server(("127.0.0.1", 0))
port = listener.getsockname()[1]
guard({list(allowed)!r})
def outcome(function):
    try:
        function()
        return "connected"
    except OutboundError as error:
        return str(error)
    except OSError as error:
        return type(error).__name__
{code}
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    return dict(json.loads(done.stdout))


def test_a_connection_to_the_machine_itself_is_refused_by_every_way_there() -> None:
    found = in_guarded_process(
        """
import http.client, urllib.request
answers["rebound.example.org"] = ["127.0.0.1"]
print(json.dumps({
    "address": outcome(lambda: socket.create_connection(("127.0.0.1", port), 2)),
    "name": outcome(lambda: socket.create_connection(("localhost", port), 2)),
    "dns": outcome(lambda: socket.create_connection(("rebound.example.org", port), 2)),
    "raw": outcome(lambda: socket.socket().connect(("127.0.0.1", port))),
    "raw name": outcome(lambda: socket.socket().connect(("localhost", port))),
    "http": outcome(lambda: http.client.HTTPConnection("127.0.0.1", port, timeout=2).request("GET", "/")),
    "mapped": outcome(lambda: socket.socket(socket.AF_INET6).connect(("::ffff:127.0.0.1", port))),
    "unix": outcome(lambda: socket.socket(socket.AF_UNIX).connect("/run/docker.sock")),
    "udp": outcome(lambda: socket.socket(type=socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", 53))),
    "program": outcome(lambda: __import__("subprocess").run(["true"])),
}))
"""
    )
    assert "connected" not in found.values(), found
    assert {name for name, text in found.items() if not text.endswith(("host.", "contacted.", "here."))} == set(), found


def test_a_name_that_changes_between_check_and_connection_leads_nowhere_else() -> None:
    found = in_guarded_process(
        """
answers["flips.example.org"] = ["93.184.216.34", "127.0.0.1"]
first = socket.getaddrinfo("flips.example.org", port)[0][4][0]
print(json.dumps({"first": first, "then": outcome(lambda: socket.create_connection(("flips.example.org", port), 2))}))
"""
    )
    assert found == {
        "first": "93.184.216.34",
        "then": "127.0.0.1 is not a public address. An admin can allow the host.",
    }


def test_an_allowed_host_is_reached_by_its_name_and_others_at_its_port_are_not() -> None:
    found = in_guarded_process(
        """
answers["chat"] = ["127.0.0.1"]
before = outcome(lambda: socket.create_connection(("127.0.0.1", port), 2))
by_name = outcome(lambda: socket.create_connection(("chat", port), 2))
other = outcome(lambda: socket.create_connection(("10.0.0.1", port), 2))
print(json.dumps({"before": before, "by_name": by_name, "other": other}))
""",
        allowed=["chat"],
    )
    assert found["by_name"] == "connected"
    assert "not a public" in found["before"] and "not a public" in found["other"]
