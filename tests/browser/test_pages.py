"""Every page of jobs, nodes and policy: no barrier, no sideways scrolling on a phone, usable by keyboard."""

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.axe import barriers
from tests.browser.portal import Portal, sign_in

pytestmark = pytest.mark.browser
PAGES = {
    "home": "/",
    "jobs": "/jobs/",
    "no jobs": "/jobs/?q=nothing-of-this-name",
    "queue": "/jobs/queue",
    "jobs with problems": "/jobs/?sort=colour&state=gone",
    "lab settings": "/admin/lab/",
    "code to delete": "/projects/1/code/delete",
    "what deleting code breaks": "/projects/1/code/delete?version=1",
    "what deleting a project breaks": "/projects/1/delete",
    "deleted code": "/trash/code/",
    "deleted projects": "/trash/projects/",
    "erase a person": "/admin/users/2/erase",
    "notices": "/notices/",
    "notifications": "/accounts/notifications/",
    "new channel": "/accounts/notifications/channels/new/matrix",
    "notifications of a project": "/projects/1/notifications",
    "mail and channels": "/admin/notifications/",
    "channels and hosts": "/admin/notifications/settings",
    "texts of mails": "/admin/notifications/templates",
    "text of mails": "/admin/notifications/templates/failed",
    "schedules": "/schedules/",
    "schedules of a project": "/projects/1/schedules",
    "new schedule": "/schedules/new?job={done}",
    "webhooks of the lab": "/admin/notifications/webhooks",
    "choose code": "/jobs/new",
    "glossary": "/glossary/",
    "search": "/search/?q=e",
    "components": "/admin/components/",
    "new job": "/jobs/new?code=1",
    "done": "/jobs/{done}/",
    "failed": "/jobs/{failed}/",
    "running": "/jobs/{running}/",
    "log": "/jobs/{running}/log/",
    "files": "/jobs/{done}/files/",
    "no files": "/jobs/{failed}/files/",
    "GPUs of a job": "/jobs/{running}/gpus/",
    "details": "/jobs/{failed}/details/",
    "curves side by side": "/jobs/compare?job={done}&job={running}",
    "no curves": "/jobs/compare",
    "waiting": "/jobs/{waiting}/",
    "image": "/jobs/{done}/view/plots/loss.png",
    "text": "/jobs/{done}/view/metrics.json",
    "binary": "/jobs/{done}/view/model.pt",
    "nodes": "/nodes/",
    "admin": "/admin/",
    "admin nodes": "/admin/nodes/",
    "admin node": "/admin/nodes/{node}/",
    "GPUs": "/gpus/",
    "no GPUs": "/gpus/?q=nothing-of-this-name",
    "GPUs of a node": "/gpus/nodes/{node}/?window=day",
    "timeline": "/gpus/timeline/",
    "policy": "/admin/policy/",
    "more time": "/jobs/{running}/more-time",
    "requests for more time": "/admin/more-time/",
    "wall screens": "/admin/walls/",
    "usage": "/usage/",
    "usage by month": "/usage/?by=month",
    "ledger": "/usage/ledger/",
    "reservations": "/reservations/",
    "reservations by month": "/reservations/?view=month",
    "new reservation": "/reservations/new",
    "projects": "/projects/",
    "new project": "/projects/new",
    "project": "/projects/1/",
    "edit project": "/projects/1/edit",
    "code": "/projects/1/code/1/",
    "Git of a project": "/projects/{git}/git",
    "fetch": "/projects/{git}/git/fetches/{fetch}/",
    "Git hosts": "/admin/git-hosts/",
    "gallery": "/gallery/",
    "example": "/gallery/pytorch-digits/",
    "add a node": "/admin/nodes/add",
    "deactivate": "/admin/users/2/deactivate/",
    "not found": "/nothing-here",
}


@pytest.fixture(scope="module", autouse=True)
def resized(portal: Portal) -> None:
    portal.made |= portal.ask("resized_job")
    portal.made |= portal.ask("repository")


@pytest.fixture(
    scope="module",
    params=["light", *(pytest.param(look, marks=pytest.mark.thorough) for look in ("dark", "phone", "no scripts"))],
)
def looker(request: pytest.FixtureRequest, browser: Browser, portal: Portal) -> Iterator[tuple[str, Page, list[str]]]:
    every: dict[str, dict[str, Any]] = {
        "light": {"viewport": {"width": 1280, "height": 900}, "color_scheme": "light"},
        "dark": {"viewport": {"width": 1280, "height": 900}, "color_scheme": "dark"},
        "phone": {"viewport": {"width": 400, "height": 800}, "color_scheme": "light"},
        "no scripts": {"java_script_enabled": False},
    }
    looks = every[request.param]
    page = sign_in(browser, portal, **looks)
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda message: complaints.append(message.text) if "Security Policy" in message.text else None)
    yield request.param, page, complaints
    page.context.close()


CLOSED = "[popover]:not(:popover-open), [hidden], dialog:not([open])"
CORE = ("home", "new job", "done", "failed", "running", "waiting", "admin nodes", "GPUs of a node", "policy", "usage")


@pytest.mark.parametrize(
    "name", [*CORE, *(pytest.param(name, marks=pytest.mark.thorough) for name in PAGES if name not in CORE)]
)
def test_a_page_is_without_barriers(looker: tuple[str, Page, list[str]], portal: Portal, name: str) -> None:
    look, page, complaints = looker
    page.goto(portal.url + PAGES[name].format(**portal.made))
    expect(page.locator("main h1")).to_be_visible()
    if look == "no scripts":
        assert page.locator(".needs-js:visible").count() == 0
        return
    page.wait_for_timeout(300)
    assert barriers(page) == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "it scrolls sideways"
    assert page.locator(CLOSED).filter(visible=True).count() == 0, "it shows what is closed"
    assert complaints == []


