"""The log viewer in a real browser: long histories, following, searching, hostile output, broken connections."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.portal import PASSWORD, Portal

pytestmark = pytest.mark.browser
NUMBERED = """() => [...document.querySelectorAll('.log-line .log-text')].map((line) => line.textContent)"""
IN_SIGHT = """() => {
  const frame = document.querySelector('[data-log=scroller]').getBoundingClientRect();
  const line = document.elementFromPoint(frame.left + 200, frame.top + frame.height / 2).closest('.log-line');
  return [line.querySelector('.log-text').textContent, Math.round(line.getBoundingClientRect().top)];
}"""


@pytest.fixture
def page(browser: Browser, portal: Portal) -> Iterator[Page]:
    """Signed in as Alice; a script's error or a refusal of the security policy fails the test."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on(
        "console",
        lambda message: complaints.append(message.text) if "Content Security Policy" in message.text else None,
    )
    page.goto(f"{portal.url}/accounts/sign-in/")
    page.fill("[name=username]", "alice")
    page.fill("[name=password]", PASSWORD)
    page.keyboard.press("Enter")
    page.wait_for_url(f"{portal.url}/")
    yield page
    context.close()
    assert complaints == []


@pytest.fixture
def job(portal: Portal) -> dict[str, int]:
    made: dict[str, int] = portal.ask("running_job")
    return made


def numbered(first: int, last: int) -> str:
    return "".join(f"line {number:06} of the log\n" for number in range(first, last))


def open_log(page: Page, portal: Portal, job: dict[str, int]) -> None:
    page.goto(f"{portal.url}/jobs/{job['job']}/log/")
    expect(page.locator("[data-log=status]")).to_have_text("Live")


def shown(page: Page) -> list[str]:
    lines: list[str] = page.evaluate(NUMBERED)
    return lines


@pytest.mark.thorough
def test_a_hundred_thousand_lines_are_all_there_and_few_are_drawn(
    page: Page, portal: Portal, job: dict[str, int]
) -> None:
    portal.ask("write", container=job["container"], name="0", text=numbered(0, 120_000))
    open_log(page, portal, job)
    expect(page.locator("[data-log=lines]")).to_have_text("120,000 lines", timeout=60_000)
    expect(page.locator(".log-line").last).to_contain_text("line 119999")
    assert page.locator(".log-line").count() < 200
    for part in (0.0, 0.31, 0.75, 1.0):
        page.evaluate(
            "(part) => { const s = document.querySelector('[data-log=scroller]'); s.scrollTop = (s.scrollHeight - s.clientHeight) * part; }",
            part,
        )
        page.wait_for_timeout(100)
        numbers = [int(text[5:11]) for text in shown(page)]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        assert numbers[0] <= part * 119_999 <= numbers[-1] + 1
        assert page.locator(".log-line").count() < 200


def test_it_follows_until_one_scrolls_up_and_again_from_the_end(
    page: Page, portal: Portal, job: dict[str, int]
) -> None:
    portal.ask("write", container=job["container"], name="0", text=numbered(0, 500))
    open_log(page, portal, job)
    expect(page.locator(".log-line").last).to_contain_text("line 000499")
    portal.ask("write", container=job["container"], name="0", text=numbered(500, 510))
    expect(page.locator(".log-line").last).to_contain_text("line 000509", timeout=10_000)
    page.locator("[data-log=scroller]").hover()
    page.mouse.wheel(0, -3000)
    expect(page.locator("[data-log=follow]")).to_have_attribute("aria-pressed", "false")
    before = page.evaluate(IN_SIGHT)
    portal.ask("write", container=job["container"], name="0", text=numbered(510, 700))
    expect(page.locator("[data-log=lines]")).to_have_text("700 lines", timeout=10_000)
    assert page.evaluate(IN_SIGHT) == before
    page.get_by_role("button", name="Jump to end").click()
    expect(page.locator(".log-line").last).to_contain_text("line 000699")
    expect(page.locator("[data-log=end]")).to_be_hidden()
    portal.ask("write", container=job["container"], name="0", text=numbered(700, 701))
    expect(page.locator(".log-line").last).to_contain_text("line 000700", timeout=10_000)


