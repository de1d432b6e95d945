"""An admin simulates recent history, switches with the difference in view, and undoes it."""

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.axe import barriers
from tests.browser.portal import Portal, sign_in

pytestmark = pytest.mark.browser
LOOKS: dict[str, dict[str, Any]] = {
    "light": {"viewport": {"width": 1280, "height": 900}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1280, "height": 900}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 400, "height": 800}, "color_scheme": "light"},
}


@pytest.fixture(scope="module")
def lab(portal: Portal) -> dict[str, Any]:
    """A month of history, and an elastic job at work beside one that waits."""
    portal.ask("past_month")
    made: dict[str, Any] = portal.ask("lab_at_work", node="gpu-zeta")
    return made


@pytest.fixture
def page(browser: Browser, portal: Portal) -> Iterator[Page]:
    page = sign_in(browser, portal)
    yield page
    page.context.close()


def ask(page: Page, portal: Portal, *policies: str) -> None:
    """Chooses policies on the page and starts."""
    page.goto(f"{portal.url}/admin/policy/")
    page.get_by_role("link", name="What if: simulate recent history").click()
    for place in range(3):
        chosen = policies[place] if place < len(policies) else "none"
        field = page.get_by_label(f"Policy {place + 1}", exact=True)
        if field.locator("option:checked").text_content() != chosen:
            with page.expect_navigation():
                field.select_option(label=chosen)
    page.get_by_role("button", name="Simulate the last 14 days").click()


@pytest.mark.thorough
def test_an_admin_compares_switches_and_undoes(portal: Portal, lab: dict[str, Any], page: Page) -> None:
    held = portal.ask("holds", job=lab["runs"])
    assert len(held) == 4
    ask(page, portal, "First come, first served", "Shortest remaining job first")
    expect(page.get_by_role("heading", level=1)).to_have_text("Simulation of the last 14 days")
    expect(page.get_by_text("It starts within seconds.")).to_be_visible()

    assert portal.ask("simulate") == 1
    off = page.get_by_role("region", name="How accurate the simulation is")
    expect(off).to_contain_text("Simulated under the policy in force, a job took ", timeout=20_000)
    expect(page.get_by_role("region", name="The answer")).to_contain_text("would have")
    total = page.get_by_role("region", name="In total", exact=True)
    for name in ("What really happened", "Elastic first come, first served", "First come, first served knows: nothing"):
        expect(total.get_by_role("columnheader", name=name, exact=name.startswith("First")).first).to_be_visible()
    expect(total.get_by_text("better").or_(total.get_by_text("worse")).first).to_be_visible()
    page.get_by_text("Each person and group").click()
    expect(page.get_by_role("region", name="By person").get_by_role("row", name="carol")).to_be_visible()
    assert portal.ask("holds", job=lab["runs"]) == held, "a simulation touches nothing"

    page.get_by_role("link", name="Preview switching to First come, first served").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Switch to “First come, first served”?")
    expect(page.get_by_text("No job that runs is stopped, moved or resized.")).to_be_visible()
    page.get_by_role("button", name="Confirm: switch to this policy").click()
    expect(page.locator(".notice.success")).to_contain_text("“First come, first served” decides")
    assert portal.ask("turn")["errors"] is False
    assert portal.ask("holds", job=lab["runs"]) == held, "the running job is untouched"

    page.get_by_role("button", name="Undo: back to “Elastic first come, first served”").click()
    expect(page.locator(".notice.success")).to_contain_text("Undone")
    portal.ask("turn")
    assert len(portal.ask("holds", job=lab["runs"])) == 2, "the elastic policy makes room again"


@pytest.mark.thorough
def test_a_choice_made_before_the_modules_have_come_counts(portal: Portal, lab: dict[str, Any], page: Page) -> None:
    page.route("**/js/page*.js", lambda route: route.abort())
    page.goto(f"{portal.url}/admin/simulations/new?policy=srjf")
    with page.expect_navigation():
        page.get_by_label("Days", exact=True).select_option(label="the last 7 days")
    expect(page.get_by_role("button", name="Simulate the last 7 days")).to_be_visible()


@pytest.mark.thorough
def test_the_preview_leads_to_a_simulation_with_its_parameters(portal: Portal, lab: dict[str, Any], page: Page) -> None:
    page.goto(f"{portal.url}/admin/policy/?policy=tiresias")
    page.get_by_label("Queues").fill("3")
    page.get_by_role("button", name="See what would change").click()
    page.get_by_role("link", name="Simulate recent history").click()
    page.get_by_text("Parameters", exact=False).locator("xpath=ancestor-or-self::summary").first.click()
    expect(page.get_by_label("Queues")).to_have_value("3")
    page.get_by_role("button", name="Simulate the last 14 days").click()
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator(".notice.success")).to_contain_text("cancelled")
    assert portal.ask("simulate") == 0


@pytest.mark.thorough
def test_without_scripts_it_works_too(portal: Portal, browser: Browser, lab: dict[str, Any]) -> None:
    page = sign_in(browser, portal, java_script_enabled=False)
    page.goto(f"{portal.url}/admin/simulations/new?policy=srjf")
    page.get_by_role("button", name="Simulate the last 14 days").click()
    portal.ask("simulate")
    page.reload()
    expect(page.get_by_role("region", name="In total", exact=True)).to_be_visible()
    page.context.close()


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.thorough
def test_the_pages_are_without_barriers(portal: Portal, browser: Browser, lab: dict[str, Any], look: str) -> None:
    page = sign_in(browser, portal, **LOOKS[look])
    page.goto(f"{portal.url}/admin/simulations/new?policy=tiresias&policy=srjf")
    page.wait_for_timeout(300)
    assert barriers(page) == []
    page.get_by_role("button", name="Simulate the last 14 days").click()
    expect(page.get_by_role("progressbar")).to_be_visible()
    assert barriers(page) == []
    portal.ask("simulate")
    expect(page.get_by_role("region", name="In total", exact=True)).to_be_visible(timeout=20_000)
    assert barriers(page) == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "it scrolls sideways"
    page.goto(f"{portal.url}/admin/simulations/")
    assert barriers(page) == []
    page.context.close()
