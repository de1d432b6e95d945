"""Addresses that an admin has allowed as sources of packages, and whether an address of a user lies below one.

Both are read by one strict grammar, and what remains is compared by scheme, host, port and whole segments of the path. What
the grammar does not have (user names, other letters than ASCII, ``..``, backslashes, queries, encoded characters other than
``%2B``, repositories) is refused, so that no program after us can understand an address in another way than it is understood here.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import unquote

from packaging.utils import canonicalize_name

PORTS = {"https": 443, "http": 80}
MAX_ADDRESS = 500

WHEEL = ".whl"
ARCHIVES = (".tar.gz", ".zip", ".tar.bz2", ".tar.xz", ".tgz")
"""The ends of the names of source archives that nodes can build."""

_ADDRESS = re.compile(r"(?i:(https?))://([^/?#]*)([^?#]*)(?:#(.*))?", re.DOTALL)
_REPOSITORY = re.compile(r"(?:git|hg|svn|bzr)(?:\+|://)|[\w.-]+@[\w.-]+:(?!//)", re.IGNORECASE)
"""How pip and git name repositories: ``git+https://``, ``git://`` and ``git@host:group/name.git``."""
_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_HOST = re.compile(rf"({_LABEL}(?:\.{_LABEL})*)(?::([0-9]{{1,5}}))?")
_SEGMENT = re.compile(r"(?:[A-Za-z0-9_+=,~.-]|%2[Bb])+")
_SHA256 = re.compile(r"[0-9A-Fa-f]{64}")
_EGG = re.compile(r"([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)(?:\[[A-Za-z0-9._,-]*\])?")


INSTEAD = "Put a wheel of it on an allowed source, or its code into your upload."


class AddressError(ValueError):
    """An address that is not understood or not allowed; the message is a sentence for a person."""


class UninstallableError(AddressError):
    """An address from which nothing is installed, whatever an admin allows; the message has what to do instead."""


@dataclass(frozen=True, slots=True)
class Address:
    """An address in its canonical form."""

    scheme: str
    host: str
    port: int
    segments: tuple[str, ...]
    is_folder: bool
    sha256: str = ""
    egg: str = ""

    def __str__(self) -> str:
        port = "" if PORTS[self.scheme] == self.port else f":{self.port}"
        path = "".join(f"/{segment}" for segment in self.segments) + ("/" if self.is_folder else "")
        fragment = f"#sha256={self.sha256}" if self.sha256 else ""
        return f"{self.scheme}://{self.host}{port}{path}{fragment}"

    @property
    def file_name(self) -> str:
        """The name of the file, in small letters; empty for a folder."""
        return "" if self.is_folder or not self.segments else unquote(self.segments[-1]).lower()

    @property
    def is_wheel(self) -> bool:
        return self.file_name.endswith(WHEEL)

    def is_below(self, prefix: "Address") -> bool:
        """Return whether the path of the prefix, in whole segments, begins this address on the same host."""
        same = (self.scheme, self.host, self.port) == (prefix.scheme, prefix.host, prefix.port)
        return same and self.segments[: len(prefix.segments)] == prefix.segments


def parse(address: str) -> Address:
    """Read an address. Raises AddressError."""
    if _REPOSITORY.match(address):
        raise UninstallableError(f"Repositories are not installed. {INSTEAD}")
    match = _ADDRESS.fullmatch(address) if address.isascii() and len(address) <= MAX_ADDRESS else None
    if match is None:
        raise AddressError("Only addresses that begin with https:// or http:// can be allowed.")
    scheme, network, path, fragment = match[1].lower(), match[2], match[3], match[4] or ""
    if "@" in network:
        raise AddressError("An address with a user name or a password is not taken. Remove what is before the @.")
    host = _HOST.fullmatch(network.lower())
    if host is None or len(host[1]) > 253 or not 0 < int(host[2] or 1) < 65536:
        raise AddressError(
            "The host of this address is not understood. Write it in ASCII, with a port only if it needs one."
        )
    port = int(host[2]) if host[2] else PORTS[scheme]
    segments, is_folder = _split_path(path)
    sha256, egg = _split_fragment(fragment)
    return Address(scheme, host[1], port, segments, is_folder, sha256, egg)


def check_prefix(prefix: str) -> str:
    """Return an address that an admin allows in canonical form. Raises AddressError."""
    try:
        found = parse(prefix)
    except UninstallableError:
        raise AddressError("Nothing is installed from a repository. Allow a folder of wheels, or an index.") from None
    if found.sha256 or found.egg:
        raise AddressError("Leave out what follows the #: an allowed address is the beginning of others.")
    return str(found)


def check_allowed(address: str, allowed: Sequence[str]) -> Address:
    """Return an address that begins with one of the allowed ones. Raises AddressError."""
    if not allowed and not _REPOSITORY.match(address):
        raise AddressError("Addresses are taken only from sources that an admin has allowed, and there are none.")
    found = parse(address)
    if not any(found.is_below(prefix) for prefix in _prefixes(allowed)):
        raise AddressError("This address is not one of the sources that an admin has allowed.")
    return found


def check_installable(address: Address) -> None:
    """Raise UninstallableError unless an address is one of a wheel or of a source archive."""
    if not address.file_name.endswith((WHEEL, *ARCHIVES)):
        raise UninstallableError(
            "A package has the address of a file, which ends with .whl, or with .tar.gz if it is built from source. Write that; "
            "an index is written as --index-url and its address."
        )


def check_index(address: Address) -> None:
    """Raise AddressError for an address that cannot be one of a package index."""
    if address.sha256 or address.egg:
        raise AddressError("This is not the address of a package index. Write it without #.")
    if "," in str(address):  # separates indexes in the settings of installers
        raise AddressError("The address of an index has no comma.")


def _prefixes(allowed: Sequence[str]) -> list[Address]:
    found = []
    for prefix in allowed:
        try:
            found.append(parse(prefix))
        except AddressError:  # stored before a rule became stricter: it allows nothing
            continue
    return found


def _split_path(path: str) -> tuple[tuple[str, ...], bool]:
    is_folder = path.endswith("/")
    parts = path.removesuffix("/").split("/")[1:]
    if any(not _SEGMENT.fullmatch(part) or unquote(part).strip(".") == "" for part in parts):
        raise AddressError(
            "The path of this address has “..”, an empty part or an unusual character. Write it without; only + may be encoded, "
            "as %2B."
        )
    return tuple(part.replace("%2b", "%2B") for part in parts), is_folder


def _split_fragment(fragment: str) -> tuple[str, str]:
    """Return the hash and the name that follow the ``#``."""
    found: dict[str, str] = {}
    for part in fragment.split("&") if fragment else ():
        key, _, value = part.partition("=")
        if key == "subdirectory":
            raise UninstallableError(f"A folder inside an archive is not installed. {INSTEAD}")
        if key in found or not _is_fragment_part(key, value):
            raise AddressError("After the # of an address, only sha256= and egg= are understood, each once.")
        found[key] = value
    egg = _EGG.fullmatch(found.get("egg", ""))
    return found.get("sha256", "").lower(), canonicalize_name(egg[1]) if egg else ""


def _is_fragment_part(key: str, value: str) -> bool:
    if key == "sha256":
        return bool(_SHA256.fullmatch(value))
    return key == "egg" and bool(_EGG.fullmatch(value))
