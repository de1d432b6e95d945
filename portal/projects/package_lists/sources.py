"""Addresses that an admin has allowed as sources of packages, and whether an address of a user lies below one.

Both are read by one strict grammar, and what remains is compared by scheme, host, port and whole segments of the path. What
the grammar does not have (user names, other letters than ASCII, ``..``, backslashes, queries, encoded characters other than
``%2B``) is refused, so that no program after us can understand an address in another way than it is understood here.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import unquote

from packaging.utils import canonicalize_name

PORTS = {"https": 443, "http": 80}
MAX_ADDRESS = 500

_ADDRESS = re.compile(r"(?i:((?:git\+)?https?))://([^/?#]*)([^?#]*)(?:#(.*))?", re.DOTALL)
_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_HOST = re.compile(rf"({_LABEL}(?:\.{_LABEL})*)(?::([0-9]{{1,5}}))?")
_SEGMENT = re.compile(r"(?:[A-Za-z0-9_+=,~.-]|%2[Bb])+")
_REVISION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*(?:/[A-Za-z0-9_][A-Za-z0-9_.+-]*)*")
_SHA256 = re.compile(r"[0-9A-Fa-f]{64}")
_EGG = re.compile(r"([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)(?:\[[A-Za-z0-9._,-]*\])?")


class AddressError(ValueError):
    """An address that is not understood or not allowed; the message is a sentence for a person."""


@dataclass(frozen=True, slots=True)
class Address:
    """An address in its canonical form."""

    scheme: str
    host: str
    port: int
    segments: tuple[str, ...]
    is_folder: bool
    revision: str = ""
    """What follows ``@`` in the address of a git repository."""
    sha256: str = ""
    subfolder: str = ""
    egg: str = ""

    def __str__(self) -> str:
        port = "" if PORTS[self.scheme.removeprefix("git+")] == self.port else f":{self.port}"
        path = "".join(f"/{segment}" for segment in self.segments) + ("/" if self.is_folder else "")
        revision = f"@{self.revision}" if self.revision else ""
        parts = [f"sha256={self.sha256}"] if self.sha256 else []
        parts += [f"subdirectory={self.subfolder}"] if self.subfolder else []
        fragment = f"#{'&'.join(parts)}" if parts else ""
        return f"{self.scheme}://{self.host}{port}{path}{revision}{fragment}"

    def is_below(self, prefix: "Address") -> bool:
        """Return whether the path of the prefix, in whole segments, begins this address on the same host."""
        same = (self.scheme, self.host, self.port) == (prefix.scheme, prefix.host, prefix.port)
        begins = self.segments[: len(prefix.segments)] == prefix.segments
        return same and begins and prefix.revision in ("", self.revision)


def parse(address: str) -> Address:
    """Read an address. Raises AddressError."""
    match = _ADDRESS.fullmatch(address) if address.isascii() and len(address) <= MAX_ADDRESS else None
    if match is None:
        raise AddressError(
            "Only addresses that begin with https://, http://, git+https:// or git+http:// can be allowed."
        )
    scheme, network, path, fragment = match[1].lower(), match[2], match[3], match[4] or ""
    if "@" in network:
        raise AddressError("An address with a user name or a password is not taken. Remove what is before the @.")
    host = _HOST.fullmatch(network.lower())
    if host is None or len(host[1]) > 253 or not 0 < int(host[2] or 1) < 65536:
        raise AddressError(
            "The host of this address is not understood. Write it in ASCII, with a port only if it needs one."
        )
    port = int(host[2]) if host[2] else PORTS[scheme.removeprefix("git+")]
    path, revision = _split_revision(scheme, path)
    segments, is_folder = _split_path(path)
    sha256, subfolder, egg = _split_fragment(fragment)
    return Address(scheme, host[1], port, segments, is_folder, revision, sha256, subfolder, egg)


def check_prefix(prefix: str) -> str:
    """Return an address that an admin allows in canonical form. Raises AddressError."""
    found = parse(prefix)
    if found.sha256 or found.subfolder or found.egg:
        raise AddressError("Leave out what follows the #: an allowed address is the beginning of others.")
    return str(found)


def check_allowed(address: str, allowed: Sequence[str]) -> Address:
    """Return an address that begins with one of the allowed ones. Raises AddressError."""
    if not allowed:
        raise AddressError("Addresses are taken only from sources that an admin has allowed, and there are none.")
    found = parse(address)
    if not any(found.is_below(prefix) for prefix in _prefixes(allowed)):
        raise AddressError("This address is not one of the sources that an admin has allowed.")
    return found


def _prefixes(allowed: Sequence[str]) -> list[Address]:
    found = []
    for prefix in allowed:
        try:
            found.append(parse(prefix))
        except AddressError:  # stored before a rule became stricter: it allows nothing
            continue
    return found


def _split_revision(scheme: str, path: str) -> tuple[str, str]:
    if "@" not in path:
        return path, ""
    path, _, revision = path.partition("@")
    if not scheme.startswith("git+") or not _REVISION.fullmatch(revision) or ".." in revision:
        raise AddressError("An @ in an address is understood only before a branch, tag or commit of a git repository.")
    return path, revision


def _split_path(path: str) -> tuple[tuple[str, ...], bool]:
    is_folder = path.endswith("/")
    parts = path.removesuffix("/").split("/")[1:]
    if any(not _SEGMENT.fullmatch(part) or unquote(part).strip(".") == "" for part in parts):
        raise AddressError(
            "The path of this address has “..”, an empty part or an unusual character. Write it without; only + may be encoded, "
            "as %2B."
        )
    return tuple(part.replace("%2b", "%2B") for part in parts), is_folder


def _split_fragment(fragment: str) -> tuple[str, str, str]:
    """Return the hash, the subfolder and the name that follow the ``#``."""
    found: dict[str, str] = {}
    for part in fragment.split("&") if fragment else ():
        key, _, value = part.partition("=")
        if key in found or not _is_fragment_part(key, value):
            raise AddressError(
                "After the # of an address, only sha256=, egg= and subdirectory= are understood, each once."
            )
        found[key] = value
    egg = _EGG.fullmatch(found.get("egg", ""))
    return found.get("sha256", "").lower(), found.get("subdirectory", ""), canonicalize_name(egg[1]) if egg else ""


def _is_fragment_part(key: str, value: str) -> bool:
    if key == "sha256":
        return bool(_SHA256.fullmatch(value))
    if key == "egg":
        return bool(_EGG.fullmatch(value))
    parts = value.split("/")
    return key == "subdirectory" and all(_REVISION.fullmatch(part) and part.strip(".") for part in parts)
