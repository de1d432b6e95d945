"""The search over all pages: what it finds, and for whom."""

from typing import Any

import pytest
from django.test import Client

from portal.accounts.models import User
from portal.interface.search import MAX_ROWS, PLACES, find
from portal.projects.models import Project
from tests.portal import jobs_world as world

pytestmark = pytest.mark.django_db


@pytest.fixture
def nadia() -> User:
    return world.make_user("nadia")


@pytest.fixture
def speech(nadia: User) -> Project:
    return world.make_project(nadia, "Speech <b>")


def texts(reader: User, words: str) -> dict[str, list[str]]:
    return {kind: [result.text for result in results] for kind, results in find(reader, words)}


def test_without_words_it_offers_the_pages_of_the_reader(nadia: User) -> None:
    shown = texts(nadia, "")
    assert list(shown) == ["Go to"]
    assert len(shown["Go to"]) == sum(not place.for_admins for place in PLACES)
    assert "Scheduling policy" not in shown["Go to"]
    assert "Scheduling policy" in texts(world.make_user("ada", is_staff=True), "")["Go to"]


def test_pages_are_found_by_their_title_and_by_other_words(nadia: User) -> None:
    assert texts(nadia, "TOKEN")["Go to"] == ["API tokens", "Secrets"]
    assert texts(nadia, "submit")["Go to"] == ["New job"]
    assert texts(nadia, "job")["Go to"][0] == "New job"


def test_jobs_are_found_by_number_and_by_a_part_of_their_name(nadia: User, speech: Project) -> None:
    code = world.make_code(speech)
    first, second = (world.make_job(speech, code=code, name=name) for name in ("résumé small", "resnet large"))
    assert texts(nadia, f"#{second.pk}")["Jobs"] == [f"resnet large #{second.pk}"]
    assert texts(nadia, "RÉSUMÉ")["Jobs"] == [f"résumé small #{first.pk}"]
    assert texts(nadia, "speech <")["Projects"] == ["Speech <b>"]


def test_what_a_reader_may_not_see_is_not_found(nadia: User, speech: Project) -> None:
    job = world.make_job(speech, code=world.make_code(speech), name="secret plan")
    other = world.make_user("charlie")
    for words in ("secret", str(job.pk), "Speech"):
        assert not {"Jobs", "Projects"} & texts(other, words).keys()
    world.make_node("unapproved", approved_at=None)
    assert "Nodes" not in texts(nadia, "unapproved")


@pytest.mark.parametrize("words", ["%", "'", "\\", "9" * 40, "{noun}", "{0.__class__}", "<script>", "日本", "x" * 5000])
def test_odd_words_find_nothing_and_are_shown_as_they_are(nadia: User, words: str) -> None:
    client = Client()
    client.force_login(nadia)
    answer = client.get("/search/", {"q": words, "part": "1"})
    assert answer.status_code == 200 and "<script>" not in answer.content.decode()


def test_more_rows_cost_no_more_queries(nadia: User, speech: Project, django_assert_max_num_queries: Any) -> None:
    code = world.make_code(speech)
    for number in range(3 * MAX_ROWS):
        world.make_job(speech, code=code, name=f"sweep {number}")
        world.make_node(f"sweep-{number}")
    with django_assert_max_num_queries(7):
        shown = texts(nadia, "sweep")
    assert len(shown["Jobs"]) == len(shown["Nodes"]) == MAX_ROWS
