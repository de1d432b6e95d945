"""Which addresses the portal contacts for what people typed: public ones, and hosts that an admin allowed.

A URL is checked when it is typed (``read_url``). What counts is checked where the connection is made: in a program of its
own (``portal.sandbox``) that has called ``guard``, whatever library connects there. Each name is resolved once, the
connection goes to the address that was found, and an address that may not be contacted is refused at that moment: a name
whose address changes after a check, or a redirect, leads nowhere else. Standard library only.
"""

import ipaddress
import mimetypes
import os
import re
import socket
import sys
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
SPECIAL = tuple(map(ipaddress.IPv6Network, ("2002::/16", "2001::/23", "3fff::/20", "64:ff9b::/96", "64:ff9b:1::/48")))
"""6to4, Teredo and other special purposes, documentation, NAT64: several lead to an IPv4 address that is not seen here."""
RELAY_6TO4 = ipaddress.IPv4Network("192.88.99.0/24")
PORTS = (443, 8443)
"""Those of hosts that no admin has allowed."""
MAX_URL = 2000
_HOST = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)(\.(?!-)[a-z0-9_-]{1,63}(?<!-))*\.?")


class OutboundError(Exception):
    """An address that is not contacted. The message has the reason, and is safe to show: it has no part of a secret."""


@dataclass(frozen=True, slots=True)
class Url:
    """A URL that was typed, in its parts."""

    scheme: str
    host: str
    port: int
    target: str
    """Path and query, which may have a secret."""

    @property
    def place(self) -> str:
        """What may be shown of it."""
        usual = {"https": 443, "http": 80}[self.scheme] == self.port
        return self.host if usual else f"{self.host}:{self.port}"


def read_url(text: str, allowed: Collection[str] = ()) -> Url:
    """Return the parts of a URL. Raises OutboundError for one that will not be contacted, as far as that can be seen from it."""
    if len(text) > MAX_URL or not text.isascii() or any(character <= " " or character == "\\" for character in text):
        raise OutboundError("Write the URL in ASCII, without spaces, with at most 2,000 characters.")
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise OutboundError("This is not a URL.") from None
    host = (parts.hostname or "").rstrip(".")
    if parts.scheme not in ("https", "http") or not host:
        raise OutboundError("Write a URL that begins with https://.")
    if parts.username is not None or parts.password is not None:
        raise OutboundError("Leave the user name and the password out of the URL.")
    if parts.fragment:
        raise OutboundError("Leave out the part after #.")
    port = port or (443 if parts.scheme == "https" else 80)
    check_host(host, allowed)
    if host not in allowed and parts.scheme != "https":
        raise OutboundError("Only https:// is contacted. An admin can allow a host of the local network without it.")
    if host not in allowed and port not in PORTS:
        raise OutboundError(
            f"Only the ports {PORTS[0]} and {PORTS[1]} are contacted, unless an admin has allowed the host."
        )
    return Url(parts.scheme, host, port, (parts.path or "/") + (f"?{parts.query}" if parts.query else ""))


def check_host(host: str, allowed: Collection[str] = ()) -> None:
    """Refuse a host whose name shows that it will not be contacted. Raises OutboundError."""
    if host in allowed:
        return
    if (ip := _as_ip(host)) is not None:
        if refusal := refusal_of(ip):
            raise OutboundError(f"{refusal} An admin can allow this host.")
        return
    if not _HOST.fullmatch(host) or "." not in host or host.rpartition(".")[2].isdecimal():
        raise OutboundError(
            f"{host[:80]} is not the full name of a host. An admin can allow hosts of the local network."
        )
    if host.endswith((".localhost", ".local", ".internal", ".home.arpa")):
        raise OutboundError(f"{host} is a name of the local network. An admin can allow this host.")


def _as_ip(host: str) -> str | None:
    try:
        return str(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        return None


def refusal_of(address: str) -> str:
    """Return why an IP address is not contacted, as a sentence; empty for a public one."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return "This is not an address."
    if isinstance(ip, ipaddress.IPv6Address):
        public = ip in GLOBAL_UNICAST and not any(ip in network for network in SPECIAL) and ip.is_global
    else:
        public = ip.is_global and ip not in RELAY_6TO4
    if public and not (ip.is_multicast or ip.is_reserved or ip.is_loopback or ip.is_link_local):
        return ""
    return f"{ip} is not a public address."


def guard(allowed: Collection[str]) -> None:
    """Let this process connect to public addresses, and those of the allowed hosts, by TCP only. It cannot be undone.

    Of files it reads those of Python, its packages and the system's types and zones, and writes none: what was typed may
    name files, too. The certificates of the machine are read by OpenSSL, which this does not see.
    """
    permitted: set[str] = set()
    resolve = socket.getaddrinfo

    def getaddrinfo(host: Any, *args: Any, **named: Any) -> Any:
        found = resolve(host, *args, **named)
        if str(host).rstrip(".").lower() in allowed:
            permitted.update(str(entry[4][0]) for entry in found)
        return found

    def check(event: str, args: tuple[Any, ...]) -> None:
        if event == "socket.connect":
            address = args[1]
            if not isinstance(address, tuple) or not isinstance(address[0], str):
                raise OutboundError("Only internet addresses are contacted.")
            if address[0] not in permitted and (refusal := refusal_of(address[0])):
                raise OutboundError(f"{refusal} An admin can allow the host.")
        elif event in ("open", "os.listdir", "os.scandir"):
            if not _may_open(*args):
                raise PermissionError("No files are read here.")
        elif event in _NEVER:
            raise OutboundError("Only connections are made here.")

    socket.getaddrinfo = getaddrinfo
    sys.addaudithook(check)


def _may_open(path: Any, mode: Any = None, flags: int = 0) -> bool:
    """Return whether an audited call may read this file or folder."""
    if isinstance(path, int):
        return True  # it is open already
    if path is None or flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
        return False
    real = os.path.realpath(os.fsdecode(path))
    return real in _READABLE_FILES or any(real == each or real.startswith(each + "/") for each in _READABLE_FOLDERS)


_READABLE_FOLDERS = tuple(
    os.path.realpath(each) for each in (sys.prefix, sys.base_prefix, Path(__file__).parent, "/usr/share/zoneinfo")
)
_READABLE_FILES = {*(os.path.realpath(each) for each in mimetypes.knownfiles), "/dev/null", "/dev/urandom"}
_NEVER = {
    "socket.sendto",
    "socket.sendmsg",
    "socket.bind",
    "subprocess.Popen",
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.fork",
    "os.forkpty",
    "syslog.openlog",
    "syslog.syslog",
}
"""What a program that sends messages never does."""
