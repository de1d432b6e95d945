"""Interactive curves: hover, zoom, keyboard, themes, new points, and nothing that stays behind."""

import gzip
import json
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.browser.axe import barriers
from tests.browser.portal import Portal, sign_in

pytestmark = pytest.mark.browser

MAX_SCRIPTS = 100 * 1024
"""Bytes of all scripts of a job's page, compressed."""


def reports(steps: range, offset: float = 0.0, since: float = 2_300.0) -> str:
    """Return what code reports every ten seconds: a loss that falls, with a spike at step 50, and sometimes an accuracy."""
    now, lines = time.time(), []
    for step in steps:
        about = {"at": now - since + 10 * step, "step": step}
        loss = offset + (5_000.0 if step == 50 else 2.0 * 0.99**step)
        lines.append({"kind": "metric", **about, "name": "loss", "value": loss})
        if step % 10 == 0:
            lines.append({"kind": "metric", **about, "name": "accuracy", "value": step / 1000})
    return "".join(f"{json.dumps(line)}\n" for line in lines)


@pytest.fixture(scope="module")
def made(portal: Portal) -> dict[str, int]:
    lab: dict[str, int] = portal.ask("curves_lab")
    portal.ask("write", container=lab["container1"], name="metrics", text=reports(range(200)))
    portal.ask("write", container=lab["container2"], name="metrics", text=reports(range(200), 0.5))
    return lab


@pytest.fixture
def page(browser: Browser, portal: Portal) -> Iterator[Page]:
    """A page whose errors, and whatever the security policy stops, fail the test."""
    page = sign_in(
        browser, portal, viewport={"width": 1280, "height": 900}, color_scheme="light", timezone_id="Asia/Tokyo"
    )
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    yield page
    page.context.close()
    assert complaints == []


def open_job(page: Page, portal: Portal, job: int) -> None:
    page.goto(f"{portal.url}/jobs/{job}/")
    expect(figure(page, "loss").locator(".plot canvas")).to_be_visible()


def open_gpus(page: Page, portal: Portal, job: int) -> None:
    page.goto(f"{portal.url}/jobs/{job}/gpus/")
    expect(figure(page, "Utilisation").locator(".plot canvas")).to_be_visible()


def open_comparison(page: Page, portal: Portal, made: dict[str, int]) -> None:
    page.goto(f"{portal.url}/jobs/compare?job={made['job1']}&job={made['job2']}")
    expect(figure(page, "loss").locator(".plot canvas")).to_be_visible()


def figure(page: Page, title: str) -> Locator:
    return page.locator("figure.chart", has=page.get_by_role("heading", name=title, exact=True))


def area(page: Page, title: str) -> dict[str, float]:
    over = figure(page, title).locator(".u-over")
    over.scroll_into_view_if_needed()
    box = over.bounding_box()
    assert box is not None
    return {"x": box["x"], "y": box["y"], "width": box["width"], "height": box["height"]}


def hover(page: Page, title: str, part: float) -> None:
    box = area(page, title)
    page.mouse.move(box["x"] + box["width"] * part, box["y"] + box["height"] / 2)


def step_of(page: Page, title: str) -> int:
    found = re.search(r"[sS]tep ([\d,]+)", figure(page, title).locator(".plot-readout").inner_text())
    assert found
    return int(found[1].replace(",", ""))


def until(is_so: Callable[[], bool]) -> None:
    """The policy stops ``wait_for_function``."""
    end = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.1)


def test_the_cursor_shows_the_values_of_all_charts(page: Page, portal: Portal, made: dict[str, int]) -> None:
    open_job(page, portal, made["job1"])
    expect(figure(page, "loss").locator(".plot-readout")).to_have_text(re.compile(r"^Last, step 199: 0\.27"))
    hover(page, "loss", 0.5)
    step = step_of(page, "loss")
    assert 95 <= step <= 105
    assert float(figure(page, "loss").locator(".plot-readout").inner_text().split(": ")[1]) == pytest.approx(
        2.0 * 0.99**step, abs=1e-4
    )
    assert step_of(page, "accuracy") == round(step, -1), "the other chart follows"
    expect(figure(page, "loss").locator(".chart-picture.wide")).to_be_hidden()


