"""Turns what a fetch found into a message: the output of git and ssh, and what the proxy has refused."""

import base64
import binascii
import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from runners.host.egress import Connection
from runners.messages.environment_failures import Failure
from runners.messages.git_failures import (
    BadSubmodule,
    BrokenObjects,
    CertificateUnknown,
    GitFailed,
    HostInternal,
    HostKeyChanged,
    HostKeyUnknown,
    HostNotAllowed,
    HostUnreachable,
    KeyRefused,
    LargeFiles,
    LinkTooLong,
    NoBranch,
    NoLfsFile,
    NoLfsProgram,
    NoRepository,
    RepositoryTooLarge,
    SubmoduleFailed,
    TokenRefused,
    TooManyRepositoryFiles,
    TreeTooLarge,
)
from runners.sources.order import FetchOrder

HOST_KEY = re.compile(r"(ssh-ed25519|ssh-rsa|ecdsa-sha2-nistp(?:256|384|521)) [A-Za-z0-9+/]{40,2000}={0,2}")
MAX_ERROR = 300


def fingerprint(host_key: str) -> str:
    """Return the fingerprint of a key as ssh shows it; empty if it is no key."""
    try:
        blob = base64.b64decode(host_key.split(" ")[1], validate=True)
    except (IndexError, binascii.Error):
        return ""
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def explain(found: Mapping[str, Any], order: FetchOrder, connections: Sequence[Connection]) -> Failure:
    """Return why a fetch failed. ``found`` was written in the sandbox, so nothing in it is trusted."""
    failure = _explain(found, order, connections)
    path = found.get("submodule")
    return SubmoduleFailed(_text(path), failure) if path else failure


def _explain(found: Mapping[str, Any], order: FetchOrder, connections: Sequence[Connection]) -> Failure:
    count = _number(found.get("count"))
    match found.get("failure"):
        case "host_key_unknown":
            return HostKeyUnknown(order.host, fingerprint(_text(found.get("host_key"))))
        case "host_key_changed":
            return HostKeyChanged(order.host, fingerprint(_text(found.get("host_key"))))
        case "no_branch":
            return NoBranch(order.branch, _texts(found.get("branches")), count)
        case "large_files":
            return LargeFiles(_texts(found.get("files")), count, _number(found.get("limit_mib")))
        case "large_tree":
            return TreeTooLarge(_number(found.get("mib")), order.max_tree_mib)
        case "too_many_files":
            return TooManyRepositoryFiles(_number(found.get("limit")))
        case "long_link":
            return LinkTooLong(_text(found.get("path")))
        case "bad_submodule":
            return BadSubmodule(_text(found.get("path")), _text(found.get("address")))
        case "no_lfs_file":
            return NoLfsFile(_text(found.get("path")))
        case _:
            return explain_output(_text(found.get("output"), 8000), order, connections)


def explain_output(output: str, order: FetchOrder, connections: Sequence[Connection]) -> Failure:
    """Return why git failed, from what the proxy noted and what git and ssh printed."""
    for connection in connections:
        if connection.reason == "cut_off" and "maximum size" in connection.refusal:
            return RepositoryTooLarge(order.max_mib)
        if connection.reason == "not_allowed":
            return HostNotAllowed(f"{connection.host}:{connection.port}")
        if connection.reason == "internal":
            return HostInternal(connection.host, connection.refusal)
        if connection.error:
            return HostUnreachable(connection.host, connection.error)
    for pattern, kind in PATTERNS:
        if found := re.search(pattern, output, re.IGNORECASE | re.MULTILINE):
            failure: Failure = kind(order, found)
            return failure
    return GitFailed(last_error(output))


def last_error(output: str) -> str:
    """Return the most specific line of git's output."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"(fatal|error|remote|ssh|Permission)\b", line)]
    found = next((line for line in errors if line.startswith("fatal")), (errors or lines or ["it printed nothing"])[-1])
    return found.removeprefix("fatal: ").removeprefix("error: ").rstrip(".")[:MAX_ERROR]


PATTERNS: tuple[tuple[str, Any], ...] = (
    (r"SSL certificate problem: (.*)|server certificate verification failed|SSL: no alternative certificate",
     lambda order, found: CertificateUnknown(order.host, (found[1] or "it cannot be verified").strip().rstrip("."))),
    (r"Permission denied \(|Too many authentication failures|no mutual signature", lambda order, _: KeyRefused(order.host)),
    (r"Authentication failed for|could not read (Username|Password)|returned error: 40[13]|HTTP Basic: Access denied",
     lambda order, _: TokenRefused(order.host, bool(order.token))),
    (r"Repository not found|repository '.*' not found|does not appear to be a git repository|returned error: 404"
     r"|project you were looking for could not be found|could not find repository|does not exist",
     lambda order, _: NoRepository(order.address)),
    (r"git: 'lfs' is not a git command", lambda order, _: NoLfsProgram()),
    (r"(fsck error.*|error: object [0-9a-f]+: .*)", lambda order, found: BrokenObjects(found[1][:MAX_ERROR].rstrip("."))),
    (r"Couldn't connect to server|Could not resolve host|Operation timed out|Connection (timed out|refused)"
     r"|Operation too slow|the proxy closed the connection|Connection reset|Timeout, server",
     lambda order, found: HostUnreachable(order.host, found[0])),
)  # fmt: skip
"""What git, curl and ssh print (LC_ALL=C), in the order in which it is looked for."""


def _text(value: Any, limit: int = MAX_ERROR) -> str:
    return value[-limit:] if isinstance(value, str) else ""


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(_text(each) for each in value[:20]) if isinstance(value, list) else ()


def _number(value: Any) -> int:
    return value if type(value) is int and 0 <= value < 2**53 else 0
