"""What the form for a job, and the page of one that waits, show of an environment that is not built, or cannot be."""

from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse_lazy

from portal.accounts.models import User
from portal.environments import builds
from portal.environments.models import Environment
from portal.jobs.environments import best_environment, offered_environments
from portal.jobs.package_offers import offer_for
from portal.projects.models import CodeVersion, Project
from portal.scheduler.availability import EnvironmentFailed
from runners.messages.layer_failures import NoSuchPackage
from tests.portal import environments_world as recipes
from tests.portal import jobs_world as world
from tests.portal.pages import text_of

pytestmark = pytest.mark.django_db
LIST = {"path": "requirements.txt", "kind": "requirements", "lines": ["flufl", "rich"], "refused": [], "notes": []}
GUESS = {
    "imports": {"flufl": ["go.py", 1], "rich": ["go.py", 2]},
    "package_lists": [LIST],
    "entry": "go.py",
    "launcher": "command",
}


class Lab:
    def __init__(self) -> None:
        Environment.objects.update(retired=True)
        self.alice: User = world.make_user("alice")
        self.project: Project = world.make_project(self.alice, "Vision")
        self.base = recipes.make_base()
        self.node = world.make_node("alpha")
        self.code: CodeVersion = world.make_code(self.project)
        CodeVersion.objects.update(guess=GUESS)
        self.code.refresh_from_db()

    def make(self, title: str = "Flufl tools") -> Environment:
        return recipes.make_environment(self.alice, self.project, ["flufl", "rich"], title, base=self.base)

    def fail(self, environment: Environment) -> None:
        builds.fail(recipes.start(self.node, environment), NoSuchPackage("flufl").data())

    def client(self) -> Client:
        client = Client()
        client.force_login(self.alice)
        return client

    def form(self, environment: Environment) -> str:
        address = f"/jobs/new?code={self.code.pk}&environment={environment.key}"
        page = text_of(self.client().get(address).content.decode())
        return page[page.index("What to run") :]

    def install(self) -> str:
        sent = {"environment": self.base.key, "install": "requirements.txt", "launcher": "command"}
        return text_of(self.client().post(f"/jobs/new?code={self.code.pk}", sent).content.decode())


@pytest.fixture
def lab(settings: Any, tmp_path: Path) -> Lab:
    settings.HOME = tmp_path
    return Lab()


def test_what_is_not_built_will_have_the_packages(lab: Lab) -> None:
    page = lab.form(lab.make())
    assert "“Flufl tools” will have the modules that your code imports, once it is built" in page
    assert "It will have all the packages that requirements.txt asks for, once it is built." in page


def test_what_is_built_has_the_packages(lab: Lab) -> None:
    made = lab.make()
    recipes.build(lab.node, made)
    Environment.objects.filter(pk=made.pk).update(packages=["flufl", "rich"])
    page = lab.form(made)
    assert "“Flufl tools” has the modules that your code imports" in page
    assert "It has all the packages that requirements.txt asks for." in page


def test_what_cannot_be_built_has_nothing(lab: Lab) -> None:
    made = lab.make()
    lab.fail(made)
    page = lab.form(made)
    assert "The build of Flufl tools failed: " in page and "has no package flufl" in page
    assert "has the modules" not in page and "have the modules" not in page and "all the packages" not in page


def test_a_build_that_fails_after_one_that_succeeded_leaves_its_packages(lab: Lab) -> None:
    made = lab.make()
    recipes.finish(recipes.start(lab.node, made))
    Environment.objects.filter(pk=made.pk).update(generation=2, packages=["flufl", "rich"])
    made.refresh_from_db()
    lab.fail(made)
    page = lab.form(made)
    assert "has the modules" in page and "failed:" not in page


def test_one_click_announces_a_build_only_where_there_will_be_one(lab: Lab) -> None:
    page = lab.install()
    assert "It is being built, usually within a minute" in page
    made = Environment.objects.get(retired=False, project=lab.project)
    lab.fail(made)
    page = lab.install()
    assert "is being built" not in page and "usually within a minute" not in page
    assert page.count("has no package flufl") == 1 and "waits until a build succeeds" in page
    Environment.objects.filter(pk=made.pk).update(generation=2)
    made.refresh_from_db()
    recipes.build(lab.node, made)
    assert "It is built already" in lab.install()


def test_one_that_failed_is_neither_proposed_nor_recommended(lab: Lab) -> None:
    made = lab.make()
    assert best_environment(GUESS, offered_environments(lab.project)) == made
    assert offer_for(lab.code, lab.base, offered_environments(lab.project)).others == [made]
    lab.fail(made)
    assert best_environment(GUESS, offered_environments(lab.project)) == lab.base
    assert offer_for(lab.code, lab.base, offered_environments(lab.project)).others == []


def test_lines_that_contradict_the_base_are_all_named(lab: Lab) -> None:
    Environment.objects.filter(pk=lab.base.pk).update(pins=["torch==2.13.0", "numpy==2.4.6"])
    guess = GUESS | {"package_lists": [LIST | {"lines": ["torch==1.13", "numpy<1.24", "rich"]}]}
    CodeVersion.objects.update(guess=guess)
    page = lab.form(lab.base)
    assert "torch==1.13: the base has torch 2.13.0" in page and "numpy<1.24: the base has numpy 2.4.6" in page
    assert "rich: the base" not in page


def test_a_waiting_job_shows_why_its_environment_failed_with_a_link(lab: Lab) -> None:
    made = lab.make()
    reason = EnvironmentFailed(made.title, "alpha", NoSuchPackage("flufl").data()).data()
    job = world.make_job(lab.project, code=lab.code, environment=made, state="QUEUED", waiting_reason=reason)
    page = lab.client().get(f"/jobs/{job.pk}/").content.decode()
    card = page[page.index("Why it waits") : page.index("When it starts")]
    assert "no package flufl" in card and "<details" not in card and f'href="/environments/{made.key}/"' in card


def test_one_word_for_what_no_node_has_yet(lab: Lab) -> None:
    made = lab.make()
    Environment.objects.filter(pk=made.pk).update(requested_at=None)
    page = lab.form(made)
    assert page.count("(prepared when a job needs it)") == 2 and "(built when" not in page


@pytest.mark.parametrize("address", ["/", reverse_lazy("monitoring:nodes")])
def test_what_could_not_be_prepared_is_not_in_preparation(lab: Lab, address: str) -> None:
    made, other = lab.make(), lab.base
    recipes.place(lab.node, made, "failed", detail=NoSuchPackage("flufl").data())
    page = text_of(lab.client().get(address).content.decode())
    assert "Could not be prepared" in page and "In preparation" not in page and "wait until it is ready" not in page
    recipes.place(lab.node, other, "preparing", progress_percent=40)
    page = text_of(lab.client().get(address).content.decode())
    assert page.index("In preparation") < page.index(other.title) < page.index("Could not be prepared")


def test_a_waiting_reason_of_an_earlier_release_is_shown_as_it_is(lab: Lab) -> None:
    job = world.make_job(lab.project, code=lab.code, waiting_reason="It waits for 2 GPUs.", state="QUEUED")
    page = lab.client().get(f"/jobs/{job.pk}/").content.decode()
    assert "It waits for 2 GPUs." in page and "See the environment" not in page
