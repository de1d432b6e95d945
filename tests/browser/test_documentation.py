"""The documentation as the portal serves it: built without a warning, and whole under the portal's own policy."""

import subprocess
import sys
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.axe import barriers
from tests.browser.portal import ROOT, Portal, sign_in

pytestmark = [pytest.mark.browser, pytest.mark.thorough]
PAGES = (
    "index",
    "user/first-day",
    "admin/nodes",
    "architecture/processes",
    "reference/settings",
    "api/reference/index",
)


@pytest.fixture(scope="module")
def site() -> None:
    """Build the site where the portal looks for it; warnings are errors."""
    built = ROOT / "docs" / "_build"
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", "-d", str(built / "doctrees")]
    done = subprocess.run(
        [*command, "docs", str(built / "html")], cwd=ROOT, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture
def page(site: None, browser: Browser, portal: Portal) -> Iterator[Page]:
    page = sign_in(browser, portal, viewport={"width": 1280, "height": 900})
    yield page
    page.context.close()


def test_nothing_of_a_page_is_blocked(page: Page, portal: Portal) -> None:
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.on("requestfailed", lambda request: complaints.append(request.url))
    for path in PAGES:
        answer = page.goto(f"{portal.url}/help/{path}.html")
        assert answer is not None and answer.status == 200, path
        expect(page.locator("h1").first).to_be_visible()
        assert page.locator("svg").first.bounding_box() is None, "the theme's icons take no room"
        assert "\n".join(barriers(page)) == "", path
    assert complaints == []


def test_help_leads_to_the_section_and_back(page: Page, portal: Portal) -> None:
    page.goto(f"{portal.url}/jobs/queue")
    page.get_by_role("link", name="Help with this page").click()
    page.wait_for_url("**/help/user/waiting.html#the-queue")
    expect(page.get_by_role("heading", name="The queue")).to_be_in_viewport()
    page.get_by_role("link", name="Back to the portal").click()
    page.wait_for_url(f"{portal.url}/")


def test_the_search_finds_pages(page: Page, portal: Portal) -> None:
    page.goto(f"{portal.url}/help/index.html")
    page.get_by_role("textbox", name="Search").first.fill("quarantine")
    page.keyboard.press("Enter")
    expect(page.locator("ul.search li a").first).to_be_visible(timeout=15_000)
