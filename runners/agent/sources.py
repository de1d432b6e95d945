"""Fetches commits from Git for the portal, one at a time, when it has any to fetch and this node can."""

import logging
import os
import shutil
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from runners.agent.portal_client import PortalError, PortalRefusedError, PortalUnavailableError
from runners.agent.shared_environments import (
    AgentStoppedError,
    BuildCancelledError,
    ReportedBuild,
    failure_of,
)
from runners.environments.builds import PUBLIC_BUILDER
from runners.environments.docker_images import DockerImages
from runners.environments.layers.docker_sandbox import DockerSandbox
from runners.environments.layers.sandbox import BuildSandbox, process_sandbox
from runners.environments.preparing import Progress
from runners.messages import Message
from runners.messages.git import PullingGitImage, SendingCode
from runners.messages.git_failures import NoGit
from runners.runtime import EngineError
from runners.sources.fetch import HostKeyError, fetched
from runners.sources.order import FetchOrder

logger = logging.getLogger(__name__)

GIT_FORMAT = 1
"""The fact by which the portal knows that this agent can fetch from Git."""
LOOK_AGAIN_SECONDS = 600.0
"""How long what this machine has for Git is remembered: to find out starts several processes."""
PAUSE_SECONDS = 10.0
"""After a fetch that could not be reported, or whose portal did not answer."""


class SourcePortal(Protocol):
    def claim_fetch(self, abilities: dict[str, bool]) -> dict[str, Any]: ...
    def report_fetch(self, fetch: int, report: dict[str, Any]) -> int: ...
    def put_code_piece(self, fetch: int, offset: int, content: bytes) -> int: ...
    def end_fetch(self, fetch: int, result: dict[str, Any]) -> None: ...


@dataclass(frozen=True)
class GitTools:
    """The sandbox in which git runs on this node, and what it has there."""

    sandbox: BuildSandbox
    python: str
    ssh: bool
    lfs: bool

    @property
    def abilities(self) -> dict[str, bool]:
        return {"ssh": self.ssh, "lfs": self.lfs}


def find_tools(runtime: str) -> GitTools | None:
    """Return what this machine has for Git; None without a sandbox that has git.

    Git runs in bubblewrap, also on a node whose jobs run in Docker. Without it, it runs there in a container of an image that has
    python, git and ssh, which is pulled with the first fetch. Pretended nodes fetch nothing.
    """
    if runtime not in ("process", "docker"):
        return None
    if shutil.which("git") is not None:
        sandbox = process_sandbox(sys.executable)
        if sandbox.confined:
            has = {name: shutil.which(name) is not None for name in ("ssh", "git-lfs")}
            return GitTools(sandbox, sys.executable, has["ssh"], has["git-lfs"])
    if runtime == "docker":
        with suppress(EngineError):  # it is looked for again later
            return GitTools(DockerSandbox(DockerImages(), git_image(), "python"), "python", ssh=True, lfs=False)
    return None


def git_image() -> str:
    """Return the image in which git runs on a node with Docker and without bubblewrap."""
    return os.environ.get("SCHEDULEARN_GIT_IMAGE") or PUBLIC_BUILDER


def require_image(sandbox: BuildSandbox, progress: Progress) -> None:
    """Pull the image of a sandbox that is a container, unless it is there. Raises PrepareError."""
    if isinstance(sandbox, DockerSandbox) and sandbox.images.id_of(sandbox.image) is None:
        sandbox.images.pull(sandbox.image, lambda arrived: progress(1, PullingGitImage(sandbox.image, arrived)))


class _Reports:
    """Reports a fetch as builds of environments are reported."""

    def __init__(self, portal: SourcePortal) -> None:
        self._portal = portal

    def report_build(self, build: int, report: dict[str, Any]) -> int:
        return self._portal.report_fetch(build, report)

    def put_archive_piece(self, build: int, offset: int, content: bytes) -> int:
        return self._portal.put_code_piece(build, offset, content)

    def end_build(self, build: int, result: dict[str, Any]) -> None:
        self._portal.end_fetch(build, result)


