"""The documentation at /help/: public, below its folder only, and honest when it was not built."""

import os
import re
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from mdit_py_plugins.anchors.index import slugify

from portal.help_pages import OVERVIEW, PAGES
from tests.laws.urlmap import routes
from tests.portal.jobs_world import make_user

pytestmark = pytest.mark.django_db


@pytest.fixture
def site(tmp_path: Path, settings: Any) -> Path:
    site = tmp_path / "html"
    (site / "user").mkdir(parents=True)
    (site / ".doctrees").mkdir()
    (site / "index.html").write_text("<h1>Overview</h1>")
    (site / "user" / "index.html").write_text("<h1>User guide</h1>")
    (site / "user" / "jobs.html").write_text("<h1>Jobs über alles</h1>", encoding="utf-8")
    (site / "theme.js").write_text("1;")
    (site / ".doctrees" / "state").write_text("inner")
    (tmp_path / "secret").write_text("secret")
    (site / "link").symlink_to(tmp_path / "secret")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "page.html").write_text("secret")
    (site / "folder").symlink_to(tmp_path / "outside")
    os.mkfifo(site / "pipe")
    settings.DOCUMENTATION = site
    return site


def test_visitors_read_pages_and_what_they_use(site: Path, client: Client) -> None:
    page = client.get("/help/user/jobs.html")
    assert page.status_code == 200 and "Jobs über alles" in page.content.decode()
    assert page["Content-Type"] == "text/html; charset=utf-8"
    assert client.get("/help/theme.js")["Content-Type"].startswith("text/javascript")
    assert "script-src 'self'" in page["Content-Security-Policy"]


def test_a_folder_shows_its_first_page_at_an_address_from_which_links_work(site: Path, client: Client) -> None:
    assert "Overview" in client.get("/help/").content.decode()
    assert "User guide" in client.get("/help/user/").content.decode()
    assert client.get("/help/user")["Location"] == "/help/user/"


@pytest.mark.parametrize(
    "path",
    [
        "nothing.html",
        "../secret",
        "%2e%2e/secret",
        "/etc/hostname",
        "link",
        "folder/page.html",
        "folder/",
        "pipe",
        ".doctrees/state",
        "a%00b",
        "user/../",
        "index.html/",
        "a" * 300,
        "a/" * 3000,
    ],
)
def test_nothing_else_is_sent(site: Path, client: Client, path: str) -> None:
    page = client.get(f"/help/{path}")
    assert page.status_code in (400, 404) or page.content == (site / "index.html").read_bytes()
    assert b"secret" not in page.content and b"inner" not in page.content


def test_a_browser_that_has_the_page_gets_it_again_once_it_has_changed(site: Path, client: Client) -> None:
    tag = client.get("/help/theme.js")["ETag"]
    assert client.get("/help/theme.js", headers={"if-none-match": tag}).status_code == 304
    (site / "theme.js").write_text("1; // and more")
    assert client.get("/help/theme.js", headers={"if-none-match": tag}).status_code == 200


def test_a_portal_without_the_site_explains_how_to_get_it(tmp_path: Path, settings: Any, client: Client) -> None:
    settings.DOCUMENTATION = tmp_path
    page = client.get("/help/user/jobs.html")
    assert page.status_code == 404 and "make docs" in page.content.decode()


ROOT = Path(__file__).resolve().parents[3]


def sections_of(page: str) -> set[str]:
    """Return the anchors of the headings in the source of a page, as MyST makes them."""
    source = re.sub(r"^```.*?^```", "", (ROOT / "docs" / f"{page}.md").read_text(), flags=re.MULTILINE | re.DOTALL)
    return {slugify(title) for title in re.findall(r"^#{1,4} (.+)$", source, re.MULTILINE)}


@pytest.mark.parametrize("address", sorted({*PAGES.values(), OVERVIEW}))
def test_the_help_of_a_page_exists(address: str) -> None:
    page, _, section = address.partition("#")
    assert (ROOT / "docs" / f"{page}.md").is_file()
    assert not section or section in sections_of(page)


def test_only_pages_that_exist_have_help() -> None:
    names = {route.name for route in routes()}
    apps = {name.partition(":")[0] for name in names}
    assert set(PAGES) <= names | apps


def test_help_is_about_the_page(site: Path, client: Client) -> None:
    assert 'href="/help/user/account.html"' in client.get("/accounts/sign-in/").content.decode()
    client.force_login(make_user("ada", is_staff=True))
    assert 'href="/help/admin/limits.html"' in client.get("/admin/limits/").content.decode()
    assert 'href="/help/user/waiting.html#the-queue"' in client.get("/jobs/queue").content.decode()
    assert client.get("/nothing/there/").status_code == 404
