"""The line of another launcher on the form: its values with one click, and nothing submitted by that."""

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.portal import Portal, sign_in

pytestmark = pytest.mark.browser


def test_a_line_of_torchrun_is_translated_and_then_submitted(browser: Browser, portal: Portal) -> None:
    page = sign_in(browser, portal)
    page.goto(f"{portal.url}/jobs/new?code=1")
    page.get_by_label("Plain command").check()
    page.get_by_label("GPUs, at most").fill("2")
    line = page.get_by_label("Command line")
    line.fill("torchrun --nproc_per_node 2 train.py --epochs 7")
    line.blur()
    page.get_by_role("button", name="Use these values").click()
    expect(page.get_by_text("The form now has what")).to_be_visible()
    expect(page.get_by_label("torchrun")).to_be_checked()
    expect(page.get_by_label("File or module")).to_have_value("train.py")
    expect(page.get_by_label("Arguments")).to_have_value("--epochs 7")
    expect(page.get_by_label("GPUs, at least")).to_have_value("2")
    page.get_by_role("button", name="Submit job").click()
    expect(page.locator(".job-state .badge")).to_contain_text("queued")
    page.context.close()


def test_enter_in_a_field_submits_the_line_as_it_is(browser: Browser, portal: Portal) -> None:
    page = sign_in(browser, portal)
    page.goto(f"{portal.url}/jobs/new?code=1")
    page.get_by_label("Plain command").check()
    page.get_by_label("GPUs, at most").fill("2")
    line = page.get_by_label("Command line")
    line.fill("torchrun --nproc_per_node 2 train.py")
    line.blur()
    expect(page.get_by_role("button", name="Use these values")).to_be_visible()
    line.press("Enter")
    expect(page.locator(".job-state .badge")).to_contain_text("queued")
    expect(page.get_by_text("torchrun --nproc_per_node 2 train.py").first).to_be_visible()
    page.context.close()
