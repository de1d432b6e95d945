"""The pages of accounts and the API reference, as people meet them: from the admin's link to a token in use."""

from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.axe import barriers
from tests.browser.portal import PASSWORD, Portal

pytestmark = pytest.mark.browser

SIGNED_OUT = (
    "/accounts/sign-in/",
    "/accounts/password/reset/",
    "/accounts/password/reset/sent/",
    "/accounts/invite/nothing/",
)
SIGNED_IN = (
    "/accounts/profile/",
    "/accounts/password/",
    "/accounts/tokens/",
    "/admin/users/",
    "/admin/groups/",
    "/admin/limits/",
    "/admin/limits/users/1/",
    "/admin/invites/",
    "/admin/audit/",
)


class Visitor:
    """A page that remembers what the browser complained about."""

    def __init__(self, browser: Browser, portal: Portal, **looks: Any) -> None:
        self.page: Page = browser.new_context(**looks).new_page()
        self.url = portal.url
        self.complaints: list[str] = []
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on(
            "console", lambda line: self.complaints.append(line.text) if "Security Policy" in line.text else None
        )

    def go(self, path: str) -> None:
        self.page.goto(self.url + path)

    def sign_in(self, name: str, password: str = PASSWORD) -> None:
        self.go("/accounts/sign-in/")
        self.page.fill("[name=username]", name)
        self.page.fill("[name=password]", password)
        self.page.keyboard.press("Enter")
        self.page.wait_for_url(f"{self.url}/")


LOOKS: dict[str, dict[str, Any]] = {
    "light": {"viewport": {"width": 1280, "height": 900}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1280, "height": 900}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 400, "height": 800}},
}


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.thorough
def test_the_pages_are_without_barriers(browser: Browser, portal: Portal, look: str) -> None:
    visitor = Visitor(browser, portal, **LOOKS[look])
    for path in SIGNED_OUT:
        looked_at(visitor, path)
    visitor.sign_in("alice")
    for path in SIGNED_IN:
        looked_at(visitor, path)
    assert visitor.complaints == []
    visitor.page.context.close()


def looked_at(visitor: Visitor, path: str) -> None:
    visitor.go(path)
    expect(visitor.page.locator("h1")).to_be_visible()
    visitor.page.wait_for_timeout(200)
    assert barriers(visitor.page) == [], path
    assert visitor.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{path} scrolls sideways"


def test_from_the_invitation_to_a_token_that_works(browser: Browser, portal: Portal) -> None:
    admin = Visitor(browser, portal)
    admin.sign_in("alice")
    admin.go("/admin/invites/")
    admin.page.get_by_role("button", name="Create link").click()
    link = admin.page.locator("#invite-link").inner_text().strip()

    new = Visitor(browser, portal)
    new.go(link[link.index("/accounts/") :])
    new.page.fill("[name=username]", "nora")
    new.page.fill("[name=password]", "weathered-lighthouse-7")
    new.page.get_by_role("button", name="Create account").click()
    new.page.wait_for_url(f"{new.url}/")
    new.go("/accounts/tokens/")
    new.page.fill("[name=name]", "laptop")
    new.page.get_by_role("button", name="Create token").click()
    token = new.page.locator("#new-token").inner_text().strip()
    answer = new.page.request.get(f"{new.url}/api/v1/me/", headers={"Authorization": f"Bearer {token}", "Cookie": ""})
    assert answer.json()["username"] == "nora"

    new.page.get_by_role("button", name="Revoke laptop").click()
    new.page.get_by_role("button", name="Revoke it").click()
    expect(new.page.locator("tbody .badge")).to_contain_text("revoked")
    assert admin.complaints == new.complaints == []
    admin.page.context.close()
    new.page.context.close()


@pytest.mark.thorough
def test_the_api_reference_works_offline_under_our_policy(browser: Browser, portal: Portal) -> None:
    visitor = Visitor(browser, portal)
    asked: list[str] = []
    visitor.page.on("request", lambda request: asked.append(request.url))
    visitor.sign_in("alice")
    visitor.go("/api/docs/")
    operation = visitor.page.locator("#operations-me-me_retrieve")
    expect(operation).to_be_visible(timeout=20_000)
    operation.locator("button").first.click()
    operation.get_by_role("button", name="Try it out").click()
    operation.get_by_role("button", name="Execute").click()
    expect(operation.locator(".live-responses-table")).to_contain_text('"username": "alice"')

    create = visitor.page.locator("#operations-projects-projects_create")
    create.locator("button").first.click()
    create.get_by_role("button", name="Try it out").click()
    create.locator("textarea").fill('{"name": "Made by hand"}')
    create.get_by_role("button", name="Execute").click()
    expect(create.locator(".live-responses-table")).to_contain_text('"name": "Made by hand"')
    assert visitor.complaints == []
    assert all(url.startswith((visitor.url, "data:", "blob:")) for url in asked), "it fetched something from elsewhere"
    visitor.page.context.close()