def test_the_line_for_a_new_machine_is_without_barriers(looker: tuple[str, Page, list[str]], portal: Portal) -> None:
    look, page, complaints = looker
    page.goto(f"{portal.url}/admin/nodes/")
    page.get_by_role("button", name="Create join command").click()
    expect(page.get_by_role("heading", name="Waiting for the machine")).to_be_visible()
    if look != "no scripts":
        assert barriers(page) == []
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "it scrolls sideways"
        assert complaints == []


def test_without_scripts_a_job_is_submitted_and_cancelled(browser: Browser, portal: Portal) -> None:
    page = sign_in(browser, portal, java_script_enabled=False)
    page.goto(f"{portal.url}/jobs/new?code=1")
    page.get_by_role("button", name="Submit job").click()
    expect(page.locator(".job-state .badge")).to_contain_text("queued")
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator(".job-state .badge")).to_contain_text("cancelled")
    page.context.close()


def test_by_keyboard_alone_a_job_is_cancelled_after_a_question(browser: Browser, portal: Portal) -> None:
    page = sign_in(browser, portal)
    page.goto(f"{portal.url}/jobs/new?code=1")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.get_by_label("GPUs, at most").focus()
    page.keyboard.press("Enter")
    expect(page.locator(".job-state .badge")).to_contain_text("queued")
    page.wait_for_load_state("load")  # before its scripts run, the form is sent without a question, as meant
    page.get_by_role("button", name="Cancel", exact=True).press("Enter")
    question = page.get_by_role("dialog")
    expect(question).to_be_visible()
    page.keyboard.press("Escape")
    expect(question).to_be_hidden()
    expect(page.locator(".job-state .badge")).to_contain_text("queued")
    page.get_by_role("button", name="Cancel", exact=True).press("Enter")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator(".job-state .badge")).to_contain_text("cancelled")
    page.context.close()


@pytest.mark.thorough
def test_a_question_asked_again_at_once_is_answered(browser: Browser, portal: Portal) -> None:
    page = sign_in(browser, portal)
    page.goto(f"{portal.url}/jobs/new?code=1")
    page.get_by_role("button", name="Submit job").click()
    expect(page.locator(".job-state .badge")).to_contain_text("queued")
    page.wait_for_load_state("load")
    page.evaluate("""async () => {
        const cancel = [...document.querySelectorAll("[data-confirm] button")].find((one) => one.textContent.trim() === "Cancel");
        const frame = () => new Promise(requestAnimationFrame);
        cancel.click();
        document.querySelector("#confirm [value=no]").click();
        cancel.click();
        await frame();
        await frame();
        document.querySelector("#confirm [value=yes]").click();
    }""")
    expect(page.locator(".job-state .badge")).to_contain_text("cancelled")
    page.context.close()


@pytest.mark.thorough
def test_the_keyboard_keeps_its_place_when_a_part_of_the_page_is_renewed(browser: Browser, portal: Portal) -> None:
    page = sign_in(browser, portal)
    page.goto(f"{portal.url}/nodes/")
    page.evaluate("document.querySelector('#nodes').dataset.old = 'yes'")
    page.locator("#nodes a").first.focus()
    focused = "[document.activeElement.tagName, document.activeElement.getAttribute('href')]"
    before = page.evaluate(focused)
    page.wait_for_selector("#nodes:not([data-old])")
    assert page.evaluate(focused) == before
    assert before[0] == "A"
    page.context.close()


def test_nothing_is_replaced_while_a_mouse_button_is_down(browser: Browser, portal: Portal) -> None:
    """A button that goes away between its press and its release gets no click."""
    page = sign_in(browser, portal)
    page.goto(f"{portal.url}/jobs/")
    replaces = """() => {
        const about = { shouldSwap: true, target: document.body, xhr: {}, pathInfo: { finalRequestPath: location.pathname } };
        document.body.dispatchEvent(new CustomEvent("htmx:beforeSwap", { bubbles: true, detail: about }));
        return about.shouldSwap;
    }"""
    assert page.evaluate(replaces)
    page.mouse.move(300, 300)
    page.mouse.down()
    assert not page.evaluate(replaces)
    page.mouse.up()
    page.wait_for_function(replaces)
    page.context.close()


def test_a_question_is_answered_although_the_job_changed_meanwhile(browser: Browser, portal: Portal) -> None:
    page = sign_in(browser, portal)
    page.goto(f"{portal.url}/jobs/new?code=1")
    page.get_by_role("button", name="Submit job").click()
    page.wait_for_load_state("load")
    page.get_by_role("button", name="Cancel", exact=True).click()
    expect(page.get_by_role("dialog")).to_be_visible()
    with page.expect_response(lambda answer: "/live" in answer.url and answer.status == 200):
        other = page.context.new_page()
        other.goto(page.url)
        other.get_by_role("button", name="Hold", exact=True).click()
        expect(other.locator(".job-state .badge")).to_contain_text("held")
    page.wait_for_timeout(200)  # what the answer brings would be in the page by now
    page.get_by_role("button", name="Cancel the job").click()
    expect(page.locator(".job-state .badge")).to_contain_text("cancelled")
    page.context.close()


@pytest.mark.thorough
def test_the_theme_is_remembered(browser: Browser, portal: Portal) -> None:
    page = sign_in(browser, portal, color_scheme="light")
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    light = page.evaluate(ground)
    page.get_by_role("button", name="Light or dark").click()
    dark = page.evaluate(ground)
    assert dark != light
    page.goto(f"{portal.url}/jobs/")
    assert page.evaluate(ground) == dark
    page.context.close()
