"""A walk by keyboard: Tab reaches every control of a page in the order of the page, and the focus is always seen."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.portal import Portal, sign_in

pytestmark = pytest.mark.browser
PAGES = {
    "home": "/",
    "jobs": "/jobs/",
    "job": "/jobs/{running}/",
    "log": "/jobs/{running}/log/",
    "files": "/jobs/{done}/files/",
    "new job": "/jobs/new?code=1",
    "project": "/projects/1/",
    "queue": "/jobs/queue",
    "compare": "/jobs/compare?job={done}&job={running}",
    "reservations": "/reservations/",
    "policy": "/admin/policy/",
    "users": "/admin/users/",
    "audit": "/admin/audit/",
    "timeline": "/gpus/timeline/?window=day",
}
CORE = ("home", "job", "jobs")
MAX_STOPS = 400
CONTROLS = """
() => {
  const stops = [...document.querySelectorAll(
    "a[href], button, input:not([type=hidden]), select, textarea, summary, [tabindex='0']")];
  const shown = (one) => one.checkVisibility({ visibilityProperty: true }) && !one.disabled && !one.closest("[inert]");
  const group = new Set(); // of the radio buttons of a group, Tab reaches one
  return stops.filter((one) => {
    if (!shown(one) || one.tabIndex < 0) return false;
    if (one.type !== "radio") return true;
    const first = !group.has(one.name);
    group.add(one.name);
    return first;
  }).length;
}
"""
STOP = """
() => {
  const one = document.activeElement;
  if (!one || one === document.body) return null;
  window.stops ??= new Map();
  const again = window.stops.has(one);
  window.stops.set(one, true);
  const ringed = [one, one.closest("label"), one.firstElementChild];
  const rings = (each) => {
    const style = each && getComputedStyle(each);
    return style && style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0;
  };
  const bar = one.closest("svg") && one.firstElementChild; // of a timeline: its frame becomes thicker
  const box = one.getBoundingClientRect();
  const words = one.getAttribute("aria-label") || one.innerText || one.placeholder || one.name || one.outerHTML.slice(0, 60);
  return {
    again,
    name: `${one.tagName.toLowerCase()} ${words.trim().replace(/\\s+/g, " ").slice(0, 40)}`,
    ringed: ringed.some(rings) || (bar && parseFloat(getComputedStyle(bar).strokeWidth) > 2),
    inSight: box.bottom > 0 && box.top < innerHeight && box.right > 0 && box.left < innerWidth,
  };
}
"""


@pytest.fixture(scope="module")
def page(browser: Browser, portal: Portal) -> Iterator[Page]:
    opened = sign_in(browser, portal, viewport={"width": 1280, "height": 900})
    yield opened
    opened.context.close()


@pytest.mark.parametrize(
    "name", [*CORE, *(pytest.param(name, marks=pytest.mark.thorough) for name in PAGES if name not in CORE)]
)
def test_tab_reaches_every_control_and_the_focus_is_seen(page: Page, portal: Portal, name: str) -> None:
    page.goto(portal.url + PAGES[name].format(**portal.made))
    expect(page.locator("main h1")).to_be_visible()
    page.wait_for_timeout(500)
    controls = page.evaluate(CONTROLS)
    reached: list[str] = []
    for _ in range(MAX_STOPS):
        page.keyboard.press("Tab")
        stop = page.evaluate(STOP)
        if stop is None or stop["again"]:
            break
        assert stop["ringed"], f"the focus is not seen on {stop['name']}"
        assert stop["inSight"], f"the focus is out of sight on {stop['name']}"
        reached.append(stop["name"])
    assert len(reached) >= controls, f"{len(reached)} of {controls}: {reached}"
