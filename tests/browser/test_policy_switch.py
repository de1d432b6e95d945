"""An admin switches the policy with eyes open, a running job is untouched, and undoes it."""

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.axe import barriers
from tests.browser.portal import Portal, sign_in
from tests.examples import mostly_thorough

pytestmark = pytest.mark.browser
LOOKS: dict[str, dict[str, Any]] = {
    "light": {"viewport": {"width": 1280, "height": 900}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1280, "height": 900}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 400, "height": 800}, "color_scheme": "light"},
}


@pytest.fixture(scope="module")
def lab(portal: Portal) -> dict[str, Any]:
    made: dict[str, Any] = portal.ask("lab_at_work")
    assert made["gpus"] == 4
    return made


@pytest.fixture
def page(browser: Browser, portal: Portal) -> Iterator[Page]:
    page = sign_in(browser, portal)
    yield page
    page.context.close()


def test_an_admin_looks_confirms_and_undoes(portal: Portal, lab: dict[str, Any], page: Page) -> None:
    held = portal.ask("holds", job=lab["runs"])
    page.goto(f"{portal.url}/admin/policy/")
    page.get_by_role("link", name="First come, first served", exact=True).click()
    page.get_by_label("Strictly in order").set_checked(False)
    page.get_by_role("button", name="See what would change").click()

    expect(page.get_by_role("heading", level=1)).to_have_text("Switch to “First come, first served”?")
    expect(page.get_by_text("No job that runs is stopped, moved or resized.")).to_be_visible()
    row = page.get_by_role("row", name="speech baseline")
    expect(row).to_contain_text("waits")
    expect(row.get_by_role("link", name="speech baseline")).to_have_attribute("href", f"/jobs/{lab['waits']}/")
    assert portal.ask("holds", job=lab["runs"]) == held, "looking changes nothing"
    page.get_by_role("button", name="Confirm: switch to this policy").click()
    expect(page.locator(".notice.success")).to_contain_text("“First come, first served” decides")
    switches = page.get_by_role("region", name="Switches")
    expect(switches.get_by_role("listitem").first).to_contain_text("Strictly in order: no")
    expect(switches.get_by_role("listitem").first).to_contain_text("by alice")

    assert portal.ask("turn") == {"started": 0, "resized": 0, "errors": False}
    assert portal.ask("holds", job=lab["runs"]) == held, "the running job is untouched"

    page.get_by_role("button", name="Undo: back to “Elastic first come, first served”").click()
    expect(page.locator(".notice.success")).to_contain_text("Undone")
    expect(page.get_by_role("region", name="Switches").get_by_role("listitem").first).to_contain_text("undoes v")
    portal.ask("turn")
    assert len(portal.ask("holds", job=lab["runs"])) == 2, "the elastic policy makes room again"


@pytest.mark.thorough
def test_a_switch_that_resizes_is_shown_as_such_and_again_when_it_is_another(
    portal: Portal, browser: Browser, lab: dict[str, Any], page: Page
) -> None:
    page.goto(f"{portal.url}/admin/policy/preview/?policy=fifo")
    other = sign_in(browser, portal)
    other.goto(f"{portal.url}/admin/policy/preview/?policy=round_robin")
    other.get_by_role("button", name="Confirm: switch to this policy").click()
    page.get_by_role("button", name="Confirm: switch to this policy").click()
    expect(page.get_by_role("alert")).to_contain_text("alice has switched to “Round robin over nodes” meanwhile.")
    expect(page.get_by_role("alert")).to_contain_text("Nothing was switched.")
    page.get_by_role("button", name="Confirm: switch to this policy").click()
    expect(page.locator(".notice.success")).to_contain_text("“First come, first served” decides")
    other.context.close()


@pytest.mark.parametrize("look", mostly_thorough(LOOKS, next(iter(LOOKS))))
@pytest.mark.thorough
def test_the_pages_are_without_barriers(portal: Portal, browser: Browser, lab: dict[str, Any], look: str) -> None:
    page = sign_in(browser, portal, **LOOKS[look])
    for path in ("/admin/policy/?policy=tiresias", "/admin/policy/preview/?policy=tiresias"):
        page.goto(portal.url + path)
        page.wait_for_timeout(300)
        assert barriers(page) == []
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "it scrolls sideways"
    page.context.close()


@pytest.mark.thorough
def test_by_keyboard_alone_a_policy_is_looked_at_and_confirmed(portal: Portal, lab: dict[str, Any], page: Page) -> None:
    page.goto(f"{portal.url}/admin/policy/?policy=srjf")
    page.get_by_role("button", name="See what would change").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Confirm: switch to this policy")).to_be_visible()
    page.get_by_role("button", name="Confirm: switch to this policy").focus()
    page.keyboard.press("Enter")
    expect(page.locator(".notice.success")).to_be_visible()


@pytest.mark.thorough
def test_without_scripts_it_works_too(portal: Portal, browser: Browser, lab: dict[str, Any]) -> None:
    page = sign_in(browser, portal, java_script_enabled=False)
    page.goto(f"{portal.url}/admin/policy/?policy=round_robin")
    page.get_by_role("button", name="See what would change").click()
    page.get_by_role("button", name="Confirm: switch to this policy").click()
    expect(page.locator(".notice.success")).to_be_visible()
    page.context.close()
