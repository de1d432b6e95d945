"""Which erased jobs a node hears of."""

import uuid
from pathlib import Path
from typing import Any

import pytest
from django.conf import LazySettings
from django.utils import timezone

from portal.agents.erasure_views import MAX_JOBS
from portal.jobs.models import Job
from tests.portal.agents_world import Agent
from tests.portal.jobs_world import make_job, make_project, make_user, place

pytestmark = pytest.mark.django_db


@pytest.fixture
def agent(settings: LazySettings, tmp_path: Path) -> Agent:
    settings.HOME = tmp_path
    agent = Agent("one")
    agent.sync()
    return agent


def ask(agent: Agent, jobs: Any) -> Any:
    return agent.post("erased-jobs", {"jobs": jobs})


def test_a_node_hears_of_erased_jobs_that_it_had(agent: Agent) -> None:
    project = make_project(make_user("alice"))
    erased, alive, elsewhere = (make_job(project, launcher="command") for _ in range(3))
    for job, gpu in zip((erased, alive), agent.node.gpus.all(), strict=False):
        place(job, [gpu])
    Job.objects.filter(pk__in=[erased.pk, elsewhere.pk]).update(erased_at=timezone.now())
    uids = [str(job.uid) for job in (erased, alive, elsewhere)]
    assert ask(agent, [*uids, str(uuid.uuid4()), "none", ""]).json() == {"erased": [uids[0]]}
    assert ask(agent, [erased.uid.hex]).json() == {"erased": [erased.uid.hex]}, "as it was asked"


@pytest.mark.parametrize("jobs", [None, "x", [1], [["x"]], ["x"] * (MAX_JOBS + 1)])
def test_another_question_is_refused(agent: Agent, jobs: Any) -> None:
    assert ask(agent, jobs).status_code == 400
