"""A sandbox, and a lab whose Git host is on this machine."""

import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from runners.environments.layers.sandbox import BuildSandbox, process_sandbox
from runners.environments.preparing import PrepareError
from runners.host.egress import Networks
from runners.messages.environment_failures import Failure
from runners.sources.fetch import FetchedCommit, fetched
from runners.sources.order import FetchOrder
from tests.git_hosts import TOKEN, USER, HttpsHost, own_address

NEVER: Networks = ()
"""The host of these tests is this machine."""


@dataclass
class Fetcher:
    """Fetches as an agent does, and keeps what came of it."""

    folder: Path
    sandbox: BuildSandbox
    steps: list[str] = field(default_factory=list)
    failure: Failure | None = None
    host_key: str = ""
    content: bytes = b""
    _awaited: dict[str, threading.Event] = field(default_factory=dict)

    @property
    def log(self) -> Path:
        return self.folder / "fetch.log"

    def fetch(self, address: str, **changes: Any) -> FetchedCommit | None:
        """Return the commit; None if the fetch failed, with ``failure``."""
        never = changes.pop("never", NEVER)
        port = address.split("/")[2].rpartition(":")[2]
        values: dict[str, Any] = {
            "number": 1,
            "address": address,
            "branch": "main",
            "rules": (f"{own_address()}:{port} internal",),
            "max_mib": 64,
            "max_tree_mib": 32,
            "seconds": 120,
            **({"user": USER, "token": TOKEN} if address.startswith("https") else {"user": "git"}),
        }
        self.log.write_bytes(b"")
        self.failure, self.host_key, self.content = None, "", b""
        order = FetchOrder(**{**values, **changes})
        try:
            with fetched(order, self.sandbox, sys.executable, self.log, self._progress, never) as commit:
                self.content = commit.archive.read_bytes() if commit.archive else b""
                return commit
        except PrepareError as error:
            self.failure, self.host_key = error.failure, getattr(error, "host_key", "")
            return None
        finally:
            assert TOKEN not in self.log.read_text(), "a token got into the log"

    def _progress(self, percent: int, step: Any) -> None:
        self.steps.append(step.code)
        if step.code in self._awaited:
            self._awaited[step.code].set()

    def awaited(self, code: str) -> threading.Event:
        """Return an event that is set as soon as a fetch reports this step."""
        return self._awaited.setdefault(code, threading.Event())


@pytest.fixture
def fetcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fetcher:
    monkeypatch.setenv("SCHEDULEARN_CACHE", str(tmp_path / "cache"))
    for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    sandbox = process_sandbox(sys.executable)
    assert sandbox.confined
    return Fetcher(tmp_path, sandbox)


@pytest.fixture
def trust(monkeypatch: pytest.MonkeyPatch) -> Callable[[HttpsHost], None]:
    return lambda host: monkeypatch.setenv("GIT_SSL_CAINFO", str(host.ca))
