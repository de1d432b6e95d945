"""How reports, wishes and time move containers, attempts and jobs."""

import pytest

from portal.cluster.models import Gpu, Node
from portal.jobs import lifecycle
from portal.jobs.models import Allocation, JobState
from portal.projects.models import Project
from tests.portal.jobs_world import make_job, make_node, make_project, make_user, place

pytestmark = pytest.mark.django_db


@pytest.fixture
def project() -> Project:
    return make_project(make_user("alice"))


def gpus(*nodes: Node) -> list[Gpu]:
    return list(Gpu.objects.filter(node__in=nodes).select_related("node").order_by("id"))


def test_it_runs_and_succeeds(project: Project) -> None:
    job = make_job(project, launcher="command", entry="true")
    attempt = place(job, gpus(make_node(gpus=1)))
    [part] = attempt.containers.all()
    assert job.state == JobState.RUNNING
    assert lifecycle.advance(part, "PREPARING", detail="fetching code")
    assert lifecycle.advance(part, "RUNNING")
    assert lifecycle.advance(part, "EXITED", exit_code=0, exit_reason="exited")
    job.refresh_from_db()
    attempt.refresh_from_db()
    assert (job.state, attempt.outcome) == ("SUCCEEDED", "succeeded")
    assert job.started_at and job.finished_at and attempt.started_at and attempt.ended_at
    assert not Allocation.objects.filter(released_at=None).exists()
    assert [event.seq for event in job.events.order_by("seq")] == list(range(1, job.events.count() + 1))
