"""The agents' API about secrets: a node gets those of its own containers while they have not ended, and no others."""

from pathlib import Path
from typing import Any

import pytest
from django.conf import LazySettings

from portal.cluster.models import Gpu
from portal.jobs.job_secrets import names_and_kinds
from portal.jobs.models import Container, Job
from portal.secrets import keys
from portal.secrets.models import Secret
from tests.portal.agents_world import Agent
from tests.portal.jobs_world import exit, make_job, make_project, make_user, place, run

pytestmark = [pytest.mark.django_db, pytest.mark.both_databases]
VALUE = "hf_0123456789abcdef"


@pytest.fixture(autouse=True)
def home(settings: LazySettings, tmp_path: Path) -> None:
    settings.HOME = tmp_path


class Lab:
    def __init__(self, **fields: Any) -> None:
        self.one, self.two = Agent("one"), Agent("two")
        self.one.sync()
        self.two.sync()
        alice = make_user("alice")
        Secret.objects.create(user=alice, name="HF_TOKEN", sealed=keys.seal(VALUE))
        self.job = make_job(make_project(alice), launcher="command", **{"secrets": ["HF_TOKEN"], **fields})
        gpu = Gpu.objects.filter(node=self.one.node).first()
        self.part = place(self.job, [gpu]).containers.select_related("attempt").get()  # type: ignore[list-item]
        self.part.spec["secrets"] = [list(each) for each in names_and_kinds(self.job)]
        self.part.save(update_fields=["spec"])


def ask(agent: Agent, part: Container) -> Any:
    return agent.http.get(f"/agent/v1/containers/{part.name}/secrets", headers=agent.headers)


def test_a_node_gets_the_secrets_of_its_container() -> None:
    lab = Lab()
    answer = ask(lab.one, lab.part)
    assert answer.json() == {"secrets": [{"name": "HF_TOKEN", "kind": "variable", "value": VALUE}]}
    assert answer["Cache-Control"] == "no-store"
    assert ask(lab.one, lab.part).status_code == 200, "each request may be repeated"
    assert Secret.objects.get().used_at is not None


def test_no_other_node_none_without_a_token_and_none_after_the_end() -> None:
    lab = Lab()
    assert ask(lab.two, lab.part).status_code == 404
    assert lab.one.http.get(f"/agent/v1/containers/{lab.part.name}/secrets").status_code == 401
    run(lab.part)
    exit(lab.part)
    assert ask(lab.one, lab.part).status_code == 404


def test_one_that_is_gone_is_refused_with_its_name() -> None:
    lab = Lab()
    Secret.objects.all().delete()
    answer = ask(lab.one, lab.part)
    assert answer.status_code == 403 and "“HF_TOKEN”" in answer.json()["error"]["message"]


def test_one_that_became_a_file_since_the_job_was_placed_is_refused() -> None:
    lab = Lab()
    Secret.objects.update(kind=Secret.Kind.FILE)
    answer = ask(lab.one, lab.part)
    assert answer.status_code == 403 and "another kind" in answer.json()["error"]["message"]


def test_a_job_without_secrets_gets_none() -> None:
    lab = Lab(secrets=[])
    assert Job.objects.get().secrets == []
    assert ask(lab.one, lab.part).json() == {"secrets": []}
