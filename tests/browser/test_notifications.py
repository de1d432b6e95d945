"""What a person chooses under Notifications, and that the pages offer only what can be done."""

from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.axe import barriers
from tests.browser.portal import Portal, sign_in
from tests.examples import mostly_thorough

pytestmark = pytest.mark.browser
LOOKS: dict[str, dict[str, Any]] = {
    "desktop, light": {"viewport": {"width": 1280, "height": 900}, "color_scheme": "light"},
    "phone, dark": {"viewport": {"width": 400, "height": 800}, "color_scheme": "dark"},
}
DENIED = "Object.defineProperty(Notification, 'permission', {get: () => 'denied'})"


def is_well_made(page: Page) -> None:
    assert not barriers(page)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "it scrolls sideways"


@pytest.mark.parametrize("look", mostly_thorough(LOOKS, "phone, dark"))
def test_the_page_offers_what_can_be_done(browser: Browser, portal: Portal, look: str) -> None:
    page = sign_in(browser, portal, "bob", **LOOKS[look])
    page.add_init_script(DENIED)
    page.goto(f"{portal.url}/accounts/notifications/")
    expect(page.locator("[data-browser-state]")).to_contain_text("This browser refuses them")
    expect(page.get_by_role("button", name="Switch on in this browser")).to_be_hidden()
    page.get_by_label("at once").check()
    expect(page.get_by_label("Time of the daily message")).to_be_hidden()
    is_well_made(page)
    page.get_by_label("once a day").check()
    expect(page.get_by_label("Time of the daily message")).to_be_visible()
    is_well_made(page)
    page.get_by_role("button", name="Save").click()
    expect(page.locator(".notice.success")).to_contain_text("Saved.")
    page.context.close()


@pytest.mark.parametrize("look", mostly_thorough(LOOKS, "phone, dark"))
def test_the_other_pages(browser: Browser, portal: Portal, look: str) -> None:
    page = sign_in(browser, portal, "alice", **LOOKS[look])
    for path in (
        "/notices/",
        "/admin/notifications/",
        "/admin/notifications/settings",
        "/admin/notifications/webhooks",
    ):
        page.goto(f"{portal.url}{path}")
        is_well_made(page)
    page.context.close()
