"""One browser for all tests, and a portal for those of a module."""

import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

from tests.browser.chromium import FLAGS, PROGRAM
from tests.browser.portal import Portal, Seeded, seed_home

expect.set_options(timeout=30_000)  # milliseconds: what is expected comes, also on a machine with much else to do


@pytest.fixture(scope="session")
def seeded(tmp_path_factory: pytest.TempPathFactory) -> Seeded:
    """A portal's home, migrated and filled once; each module works on a copy."""
    return seed_home(tmp_path_factory.mktemp("seeded"))


@pytest.fixture(scope="module")
def portal(tmp_path_factory: pytest.TempPathFactory, seeded: Seeded) -> Iterator[Portal]:
    home = tmp_path_factory.mktemp("portal")
    shutil.copytree(seeded.home, home, dirs_exist_ok=True)
    portal = Portal(home, dict(seeded.made))
    try:
        portal.start()
        yield portal
    finally:
        portal.stop()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright, pytest.MonkeyPatch.context() as patch:
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")  # playwright's own loop runs in this thread
        browser = playwright.chromium.launch(executable_path=PROGRAM, args=FLAGS)
        yield browser
        browser.close()
