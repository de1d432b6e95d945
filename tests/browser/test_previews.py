"""Previews in a real browser: nothing of a hostile file runs or loads anything, and what is harmless is shown."""

import base64
import io
import json
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from playwright.sync_api import Browser, Page, Route, expect

from portal.jobs import lifecycle, outputs
from portal.jobs.models import Attempt
from tests.browser.axe import barriers
from tests.portal import jobs_world as world
from tests.portal.files import picture

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

EVIL = """<script>document.title = 'owned'; top.document.title = 'owned'; fetch('http://evil.invalid/')</script>
<img src="http://evil.invalid/a.png" onerror="document.title = 'owned'">
<meta http-equiv="refresh" content="0;url=http://evil.invalid/">
<link rel="stylesheet" href="http://evil.invalid/a.css"><base href="http://evil.invalid/">
<form id="form" action="/accounts/sign-out/" method="post"><button id="press">Press</button></form>
<a id="leave" href="http://evil.invalid/" target="_top">Leave</a> <a id="pop" href="http://evil.invalid/" target="_blank">Pop</a>
<style>body { background: url(http://evil.invalid/b.png) }</style>
<iframe src="http://evil.invalid/"></iframe><object data="http://evil.invalid/"></object>
<p>harmless words</p>"""


def sound() -> bytes:
    """Return a second of silence."""
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(bytes(16_000))
    return out.getvalue()


def notebook() -> bytes:
    image = {"output_type": "display_data", "data": {"image/png": base64.b64encode(picture("PNG", 40, 20)).decode()}}
    html = {
        "output_type": "display_data",
        "data": {"text/html": EVIL, "application/javascript": "document.title = 'owned'"},
    }
    cells = [
        {"cell_type": "markdown", "source": f"# Title\n\n{EVIL}\n\n[x](javascript:alert(1))"},
        {"cell_type": "code", "source": f"x = '''{EVIL}'''", "outputs": [image, html]},
    ]
    return json.dumps({"cells": cells}).encode()


FILES = {
    "a.csv": f'name,value\n"{EVIL.replace(chr(34), chr(39))}",1\n'.encode(),
    "evil.html": EVIL.encode(),
    "evil.ipynb": notebook(),
    "evil.json": json.dumps({EVIL: EVIL}).encode(),
    "evil.md": f"{EVIL}\n\n```html\n{EVIL}\n```\n".encode(),
    "evil.svg": f"<svg xmlns='http://www.w3.org/2000/svg' onload=\"document.title='owned'\">{EVIL}</svg>".encode(),
    "evil.txt": EVIL.encode(),
    "plot.png": picture("PNG", 60, 30) + EVIL.encode(),
    "quote\"'<img src=x onerror=document.title='owned'>\u202egnp.html": EVIL.encode(),
    "sound.wav": sound(),
    "train.py": b"import os\n" + b"x = 1\n" * 400,
}


class Visitor:
    """Alice's browser, which records what a page should not do."""

    def __init__(self, page: Page, url: str, attempt: Attempt) -> None:
        self.page, self.url, self.attempt, self.job = page, url, attempt, attempt.job
        self.complaints: list[str] = []
        page.on("dialog", lambda dialog: self.complaints.append(f"dialog {dialog.message}"))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("popup", lambda popup: self.complaints.append(f"popup {popup.url}"))
        # what the policy blocks does not come as far as this
        page.context.route(lambda address: not address.startswith((url, "data:")), self._refuse)

    def _refuse(self, route: Route) -> None:
        self.complaints.append(f"request {route.request.url}")
        route.abort()

    def open(self, part: str, path: str, query: str = "") -> None:
        self.page.goto(f"{self.url}{reverse(f'jobs:{part}', args=[self.job.pk, path])}{query}", wait_until="load")
        self.page.wait_for_timeout(200)

    def judge(self) -> None:
        assert self.page.title() != "owned"
        assert self.complaints == []


@pytest.fixture
def visitor(browser: Browser, live_server: Any, settings: Any, tmp_path: Path) -> Iterator[Visitor]:
    settings.HOME = tmp_path / "home"
    settings.HOME.mkdir()
    settings.ALLOWED_HOSTS = ["*"]
    alice = world.make_user("alice")
    job = world.make_job(world.make_project(alice))
    attempt = world.place(job, list(world.make_node(gpus=1).gpus.all()))
    for part in attempt.containers.all():
        lifecycle.advance(part, "RUNNING")
    for path, content in FILES.items():
        outputs.store(attempt, path, [content])
    client = Client()
    client.force_login(alice)
    page = browser.new_context().new_page()
    page.context.add_cookies(
        [{"name": "sessionid", "value": client.cookies["sessionid"].value, "url": live_server.url}]
    )
    yield Visitor(page, live_server.url, attempt)
    page.wait_for_load_state("networkidle")  # as in test_drafts.py
    page.context.close()


