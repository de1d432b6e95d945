"""A portal of its own for browser tests: a web process, its data made by a second one that takes orders.

The two share a folder, as the processes of a lab do. The test kills and restarts the server without losing data.
"""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page

PASSWORD = "sunflower-cabinet-92"  # noqa: S105  # of people who exist for one test
ROOT = Path(__file__).resolve().parent.parent.parent


@dataclass(frozen=True)
class Seeded:
    """A home that portals may copy, and what ``seeded`` made in it."""

    home: Path
    made: dict[str, Any]


def new_portal(home: Path) -> "Portal":
    """An empty one."""
    portal = Portal(home, {})
    subprocess.run([sys.executable, "manage.py", "migrate", "-v0"], cwd=ROOT, env=portal.env, check=True)
    return portal


def seed_home(home: Path) -> Seeded:
    """Migrate and fill a new home."""
    portal = new_portal(home)
    try:
        return Seeded(home, portal.ask("seeded"))
    finally:
        portal.stop()


class Portal:
    """``home`` is migrated; ``made`` is what ``seeded`` made in it, for tests that look at it."""

    def __init__(self, home: Path, made: dict[str, Any]) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.home = home
        self.made = made
        self.env = {**os.environ, "SCHEDULEARN_HOME": str(home), "PORT": str(self.port), "LOG_LEVEL": "WARNING"}
        self.env["DJANGO_SETTINGS_MODULE"] = "tests.browser.settings"
        self.env.pop("DATABASE_URL", None)
        self.server: subprocess.Popen[bytes] | None = None
        self.sessions: dict[str, Any] = {}
        """The cookies of users who have signed in (``sign_in``)."""

    @cached_property
    def orders(self) -> subprocess.Popen[str]:
        """The second process, from the first order on."""
        return subprocess.Popen(
            [sys.executable, "-m", "tests.browser.orders"],
            cwd=ROOT,
            env=self.env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(self) -> None:
        command = [sys.executable, "-m", "portal.serving", "-e", f"tcp:{self.port}:interface=127.0.0.1"]
        log = (self.home / "server.log").open("ab")
        self.server = subprocess.Popen(command, cwd=ROOT, env=self.env, stdout=log, stderr=log)
        log.close()
        until = time.monotonic() + 60
        while time.monotonic() < until:
            try:
                urllib.request.urlopen(f"{self.url}/accounts/sign-in/", timeout=2).close()
                return
            except (urllib.error.URLError, OSError):
                time.sleep(0.1)
        raise RuntimeError(f"the portal did not start: {(self.home / 'server.log').read_text()[-2000:]}")

    def kill(self) -> None:
        """As a power cut would, so that nothing can be tidied up."""
        if self.server is not None:
            self.server.kill()
            self.server.wait()
            self.server = None

    def ask(self, order: str, **about: Any) -> Any:
        """Has the other process do something; its answer."""
        assert self.orders.stdin is not None and self.orders.stdout is not None
        self.orders.stdin.write(json.dumps({"order": order, **about}) + "\n")
        self.orders.stdin.flush()
        answer = json.loads(self.orders.stdout.readline() or '{"error": "the other process has ended"}')
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["answer"]

    def stop(self) -> None:
        self.kill()
        if "orders" in vars(self):
            self.orders.kill()
            self.orders.wait()


def sign_in(browser: Browser, portal: Portal, user: str = "alice", **looks: Any) -> Page:
    """A page of a new context, with Alice, or another user, at home. ``looks`` are the context's: size, colours, scripts.

    The session of the first time is used again while it is valid: to sign in takes most of the time of a small test.
    """
    context = browser.new_context(**looks)
    page = context.new_page()
    if user in portal.sessions:
        context.add_cookies(portal.sessions[user])
        page.goto(f"{portal.url}/")
        if page.url == f"{portal.url}/":
            return page
    page.goto(f"{portal.url}/accounts/sign-in/")
    page.fill("[name=username]", user)
    page.fill("[name=password]", PASSWORD)
    page.keyboard.press("Enter")
    page.wait_for_url(f"{portal.url}/")
    portal.sessions[user] = context.cookies()
    return page