@pytest.mark.thorough
def test_search_counts_marks_and_steps(page: Page, portal: Portal, job: dict[str, int]) -> None:
    text = "".join(f"line {n}{' NaN here' if n % 1000 == 7 else ''}\n" for n in range(5000))
    portal.ask("write", container=job["container"], name="0", text=text)
    open_log(page, portal, job)
    expect(page.locator("[data-log=lines]")).to_have_text("5,000 lines")
    page.locator("[data-log=scroller]").focus()
    page.keyboard.press("/")
    page.keyboard.type("nan")
    expect(page.locator("[data-log=count]")).to_have_text("5")
    for number, place in ((7, "1 of 5"), (1007, "2 of 5"), (2007, "3 of 5")):
        page.keyboard.press("Enter")
        expect(page.locator("[data-log=count]")).to_have_text(place)
        expect(page.locator(".log-line.current .log-text")).to_have_text(f"line {number} NaN here")
        expect(page.locator(".log-line.current mark")).to_have_text("NaN")
        expect(page.locator(".log-line.current")).to_be_in_viewport()
    page.keyboard.press("Shift+Enter")
    expect(page.locator("[data-log=count]")).to_have_text("2 of 5")
    page.keyboard.press("Escape")
    expect(page.locator("[data-log=count]")).to_have_text("")
    expect(page.locator(".log-line mark")).to_have_count(0)


@pytest.mark.thorough
def test_colours_bars_and_odd_bytes_are_shown_as_a_terminal_would(
    page: Page, portal: Portal, job: dict[str, int]
) -> None:
    portal.ask(
        "write",
        container=job["container"],
        name="0",
        text="\x1b[1;32mgood\x1b[0m\n10%\r50%\r100% done\n日本語 ü\x1b[2Kx\n",
    )
    open_log(page, portal, job)
    expect(page.locator(".log-line .log-text")).to_have_text(["good", "100% done", "日本語 üx"])
    expect(page.locator(".log-line .fg2.bold")).to_have_text("good")


def test_hostile_output_makes_nothing_but_text(page: Page, portal: Portal, job: dict[str, int]) -> None:
    payloads = [
        "<script>window.hacked = 1</script>",
        "<img src=x onerror='window.hacked = 1'>",
        "\x1b]8;;javascript:window.hacked=1\x07click\x1b]8;;\x07",
        "\x1b]52;c;aGFja2Vk\x07",
        "\x1b]0;hacked\x07",
        "\u202egnp.exe",
        "</span></div><a href='javascript:1'>x</a>",
        "\x1b[31;m\x1b[<script>alert(1)</script>m",
        "&lt;b&gt; &#60;b>",
    ]
    title = page.title()
    portal.ask("write", container=job["container"], name="0", text="\n".join(payloads) + "\n")
    open_log(page, portal, job)
    expect(page.locator(".log-line")).to_have_count(len(payloads))
    tags = page.evaluate(
        "[...new Set([...document.querySelector('.log-body').querySelectorAll('*')].map((e) => e.tagName))].sort()"
    )
    assert set(tags) <= {"DIV", "SPAN", "TIME", "MARK", "A"}
    links = page.locator(".log-body a").evaluate_all("(all) => all.map((a) => a.getAttribute('href'))")
    assert all(re.fullmatch(r"#line-\d+-\d+", link) for link in links)
    assert page.evaluate("window.hacked") is None and "hacked" not in page.title() and title
    assert shown(page)[0] == payloads[0] and shown(page)[2] == "click"
    assert not re.search("[\u202a-\u202e\u2066-\u2069]", "".join(shown(page)))


@pytest.mark.thorough
def test_ranks_are_merged_by_time_and_can_be_chosen(page: Page, portal: Portal, job: dict[str, int]) -> None:
    start = 1_760_000_000_000
    for rank in (0, 1):
        text = "".join(f"rank {rank} step {step}\n" for step in range(50))
        portal.ask(
            "write", container=job["container"], name=str(rank), text=text, first_ms=start + rank * 5, step_ms=10
        )
    open_log(page, portal, job)
    expect(page.locator("[data-log=lines]")).to_have_text("100 lines")
    expect(page.locator(".log-line .log-text").last).to_have_text("rank 1 step 49")
    lines = shown(page)
    assert lines[-4:] == ["rank 0 step 48", "rank 1 step 48", "rank 0 step 49", "rank 1 step 49"]
    page.locator("[data-log=filter]").select_option(label="rank 1")
    expect(page.locator("[data-log=lines]")).to_have_text("50 lines")
    expect(page.locator(".log-text", has_text="rank 0")).to_have_count(0)
    assert all(text.startswith("rank 1") for text in shown(page))
    assert page.locator(".log-line time").first.get_attribute("datetime").startswith("2025-10-")  # type: ignore[union-attr]


def test_after_the_server_was_killed_nothing_is_missing_and_nothing_comes_twice(
    page: Page, portal: Portal, job: dict[str, int]
) -> None:
    portal.ask("write", container=job["container"], name="0", text=numbered(0, 3000) + "half a li")
    open_log(page, portal, job)
    expect(page.locator("[data-log=lines]")).to_have_text("3,001 lines")
    for round_ in range(2):
        portal.kill()
        expect(page.locator("[data-log=status]")).to_contain_text("Reconnecting")
        more = ("ne\n" if round_ == 0 else "") + numbered(3000 + 1000 * round_, 4000 + 1000 * round_)
        portal.ask("write", container=job["container"], name="0", text=more)
        portal.start()
        expect(page.locator("[data-log=status]")).to_have_text("Live", timeout=30_000)
        expect(page.locator("[data-log=lines]")).to_have_text(f"{4001 + 1000 * round_:,} lines", timeout=10_000)
    page.locator("[data-log=query]").fill("line")
    expect(page.locator("[data-log=count]")).to_have_text("5,001")  # 5,000 numbered, and the one sent in halves
    page.locator("[data-log=query]").fill("half a line")
    expect(page.locator("[data-log=count]")).to_have_text("1")


