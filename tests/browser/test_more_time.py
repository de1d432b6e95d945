"""A member asks for more time for a job that runs, sees whom that would delay, and an admin grants it."""

from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.axe import barriers
from tests.browser.portal import Portal, sign_in
from tests.examples import mostly_thorough

pytestmark = pytest.mark.browser
LOOKS: dict[str, dict[str, Any]] = {
    "desktop, dark": {"viewport": {"width": 1280, "height": 900}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 400, "height": 800}, "color_scheme": "light"},
}


def is_well_made(page: Page) -> None:
    assert not barriers(page)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "it scrolls sideways"


@pytest.mark.parametrize("look", mostly_thorough(LOOKS, "phone"))
def test_more_time_is_asked_for_and_granted(browser: Browser, portal: Portal, look: str) -> None:
    lab = portal.ask("holder_of_all_gpus")
    bob = sign_in(browser, portal, "bob", **LOOKS[look])
    bob.goto(f"{portal.url}/jobs/{lab['runs']}/")
    bob.get_by_role("link", name="Ask for more time").click()
    delayed = bob.locator("#delays")
    expect(delayed).to_contain_text("If the job uses all 2 h, 1 waiting job starts later", timeout=20_000)
    expect(delayed).to_contain_text("2 h later")
    bob.get_by_label("How much longer").fill("3")
    bob.get_by_label("How much longer").blur()
    expect(delayed).to_contain_text("3 h later", timeout=20_000)
    is_well_made(bob)
    bob.get_by_label("Reason").fill("One epoch is missing")
    bob.get_by_role("button", name="Ask for it").click()
    expect(bob.locator(".more-time")).to_contain_text("3 h more: waits for an admin")
    is_well_made(bob)

    alice = sign_in(browser, portal, "alice", **LOOKS[look])
    alice.goto(f"{portal.url}/admin/")
    alice.get_by_role("link", name="Decide: bob asks for 3 h more for long-run").click()
    request = alice.get_by_role("region", name=f"3 h more for long-run #{lab['runs']}")
    expect(request).to_contain_text("One epoch is missing")
    expect(request).to_contain_text("3 h later")
    is_well_made(alice)
    request.get_by_label("Answer").fill("Good luck")
    request.get_by_role("button", name="Grant 3 h").click()
    expect(alice.locator(".notice.success")).to_contain_text(f"Granted: job {lab['runs']} has 3 h more.")

    expect(bob.locator(".more-time")).to_contain_text("3 h more: granted", timeout=20_000)
    expect(bob.locator(".more-time")).to_contain_text("Good luck")
    for page in (bob, alice):
        page.context.close()
