"""What the first start reports of its two examples, and how an agent of an earlier release runs them."""

import re
from datetime import timedelta

import pytest
from django.utils import timezone

from portal.accounts.models import User
from portal.accounts.services import EXAMPLES_OWNER
from portal.environments.models import Environment, NodeEnvironment
from portal.jobs.gallery import run_example
from portal.jobs.models import FINISHED_STATES, Job, JobState
from portal.ops.up.welcome import SETTLE_TIME, ExampleReport, submit_examples, unfinished_examples
from portal.projects.examples import find
from portal.scheduler import snapshot
from portal.scheduler.apps import offer_environments
from portal.scheduler.availability import EnvironmentFailed
from tests.portal.agents_world import Agent
from tests.portal.jobs_world import make_node, make_user

pytestmark = pytest.mark.django_db

SITE = "http://localhost:8000"
UNKNOWN = "There is no environment “pytorch” in this release."


@pytest.fixture
def jobs() -> list[Job]:
    return submit_examples()


@pytest.fixture
def report(jobs: list[Job]) -> ExampleReport:
    return ExampleReport(jobs, SITE)


def environment(job: Job, state: str, percent: int = 0, detail: str = "") -> None:
    node = make_node("this") if not job.environment.on_nodes.exists() else job.environment.on_nodes.get().node
    NodeEnvironment.objects.update_or_create(
        node=node, environment=job.environment, defaults={"state": state, "progress_percent": percent, "detail": detail}
    )


def put(job: Job, state: JobState) -> None:
    finished_at = timezone.now() if state in FINISHED_STATES else None
    Job.objects.filter(pk=job.pk).update(state=state, finished_at=finished_at)


def test_the_plain_example_comes_first_and_needs_nothing_compiled(jobs: list[Job]) -> None:
    assert [(job.launcher, job.environment.key, job.elastic) for job in jobs] == [
        ("command", "pytorch", False),
        ("horovod", "pytorch-horovod", True),
    ]
    assert submit_examples() == []  # only a portal that never saw a job shows them
    assert unfinished_examples() == jobs
    assert not jobs[0].submitted_by.has_usable_password()


def test_while_this_machine_joins_the_empty_lab_is_not_reported(report: ExampleReport) -> None:
    assert report.progress() == ("This machine joins the lab", "") and list(report.new_lines()) == []


def test_progress_names_the_environment_and_how_far_it_is(report: ExampleReport, jobs: list[Job]) -> None:
    environment(jobs[0], "preparing", 40, "installing 17 packages: 8 s so far")
    assert report.progress() == ("Preparing PyTorch", "40 %, installing 17 packages: 8 s so far")


def test_a_reason_that_is_older_than_the_environment_is_not_shown(report: ExampleReport, jobs: list[Job]) -> None:
    environment(jobs[0], "ready", 100)
    Job.objects.update(waiting_reason="Its environment PyTorch is being prepared on node this: 90 %.")
    assert report.progress() == ("first job waits", "for the scheduler")
    Job.objects.update(waiting_reason="All of the lab is reserved.")
    NodeEnvironment.objects.update(updated_at=timezone.now() - SETTLE_TIME - timedelta(seconds=1))
    assert report.progress() == ("first job waits", "All of the lab is reserved.")


def test_each_step_is_a_line_once(report: ExampleReport, jobs: list[Job]) -> None:
    environment(jobs[0], "ready", 100)
    put(jobs[0], JobState.RUNNING)
    assert list(report.new_lines()) == ["first job: running"] and list(report.new_lines()) == []
    put(jobs[0], JobState.SUCCEEDED)
    assert list(report.new_lines()) == [f"first job: succeeded ({SITE}/jobs/{jobs[0].pk}/)"]
    assert report.any_finished and not report.finished and list(report.new_lines()) == []
    put(jobs[1], JobState.RUNNING)
    put(jobs[1], JobState.FAILED)
    assert [re.sub(" .http.*", "", line) for line in report.new_lines()] == ["second job: failed"]
    assert report.finished and not report.succeeded and report.progress() == ("", "")


def test_an_environment_that_failed_is_reported_with_its_fix(report: ExampleReport, jobs: list[Job]) -> None:
    environment(jobs[1], "failed", 0, "This machine lacks c++. Debian or Ubuntu: apt-get install g++.")
    expected = [
        "second job: waiting. PyTorch and Horovod could not be prepared: "
        "This machine lacks c++. Debian or Ubuntu: apt-get install g++."
    ]
    assert list(report.new_lines()) == expected and list(report.new_lines()) == []
    put(jobs[0], JobState.SUCCEEDED)
    list(report.new_lines())
    assert report.progress() == ("", "")  # nothing continues by itself


def test_what_an_earlier_start_prepared_is_no_progress_of_this_one(jobs: list[Job]) -> None:
    environment(jobs[0], "preparing", 6, "compiling Horovod: 1 min 10 s so far")
    again = ExampleReport(unfinished_examples(), SITE)
    assert again.progress() == ("This machine joins the lab", "")
    environment(jobs[0], "preparing", 1, "starting")
    assert again.progress() == ("Preparing PyTorch", "1 %, starting")


def test_a_restart_reports_what_is_not_finished_under_its_own_name(jobs: list[Job]) -> None:
    put(jobs[0], JobState.SUCCEEDED)
    assert [report.name for report in ExampleReport(unfinished_examples(), SITE).reports] == ["second job"]


# An agent of an earlier release


def old_agent() -> Agent:
    """Knows PyTorch only together with Horovod."""
    agent = Agent()
    agent.report["environments"] = [
        {"key": "pytorch", "digest": "", "state": "failed", "progress_percent": 0, "detail": UNKNOWN},
        {"key": "pytorch-horovod", "digest": "d", "state": "ready", "progress_percent": 100, "detail": ""},
    ]
    agent.sync()
    return agent


def test_nothing_is_placed_on_a_node_that_does_not_know_the_environment(jobs: list[Job]) -> None:
    agent = old_agent()
    plain, elastic = (next(job for job in snapshot.take().jobs if job.id == str(each.pk)) for each in jobs)
    assert isinstance(plain.blocked, EnvironmentFailed) and plain.blocked.detail == UNKNOWN
    assert elastic.blocked is None
    assert elastic.nodes is None or str(agent.node.pk) in elastic.nodes


def test_its_lab_runs_the_plain_example_with_what_it_has() -> None:
    old_agent()
    example = find("pytorch-digits")
    assert example is not None
    assert run_example(make_user("alice"), example).environment.key == "pytorch-horovod"


def test_an_environment_with_fewer_packages_does_not_stand_in() -> None:
    agent = Agent()
    agent.report["environments"] = [{"key": "python", "digest": "d", "state": "ready", "progress_percent": 100}]
    agent.sync()
    example = find("pytorch-digits")
    assert example is not None
    assert run_example(make_user("alice"), example).environment.key == "pytorch"


def test_a_portal_of_an_earlier_release_is_given_the_new_environment() -> None:
    Environment.objects.filter(key="pytorch").delete()
    offer_environments()
    assert list(Environment.objects.filter(retired=False).values_list("key", flat=True)) == [
        "pytorch", "pytorch-horovod", "pytorch-vision", "pytorch-language", "python", "tensorflow-horovod",
    ]  # fmt: skip


def test_the_owner_of_the_examples_is_made_once() -> None:
    owner = User.objects.create_user(EXAMPLES_OWNER)
    assert [job.submitted_by for job in submit_examples()] == [owner, owner]