def test_log_and_page_show_that_the_job_has_ended(page: Page, portal: Portal, job: dict[str, int]) -> None:
    portal.ask("write", container=job["container"], name="0", text="done\n")
    open_log(page, portal, job)
    assert portal.ask("finish", container=job["container"]) == "SUCCEEDED"
    expect(page.locator("[data-log=status]")).to_have_text("Complete", timeout=10_000)
    expect(page.locator("#job-head .job-state .badge")).to_contain_text("succeeded", timeout=10_000)
    page.reload()
    expect(page.locator(".log-line .log-text")).to_have_text(["done"])


@pytest.mark.thorough
def test_wrapping_shows_the_whole_of_long_lines_and_keeps_the_end_in_sight(
    page: Page, portal: Portal, job: dict[str, int]
) -> None:
    text = "".join(f"{number} {'long ' * (number % 90)}end{number}\n" for number in range(1000))
    portal.ask("write", container=job["container"], name="0", text=text)
    open_log(page, portal, job)
    page.get_by_role("button", name="Wrap long lines").click()
    expect(page.locator(".log-line").last).to_contain_text("end999")
    expect(page.locator(".log-line").last).to_be_in_viewport()
    fits = page.evaluate(
        "() => { const s = document.querySelector('[data-log=scroller]'); return s.scrollWidth <= s.clientWidth + 1; }"
    )
    assert fits
    page.evaluate("() => { document.querySelector('[data-log=scroller]').scrollTop = 0; }")
    expect(page.locator(".log-line").first).to_contain_text("end0")
    expect(page.locator(".log-line").first).to_be_in_viewport()


def test_downloads_are_what_was_written(page: Page, portal: Portal, job: dict[str, int], tmp_path: Path) -> None:
    portal.ask("write", container=job["container"], name="0", text="\x1b[31mred\x1b[0m\n" + numbered(0, 2000))
    open_log(page, portal, job)
    page.get_by_label("Download the log").click()
    with page.expect_download() as waiting:
        page.get_by_role("link", name="As text", exact=True).click()
    saved: Any = waiting.value
    saved.save_as(tmp_path / "log")
    assert saved.suggested_filename == f"job-{job['job']}.log"
    assert (tmp_path / "log").read_text() == "red\n" + numbered(0, 2000)


@pytest.mark.thorough
def test_a_line_has_a_link_that_finds_it_again(page: Page, portal: Portal, job: dict[str, int]) -> None:
    portal.ask("write", container=job["container"], name="0", text=numbered(0, 3000))
    open_log(page, portal, job)
    page.get_by_role("region", name="Log", exact=True).evaluate("(s) => (s.scrollTop = s.scrollHeight / 2)")
    page.wait_for_timeout(100)
    line = page.locator(".log-line").nth(8)
    text = line.locator(".log-text").inner_text()
    line.locator(".log-link").click()
    expect(page.locator(".log-line.current .log-text")).to_have_text(text)
    address = page.url
    assert re.search(r"#line-\d+-\d+$", address)
    page.goto("about:blank")
    page.goto(address)
    expect(page.locator(".log-line.current .log-text")).to_have_text(text)
    expect(page.locator(".log-line.current")).to_be_in_viewport()
    expect(page.locator("[data-log=follow]")).to_have_attribute("aria-pressed", "false")


@pytest.mark.thorough
def test_errors_and_warnings_are_coloured_and_found_by_a_key(page: Page, portal: Portal, job: dict[str, int]) -> None:
    text = numbered(0, 400) + "WARNING: slow disk\n" + numbered(400, 800) + "ValueError: shapes differ\n"
    portal.ask("write", container=job["container"], name="0", text=text + numbered(800, 1200))
    open_log(page, portal, job)
    expect(page.locator("[data-log=lines]")).to_have_text("1,202 lines")
    page.locator("[data-log=scroller]").focus()
    page.keyboard.press("e")
    found = page.locator(".log-line.current")
    expect(found).to_have_class(re.compile(r"\berror\b"))
    expect(found.locator(".log-text")).to_have_text("ValueError: shapes differ")
    expect(page.get_by_role("button", name="Next error")).to_be_visible()
    page.keyboard.press("l")
    assert "#line-" in page.url
