"""The home page and screens on the wall: live, by keyboard, on every size of screen."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.axe import barriers
from tests.browser.portal import Portal, sign_in

pytestmark = pytest.mark.browser
CONNECTED = "html[data-connected=yes]"
BEYOND_THE_SCREEN = "(({ scrollWidth, scrollHeight }) => [scrollWidth - innerWidth, scrollHeight - innerHeight])(document.documentElement)"
SIDEWAYS = "document.documentElement.scrollWidth > innerWidth"


@pytest.fixture(scope="module")
def secret(portal: Portal) -> str:
    """Return the secret of a screen, of a lab with 50 nodes of 8 GPUs."""
    return str(portal.ask("large_lab", nodes=50, gpus=8)["secret"])


@pytest.fixture
def home(browser: Browser, portal: Portal) -> Iterator[Page]:
    page = sign_in(browser, portal)
    expect(page.locator(CONNECTED)).to_be_attached()
    yield page
    page.context.close()


def screen(browser: Browser, portal: Portal, secret: str, **looks: Any) -> Page:
    page = browser.new_context(**looks).new_page()
    page.goto(f"{portal.url}/wall/{secret}/")
    return page


class TestLive:
    def test_what_happens_elsewhere_appears_without_a_reload(self, home: Page, portal: Portal) -> None:
        home.evaluate("window.isSame = true")
        made = portal.ask("running_job")
        row = home.locator("#home-runs tr", has_text="talkative").first
        expect(row).to_contain_text("running")
        square = home.locator(f"#home-cluster a.square[href='/jobs/{made['job']}/']").first
        expect(square).to_have_attribute("aria-label", re.compile("talkative.* of alice"))
        portal.ask("finish", container=made["container"], code=1)
        expect(home.locator("#home-attention")).to_contain_text(f"talkative #{made['job']} failed")
        expect(row).to_contain_text("failed")
        assert home.evaluate("window.isSame") is True

    def test_a_button_that_came_live_works(self, home: Page, portal: Portal) -> None:
        waiting = portal.made["waiting"]
        portal.ask("hold", job=waiting)
        release = home.get_by_role("button", name=re.compile(f"Release: .*#{waiting} is on hold"))
        release.click()
        expect(home.get_by_text("is queued again")).to_be_visible()

    def test_it_connects_again_after_a_restart_of_the_portal(self, home: Page, portal: Portal) -> None:
        portal.kill()
        expect(home.locator(CONNECTED)).not_to_be_attached()
        made = portal.ask("running_job")
        portal.start()
        expect(home.locator(f"#home-runs a[href='/jobs/{made['job']}/']")).to_be_visible(timeout=60_000)

    def test_signing_out_in_another_tab_ends_it(self, browser: Browser, portal: Portal) -> None:
        page = sign_in(browser, portal)
        expect(page.locator(CONNECTED)).to_be_attached()
        other = page.context.new_page()
        other.goto(portal.url)
        other.locator(".top-end details.menu summary").click()
        other.get_by_role("button", name="Sign out").click()
        page.wait_for_url("**/accounts/sign-in/**")
        page.context.close()

    @pytest.mark.thorough
    def test_a_page_that_stays_open_keeps_its_memory(self, home: Page, portal: Portal, secret: str) -> None:
        """Each part is replaced 40 times by itself, as in a day of a busy lab."""
        session = home.context.new_cdp_session(home)

        def nodes() -> int:
            session.send("HeapProfiler.collectGarbage")
            return int(session.send("Memory.getDOMCounters")["nodes"])

        renew = """async () => {
            for (const part of document.querySelectorAll("[data-live][hx-get]")) {
                const done = new Promise((resolve) => document.addEventListener("htmx:afterSettle", resolve, { once: true }));
                await htmx.ajax("GET", part.getAttribute("hx-get").split("?")[0], { target: part, swap: "outerHTML", headers: { Edition: "" } });
                await done;
            }
        }"""
        for _ in range(3):
            home.evaluate(renew)
        before = nodes()
        for _ in range(40):
            home.evaluate(renew)
        assert nodes() < 1.3 * before


class TestPage:
    @pytest.mark.thorough
    @pytest.mark.parametrize("width", [400, 1280, 1920])
    def test_fifty_nodes_fit_without_barriers(self, browser: Browser, portal: Portal, secret: str, width: int) -> None:
        page = sign_in(browser, portal, viewport={"width": width, "height": 900}, color_scheme="dark")
        expect(page.locator("#home-cluster .machine").first).to_be_visible()
        assert page.locator(".square").count() > 400
        assert not page.evaluate(SIDEWAYS)
        assert (
            page.evaluate("Math.min(...[...document.querySelectorAll('a.square')].map((one) => one.offsetWidth))") >= 24
        )
        assert barriers(page) == []
        page.context.close()

    def test_the_arrow_keys_go_from_square_to_square(self, home: Page) -> None:
        links = home.locator(".squares a.square")
        assert links.count() > 2
        assert home.locator(".squares a.square[tabindex='0']").count() < links.count()
        links.first.focus()
        home.keyboard.press("ArrowRight")
        assert links.nth(1).evaluate("(link) => link === document.activeElement")
        home.keyboard.press("ArrowLeft")
        address = links.first.get_attribute("href")
        home.keyboard.press("Enter")
        home.wait_for_url(f"**{address}")

    def test_colours_are_switched_without_scripts(self, browser: Browser, portal: Portal) -> None:
        page = sign_in(browser, portal, java_script_enabled=False)
        page.get_by_role("link", name="Projects", exact=True).last.click()
        expect(page.locator(".switch [aria-current]")).to_have_text("Projects")
        page.goto(portal.url)
        expect(page.locator(".switch [aria-current]")).to_have_text("Projects")
        expect(page.locator("a.square.project").first).to_be_visible()
        page.context.close()


class TestWall:
    @pytest.mark.thorough
    @pytest.mark.parametrize("size", [(1920, 1080), (3840, 2160), (1080, 1920)])
    def test_a_lab_of_fifty_nodes_fits_the_screen(
        self, browser: Browser, portal: Portal, secret: str, size: tuple[int, int]
    ) -> None:
        page = screen(browser, portal, secret, viewport={"width": size[0], "height": size[1]})
        expect(page.locator(".machine").first).to_be_visible()
        assert page.evaluate(BEYOND_THE_SCREEN) == [0, 0]
        assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "dark"
        assert page.locator("a").count() == 0
        assert barriers(page) == []
        page.context.close()

    @pytest.mark.thorough
    def test_it_shows_changes_and_survives_a_restart_of_the_portal(
        self, browser: Browser, portal: Portal, secret: str
    ) -> None:
        page = screen(browser, portal, secret)
        busy = page.locator(".wall-numbers dd").first
        before = busy.inner_text()
        made = portal.ask("running_job")
        expect(busy).not_to_have_text(before)
        expect(page.locator("main")).not_to_contain_text("talkative")
        portal.kill()
        expect(page.locator("#contact")).to_contain_text("No contact since", timeout=60_000)
        expect(page.locator(".machine").first).to_be_visible()
        portal.start()
        portal.ask("finish", container=made["container"])
        expect(page.locator("#contact")).to_be_hidden(timeout=60_000)
        page.context.close()

    def test_an_admin_creates_a_link_and_a_revoked_one_shows_nothing(self, browser: Browser, portal: Portal) -> None:
        page = sign_in(browser, portal, viewport={"width": 400, "height": 800})
        page.goto(f"{portal.url}/admin/walls/")
        page.get_by_label("Where it hangs").fill("Kitchen")
        page.get_by_role("button", name="Create link").click()
        address = page.locator("#wall-address").inner_text()
        assert not page.evaluate(SIDEWAYS)
        assert barriers(page) == []
        wall = screen(browser, portal, address.strip().rstrip("/").rpartition("/")[2])
        expect(wall.get_by_text("Kitchen")).to_be_visible()
        portal.ask("revoke_walls")
        expect(wall.get_by_text("This link was revoked")).to_be_visible()
        expect(wall.locator(".machine")).to_have_count(0)
        wall.context.close()
        page.context.close()
