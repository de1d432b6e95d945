"""The packages that the form for a new job proposes: they are ticked, stay ticked, and are installed with one click."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Response, expect

from portal.accounts.models import User
from portal.environments.models import Environment
from portal.projects.models import CodeVersion
from tests.browser.portal import PASSWORD
from tests.portal.jobs_world import make_code, make_environment, make_project

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]
IMPORTS = {"fizzplot": ["draw.py", 2], "inkwell": ["draw.py", 3]}


@pytest.fixture
def page(browser: Browser, live_server: Any, settings: Any) -> Iterator[Page]:
    """The form for a job whose code imports two modules of no known package."""
    settings.ALLOWED_HOSTS = ["*"]
    alice = User.objects.create_user("alice", password=PASSWORD)
    Environment.objects.update(retired=True)
    make_environment("plain", ("numpy",))
    code = make_code(make_project(alice))
    CodeVersion.objects.update(
        guess={"imports": IMPORTS, "package_lists": [], "entry": "draw.py", "launcher": "command"}
    )
    page = browser.new_context(base_url=live_server.url).new_page()
    page.route_web_socket("**/ws/page/**", lambda socket: None)  # the server of these tests has no sockets
    page.goto(f"/accounts/sign-in/?next=/jobs/new%3Fcode={code.pk}")
    page.fill("[name=username]", "alice")
    page.fill("[name=password]", PASSWORD)
    with page.expect_navigation():
        page.get_by_role("button", name="Sign in").click()
    yield page
    page.wait_for_load_state("networkidle")
    page.context.close()


def is_about_warnings(response: Response) -> bool:
    return "/jobs/new/warnings" in response.url


def test_what_is_ticked_is_installed(page: Page) -> None:
    page.get_by_label("fizzplot").check()
    page.wait_for_timeout(1000)  # in which a part that is fetched again would be there
    expect(page.get_by_label("fizzplot")).to_be_checked()
    page.get_by_role("button", name="Install what is ticked").click()
    expect(page.get_by_text("is chosen below")).to_be_visible()
    made = Environment.objects.get(retired=False, recipe__gt="")
    assert made.lines == ["fizzplot"]
    expect(page.locator("select[name=environment]")).to_have_value(made.key)


def test_a_tick_stays_when_another_field_changes(page: Page) -> None:
    page.get_by_label("inkwell").check()
    page.get_by_label(re.compile("at most")).fill("2")
    with page.expect_response(is_about_warnings):
        page.get_by_label(re.compile("at most")).blur()
    page.wait_for_timeout(500)
    expect(page.get_by_label("inkwell")).to_be_checked()
    expect(page.get_by_label("fizzplot")).not_to_be_checked()


def test_a_missing_tick_is_pointed_out_where_one_is_expected(page: Page) -> None:
    page.get_by_role("button", name="Install what is ticked").click()
    problem = page.get_by_text("Tick at least one package to install.")
    expect(problem).to_be_in_viewport()
    expect(page.locator(".errors:focus")).to_contain_text("Tick at least one package")
