"""What is known about a host that a job did not reach: its name from the error, and why, from the proxy of its node."""

import re
from collections.abc import Sequence
from typing import Any

from portal.jobs.causes.cause import Facts

NAMES = (
    re.compile(r"\bhost=['\"]([\w.-]{1,253})['\"]"),  # urllib3
    re.compile(r"\bhttps?://(?:[^\s/@'\"]{1,200}@)?([\w.-]{1,253})"),
    re.compile(r"Could not resolve host: ([\w.-]{1,253})"),  # curl, git
    re.compile(r"resolv\w+ (?:address|host|name)[ :'\"]{1,3}([\w-]{1,63}(?:\.[\w-]{1,63})+)"),  # wget, Go
)
LOOK_UP = re.compile(r"name resolution|Name or service not known|resolve host|nodename nor servname")
OWN = frozenset({"127.0.0.1", "localhost", "0.0.0.0"})  # noqa: S104  the address of the proxy in messages, no socket


def about_host(text: str, facts: Facts) -> dict[str, Any]:
    """Return the parameters of the cause *no_internet*: ``host``, ``reason``, and whether the program passed the proxy by.

    The record of the proxy has the reason; the error itself often names the host only.
    """
    host = named_host(text)
    if facts.refused_host and host in ("", facts.refused_host):
        return {"host": facts.refused_host, "reason": facts.refused_reason, "has_hosts": True}
    found: dict[str, Any] = {"host": host} if host else {}
    if facts.allowed_hosts:
        found["has_hosts"] = True
        if is_allowed(host, facts.allowed_hosts) and LOOK_UP.search(text):
            found["reason"] = "bypassed"
    return found


def named_host(text: str) -> str:
    """Return the host that an error names; empty without one."""
    names = (found[1].rstrip(".").lower() for regex in NAMES for found in regex.finditer(text))
    return next((name for name in names if name not in OWN and "." in name), "")


def is_allowed(host: str, rules: Sequence[str]) -> bool:
    """Return whether some rule has this name, whatever its port."""
    names = [rule.partition(" ")[0].partition(":")[0] for rule in rules]
    return any(host == name or (name.startswith("*.") and host.endswith(name[1:])) for name in names)
