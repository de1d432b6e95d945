"""Uploads in a real browser: dropped, chosen, a folder, refused, stopped; and the pages that follow."""

import base64
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from playwright.sync_api import Browser, Page, expect

from portal.accounts.models import User
from portal.projects import archive, services
from portal.projects.models import CodeVersion, Project
from tests import corpus
from tests.system.product import wait_for

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

DROP = """
async ([name, content]) => {
  const bytes = Uint8Array.from(atob(content), (c) => c.charCodeAt(0));
  const transfer = new DataTransfer();
  transfer.items.add(new File([bytes], name));
  document.querySelector('[data-drop]').dispatchEvent(new DragEvent('drop', {bubbles: true, cancelable: true, dataTransfer: transfer}));
}
"""


@pytest.fixture
def page(browser: Browser, live_server: Any, settings: Any, tmp_path: Path) -> Iterator[Page]:
    """Signed in as Alice. Any message of the console about scripts or the security policy fails the test."""
    settings.HOME = tmp_path / "home"
    settings.HOME.mkdir()
    settings.ALLOWED_HOSTS = ["*"]
    alice = User.objects.create_user("alice", password="sunflower-cabinet-92")
    services.create_project(alice, "Vision", "Seeing things.")
    client = Client()
    client.force_login(alice)
    page = browser.new_context().new_page()
    page.route_web_socket("**/ws/page/**", lambda socket: None)  # the server of these tests has no sockets
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.context.add_cookies(
        [{"name": "sessionid", "value": client.cookies["sessionid"].value, "url": live_server.url}]
    )
    page.goto(f"{live_server.url}/projects/{Project.objects.get().pk}/")
    yield page
    page.wait_for_load_state("networkidle")  # as in test_drafts.py
    page.context.close()
    # a refused upload is an answer of 400, which the console reports as well
    assert [text for text in complaints if "400 (Bad Request)" not in text] == []


def drop(page: Page, name: str, content: bytes) -> None:
    page.evaluate(DROP, [name, base64.b64encode(content).decode()])


def test_a_zip_that_is_dropped_becomes_a_version_ready_to_submit(page: Page) -> None:
    drop(page, "code.zip", corpus.zip_tree({"p/train.py": b"import torch\nprint(1)\n", "p/lib/net.py": b""}))
    expect(page.get_by_role("heading", name="Version 1", exact=True)).to_be_visible()
    expect(page.get_by_role("link", name="Submit a job with this")).to_be_visible()
    expect(page.locator(".source .line").first).to_have_text("import torch")
    page.get_by_role("link", name="lib").focus()
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.textContent").strip().startswith("train.py")


def test_a_folder_is_chosen_and_keeps_its_paths(page: Page, tmp_path: Path) -> None:
    top = tmp_path / "my code"
    for name in ("train.py", "lib/net.py", ".git/HEAD", "__pycache__/x.pyc"):
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_text(f"# {name}\n")
    page.locator("input[data-folder]").set_input_files(top)
    expect(page.get_by_role("heading", name="Version 1", exact=True)).to_be_visible()
    assert [entry["path"] for entry in CodeVersion.objects.get().files] == ["lib/net.py", "train.py"]
    assert CodeVersion.objects.get().upload_name == "my code/"


def test_a_refusal_is_shown_in_place_and_the_next_upload_works(page: Page) -> None:
    drop(page, "code.zip", corpus.raw_zip(corpus.Part("ok.py"), corpus.Part("../evil.py")))
    alert = page.locator("[data-error]")
    expect(alert).to_contain_text("../evil.py")
    page.get_by_role("textbox", name="Note").fill("second try")
    page.locator("input[name=files]").set_input_files(
        {"name": "train.py", "mimeType": "text/x-python", "buffer": b"print(1)\n"}
    )
    expect(page.get_by_role("heading", name="Version 1", exact=True)).to_be_visible()
    assert CodeVersion.objects.get().note == "second try"


@pytest.mark.thorough
def test_what_is_stopped_after_it_arrived_may_have_been_stored(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped, take = threading.Event(), archive.store_upload

    def take_late(*uploads: Any, **options: Any) -> Any:
        assert stopped.wait(20)
        return take(*uploads, **options)

    monkeypatch.setattr(archive, "store_upload", take_late)
    drop(page, "train.py", b"print(1)\n")
    expect(page.locator("[data-what]")).to_contain_text("Looking at what is in it")
    page.get_by_role("button", name="Stop").click()
    expect(page.locator("[data-error]")).to_contain_text("it had arrived")
    stopped.set()
    wait_for("it became a version", lambda: page.reload() and page.get_by_role("link", name="Version 1").count(), 20)


@pytest.mark.thorough
def test_what_is_too_large_is_not_even_sent(page: Page) -> None:
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.method))
    page.evaluate(
        """() => {
          const transfer = new DataTransfer();
          transfer.items.add(new File([new Uint8Array(101 * 1024 * 1024)], 'big.zip'));
          document.body.dispatchEvent(new DragEvent('drop', {bubbles: true, cancelable: true, dataTransfer: transfer}));
        }"""
    )
    expect(page.locator("[data-error]")).to_contain_text("larger than 100 MiB")
    assert "POST" not in requests


@pytest.mark.thorough
def test_a_file_of_no_known_type_is_not_even_sent(page: Page) -> None:
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.method))
    drop(page, "weights.bin", bytes(1000))
    expect(page.locator("[data-error]")).to_contain_text("weights.bin is none of .zip, ")
    assert "POST" not in requests
    drop(page, "code.backup", corpus.zip_tree({"train.py": b"print(1)\n"}))  # an archive, whatever its name
    expect(page.get_by_role("heading", name="Version 1", exact=True)).to_be_visible()


def test_html_that_users_upload_never_runs(page: Page, live_server: Any) -> None:
    evil = b"<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
    drop(
        page,
        "code.zip",
        corpus.zip_tree({"train.py": b"1", "evil.html": evil, "<img src=x onerror=alert(1)>.svg": evil}),
    )
    expect(page.get_by_role("heading", name="Version 1", exact=True)).to_be_visible()
    project = Project.objects.get().pk
    for path in ("evil.html", "<img src=x onerror=alert(1)>.svg"):
        page.get_by_role("link", name=path).click()
        expect(page.locator(".source")).to_contain_text("document.title")
        assert "owned" not in page.title()
        with page.expect_download() as download:
            page.get_by_role("link", name=f"Download {path}").click()
        assert download.value.path().read_bytes() == evil
    with page.expect_download():
        page.evaluate(f"location.href = '/projects/{project}/code/1/file?path=evil.html'")
    assert "owned" not in page.title()
