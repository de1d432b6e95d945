"""Components that need a browser: menus with a search, explained terms, toasts, dialogs."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.portal import Portal, sign_in

pytestmark = pytest.mark.browser


@pytest.fixture
def page(browser: Browser, portal: Portal) -> Iterator[Page]:
    page = sign_in(browser, portal)
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(f"{portal.url}/admin/components/")
    yield page
    page.context.close()
    assert complaints == []


def chosen(page: Page) -> list[str]:
    values: list[str] = page.locator("select[name=groups]").evaluate(
        "(select) => [...select.selectedOptions].map((option) => option.text)"
    )
    return values


def test_several_are_chosen_by_keyboard_and_shown_as_chips(page: Page) -> None:
    field = page.get_by_role("combobox", name="Groups")
    field.focus()
    page.keyboard.type("up 17")
    expect(page.get_by_role("listbox", name="Groups").get_by_role("option")).to_have_text(["Group 17"])
    page.keyboard.press("Enter")
    assert chosen(page) == ["Group 2", "Group 3", "Group 17"]
    expect(field).to_have_value("")
    expect(page.locator(".combobox-chip")).to_have_count(3)
    page.keyboard.press("Backspace")
    assert chosen(page) == ["Group 2", "Group 3"]
    page.keyboard.press("ArrowUp")
    expect(page.get_by_role("option", name="Group 29")).to_have_class("active")
    page.keyboard.press("Escape")
    expect(page.get_by_role("listbox")).to_be_hidden()


@pytest.mark.thorough
def test_a_chip_is_removed_by_its_button_and_the_mouse_chooses(page: Page) -> None:
    page.get_by_role("button", name="Remove Group 3").click()
    assert chosen(page) == ["Group 2"]
    page.get_by_role("combobox", name="Groups").click()
    page.get_by_role("option", name="Group 5", exact=True).click()
    assert chosen(page) == ["Group 2", "Group 5"]
    page.get_by_role("heading", name="Fields").click()
    expect(page.get_by_role("listbox")).to_be_hidden()


@pytest.mark.thorough
def test_what_matches_nothing_chooses_nothing(page: Page) -> None:
    page.get_by_role("combobox", name="Groups").fill("zebra")
    expect(page.locator(".combobox-list")).to_have_text("Nothing matches")
    page.keyboard.press("Enter")
    assert chosen(page) == ["Group 2", "Group 3"]


@pytest.mark.thorough
def test_a_term_opens_by_keyboard_and_closes_with_escape(page: Page) -> None:
    question = page.get_by_role("button", name="Explain “rank”")
    question.focus()
    page.keyboard.press("Enter")
    explanation = page.locator("#term-rank")
    expect(explanation).to_be_visible()
    expect(explanation).to_contain_text("One worker process")
    page.keyboard.press("Escape")
    expect(explanation).to_be_hidden()


@pytest.mark.thorough
def test_a_toast_is_announced_once_at_a_time(page: Page) -> None:
    button = page.get_by_role("button", name="Show a toast")
    button.click()
    button.click()
    expect(page.locator("#toasts")).to_have_text("Stored.")
    assert page.locator("#toasts").get_attribute("role") == "status"


@pytest.mark.thorough
def test_without_scripts_the_menu_is_the_browsers(browser: Browser, portal: Portal) -> None:
    page = sign_in(browser, portal, java_script_enabled=False)
    page.goto(f"{portal.url}/admin/components/")
    expect(page.locator("select[name=groups]")).to_be_visible()
    page.context.close()


def test_ctrl_k_finds_a_job_by_keyboard_alone(page: Page, portal: Portal) -> None:
    page.keyboard.press("Control+k")
    search = page.get_by_role("dialog", name="Search").get_by_role("searchbox")
    expect(search).to_be_focused()
    expect(page.get_by_role("link", name="New project")).to_be_visible()
    page.keyboard.type("sweep lr")
    found = page.get_by_role("dialog").get_by_role("link", name="sweep lr=0.01")
    expect(found).to_be_visible()
    page.keyboard.press("ArrowDown")
    expect(found).to_be_focused()
    page.keyboard.press("ArrowUp")
    expect(search).to_be_focused()
    page.keyboard.press("Enter")
    page.wait_for_url(f"{portal.url}/jobs/{portal.made['running']}/")


@pytest.mark.thorough
def test_the_search_closes_with_escape_and_is_a_page_without_scripts(
    page: Page, browser: Browser, portal: Portal
) -> None:
    page.get_by_role("link", name="Search").click()
    expect(page.get_by_role("dialog", name="Search")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog", name="Search")).to_be_hidden()
    plain = sign_in(browser, portal, java_script_enabled=False)
    plain.get_by_role("link", name="Search").click()
    plain.get_by_role("searchbox").fill("sweep lr")
    plain.keyboard.press("Enter")
    expect(plain.get_by_role("link", name="sweep lr=0.01")).to_be_visible()
    plain.context.close()
