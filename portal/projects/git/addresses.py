"""Reads the addresses of repositories and the names of branches that people type. What they type is hostile: an address of git may
run programs (``ext::``), read files of the machine, or be an option.

Only https and ssh are understood, in one canonical form, which agents check again (``runners.sources.order``).
"""

import re
from dataclasses import dataclass, replace

from portal.host_names import HostError, read_host
from portal.names import has_invisible_characters
from portal.refused import Refused

MAX_ADDRESS, MAX_BRANCH = 500, 200
DEFAULT_PORTS = {"https": 443, "ssh": 22}
SSH_USER = "git"
_SHORT = re.compile(r"(?:([^@/:]+)@)?([^@/:]+):(?!//)(.+)")
_USER = re.compile(r"[A-Za-z0-9._][A-Za-z0-9._-]{0,63}")
_PATH = re.compile(r"[A-Za-z0-9._~/+@%-]+")
_HELPER = re.compile(r"[A-Za-z0-9+.-]+::")
_BAD_IN_BRANCH = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//|/\.|\.lock(/|$)|^[-/.@]$|^[-/.]|[/.]$")


@dataclass(frozen=True, slots=True)
class GitAddress:
    """The address of a repository."""

    scheme: str
    """https or ssh"""
    host: str
    path: str
    """Without a slash at the beginning."""
    port: int = 0
    """0: the usual one."""
    user: str = ""
    """Of ssh."""

    def __str__(self) -> str:
        user = f"{self.user}@" if self.user else ""
        return f"{self.scheme}://{user}{self.place}/{self.path}"

    @property
    def place(self) -> str:
        """The host, with its port if that is not the usual one."""
        return f"{self.host}:{self.port}" if self.port else self.host

    @property
    def real_port(self) -> int:
        return self.port or DEFAULT_PORTS[self.scheme]

    @property
    def name(self) -> str:
        """What people call the repository: ``lab/train``."""
        return self.path.removesuffix(".git").strip("/")


def read_address(typed: str) -> GitAddress:
    """Read ``https://HOST/PATH``, ``ssh://USER@HOST/PATH`` or ``USER@HOST:PATH``. Raises Refused with a sentence for the field."""
    text = typed.strip()
    if not text:
        raise _refused("Enter the address of the repository, such as https://github.com/lab/train.git.")
    if len(text) > MAX_ADDRESS or has_invisible_characters(text) or re.search(r"[\s\x00-\x1f\x7f]", text):
        raise _refused(f"An address is one line of at most {MAX_ADDRESS} characters, without spaces.")
    if text.startswith("-"):
        raise _refused("An address does not begin with a dash.")
    if _HELPER.match(text):
        raise _refused("Addresses with :: run programs. Enter one that begins with https:// or ssh://.")
    scheme, separator, rest = text.partition("://")
    if separator and scheme.lower() in DEFAULT_PORTS:
        return _read_whole(scheme.lower(), rest)
    if separator:
        raise _refused(
            f"Addresses with {scheme[:20]}:// are not fetched. Enter one that begins with https:// or ssh://."
        )
    if match := _SHORT.fullmatch(text):
        return _checked(
            GitAddress("ssh", match[2], match[3].lstrip("/"), user=match[1] or SSH_USER), absolute="/" in match[3][:1]
        )
    raise _refused("Enter an address that begins with https:// or ssh://, or one such as git@github.com:lab/train.git.")


def _read_whole(scheme: str, rest: str) -> GitAddress:
    place, _, path = rest.partition("/")
    if "?" in rest or "#" in rest:
        raise _refused("An address has no ? and no #. Copy the one under “Clone”.")
    user, at, host = place.rpartition("@")
    if at and scheme == "https":
        raise _refused("Leave user and token out of the address, where everyone would see them. Enter them below.")
    if at and ":" in user:
        raise _refused("Leave the password out of the address. The deploy key of the project takes its place.")
    return _checked(GitAddress(scheme, host, path, user=(user or SSH_USER) if scheme == "ssh" else ""))


def _checked(address: GitAddress, *, absolute: bool = False) -> GitAddress:
    try:
        host = read_host(address.host, internal=True)
    except HostError as error:
        raise _refused(str(error)) from None
    if host.name.startswith("*"):
        raise _refused("An address names one host, without a star.")
    if address.scheme == "ssh" and not _USER.fullmatch(address.user):
        raise _refused("The user of an ssh address has letters, digits, dots and dashes.")
    parts = address.path.rstrip("/").split("/")
    if not address.path.strip("/") or not _PATH.fullmatch(address.path):
        raise _refused("The path of a repository has letters, digits and . _ ~ + @ % - alone, such as /lab/train.git.")
    if any(part in ("", ".", "..") or part.startswith("-") for part in parts):
        raise _refused("The parts of a path are not empty or dots, and do not begin with a dash.")
    port = 0 if host.port == DEFAULT_PORTS[address.scheme] else host.port
    return replace(address, host=host.name, port=port, path="/".join(parts))


def read_branch(typed: str) -> str:
    """Read the name of a branch. Raises Refused with a sentence for the field."""
    branch = typed.strip().removeprefix("refs/heads/")
    if not branch:
        raise Refused("Enter the name of the branch, such as main.", field="branch")
    if branch.startswith("-"):
        raise Refused("The name of a branch does not begin with a dash.", field="branch")
    if len(branch) > MAX_BRANCH or has_invisible_characters(branch) or _BAD_IN_BRANCH.search(branch):
        raise Refused(
            f"This is not the name of a branch. It has at most {MAX_BRANCH} characters, no spaces, and none of "
            "~ ^ : ? * [ \\ or two dots.",
            field="branch",
        )
    if not re.match(r"[A-Za-z0-9_]", branch):
        raise Refused("The name of a branch begins with a letter, a digit or an underscore here.", field="branch")
    return branch


def _refused(message: str) -> Refused:
    return Refused(message, field="address")


# --- pages of commits -------------------------------------------------------------------------------------------------

STYLES = {"github": "/commit/", "gitlab": "/-/commit/", "gitea": "/commit/", "bitbucket": "/commits/"}
"""How the page of a commit follows the path of a repository."""
KNOWN_HOSTS = {
    "github.com": "github",
    "gitlab.com": "gitlab",
    "codeberg.org": "gitea",
    "gitea.com": "gitea",
    "bitbucket.org": "bitbucket",
}


def commit_link(address: GitAddress, commit: str, kind: str = "") -> str:
    """Return the address of the page of a commit; empty where the software of the host is not known."""
    style = STYLES.get(KNOWN_HOSTS.get(address.host, kind))
    if style is None:
        return ""
    place = address.place if address.scheme == "https" else address.host
    return f"https://{place}/{address.name}{style}{commit}"
