"""The page Git of a project."""

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.portal import Portal, sign_in

pytestmark = pytest.mark.browser


def test_the_fields_are_those_of_the_kind_of_address(browser: Browser, portal: Portal) -> None:
    project = portal.ask("repository")["git"]
    page = sign_in(browser, portal, viewport={"width": 400, "height": 900})
    page.goto(f"{portal.url}/projects/{project}/git")
    address, user, token = (
        page.locator(f"form[data-git-source] [name={name}]") for name in ("address", "user", "token")
    )
    expect(address).to_have_value("ssh://git@github.com/lab/train.git")
    expect(user).to_be_hidden()
    expect(token).to_be_hidden()
    address.fill("https://github.com/lab/train.git")
    expect(user).to_be_visible()
    token.fill("t0ken")
    address.fill("git@github.com:lab/train.git")
    expect(user).to_be_hidden()
    expect(token).to_be_visible()  # it would be refused
    token.fill("")
    expect(token).to_be_hidden()
    for name in ("deploy-key", "hook-url"):
        text = page.locator(f"#{name}").bounding_box()
        button = page.locator(f"[data-copy={name}]").bounding_box()
        assert text and button and text["x"] + text["width"] <= button["x"], "the button covers nothing of it"
    page.context.close()
