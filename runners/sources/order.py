"""What the portal asks a node to fetch."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from runners.host.egress import HostRule
from runners.sources.inside.submodules import PLAIN

BRANCH = re.compile(r"[A-Za-z0-9_][^\x00-\x20\x7f~^:?*\[\\]{0,199}")


@dataclass(frozen=True, slots=True)
class FetchOrder:
    """One fetch. Its texts come from the portal, which has checked them."""

    number: int
    address: str
    """``https://HOST/PATH`` or ``ssh://USER@HOST/PATH``, with ``:PORT`` if it is not the usual one."""
    branch: str
    rules: tuple[str, ...]
    """The hosts that may be reached, as ``HostRule`` reads them."""
    max_mib: int
    """How much may be received."""
    max_tree_mib: int
    """How much the files may have."""
    seconds: int
    known: str = ""
    """The commit that the portal has already; nothing is fetched while the branch is still there."""
    user: str = ""
    token: str = field(default="", repr=False)
    key: str = field(default="", repr=False)
    """The private part of the deploy key, in the format of OpenSSH."""
    host_key: str = ""
    """The confirmed key of the host, ``ssh-ed25519 AAAA...``; empty if there is none yet."""
    extras: bool = False
    """Whether submodules and files of Git LFS are fetched too."""

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "FetchOrder":
        """Raises ValueError, TypeError or KeyError for what is not an order."""
        texts = {name: str(data.get(name, "")) for name in ("known", "user", "token", "key", "host_key")}
        order = cls(
            int(data["fetch"]),
            str(data["address"]),
            str(data["branch"]),
            tuple(str(rule) for rule in data["hosts"]),
            int(data["max_mib"]),
            int(data["max_tree_mib"]),
            int(data["seconds"]),
            extras=data.get("extras") is True,
            **texts,
        )
        if not PLAIN.fullmatch(order.address) or not BRANCH.fullmatch(order.branch):
            raise ValueError("This is not the address of a repository and a branch.")
        order.host_rules()
        return order

    def host_rules(self) -> list[HostRule]:
        """Raises ValueError."""
        return [HostRule.parse(rule) for rule in self.rules]

    @property
    def is_ssh(self) -> bool:
        return self.address.startswith("ssh://")

    @property
    def host(self) -> str:
        return urlsplit(self.address).hostname or ""

    @property
    def port(self) -> int:
        return urlsplit(self.address).port or (22 if self.is_ssh else 443)

    @property
    def place(self) -> str:
        """The host as git names it to a credential helper: with a port that is not the usual one."""
        return urlsplit(self.address).netloc.rpartition("@")[2]
