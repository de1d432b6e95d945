"""Reads a host that an admin types: a name or an IPv4 address, for all names below it with ``*.``, with a port if not the usual.

The canonical form is what ``runners.host.egress.HostRule`` reads and what proxies of nodes compare: ASCII, in small letters.
Whatever could be understood in another way by a resolver (addresses in other notations, paths, user names) is refused.
"""

import re
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address

from portal.names import has_invisible_characters

MAX_TYPED = 300
MAX_NAME = 253
MIN_WILDCARD_LABELS = 2
"""``*.org`` would allow most of the Internet."""
WILDCARD = "*."
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"(?:0x[0-9a-f]*|[0-9]+)")
_SHARED = IPv4Address("100.64.0.0"), IPv4Address("100.127.255.255")


class HostError(ValueError):
    """A host that is not understood or cannot be allowed; the message is a sentence for a person."""


class InternalHostError(HostError):
    """A host of the local network, which the admin has not confirmed."""


@dataclass(frozen=True, slots=True)
class HostName:
    """A host in its canonical form."""

    name: str
    """With ``*.`` before it for all names below."""
    port: int = 0
    """0: the ports of the web, 80 and 443."""

    def __str__(self) -> str:
        return f"{self.name}:{self.port}" if self.port else self.name


def read_host(typed: str, *, internal: bool = False) -> HostName:
    """Read a host. ``internal``: the admin confirmed that it is in the local network. Raises HostError."""
    text = typed.strip()
    if not text:
        raise HostError("Write the name of a host, such as huggingface.co.")
    if len(text) > MAX_TYPED or has_invisible_characters(text) or re.search(r"\s", text):
        raise HostError("Write one name, without spaces.")
    if "://" in text or "/" in text or "\\" in text:
        raise HostError("Write the name of the host alone, without https:// and without a path.")
    if any(mark in text for mark in "@?#%[]"):
        raise HostError("Write the name of the host alone, such as huggingface.co or mlflow.example.org:5000.")
    name, separator, port = text.partition(":")
    if ":" in port:
        raise HostError("Addresses of IPv6 cannot be allowed. Write the name of the host.")
    return HostName(_read_name(name, internal=internal), _read_port(port) if separator else 0)


def _read_port(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 5 and 0 < int(text) < 65536):
        raise HostError("A port is a number from 1 to 65535.")
    return int(text)


def _read_name(typed: str, *, internal: bool) -> str:
    below = typed.startswith(WILDCARD)
    name = _ascii(typed.removeprefix(WILDCARD).rstrip(".")).lower()
    if "*" in name:
        raise HostError("A star stands only at the beginning, for all names below one: *.example.org.")
    labels = name.split(".")
    if len(name) > MAX_NAME or not all(_LABEL.fullmatch(label) for label in labels):
        raise HostError("This is not the name of a host. A name has letters, digits, dashes and dots.")
    if labels[-1] == "localhost":
        raise HostError("localhost is the node itself, which jobs may not reach. Write the name of a machine.")
    if _NUMBER.fullmatch(labels[-1]):
        return _read_address(name, below=below, internal=internal)
    if below and len(labels) < MIN_WILDCARD_LABELS:
        raise HostError(f"*.{name} is too much. Write at least two parts after the star: *.example.{name}.")
    if len(labels) == 1 and not internal:
        raise InternalHostError(f"{name} is a name of the local network. Confirm that jobs may reach it.")
    return WILDCARD + name if below else name


def _read_address(name: str, *, below: bool, internal: bool) -> str:
    try:
        address = IPv4Address(name)
    except AddressValueError:
        raise HostError("Write an IPv4 address as four numbers, such as 192.0.2.10, or the name of the host.") from None
    if below:
        raise HostError("A star goes with names only.")
    if address.is_loopback or address.is_link_local or address.is_multicast or address.is_unspecified:
        raise HostError(f"{address} is the node itself or a service of its machine, which jobs may not reach.")
    if (address.is_private or address.is_reserved or _SHARED[0] <= address <= _SHARED[1]) and not internal:
        raise InternalHostError(f"{address} is an address of the local network. Confirm that jobs may reach it.")
    return str(address)


def _ascii(name: str) -> str:
    """Return a name with other letters as resolvers look it up (``xn--``). Raises HostError if that is ambiguous."""
    if name.isascii():
        return name
    try:
        found = name.encode("idna")
        same = found.decode("idna") == name.lower()
    except UnicodeError:
        same = False
    if not same:
        raise HostError("Write this name in ASCII, as a browser shows it when it is copied: xn--...")
    return found.decode("ascii")
