"""The rows of the database in a browser: Django's pages under the portal's content security policy."""

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.portal import Portal, sign_in
from tests.examples import mostly_thorough

pytestmark = pytest.mark.browser
PATHS = (
    "",
    "jobs/job/",
    "jobs/job/?state__exact=SUCCEEDED&q=a",
    "jobs/job/{running}/change/",
    "projects/project/1/change/",
    "control/schedulerconfig/",
)


@pytest.mark.parametrize("look", mostly_thorough(["light", "dark"], "light"))
def test_no_page_breaks_the_policy_or_scrolls_sideways_on_a_phone(browser: Browser, portal: Portal, look: str) -> None:
    width = 400 if look == "dark" else 1280
    page = sign_in(browser, portal, viewport={"width": width, "height": 800}, color_scheme=look)
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    for path in PATHS:
        page.goto(f"{portal.url}/admin/data/{path.format(**portal.made)}")
        expect(page.locator("main h1")).to_be_visible()
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (ground == "rgb(255, 255, 255)") == (look == "light"), (path, ground)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
    assert complaints == []
    page.context.close()