@pytest.mark.thorough
def test_dragging_zooms_all_charts_and_a_double_click_shows_everything(
    page: Page, portal: Portal, made: dict[str, int]
) -> None:
    open_job(page, portal, made["job1"])
    drag(page, "loss", 0.6, 0.8)
    reset = figure(page, "loss").get_by_role("button", name="Reset zoom")
    expect(reset).to_be_visible()
    hover(page, "loss", 0.0)
    assert 115 <= step_of(page, "loss") <= 122
    expect(figure(page, "accuracy").get_by_role("button", name="Reset zoom")).to_be_visible()
    box = area(page, "loss")
    page.mouse.dblclick(box["x"] + 20, box["y"] + 20)
    expect(reset).to_be_hidden()
    drag(page, "loss", 0.6, 0.8)
    reset.click()
    hover(page, "loss", 0.0)
    assert step_of(page, "loss") == 0


def drag(page: Page, title: str, start: float, end: float) -> None:
    hover(page, title, start)
    page.mouse.down()
    box = area(page, title)
    page.mouse.move(box["x"] + box["width"] * end, box["y"] + box["height"] / 2, steps=4)
    page.mouse.up()


def test_the_keyboard_reads_values_and_zooms(page: Page, portal: Portal, made: dict[str, int]) -> None:
    open_job(page, portal, made["job1"])
    plot = figure(page, "loss").locator(".plot")
    plot.focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    assert step_of(page, "loss") == 1
    expect(figure(page, "loss").locator("[aria-live=polite]")).to_have_text("step 1: 1.98")
    page.keyboard.press("Shift+ArrowRight")
    assert step_of(page, "loss") == 11
    page.keyboard.press("+")
    reset = figure(page, "loss").get_by_role("button", name="Reset zoom")
    expect(reset).to_be_visible()
    page.keyboard.press("Escape")
    expect(reset).to_be_hidden()
    page.keyboard.press("Tab")
    assert not plot.evaluate("plot => plot === document.activeElement"), "the keyboard gets out"


@pytest.mark.thorough
def test_a_spike_does_not_flatten_the_rest_unless_asked_for(page: Page, portal: Portal, made: dict[str, int]) -> None:
    open_job(page, portal, made["job1"])
    button = figure(page, "loss").get_by_role("button", name="Show all values")
    expect(button).to_have_attribute("aria-pressed", "false")
    assert highest(page) < 10
    button.click()
    expect(button).to_have_attribute("aria-pressed", "true")
    assert highest(page) >= 5_000
    figure(page, "loss").get_by_role("button", name="Log scale").click()
    expect(button).to_be_hidden()
    assert highest(page) >= 5_000


OF_LOSS = """async () => {
    const address = document.querySelector("script[src*='js/curves']").src.replace(/curves[^/]*$/, "plot.js");
    const { plots } = await import(address);
    const loss = [...plots].find((plot) => plot.model.title === "loss");
    return RESULT;
}"""


def highest(page: Page) -> float:
    """Return the upper end of the value axis of the loss."""
    return float(page.evaluate(OF_LOSS.replace("RESULT", "loss.plot.scales.y.max")))


@pytest.mark.thorough
def test_other_axes_and_smoothing(page: Page, portal: Portal, made: dict[str, int]) -> None:
    open_job(page, portal, made["job1"])
    readout = figure(page, "loss").locator(".plot-readout")
    page.get_by_label("Horizontal axis").select_option("relative")
    hover(page, "loss", 0.5)
    expect(readout).to_have_text(re.compile(r"^after 1[789] min( \d+ s)?: "))
    page.get_by_label("Horizontal axis").select_option("time")
    hover(page, "loss", 0.5)
    expect(readout).to_have_text(re.compile(r"\d{1,2}:\d\d:\d\d.*: \d"))
    page.get_by_label("Horizontal axis").select_option("step")
    slider = page.get_by_label("Smoothing")
    slider.focus()
    for _ in range(10):
        page.keyboard.press("ArrowRight")
    expect(slider.locator("xpath=following-sibling::output")).to_have_text("0.10")
    hover(page, "loss", 51 / 199)
    assert step_of(page, "loss") in (50, 51, 52)


@pytest.mark.thorough
def test_jobs_are_compared_by_what_differs_and_switched_off(page: Page, portal: Portal, made: dict[str, int]) -> None:
    open_comparison(page, portal, made)
    first, second = (figure(page, "loss").get_by_role("button", name=f"--lr {rate}") for rate in ("0.1", "0.3"))
    expect(first).to_contain_text(f"#{made['job1']} sweep · --lr 0.1")
    first.click()
    expect(first).to_have_attribute("aria-pressed", "false")
    hover(page, "loss", 0.5)
    step = step_of(page, "loss")
    assert float(second.locator(".plot-value").inner_text()) == pytest.approx(0.5 + 2.0 * 0.99**step, abs=1e-3)
    table = page.get_by_role("region", name="Values of each job")
    expect(table.get_by_role("rowheader")).to_have_text(["--lr"])
    assert barriers(page) == []
    page.set_viewport_size({"width": 400, "height": 800})
    until(lambda: bool(page.evaluate("document.documentElement.scrollWidth <= innerWidth")))


