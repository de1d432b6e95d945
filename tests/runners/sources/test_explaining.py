"""The message of a fetch that failed, from the output of git and ssh, and from what the proxy noted."""

from typing import Any

import pytest

from runners.host.egress import Connection
from runners.messages import Message, message_from
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
    NoBranch,
    NoLfsProgram,
    NoRepository,
    RepositoryTooLarge,
    SubmoduleFailed,
    TokenRefused,
    TreeTooLarge,
)
from runners.sources.explaining import explain, fingerprint
from runners.sources.order import FetchOrder

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl"
FINGERPRINT = "SHA256:+DiY3wvvV6TuJJhbpZisF/zLDA0zPMSvHdkr4UvCOqU"


def order(**changes: Any) -> FetchOrder:
    values: dict[str, Any] = {
        "number": 1,
        "address": "https://git.example.org/lab/train.git",
        "branch": "main",
        "rules": ("git.example.org:443",),
        "max_mib": 2048,
        "max_tree_mib": 1024,
        "seconds": 60,
    }
    return FetchOrder(**{**values, **changes})


@pytest.mark.parametrize(
    ("output", "failure"),
    [
        (
            "fatal: Authentication failed for 'https://git.example.org/lab/train.git/'",
            TokenRefused("git.example.org", False),
        ),
        (
            "fatal: could not read Username for 'https://git.example.org': terminal prompts disabled",
            TokenRefused("git.example.org", False),
        ),
        ("remote: HTTP Basic: Access denied", TokenRefused("git.example.org", False)),
        (
            "fatal: unable to access 'https://git.example.org/x/': The requested URL returned error: 403",
            TokenRefused("git.example.org", False),
        ),
        (
            "remote: Repository not found.\nfatal: repository 'https://git.example.org/lab/train.git/' not found",
            NoRepository("https://git.example.org/lab/train.git"),
        ),
        (
            "git@git.example.org: Permission denied (publickey).\nfatal: Could not read from remote repository.",
            KeyRefused("git.example.org"),
        ),
        (
            "fatal: '/srv/x' does not appear to be a git repository",
            NoRepository("https://git.example.org/lab/train.git"),
        ),
        (
            "fatal: unable to access 'x': SSL certificate problem: self-signed certificate",
            CertificateUnknown("git.example.org", "self-signed certificate"),
        ),
        (
            "fatal: unable to access 'x': server certificate verification failed. CAfile: none CRLfile: none",
            CertificateUnknown("git.example.org", "it cannot be verified"),
        ),
        (
            "remote: Total 3\nfatal: fsck error in packed object",
            BrokenObjects("fsck error in packed object"),
        ),
        ("git: 'lfs' is not a git command. See 'git --help'.", NoLfsProgram()),
        ("fatal: something new", GitFailed("something new")),
        ("", GitFailed("it printed nothing")),
    ],
)
def test_the_output_of_git(output: str, failure: Message) -> None:
    assert explain({"failure": "git", "output": output}, order(), ()) == failure
    assert message_from(failure.data()) == failure and failure.text.endswith(".")


@pytest.mark.parametrize(
    ("connection", "failure"),
    [
        (Connection("evil.org", 443, refusal="no", reason="not_allowed"), HostNotAllowed("evil.org:443")),
        (
            Connection("git.lab", 443, refusal="its address is", reason="internal"),
            HostInternal("git.lab", "its address is"),
        ),
        (Connection("git.lab", 22, error="timed out", reason="unreachable"), HostUnreachable("git.lab", "timed out")),
        (
            Connection("git.lab", 22, refusal="the maximum size of all downloads is reached", reason="cut_off"),
            RepositoryTooLarge(2048),
        ),
    ],
)
def test_what_the_proxy_noted_comes_first(connection: Connection, failure: Message) -> None:
    assert explain({"output": "fatal: early EOF"}, order(), [connection]) == failure


@pytest.mark.parametrize(
    ("found", "failure"),
    [
        ({"failure": "host_key_unknown", "host_key": KEY}, HostKeyUnknown("git.example.org", FINGERPRINT)),
        ({"failure": "host_key_changed", "host_key": KEY}, HostKeyChanged("git.example.org", FINGERPRINT)),
        ({"failure": "no_branch", "branches": ["dev", "next"], "count": 7}, NoBranch("main", ("dev", "next"), 7)),
        ({"failure": "large_tree", "mib": 3000}, TreeTooLarge(3000, 1024)),
        ({"failure": "large_files", "files": ["a"], "count": 1, "limit_mib": 9}, LargeFiles(("a",), 1, 9)),
        ({"failure": "bad_submodule", "path": "x", "address": "ext::sh"}, BadSubmodule("x", "ext::sh")),
        (
            {"failure": "git", "output": "fatal: Authentication failed for 'x'", "submodule": "lib"},
            SubmoduleFailed("lib", TokenRefused("git.example.org", False)),
        ),
    ],
)
def test_what_the_program_inside_found(found: dict[str, Any], failure: Message) -> None:
    made = explain(found, order(), ())
    assert made == failure and message_from(made.data()) == made


@pytest.mark.parametrize("value", [None, 3, [], {"a": 1}, ["x", 3], "x" * 100_000, -1, 2**70])
def test_nothing_that_was_written_inside_is_trusted(value: Any) -> None:
    keys = ("host_key", "branches", "count", "files", "limit_mib", "mib", "path", "address", "output", "submodule")
    for kind in (
        "host_key_unknown",
        "no_branch",
        "large_files",
        "large_tree",
        "bad_submodule",
        "long_link",
        "git",
        value,
    ):
        made = explain({"failure": kind, **dict.fromkeys(keys, value)}, order(), ())
        assert len(made.text) < 10_000 and message_from(made.data()).text


def test_the_fingerprint_is_that_of_ssh() -> None:
    assert fingerprint(KEY) == FINGERPRINT
    assert fingerprint("ssh-ed25519 no") == "" == fingerprint("")
