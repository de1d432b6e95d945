"""A schedule is made from the page of a job: by keyboard, at any width, in the dark."""

from collections.abc import Iterator
from datetime import time
from itertools import product
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from portal.accounts.models import User
from portal.schedules.models import Schedule
from tests.browser.axe import barriers
from tests.browser.portal import PASSWORD
from tests.examples import mostly_thorough
from tests.portal.jobs_world import make_job, make_project

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def page(browser: Browser, live_server: Any, settings: Any) -> Iterator[Page]:
    """The page of a job, in the time zone of Tokyo."""
    settings.ALLOWED_HOSTS = ["*"]
    alice = User.objects.create_user("alice", password=PASSWORD)
    job = make_job(make_project(alice), launcher="command", entry="true", name="evaluate")
    page = browser.new_context(base_url=live_server.url, timezone_id="Asia/Tokyo").new_page()
    page.route_web_socket("**/ws/page/**", lambda socket: None)  # the server of these tests has no sockets
    page.goto(f"/accounts/sign-in/?next=/jobs/{job.pk}/")
    page.fill("[name=username]", "alice")
    page.fill("[name=password]", PASSWORD)
    with page.expect_navigation():
        page.get_by_role("button", name="Sign in").click()
    yield page
    page.wait_for_load_state("networkidle")
    page.context.close()


def test_it_is_set_by_keyboard_for_weekday_nights(page: Page) -> None:
    page.get_by_role("link", name="Run on a schedule").press("Enter")
    expect(page.locator("main h1")).to_contain_text("on a schedule")
    expect(page.get_by_label("Time zone")).to_have_value("Asia/Tokyo")
    page.get_by_label("Time of day").fill("03:30")
    for day in ("Saturday", "Sunday"):
        page.get_by_label(day).press("Space")
    page.get_by_role("button", name="Set the schedule").press("Enter")
    expect(page.locator("main h1")).to_have_text("evaluate")
    expect(page.get_by_text("Monday to Friday at 03:30 by the clocks of Asia/Tokyo")).to_be_visible()
    row = Schedule.objects.get()
    assert (row.at, row.weekdays, row.zone) == (time(3, 30), "01234", "Asia/Tokyo")
    page.get_by_role("button", name="Pause").press("Enter")
    expect(page.locator(".notice.warning")).to_contain_text("Paused")


@pytest.mark.parametrize(("width", "scheme"), mostly_thorough(product([1280, 400], ["light", "dark"]), (400, "dark")))
def test_it_has_no_barriers(page: Page, width: int, scheme: Any) -> None:
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 2000})
    page.get_by_role("link", name="Run on a schedule").click()
    for heading in ("on a schedule", "evaluate"):
        expect(page.locator("main h1")).to_contain_text(heading)
        assert barriers(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        if heading == "on a schedule":
            page.get_by_role("button", name="Set the schedule").click()
