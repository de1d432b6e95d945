"""A list that contradicts its base becomes a full environment."""

from typing import Any

import pytest
from django.test import Client

from portal.environments import builds
from portal.sentences import agents
from tests.portal import environments_world as made
from tests.portal import jobs_world as world

pytestmark = pytest.mark.django_db


def page_of(user: Any, address: str) -> Any:
    client = Client()
    client.force_login(user)
    return client.get(address)


def test_a_contradiction_leads_to_a_full_environment_with_the_same_list() -> None:
    alice = world.make_user("alice")
    project = world.make_project(alice, "Vision")
    made.make_base()
    row = made.make_environment(alice, project, ["torch==2.9.1", "pandas"], "Old torch")
    build = made.start(world.make_node("alpha"), row)
    builds.fail(build, agents.layer_failures.ContradictsBase("torch==2.9.1", "torch", "2.13.0").data())
    for address in (f"/environments/{row.key}/", f"/environments/{row.key}/builds/{build.pk}/"):
        text = page_of(alice, address).content.decode()
        assert "torch==2.9.1 contradicts torch 2.13.0" in text
        assert f'href="/environments/new/?like={row.key}&amp;full=1"' in text
    form = page_of(alice, f"/environments/new/?like={row.key}&full=1").context["form"]
    assert (form["base"].value(), form["packages"].value()) == ("full", "torch==2.9.1\npandas")
    assert form["project"].value() == str(project.pk)
    again = page_of(alice, f"/environments/new/?like={row.key}").context["form"]
    assert (again["base"].value(), again["packages"].value()) == ("pytorch", "torch==2.9.1\npandas")


def test_the_list_of_an_environment_that_one_may_not_see_is_not_copied() -> None:
    alice, carol = world.make_user("alice"), world.make_user("carol")
    made.make_base()
    secret = made.make_environment(carol, world.make_project(carol, "Secret"), ["secret-tool"], "Secret tools")
    page = page_of(alice, f"/environments/new/?like={secret.key}")
    assert page.status_code == 200 and "secret-tool" not in page.content.decode()
