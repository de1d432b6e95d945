"""The list of jobs by keyboard and mouse: rows, ranges, the bar of actions, columns and saved views."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.axe import barriers
from tests.browser.portal import Portal, sign_in

pytestmark = pytest.mark.browser


@pytest.fixture
def page(browser: Browser, portal: Portal) -> Iterator[Page]:
    page = sign_in(browser, portal, viewport={"width": 1280, "height": 900})
    page.goto(f"{portal.url}/jobs/")
    page.wait_for_selector(".selectable.scripted")
    yield page
    page.context.close()


def checked(page: Page) -> int:
    return page.locator("tbody .tick :checked").count()


def focused(page: Page) -> str:
    return str(page.evaluate("document.activeElement.textContent").strip())


def test_keys_move_between_rows_select_and_open(page: Page, portal: Portal) -> None:
    names = [text.strip() for text in page.locator("tbody th a[href^='/jobs/']").all_inner_texts()]
    page.keyboard.press("ArrowDown")
    assert focused(page) not in names, "without a row the arrows scroll"
    page.keyboard.press("j")
    assert focused(page) == names[0]
    page.keyboard.press("ArrowDown")
    page.keyboard.press("j")
    page.keyboard.press("k")
    assert focused(page) == names[1]
    expect(page.locator("[data-selection]")).to_be_hidden()
    page.keyboard.press("x")
    page.keyboard.press("j")
    page.keyboard.press("x")
    expect(page.locator("[data-count]")).to_have_text("2 selected")
    expect(page.get_by_role("button", name="Compare")).to_be_visible()
    # The whole page, as in a lower window the bar floats over rows.
    page.set_viewport_size({"width": 1280, "height": 2000})
    assert barriers(page) == []
    page.keyboard.press("Escape")
    expect(page.locator("[data-selection]")).to_be_hidden()
    assert checked(page) == 0
    page.keyboard.press("Enter")
    expect(page.locator("main h1")).to_contain_text(names[2])


def test_the_bar_never_hides_the_row_that_keys_reach(page: Page) -> None:
    page.set_viewport_size({"width": 1280, "height": 500})
    page.keyboard.press("j")
    page.keyboard.press("x")
    bar = page.locator("[data-selection]")
    expect(bar).to_be_visible()
    for _ in range(page.locator("tbody tr").count()):
        page.keyboard.press("j")
        row = page.evaluate("document.activeElement.getBoundingClientRect().bottom")
        assert row <= page.evaluate("document.querySelector('[data-selection]').getBoundingClientRect().top")


@pytest.mark.thorough
def test_keys_mean_nothing_while_typing(page: Page) -> None:
    page.keyboard.press("/")
    search = page.get_by_label("Search jobs")
    expect(search).to_be_focused()
    page.keyboard.type("jxk?/")
    expect(search).to_have_value("jxk?/")
    assert checked(page) == 0
    expect(page.get_by_role("dialog")).to_be_hidden()


@pytest.mark.thorough
def test_the_keys_are_listed(page: Page) -> None:
    page.keyboard.press("?")
    dialog = page.get_by_role("dialog", name="Keyboard shortcuts")
    expect(dialog).to_be_visible()
    assert barriers(page) == []
    page.keyboard.press("j")
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    assert checked(page) == 0


def test_rows_that_are_fetched_again_stay_selected(page: Page) -> None:
    """The list follows its jobs: a hint replaces the rows."""
    boxes, state = page.locator("tbody .tick input"), page.locator("tbody [data-label=State]").first
    known = state.inner_text()
    boxes.nth(1).click()
    boxes.nth(3).click()
    page.evaluate("document.querySelector('tbody [data-label=State]').textContent = 'long ago'")
    page.evaluate("document.dispatchEvent(new CustomEvent('live-mine'))")
    expect(state).to_have_text(known)
    assert [boxes.nth(number).is_checked() for number in range(4)] == [False, True, False, True]
    expect(page.locator("[data-count]")).to_have_text("2 selected")
    boxes.nth(5).click(modifiers=["Shift"])
    assert checked(page) == 4, "a range begins at the box that was changed last before"


def test_a_range_is_selected_with_shift_and_all_by_the_box_in_the_header(page: Page) -> None:
    boxes = page.locator("tbody .tick input")
    boxes.nth(2).click()
    boxes.nth(6).click(modifiers=["Shift"])
    assert checked(page) == 5
    expect(page.locator("[data-count]")).to_have_text("5 selected")
    boxes.nth(3).click(modifiers=["Shift"])
    assert checked(page) == 1, "the range from the last box to this one takes its new state"
    page.locator("[data-check-all]").click()
    expect(page.locator("[data-count]")).to_have_text(f"{boxes.count()} selected")
    page.get_by_role("button", name="Clear selection").click()
    assert checked(page) == 0


@pytest.mark.thorough
def test_selected_jobs_are_compared(page: Page, portal: Portal) -> None:
    for number in (portal.made["done"], portal.made["running"]):
        page.get_by_label(f"Select job {number}", exact=True).check()
    page.get_by_role("button", name="Compare").click()
    expect(page.get_by_role("heading", name="Compare jobs")).to_be_visible()
    assert page.url.endswith(f"/jobs/compare?job={portal.made['running']}&job={portal.made['done']}")


@pytest.mark.thorough
def test_only_what_applies_to_a_selected_job_is_offered(page: Page, portal: Portal) -> None:
    finished = page.get_by_label(f"Select job {portal.made['done']}", exact=True)
    finished.check()
    bar = page.get_by_role("group", name="Selected jobs")
    expect(bar.get_by_role("button", name="Run again")).to_be_visible()
    for word in ("Cancel selected", "Hold", "Release"):
        expect(bar.get_by_role("button", name=word)).to_be_hidden()
    page.get_by_label(f"Select job {portal.made['running']}", exact=True).check()
    expect(bar.get_by_role("button", name="Cancel selected")).to_be_visible()
    finished.uncheck()
    expect(bar.get_by_role("button", name="Run again")).to_be_hidden()


def test_cancelling_asks_and_running_again_does_not(page: Page, portal: Portal) -> None:
    page.get_by_label(f"Select job {portal.made['running']}", exact=True).check()
    page.get_by_role("button", name="Cancel selected").click()
    dialog = page.get_by_role("dialog", name="Cancel the selected jobs?")
    expect(page.locator("#confirm")).to_contain_text("Cancel the selected jobs?")
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    page.get_by_label(f"Select job {portal.made['running']}", exact=True).uncheck()
    page.get_by_label(f"Select job {portal.made['failed']}", exact=True).check()
    page.get_by_role("button", name="Run again").click()
    expect(page.locator(".notices")).to_contain_text("1 job was submitted again, as a copy.")


@pytest.mark.thorough
def test_columns_and_a_view_are_kept(page: Page) -> None:
    page.get_by_text("Columns", exact=True).click()
    page.get_by_label("Command", exact=True).check()
    page.get_by_role("button", name="Show these").click()
    expect(page.get_by_role("columnheader", name="Command")).to_be_visible()
    page.get_by_role("columnheader", name="GPUs").get_by_role("link").click()
    expect(page.get_by_role("columnheader", name="GPUs")).to_have_attribute("aria-sort", "descending")
    page.get_by_text("Save view").click()
    page.get_by_label("Save filters, order and columns as").fill("Largest")
    page.get_by_role("button", name="Save", exact=True).click()
    page.goto(page.url.split("?")[0])
    page.get_by_role("navigation", name="Saved views").get_by_role("link", name="Largest").click()
    expect(page.get_by_role("columnheader", name="GPUs")).to_have_attribute("aria-sort", "descending")
    expect(page.get_by_role("link", name="Largest")).to_have_attribute("aria-current", "page")
    assert barriers(page) == []


@pytest.mark.thorough
def test_without_scripts_several_are_held_and_released(browser: Browser, portal: Portal) -> None:
    page = sign_in(browser, portal, java_script_enabled=False)
    page.goto(f"{portal.url}/jobs/?state=queued")
    waiting = portal.made["waiting"]
    for button, text in (("Hold", "1 job is on hold."), ("Release", "1 job is queued again.")):
        page.goto(f"{portal.url}/jobs/?state=queued&state=held&q=%23{waiting}")
        page.get_by_label(f"Select job {waiting}", exact=True).check()
        page.get_by_role("button", name=button, exact=True).click()
        expect(page.locator(".notices")).to_contain_text(text)
    page.context.close()


@pytest.mark.thorough
def test_on_a_phone_boxes_are_whole_and_menus_fit(browser: Browser, portal: Portal) -> None:
    page = sign_in(browser, portal, viewport={"width": 400, "height": 800})
    page.goto(f"{portal.url}/jobs/")
    card = page.locator("table.cards tbody tr").first
    box, row = card.locator(".tick input").bounding_box(), card.bounding_box()
    assert box and row
    assert box["x"] >= row["x"] and box["x"] + box["width"] <= row["x"] + row["width"]
    expect(card.locator("[data-label=Time]")).to_be_visible()
    expect(card.locator("[data-label=Project]")).to_be_visible()
    for name in ("State", "Submitted", "Columns", "Save view"):
        summary = page.locator("summary.button", has_text=name)
        summary.click()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), name
        summary.click()
    page.get_by_label("Order", exact=True).select_option("-gpus")
    page.wait_for_url("**sort=-gpus**")
    page.context.close()
