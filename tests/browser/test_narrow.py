"""Pages on the narrowest phones: names of any length break into lines, and nothing scrolls sideways."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.portal import Portal, sign_in

pytestmark = pytest.mark.browser
WIDTH = 360
PAGES = (
    "/",
    "/projects/",
    "/projects/{long}/",
    "/projects/{long}/edit",
    "/projects/{long}/code/1/",
    "/projects/new",
    "/gallery/",
    "/jobs/",
    "/jobs/new",
    "/jobs/new?code={code}",
    "/jobs/{job}/",
    "/nodes/",
    "/gpus/",
    "/gpus/timeline/",
    "/reservations/",
    "/reservations/?view=month",
    "/reservations/new",
    "/usage/",
    "/usage/?by=project",
    "/usage/ledger/",
    "/accounts/profile/",
    "/accounts/tokens/",
    "/admin/",
    "/admin/users/",
    "/admin/groups/",
    "/admin/groups/{group}/",
    "/admin/limits/users/{person}/",
    "/admin/invites/",
    "/admin/limits/",
    "/admin/audit/",
    "/admin/nodes/",
    "/admin/policy/",
    "/admin/walls/",
    "/admin/more-time/",
    "/admin/simulations/",
)
WIDER = """
() => {
  const width = document.documentElement.clientWidth;
  const scrolls = (element) => element && (getComputedStyle(element).overflowX !== "visible" || scrolls(element.parentElement));
  return [...document.querySelectorAll("body *")]
    .filter((one) => one.getBoundingClientRect().right > width + 0.5 && !scrolls(one.parentElement))
    .slice(-6)
    .map((one) => `${one.tagName}.${one.className}: ${one.textContent.trim().slice(0, 30)}`);
}
"""


@pytest.fixture(scope="module")
def named(portal: Portal) -> dict[str, int]:
    """Make a project, a job and what else has a name, with the longest names without a space."""
    made: dict[str, int] = portal.ask("long_names")
    return made


@pytest.fixture(scope="module")
def phone(browser: Browser, portal: Portal) -> Iterator[Page]:
    page = sign_in(browser, portal, viewport={"width": WIDTH, "height": 780}, timezone_id="America/Phoenix")
    yield page
    page.context.close()


@pytest.mark.parametrize("path", PAGES)
def test_no_page_is_wider_than_the_phone(phone: Page, portal: Portal, named: dict[str, int], path: str) -> None:
    answer = phone.goto(portal.url + path.format(**named))
    assert answer is not None and answer.ok
    expect(phone.locator("main h1")).to_be_visible()
    assert phone.evaluate("document.documentElement.scrollWidth") <= WIDTH, phone.evaluate(WIDER)


def test_the_title_of_a_job_has_the_width_and_its_actions_a_row_below(phone: Page, portal: Portal) -> None:
    phone.goto(f"{portal.url}/jobs/{portal.made['done']}/")
    expect(phone.get_by_role("button", name="Run again")).to_be_visible()
    phone.wait_for_function("document.querySelector('main h1').getBoundingClientRect().width > innerWidth / 2")


@pytest.mark.parametrize("path", ["/reservations/", "/jobs/"])
def test_rows_keep_labels_whole_and_times_inside(phone: Page, portal: Portal, named: dict[str, int], path: str) -> None:
    phone.goto(portal.url + path)
    assert phone.locator("table.cards [data-label]").count() > 0
    times = phone.locator("table.cards time")
    assert times.evaluate_all("(all) => all.filter((one) => one.getBoundingClientRect().right > innerWidth - 16)") == []
    flexible = """(cells) => cells.filter((one) => getComputedStyle(one, "::before").flexShrink !== "0").length"""
    assert phone.locator("table.cards [data-label]").evaluate_all(flexible) == 0


def test_times_of_the_audit_log_stay_in_one_line_beside_their_sentence(
    phone: Page, portal: Portal, named: dict[str, int]
) -> None:
    phone.goto(f"{portal.url}/admin/audit/")
    entry = phone.locator(".audit .list > li").first
    time, text = entry.locator("time").bounding_box(), entry.locator(".grow").bounding_box()
    assert time and text and time["height"] < 30 and text["x"] > time["x"] + time["width"] > 0
    assert text["x"] + text["width"] <= WIDTH


def test_times_are_read_in_the_zone_of_the_browser(phone: Page, portal: Portal) -> None:
    phone.goto(f"{portal.url}/reservations/new")
    expect(phone.get_by_text("Time zone: America/Phoenix.").first).to_be_visible()
    phone.get_by_label("Purpose").fill("Course")
    phone.get_by_label("From").fill("2030-01-02T09:00")
    phone.get_by_label("Until").fill("2030-01-02T10:00")
    phone.get_by_label("People").fill("alice")
    phone.get_by_role("button", name="Reserve").click()
    expect(phone.get_by_text("start at most a year ahead")).to_be_visible()
    expect(phone.get_by_label("From")).to_have_value("2030-01-02T09:00")