COLOURS = """plot => {
    const canvas = plot.querySelector("canvas");
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    const found = new Set();
    for (let at = 0; at < data.length; at += 4) if (data[at + 3] > 250) found.add(`${data[at]},${data[at + 1]},${data[at + 2]}`);
    return [...found];
}"""


@pytest.mark.thorough
def test_the_theme_switch_repaints_at_once(page: Page, portal: Portal, made: dict[str, int]) -> None:
    open_job(page, portal, made["job1"])
    plot = figure(page, "loss").locator(".plot")
    assert "0,95,158" in plot.evaluate(COLOURS)  # --data-1
    page.get_by_role("button", name="Light or dark").click()
    until(lambda: "86,180,233" in plot.evaluate(COLOURS))
    assert "0,95,158" not in plot.evaluate(COLOURS)
    page.emulate_media(forced_colors="active")
    until(lambda: "86,180,233" not in plot.evaluate(COLOURS))


def test_new_points_come_into_the_plot_and_leave_the_zoom(page: Page, portal: Portal, made: dict[str, int]) -> None:
    lab = portal.ask("running_job")
    portal.ask("write", container=lab["container"], name="metrics", text=reports(range(100)))
    open_job(page, portal, lab["job"])
    page.evaluate("document.querySelector('#curves canvas').dataset.first = 'yes'")
    drag(page, "loss", 0.2, 0.4)
    portal.ask("write", container=lab["container"], name="metrics", text=reports(range(100, 120)))
    portal.ask(
        "write", container=lab["container"], name="metrics", text=reports(range(120, 121)).replace("loss", "later")
    )
    page.mouse.move(0, 0)
    expect(figure(page, "loss").locator(".plot-readout")).to_contain_text("Last, step 119")
    expect(figure(page, "later").locator(".plot-readout")).to_contain_text("Last, step 120")
    expect(page.locator("#curves canvas[data-first]")).to_have_count(1)
    hover(page, "loss", 0.98)
    assert 36 <= step_of(page, "loss") <= 42
    portal.ask("write", container=lab["container"], name="metrics", text=reports(range(60, 70), 9.0, since=700))
    hover(page, "loss", 0.99)
    page.get_by_role("button", name="Reset zoom").first.click()
    plot = figure(page, "loss")
    page.mouse.move(0, 0)
    plot.locator("summary").click()
    expect(plot.locator("tbody tr").nth(65)).to_contain_text("10.0")  # what a restart repeated replaces what was lost


@pytest.mark.thorough
def test_a_page_that_stays_open_does_not_grow(page: Page, portal: Portal, made: dict[str, int]) -> None:
    lab = portal.ask("running_job")
    portal.ask("write", container=lab["container"], name="metrics", text=reports(range(2_600), since=90_000))
    open_job(page, portal, lab["job"])
    assert points(page) <= 2_000
    portal.ask("write", container=lab["container"], name="metrics", text=reports(range(2_600, 5_200), since=90_000))
    expect(figure(page, "loss").locator(".plot-readout")).to_contain_text("Last, step 5,199")
    assert 1_000 < points(page) <= 2_000


def points(page: Page) -> int:
    return int(page.evaluate(OF_LOSS.replace("RESULT", "loss.data[0].length")))


@pytest.mark.thorough
def test_a_part_of_the_page_that_is_replaced_keeps_zoom_and_leaves_no_plot(
    page: Page, portal: Portal, made: dict[str, int]
) -> None:
    open_gpus(page, portal, made["job1"])
    drag(page, "Utilisation", 0.3, 0.6)
    expect(figure(page, "Utilisation").get_by_role("button", name="Reset zoom")).to_be_visible()
    figure(page, "Utilisation").locator(".plot").focus()
    page.mouse.move(0, 0)
    count = "async (address) => (await import(address)).plots.size"
    address = page.evaluate(
        "document.querySelector(\"script[src*='js/curves']\").src.replace(/curves[^/]*$/, 'plot.js')"
    )
    before = page.evaluate(count, address)
    for _ in range(3):
        page.evaluate(
            "(url) => htmx.ajax('GET', url, { target: '#job-gpus', swap: 'outerHTML', headers: { Edition: '' } })",
            page.locator("#job-gpus").get_attribute("hx-get"),
        )
    expect(figure(page, "Utilisation").get_by_role("button", name="Reset zoom")).to_be_visible()
    assert figure(page, "Utilisation").locator(".plot").evaluate("plot => plot === document.activeElement")
    assert page.evaluate(count, address) == before