class SourceFetcher:
    """A thread that asks the portal for a fetch whenever one waits."""

    def __init__(self, portal: SourcePortal, runtime: str) -> None:
        self._portal = portal
        self._runtime = runtime
        self._changed = threading.Condition()
        self._waiting = False
        self._stopping = False
        self._tools: tuple[float, GitTools | None] | None = None
        self._thread = threading.Thread(target=self._work, name="git", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, seconds: float = 12.0) -> None:
        """End the fetch that runs: another node is given it, or this one after its start."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(seconds)

    def facts(self) -> dict[str, Any]:
        """Return what the portal shows of this node: empty if it cannot fetch."""
        tools = self._find_tools()
        return {"git_format": GIT_FORMAT, "git": tools.abilities} if tools is not None else {}

    def set_waiting(self, reply: Mapping[str, Any]) -> None:
        """Note whether fetches wait, from a reply of the portal. One of an earlier release has none."""
        waiting = bool(reply.get("git_fetches"))
        with self._changed:
            if waiting != self._waiting:
                self._waiting = waiting
                self._changed.notify_all()

    def _find_tools(self) -> GitTools | None:
        known = self._tools
        if known is None or time.monotonic() - known[0] > LOOK_AGAIN_SECONDS:
            self._tools = known = (time.monotonic(), find_tools(self._runtime))
        return known[1]

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._stopping)
                if self._stopping:
                    return
            pause = 0.0
            try:
                if not self._fetch_one():
                    pause = PAUSE_SECONDS
            except AgentStoppedError:
                return
            except BuildCancelledError:
                logger.info("A fetch from Git was cancelled.")
            except PortalError as error:
                logger.warning("Fetching from Git was interrupted: %s", error)
                pause = PAUSE_SECONDS
            except Exception:
                logger.exception("Fetching from Git failed.")
                pause = PAUSE_SECONDS
            with self._changed:
                self._changed.wait_for(lambda: self._stopping, pause)

    def _fetch_one(self) -> bool:
        """Make the next fetch. Returns whether there was one for this node."""
        tools = self._find_tools()
        if tools is None:
            return False
        claim = self._portal.claim_fetch(tools.abilities)
        if "fetch" not in claim:
            with self._changed:
                self._waiting = False  # until a reply reports one again
            return False
        reported = ReportedBuild(int(claim["fetch"]), _Reports(self._portal), self._progress, "git")
        reported.start()
        try:
            self._make(FetchOrder.from_json(claim), tools, reported)
        except (AgentStoppedError, BuildCancelledError, PortalUnavailableError):
            raise
        except HostKeyError as error:
            ended = {"state": "failed", "message": error.failure.data(), "host_key": error.host_key}
            reported.end(ended | {"detail": error.failure.text})
        except Exception as error:
            if isinstance(error, PortalRefusedError) and error.code == "ended":
                raise BuildCancelledError from error
            logger.info("A fetch from Git failed: %s", error)
            reported.fail(failure_of(error))
        finally:
            reported.stop()
            reported.log.unlink(missing_ok=True)
        return True

    def _make(self, order: FetchOrder, tools: GitTools, reported: ReportedBuild) -> None:
        if order.is_ssh and not tools.ssh:
            reported.fail(NoGit())
            return
        require_image(tools.sandbox, reported.progress)
        with fetched(order, tools.sandbox, tools.python, reported.log, reported.progress) as commit:
            facts = commit.to_json()
            if commit.archive is None:
                reported.end({"state": "unchanged", **facts})
                return
            reported.send_file(commit.archive, SendingCode)
            reported.end({"state": "done", **facts})

    def _progress(self, percent: int, step: Message) -> None:
        if self._stopping:
            raise AgentStoppedError
