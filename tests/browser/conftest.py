"""A portal and a browser for the tests of a module."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

from tests.browser.chromium import FLAGS, PROGRAM
from tests.browser.portal import Portal

expect.set_options(timeout=30_000)  # milliseconds: what is expected comes, also on a machine with much else to do


@pytest.fixture(scope="module")
def portal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Portal]:
    portal = Portal(tmp_path_factory.mktemp("portal"))
    try:
        portal.made = portal.ask("seeded")
        portal.start()
        yield portal
    finally:
        portal.stop()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=PROGRAM, args=FLAGS)
        yield browser
        browser.close()
