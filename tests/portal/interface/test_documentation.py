"""The documentation at /help/: public, below its folder only, and honest when it was not built."""

from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from portal.ui import help_url

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
    ["nothing.html", "../secret", "%2e%2e/secret", "/etc/hostname", "link", ".doctrees/state", "a%00b", "user/../"],
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


def test_a_portal_without_the_site_says_how_to_get_it(tmp_path: Path, settings: Any, client: Client) -> None:
    settings.DOCUMENTATION = tmp_path
    page = client.get("/help/user/jobs.html")
    assert page.status_code == 404 and "make docs" in page.content.decode()


def test_pages_name_pages_of_the_documentation_by_their_files() -> None:
    assert help_url("user/jobs") == "/help/user/jobs.html"
    assert help_url("user/checkpoints", "when-a-job-is-stopped") == "/help/user/checkpoints.html#when-a-job-is-stopped"
