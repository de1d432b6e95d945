"""Commits that the portal asks a node to fetch: when it asks, what it reports, and what ends a fetch."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from runners.agent import shared_environments, sources
from runners.agent.portal_client import PortalRefusedError, PortalUnavailableError
from runners.agent.sources import GitTools, SourceFetcher, find_tools
from runners.environments.layers.sandbox import PlainSandbox
from runners.environments.preparing import PrepareError
from runners.messages.git import ReceivingCommit
from runners.messages.git_failures import HostKeyUnknown, NoBranch
from runners.sources.fetch import FetchedCommit, HostKeyError

COMMIT = "1a" * 20
ORDER = {
    "fetch": 7,
    "address": "https://git.example.org/lab/train.git",
    "branch": "main",
    "hosts": ["git.example.org:443"],
    "max_mib": 10,
    "max_tree_mib": 5,
    "seconds": 60,
}
TOOLS = GitTools(PlainSandbox("/python"), "/python", ssh=False, lfs=False)


@dataclass
class Portal:
    """A portal with some fetches, which keeps what it is sent."""

    claims: list[Any]
    ended: list[dict[str, Any]] = field(default_factory=list)
    content: bytes = b""
    log: str = ""
    cancelled: bool = False
    asked: int = 0
    done: threading.Event = field(default_factory=threading.Event)

    def claim_fetch(self, abilities: dict[str, bool]) -> dict[str, Any]:
        self.asked += 1
        assert abilities == {"ssh": False, "lfs": False}
        claim = self.claims.pop(0) if self.claims else {}
        if isinstance(claim, Exception):
            raise claim
        if not claim:
            self.done.set()
        return dict(claim)

    def report_fetch(self, fetch: int, report: dict[str, Any]) -> int:
        if self.cancelled:
            raise PortalRefusedError(409, "ended", "ended")
        self.log += report["log"]
        return len(self.log.encode())

    def put_code_piece(self, fetch: int, offset: int, content: bytes) -> int:
        assert offset == len(self.content)
        self.content += content
        return len(self.content)

    def end_fetch(self, fetch: int, result: dict[str, Any]) -> None:
        assert fetch == ORDER["fetch"]
        self.ended.append(result)


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SCHEDULEARN_CACHE", str(tmp_path))
    monkeypatch.setattr(sources, "find_tools", lambda runtime: TOOLS)
    monkeypatch.setattr(sources, "PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(shared_environments, "REPORT_SECONDS", 0.01)


def fetching(monkeypatch: pytest.MonkeyPatch, result: FetchedCommit | Exception) -> None:
    @contextmanager
    def fetched(order: Any, sandbox: Any, python: str, log: Path, progress: Any) -> Iterator[FetchedCommit]:
        with log.open("a") as file:
            file.write("remote: hello\n")
        progress(30, ReceivingCommit(50))
        if isinstance(result, Exception):
            raise result
        yield result

    monkeypatch.setattr(sources, "fetched", fetched)


def run(portal: Portal) -> None:
    """Let a node work until the portal has nothing more for it."""
    fetcher = SourceFetcher(portal, "process")
    fetcher.start()
    fetcher.set_waiting({"git_fetches": 1})
    assert portal.done.wait(20)
    fetcher.stop()


def test_a_commit_is_sent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    archive = tmp_path / "archive.tar.gz"
    archive.write_bytes(b"the files")
    fetching(monkeypatch, FetchedCommit(COMMIT, archive, "Ada", "Longer", 5, pointers=("a",), pointer_count=1))
    portal = Portal([ORDER])
    run(portal)
    (result,) = portal.ended
    assert (result["state"], result["commit"], result["author"]) == ("done", COMMIT, "Ada")
    assert result["pointers"] == ["a"] and portal.content == b"the files" and "remote: hello" in portal.log
    assert list((tmp_path / "logs").glob("git-*")) == []


def test_a_branch_that_has_not_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    fetching(monkeypatch, FetchedCommit(COMMIT))
    portal = Portal([ORDER])
    run(portal)
    assert portal.ended[0]["state"] == "unchanged" and portal.content == b""


def test_failures_are_reported_with_their_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    fetching(monkeypatch, PrepareError(NoBranch("main", (), 0)))
    portal = Portal([ORDER])
    run(portal)
    assert portal.ended[0]["state"] == "failed" and portal.ended[0]["message"]["code"] == "git.no_branch"
    fetching(monkeypatch, RuntimeError("a fault of the agent"))
    portal = Portal([ORDER])
    run(portal)
    assert portal.ended[0]["message"]["code"] == "build.unexpected_error"


def test_the_key_of_a_host_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    fetching(monkeypatch, HostKeyError(PrepareError(HostKeyUnknown("git.example.org", "SHA256:x")), "ssh-ed25519 AAAA"))
    portal = Portal([ORDER])
    run(portal)
    assert portal.ended[0]["host_key"] == "ssh-ed25519 AAAA" and portal.ended[0]["state"] == "failed"


@pytest.mark.parametrize("changes", [{"address": "ext::sh"}, {"branch": "--x"}, {"hosts": ["a b c"]}])
def test_an_order_that_is_not_understood(monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]) -> None:
    portal = Portal([ORDER | changes])
    run(portal)
    assert portal.ended[0]["state"] == "failed"


def test_a_node_without_ssh_names_what_it_lacks() -> None:
    portal = Portal([ORDER | {"address": "ssh://git@git.example.org/x.git"}])
    run(portal)
    assert portal.ended[0]["message"]["code"] == "git.no_git"


def test_a_cancelled_fetch_reports_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    fetching(monkeypatch, PortalRefusedError(409, "ended", "ended"))
    portal = Portal([ORDER])
    run(portal)
    assert portal.ended == []


def test_a_portal_that_is_away_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    fetching(monkeypatch, FetchedCommit(COMMIT))
    portal = Portal([PortalUnavailableError("away"), ORDER])
    run(portal)
    assert portal.asked == 3 and len(portal.ended) == 1


def test_a_portal_of_the_previous_release_is_never_asked() -> None:
    portal = Portal([])
    fetcher = SourceFetcher(portal, "process")
    fetcher.start()
    fetcher.set_waiting({"containers": []})
    fetcher.stop()
    assert portal.asked == 0


def test_what_a_node_reports_of_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    assert SourceFetcher(Portal([]), "process").facts() == {"git_format": 1, "git": {"ssh": False, "lfs": False}}
    monkeypatch.setattr(sources, "find_tools", lambda runtime: None)
    assert SourceFetcher(Portal([]), "process").facts() == {}


def test_only_a_sandbox_with_git_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_tools("fake") is None, "a pretended node"
    monkeypatch.setattr(sources, "process_sandbox", PlainSandbox)
    assert find_tools("process") is None, "a plain process is no sandbox"
    monkeypatch.setattr(sources.shutil, "which", lambda name: None)
    assert find_tools("process") is None
