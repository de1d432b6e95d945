"""What a page watches: every part that fetches itself names its topic, and is sent only when it has changed."""

import re

import pytest
from django.conf import settings
from django.test import Client

from portal.live.topics import KINDS
from portal.ui import live
from tests.portal import jobs_world as world
from tests.portal.live_parts import fetch_part

pytestmark = pytest.mark.django_db

TEMPLATES = sorted((settings.BASE_DIR / "templates").rglob("*.html"))


def test_no_page_polls() -> None:
    assert [path.name for path in TEMPLATES if re.search(r"hx-trigger=\"[^\"]*\bevery ", path.read_text())] == []


def test_all_topics_of_templates_exist() -> None:
    for path in TEMPLATES:
        for tag in re.findall(r"{% live (.*?) %}", path.read_text()):
            for name in re.findall(r'"(\w+)"', tag):
                assert KINDS[name].is_numbered == ("number=" in tag), (path.name, name)


def test_a_page_with_parts_that_watch_loads_the_script() -> None:
    scripts = ("js/live.js", "vendor/htmx")
    for path in TEMPLATES:
        text = path.read_text()
        if "{% live " in text and "{% block head %}" in text:
            assert all(script in text for script in scripts), path.name


def test_the_tag_names_the_topics_and_their_events() -> None:
    assert live("job", number=5) == 'data-live="job-5" hx-trigger="live-job-5 from:document"'
    both = 'data-live="mine lab" hx-trigger="load, live-mine from:document, live-lab from:document"'
    assert live("mine", "lab", load=True) == both


class TestEditions:
    @pytest.fixture
    def client(self) -> Client:
        client = Client()
        client.force_login(world.make_user("ada", is_staff=True))
        world.make_node("alpha")
        return client

    @pytest.mark.parametrize("address", ["/nodes/", "/gpus/", "/jobs/queue"])
    def test_a_part_that_has_not_changed_is_not_sent_again(self, client: Client, address: str) -> None:
        first = fetch_part(client, address)
        assert first.status_code == 200
        assert fetch_part(client, address, first["Edition"]).status_code == 204
        world.make_node("beta")
        world.make_job(world.make_project(world.make_user("bob")))
        assert fetch_part(client, address, first["Edition"]).status_code == 200

    @pytest.mark.parametrize("address", ["/nodes/", "/gpus/", "/jobs/queue"])
    def test_a_page_from_before_the_update_is_loaded_again(self, client: Client, address: str) -> None:
        answer = client.get(address, headers={"HX-Request": "true"})
        assert (answer.status_code, answer["HX-Refresh"]) == (204, "true")

    def test_a_whole_page_has_no_edition(self, client: Client) -> None:
        assert "Edition" not in client.get("/nodes/")

    def test_a_page_that_was_posted_is_never_loaded_again(self, client: Client) -> None:
        """It shows the command to join only once."""
        shown = client.post("/admin/nodes/add").content.decode()
        place = re.search(r"/admin/nodes/added/\d+", shown)
        assert place is not None
        answer = client.get(place[0], headers={"HX-Request": "true"})
        assert answer.status_code == 200 and "HX-Refresh" not in answer
        assert fetch_part(client, place[0], answer["Edition"]).status_code == 204
