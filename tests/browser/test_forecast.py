"""A member reads why a job waits and until when, takes the change that helps, and it starts."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.axe import barriers
from tests.browser.portal import PASSWORD, Portal

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def lab(portal: Portal) -> dict[str, Any]:
    made: dict[str, Any] = portal.ask("line_of_jobs")
    return made


@pytest.fixture
def page(browser: Browser, portal: Portal, request: pytest.FixtureRequest) -> Iterator[Page]:
    page = browser.new_context(**getattr(request, "param", {})).new_page()
    page.goto(f"{portal.url}/accounts/sign-in/")
    page.fill("[name=username]", "alice")
    page.fill("[name=password]", PASSWORD)
    page.keyboard.press("Enter")
    page.wait_for_url(f"{portal.url}/")
    yield page
    page.context.close()


LOOKS = [
    {"viewport": {"width": 1280, "height": 900}, "color_scheme": "light"},
    {"viewport": {"width": 1280, "height": 900}, "color_scheme": "dark"},
    {"viewport": {"width": 400, "height": 800}, "color_scheme": "light"},
]


@pytest.mark.parametrize("page", LOOKS, indirect=True, ids=["light", "dark", "phone"])
@pytest.mark.thorough
def test_the_waiting_card_is_accessible(portal: Portal, lab: dict[str, Any], page: Page) -> None:
    for address in (f"/jobs/{lab['waits']}/", f"/jobs/{lab['waits']}/help"):
        page.goto(portal.url + address)
        expect(page.get_by_text("it starts now.")).to_be_visible()
        assert not barriers(page), address
        assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


@pytest.mark.parametrize("page", [{"java_script_enabled": False}], indirect=True)
def test_without_scripts_the_help_is_a_page_of_its_own(portal: Portal, lab: dict[str, Any], page: Page) -> None:
    page.goto(f"{portal.url}/jobs/{lab['waits']}/")
    page.get_by_role("link", name="Try fewer GPUs, a shorter time limit and other changes").click()
    expect(page.get_by_text("With 1 GPU instead of 2 it starts now.")).to_be_visible()


@pytest.mark.parametrize(
    "page", [{"timezone_id": "Asia/Tokyo", "locale": "en-GB"}], indirect=True, ids=["in the reader's clock"]
)
def test_a_member_reads_takes_the_change_and_the_job_starts(portal: Portal, lab: dict[str, Any], page: Page) -> None:
    page.goto(f"{portal.url}/jobs/?state=queued")
    expect(page.get_by_role("row", name="detector")).to_contain_text(
        re.compile(r"It needs 2 GPUs; 1 is free\.\s+When others end, at the latest in ")
    )
    page.get_by_role("link", name="detector").click()
    card = page.get_by_role("region", name="Waiting")
    expect(card).to_contain_text("It needs 2 GPUs at once and only 1 is free.")
    expect(card).to_contain_text("no similar job has succeeded here. At the latest by ")
    expect(card).to_contain_text("such jobs started in time.")
    end = card.locator("time").last
    meant = end.get_attribute("datetime") or ""
    expect(end).to_have_text(re.compile(f"{(int(meant[11:13]) + 9) % 24:02}:{meant[14:16]}$"))  # once its script ran

    card.get_by_role("button", name="Change it: With 1 GPU instead of 2 it starts now.").click()
    page.get_by_role("button", name="Change it", exact=True).click()
    expect(page.locator(".notice.success")).to_contain_text(f"Job {lab['waits']} is cancelled")
    changed = int(page.url.rstrip("/").rpartition("/")[2])
    assert changed > lab["behind"]
    portal.ask("turn")
    assert len(portal.ask("holds", job=changed)) == 1
    expect(page.get_by_role("region", name="Waiting")).to_have_count(0, timeout=15_000)
    expect(page.locator(".job-state")).to_contain_text("running")
    assert portal.ask("holds", job=lab["behind"]) == []