def test_nothing_of_a_hostile_file_runs(visitor: Visitor) -> None:
    """On its page, in each of its views, in the list of the job, and where its parts are opened by themselves."""
    page = visitor.page
    page.goto(f"{visitor.url}/jobs/{visitor.job.pk}/files/")
    visitor.judge()
    for path in FILES:
        visitor.open("view-output", path)
        expect(page.locator("h1")).to_be_visible()
        visitor.judge()
        for address in [link.get_attribute("href") for link in page.locator(".preview-views a").all()]:
            page.goto(visitor.url + str(address))
            visitor.judge()
    for part in ("image", "framed"):
        for path in FILES:
            visitor.open(part, path)
            visitor.judge()
    visitor.open("framed", "evil.html")
    expect(page.get_by_text("harmless words")).to_be_visible()
    assert page.evaluate("origin") == "null"


def test_html_in_its_frame_shows_its_words_and_can_do_nothing(visitor: Visitor) -> None:
    page = visitor.page
    visitor.open("view-output", "evil.html", "?show=rendered")
    inside = page.frame_locator("iframe.preview-frame")
    expect(inside.get_by_text("harmless words")).to_be_visible()
    for target in ("#press", "#pop", "#leave"):
        inside.locator(target).click()
        page.wait_for_timeout(200)
        visitor.judge()
        assert page.url.endswith("?show=rendered")
    visitor.open("view-output", "train.py")
    expect(page.locator("h1")).to_have_text("train.py")  # still signed in


@pytest.mark.thorough
def test_images_recordings_and_notebooks_are_shown(visitor: Visitor) -> None:
    page = visitor.page
    visitor.open("view-output", "plot.png")
    assert page.locator(".preview-image img").evaluate("image => image.decode().then(() => image.naturalWidth)") == 60
    visitor.open("view-output", "sound.wav")
    seconds = "audio => new Promise((done, fail) => { audio.onerror = () => fail('no sound'); audio.onloadedmetadata = () => done(audio.duration); audio.load() })"
    assert page.locator("audio").evaluate(seconds) == 1
    visitor.open("view-output", "evil.ipynb")
    assert page.locator(".notebook img").evaluate("image => image.decode().then(() => image.naturalWidth)") == 40
    page.goto(f"{visitor.url}/jobs/{visitor.job.pk}/files/")
    image = page.locator(".thumbnail img")
    image.scroll_into_view_if_needed()
    assert image.evaluate("image => image.decode().then(() => image.naturalWidth)") == 60


@pytest.mark.thorough
def test_numbers_of_lines_are_links_and_are_not_copied(visitor: Visitor) -> None:
    page = visitor.page
    visitor.open("view-output", "train.py")
    page.locator("#L3 > a").click()
    assert page.url.endswith("#L3")
    assert page.locator("#L3").evaluate("line => getComputedStyle(line.firstChild, '::before').content") == '"3"'
    page.evaluate("getSelection().selectAllChildren(document.getElementById('file-text'))")
    assert page.evaluate("getSelection().toString()").startswith("import os\nx = 1\nx = 1\n")
    visitor.open("view-output", "train.py", "#L400")
    expect(page.locator("#L400")).to_be_in_viewport()


@pytest.mark.thorough
def test_a_file_leads_to_the_next_one(visitor: Visitor) -> None:
    page = visitor.page
    visitor.open("view-output", "a.csv")
    page.get_by_role("link", name="Next file: evil.html").click()
    expect(page.locator("h1")).to_have_text("evil.html")
    page.get_by_role("link", name="Previous file: a.csv").click()
    expect(page.locator("h1")).to_have_text("a.csv")


@pytest.mark.parametrize(
    "look", [{"color_scheme": "light"}, {"color_scheme": "dark", "viewport": {"width": 400, "height": 800}}]
)
@pytest.mark.thorough
def test_previews_are_accessible(browser: Browser, visitor: Visitor, look: dict[str, Any]) -> None:
    cookies = visitor.page.context.cookies()
    page = browser.new_context(**look).new_page()
    page.context.add_cookies(cookies)  # type: ignore[arg-type]
    visitor.page = page
    for path in ("a.csv", "evil.ipynb", "evil.md", "plot.png", "sound.wav", "train.py"):
        visitor.open("view-output", path)
        assert barriers(page) == []
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.context.close()
