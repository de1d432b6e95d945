"""The glossary and the gallery of components."""

import pytest
from django.template import engines
from django.test import Client

from portal.sentences.glossary import TERMS
from tests.portal import jobs_world as world

pytestmark = pytest.mark.django_db


def client_of(name: str, **fields: bool) -> Client:
    client = Client()
    client.force_login(world.make_user(name, **fields))
    return client


def test_the_glossary_has_every_term_at_its_own_address() -> None:
    page = client_of("nadia").get("/glossary/").content.decode()
    for key, term in TERMS.items():
        assert f'id="{key}"' in page and term.title in page


def test_a_term_is_explained_in_place_and_leads_to_the_glossary() -> None:
    html = engines["django"].from_string('{% term "elastic" %}').render({})
    assert 'popovertarget="term-elastic"' in html and 'id="term-elastic" popover' in html
    assert TERMS["elastic"].text in html and 'href="/glossary/#elastic"' in html


def test_the_form_of_a_job_explains_its_terms() -> None:
    user = world.make_user("nadia")
    code = world.make_code(world.make_project(user))
    world.make_environment()
    client = Client()
    client.force_login(user)
    page = client.get(f"/jobs/new?code={code.pk}").content.decode()
    for key in ("launcher", "elastic", "tier", "preemptible", "environment"):
        assert page.count(f'popovertarget="term-{key}"') == 1


def test_components_are_for_admins() -> None:
    assert client_of("nadia").get("/admin/components/").status_code == 404
    page = client_of("ada", is_staff=True).get("/admin/components/")
    assert page.status_code == 200 and "Colours of data" in page.content.decode()