@pytest.mark.thorough
def test_two_hundred_charts_come_and_go_without_a_trace(page: Page, portal: Portal, made: dict[str, int]) -> None:
    open_job(page, portal, made["job1"])
    alive = page.evaluate(
        """async () => {
            const address = document.querySelector("script[src*='js/curves']").src.replace(/curves[^/]*$/, "plot.js");
            const { Plot, plots } = await import(address);
            const before = plots.size;
            globalThis.past = [];
            for (let count = 0; count < 200; count += 1) {
                const figure = document.createElement("figure");
                figure.append(document.createElement("figcaption"));
                figure.firstChild.append(document.createElement("h3"));
                document.querySelector("main").append(figure);
                const xs = { step: [1, 2, 3] };
                const series = [{ name: "a", tone: "data-1", xs, values: [1, 2, 3] }, { name: "b", tone: "data-2", xs, values: [3, null, 1] }];
                const plot = new Plot(figure, { title: "x", unit: "", axes: ["step"], series, marks: [] });
                plot.set({ weight: 0.5 });
                await new Promise(requestAnimationFrame);
                figure.remove();
                plot.destroy();
                globalThis.past.push(new WeakRef(plot), new WeakRef(figure));
            }
            return plots.size - before;
        }"""
    )
    assert alive == 0
    session = page.context.new_cdp_session(page)

    def are_gone() -> bool:
        session.send("HeapProfiler.collectGarbage")
        return int(page.evaluate("globalThis.past.filter((each) => each.deref()).length")) <= 4

    until(are_gone)


@pytest.mark.thorough
def test_charts_of_gpus_have_times_of_the_reader_and_names_of_their_lines(
    page: Page, portal: Portal, made: dict[str, int]
) -> None:
    page.goto(f"{portal.url}/gpus/nodes/{made['node']}/?window=hour")
    hover(page, "Utilisation", 0.5)
    chart = figure(page, "Utilisation")
    tokyo = int(time.strftime("%H", time.gmtime(time.time() + 9 * 3600)))
    shown = re.search(r"(\d{1,2}):\d\d:\d\d", chart.locator(".plot-readout").inner_text())
    assert shown and int(shown[1]) % 12 in {tokyo % 12, (tokyo - 1) % 12}
    expect(chart.locator(".plot-key")).to_have_count(2)
    expect(chart.locator(".plot-value").first).to_contain_text("%")
    expect(chart.get_by_role("button", name="Log scale")).to_be_hidden()
    assert barriers(page) == []


@pytest.mark.thorough
def test_a_printed_page_has_the_pictures(page: Page, portal: Portal, made: dict[str, int]) -> None:
    open_gpus(page, portal, made["job1"])
    page.emulate_media(media="print")
    expect(figure(page, "Utilisation").locator(".chart-picture:visible")).to_have_count(1)
    expect(figure(page, "Utilisation").locator("canvas")).to_be_hidden()


def test_without_scripts_the_pictures_are_there(browser: Browser, portal: Portal, made: dict[str, int]) -> None:
    page = sign_in(browser, portal, java_script_enabled=False, viewport={"width": 1280, "height": 900})
    page.goto(f"{portal.url}/jobs/{made['job1']}/")
    expect(figure(page, "loss").locator(".chart-picture:visible")).to_have_count(1)
    assert page.locator("canvas").count() == 0
    page.context.close()


@pytest.mark.thorough
def test_the_scripts_of_a_job_are_small(page: Page, portal: Portal, made: dict[str, int]) -> None:
    sizes: dict[str, int] = {}

    def weigh(answer: Any) -> None:
        if answer.request.resource_type == "script":
            sizes[answer.url] = len(gzip.compress(answer.body()))

    page.on("response", weigh)
    open_job(page, portal, made["job1"])
    assert any("uplot" in address for address in sizes) and any("htmx" in address for address in sizes)
    assert sum(sizes.values()) <= MAX_SCRIPTS, sizes
