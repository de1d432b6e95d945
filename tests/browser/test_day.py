"""Pages that stay open for a day: what comes and goes leaves nothing behind.

The portal's part is played by the test, so that a day's worth of hints, parts, points and lines takes a minute.
"""

import json
import re
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Browser, Page, Route, WebSocketRoute, expect

from tests.browser.portal import Portal, sign_in
from tests.browser.test_curves import reports

pytestmark = [pytest.mark.browser, pytest.mark.thorough]
MIB = 1024 * 1024
SWAPS = 400
"""Of parts of a page in each half of the day."""
LINES = 1_000
"""In a frame of the log."""
KEPT_LINES, TRIMMED_AT = 400_000, 441_000
"""How many lines the log keeps, and after how many the oldest go: Lines in static/jobs/merge.js."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a page holds after its garbage was collected."""

    heap: float
    nodes: int
    listeners: int

    def assert_no_more_than(self, earlier: "Footprint") -> None:
        assert self.heap < earlier.heap + MIB, f"{earlier} grew to {self}"
        assert self.nodes < earlier.nodes + 50, f"{earlier} grew to {self}"
        assert self.listeners < earlier.listeners + 20, f"{earlier} grew to {self}"


class Day:
    """A page whose connections to the portal are the test's."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.session = page.context.new_cdp_session(page)
        self.session.send("Performance.enable")
        self.hints: list[WebSocketRoute] = []
        page.route_web_socket(re.compile("/ws/page/"), lambda socket: self.hints.append(socket))

    def footprint(self) -> Footprint:
        self.page.wait_for_timeout(300)  # milliseconds: answers that are under way
        for _ in range(3):
            self.session.send("HeapProfiler.collectGarbage")
        metrics = {each["name"]: each["value"] for each in self.session.send("Performance.getMetrics")["metrics"]}
        heap = self.session.send("Runtime.getHeapUsage")["usedSize"]
        return Footprint(heap, int(metrics["Nodes"]), int(metrics["JSEventListeners"]))

    def change_parts(self, paths: str) -> None:
        """From its second request on, answer each part at once with something else than before."""
        real: dict[str, tuple[str, dict[str, str]]] = {}
        edition = count()

        def answer(route: Route) -> None:
            url = route.request.url
            if url not in real:
                response = route.fetch(headers={**route.request.headers, "edition": ""})
                real[url] = response.text(), response.headers
            text, headers = real[url]
            before, end, after = text.rpartition("</")
            change = next(edition)
            body = f"{before}<p>Change {change}</p>{end}{after}"
            route.fulfill(status=200, body=body, headers={**headers, "edition": str(change)})

        self.page.route(re.compile(paths), answer)

    def count_swaps(self) -> None:
        self.page.evaluate("globalThis.swaps = 0; document.addEventListener('htmx:afterSettle', () => swaps++);")

    def hint(self, topics: list[str], swaps: int) -> None:
        """Hint at these topics until so many parts were replaced."""
        goal, end = self.page.evaluate("swaps") + swaps, time.monotonic() + 200
        while self.page.evaluate("swaps") < goal:
            assert time.monotonic() < end, "parts are not replaced"
            self.hints[-1].send(json.dumps({"changed": topics}))
            self.page.wait_for_timeout(10)

    def assert_second_half_is_like_the_first(self, drive: Callable[[], None]) -> None:
        drive()
        noon = self.footprint()
        drive()
        self.footprint().assert_no_more_than(noon)


@pytest.fixture
def day(browser: Browser, portal: Portal) -> Iterator[Day]:
    page = sign_in(browser, portal, viewport={"width": 1280, "height": 900})
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    yield Day(page)
    page.context.close()
    assert complaints == []


@pytest.mark.parametrize(("path", "parts"), [("/", "/home/[a-z]+$"), ("/jobs/queue", "/jobs/queue$")])
def test_home_and_the_queue_keep_their_memory(day: Day, portal: Portal, path: str, parts: str) -> None:
    day.page.goto(portal.url + path)
    day.change_parts(parts)
    day.count_swaps()
    day.hint(["lab", "mine"], 20)
    day.assert_second_half_is_like_the_first(lambda: day.hint(["lab", "mine"], SWAPS))


def test_a_running_job_with_curves_keeps_its_memory(day: Day, portal: Portal) -> None:
    """Curves grow to their limit, are fetched again with fewer points, and grow again."""
    made = portal.ask("curves_lab")
    job, page = made["job1"], day.page
    portal.ask("write", container=made["container1"], name="metrics", text=reports(range(200)))
    real: dict[str, Any] = {}
    fetches = count()

    def answer(route: Route) -> None:
        if not real:
            real.update(route.fetch().json())
        is_more = "after" in parse_qs(urlsplit(route.request.url).query)
        first, points = (2_000 + 50 * next(fetches), 50) if is_more else (0, 2_000)
        steps = list(range(first, first + points))
        curves = [
            {
                "job": each["job"],
                "last_point": first + points,
                "lines": {
                    name: {**line, "steps": steps, "times": [1.7e9 + 10 * step for step in steps], "values": steps}
                    for name, line in each["lines"].items()
                },
            }
            for each in real["curves"]
        ]
        route.fulfill(json={**real, "complete": not is_more, "curves": curves})

    page.route(re.compile(r"/jobs/curves"), answer)
    day.change_parts(rf"/jobs/{job}/(live|training)\b")
    page.goto(f"{portal.url}/jobs/{job}/")
    expect(page.locator("#curves .plot canvas").first).to_be_visible()
    day.count_swaps()
    day.hint([f"job-{job}"], 20)
    day.assert_second_half_is_like_the_first(lambda: day.hint([f"job-{job}"], SWAPS))
    assert next(fetches) > 100


def test_the_log_of_a_job_keeps_its_memory(day: Day, portal: Portal) -> None:
    """Lines come until the oldest have to go, and as many again; a search is open."""
    made = portal.ask("running_job")
    sockets: list[WebSocketRoute] = []
    page, sent = day.page, count()
    offset = 0

    def connect(socket: WebSocketRoute) -> None:
        sockets.append(socket)
        socket.on_message(lambda _: None)  # cursors and acknowledgements
        stream = {"id": 1, "label": "rank 0", "attempt": 1, "size": 0}
        socket.send(json.dumps({"type": "streams", "streams": [stream]}))

    def write(frames: int) -> None:
        nonlocal offset
        for number in range(frames):
            first = LINES * next(sent)
            text = b"".join(b"step %08d loss 0.1\n" % line for line in range(first, first + LINES))
            size = len(text) // LINES
            marks = [(offset + size * line, 1_700_000_000_000 + first + line) for line in range(0, LINES, 4)]
            header = json.dumps({"s": 1, "o": offset, "m": marks}).encode()
            sockets[-1].send(struct.pack(">I", len(header)) + header + text)
            offset += len(text)
            if number % 20 == 19:
                page.evaluate("document.title")  # until it has taken them

    page.route_web_socket(re.compile(r"/ws/jobs/\d+/log/"), connect)
    page.goto(f"{portal.url}/jobs/{made['job']}/log/")
    expect(page.locator("[data-log=status]")).to_have_text("Live")
    write(1)
    page.locator("[data-log=query]").fill("0000000")
    cycle = (TRIMMED_AT - KEPT_LINES) // LINES

    def expect_trimmed() -> None:
        expect(page.locator("[data-log=lines]")).to_have_text(f"{KEPT_LINES:,} lines")
        expect(page.locator(".log-line").last).to_contain_text(f"step {LINES * frames - 1:08d}")

    frames = TRIMMED_AT // LINES + 3 * cycle
    write(frames - 1)
    expect_trimmed()
    noon = day.footprint()
    write(10 * cycle)
    frames += 10 * cycle
    expect_trimmed()
    day.footprint().assert_no_more_than(noon)
