"""The tabs of a job's page: what each shows, what is refreshed, and how far the job is."""

import json
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from portal.accounts.models import User
from portal.cluster.models import Node
from portal.jobs import lifecycle, outputs, services
from portal.jobs.models import Attempt, Job, Progress
from portal.jobs.progress import progress_of, progress_of_many
from portal.jobs.rules import ERRORS_IN_A_ROW
from portal.projects.models import Project
from tests.portal import jobs_world as world
from tests.portal.files import without_colours
from tests.portal.pages import compact

pytestmark = pytest.mark.django_db
TABS = ("", "log/", "files/", "gpus/", "details/")


@pytest.fixture
def owner() -> User:
    return world.make_user("nadia")


@pytest.fixture
def project(owner: User) -> Project:
    return world.make_project(owner, "speech")


@pytest.fixture
def node() -> Node:
    return world.make_node("delta", gpus=4)


def start(project: Project, node: Node, **fields: Any) -> tuple[Job, Attempt]:
    job = world.make_job(project, code=world.make_code(project, sha256=f"{Job.objects.count():064x}"), **fields)
    attempt = world.place(job, list(node.gpus.all()[:1]))
    for part in attempt.containers.all():
        lifecycle.advance(part, "RUNNING")
    job.refresh_from_db()
    return job, Attempt.objects.select_related("job").get(pk=attempt.pk)


def report(attempt: Attempt, done: float | None, step_seconds: float = 2.0) -> None:
    """Let the code of an attempt report its progress: of 8,000 samples, 80 in a step."""
    step = 50 if done is None else round(100 * done)
    Progress.objects.create(
        attempt=attempt, at=timezone.now(), step=step, epoch=0, done=done, total=8000 if done else None, batch=80,
        ranks=1, step_seconds=step_seconds,
    )  # fmt: skip


def client_of(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


class TestTabs:
    @pytest.mark.parametrize("tab", TABS)
    def test_each_is_an_address_and_marks_itself(self, owner: User, project: Project, node: Node, tab: str) -> None:
        job, _ = start(project, node, name="long run")
        page = compact(client_of(owner).get(f"/jobs/{job.pk}/{tab}").content.decode())
        assert page.count("long run") > 1 and "running" in page
        for other in TABS:
            current = ' aria-current="page"' if other == tab else ""
            assert f'<a href="/jobs/{job.pk}/{other}"{current}>' in page

    def test_other_words_are_no_tabs(self, owner: User, project: Project, node: Node) -> None:
        job, _ = start(project, node)
        client = client_of(owner)
        assert client.get(f"/jobs/{job.pk}/logs/").status_code == 404
        assert client.get(f"/jobs/{job.pk}/live?tab=spec").status_code == 404

    def test_only_what_a_tab_shows_is_sent_again(self, owner: User, project: Project, node: Node) -> None:
        job, _ = start(project, node)
        client = client_of(owner)
        files = client.get(f"/jobs/{job.pk}/live?tab=files").content.decode()
        log = client.get(f"/jobs/{job.pk}/live?tab=log").content.decode()
        assert 'id="outputs"' in files and 'id="history"' not in files and "job-part" not in log
        assert '?tab=files"' in files

    def test_the_overview_leads_to_the_newest_files(self, owner: User, project: Project, node: Node) -> None:
        job, attempt = start(project, node)
        overview = f"/jobs/{job.pk}/"
        assert 'id="newest-files"' not in client_of(owner).get(overview).content.decode()
        for number in range(6):
            outputs.store(attempt, f"epoch-{number}.pt", [b"weights"])
        page = (
            client_of(owner).get(overview).content.decode().partition('id="newest-files"')[2].partition("</section>")[0]
        )
        assert [f"epoch-{number}.pt" in page for number in range(6)] == [False, False, True, True, True, True]
        assert f'href="/jobs/{job.pk}/outputs/epoch-5.pt" download' in page and f"/jobs/{job.pk}/files/" in page

    def test_a_page_of_the_release_before_is_loaded_again(self, owner: User, project: Project, node: Node) -> None:
        """It has a timer, which what comes now has not."""
        job, _ = start(project, node)
        answer = client_of(owner).get(f"/jobs/{job.pk}/live?edition=", headers={"HX-Request": "true"})
        assert (answer.status_code, answer["HX-Refresh"]) == (204, "true")

    def test_the_overview_has_the_latest_events_and_the_details_all(
        self, owner: User, project: Project, node: Node
    ) -> None:
        job = world.make_job(project, code=world.make_code(project))
        for _ in range(6):
            services.hold(owner, job)
            services.release(owner, job)
        client = client_of(owner)
        overview = client.get(f"/jobs/{job.pk}/").content.decode()
        details = client.get(f"/jobs/{job.pk}/details/").content.decode()
        assert "The whole history" in overview and "The whole history" not in details
        assert details.count("on hold") == 6 > overview.count("on hold")

    def test_the_specification_is_exact(self, owner: User, project: Project) -> None:
        code = world.make_code(project)
        job = world.make_job(project, code=code, arguments=["</script>", "ü"], env_vars={"A": "1"})
        response = client_of(owner).get(f"/jobs/{job.pk}/details/")
        spec = json.loads(without_colours(response.context["spec"]))
        assert spec["arguments"] == ["</script>", "ü"] and spec["env_vars"] == {"A": "1"}
        assert spec["code_sha256"] == code.sha256 and spec["environment"] == job.environment.key


class TestProgress:
    def test_reported_work_is_shown_with_the_time_left(self, owner: User, project: Project, node: Node) -> None:
        job, attempt = start(project, node, time_limit_seconds=3600)
        report(attempt, 0.25)
        found = progress_of(attempt)
        assert found and (found.percent, found.by_limit, found.exceeds_limit) == (25, False, False)
        assert found.seconds_left == pytest.approx(150)
        page = compact(client_of(owner).get(f"/jobs/{job.pk}/log/").content.decode())
        assert "25 % done, about 2 min left" in page

    def test_work_that_takes_longer_than_the_time_limit_is_pointed_out(
        self, owner: User, project: Project, node: Node
    ) -> None:
        job, attempt = start(project, node, time_limit_seconds=60)
        report(attempt, 0.25)
        assert "longer than its time limit" in client_of(owner).get(f"/jobs/{job.pk}/").content.decode()

    @pytest.mark.parametrize("reports", [False, True])
    def test_without_a_known_end_the_time_limit_counts(self, project: Project, node: Node, reports: bool) -> None:
        job, attempt = start(project, node, time_limit_seconds=1000)
        Attempt.objects.filter(pk=attempt.pk).update(started_at=timezone.now() - timedelta(seconds=250))
        attempt.refresh_from_db()
        if reports:
            report(attempt, None)
        found = progress_of(attempt)
        assert found and found.by_limit and not found.exceeds_limit
        assert found.percent == pytest.approx(25, abs=1) and found.seconds_left == pytest.approx(750, abs=10)

    def test_earlier_attempts_used_a_part_of_the_limit(self, project: Project, node: Node) -> None:
        job, attempt = start(project, node, time_limit_seconds=1000)
        attempt.counted_seconds = 500
        found = progress_of(attempt)
        assert found and found.percent == pytest.approx(50, abs=1)

    def test_past_its_limit_a_job_has_used_all_of_it(self, project: Project, node: Node) -> None:
        job, attempt = start(project, node, time_limit_seconds=60)
        attempt.started_at = timezone.now() - timedelta(seconds=90)
        found = progress_of(attempt)
        assert found and (found.percent, found.seconds_left) == (100, 0)

    def test_many_jobs_cost_one_query(self, project: Project, node: Node, django_assert_num_queries: Any) -> None:
        running = [start(project, node) for _ in range(1)] + [start(project, world.make_node(gpus=1)) for _ in range(3)]
        report(running[1][1], 0.5)
        with django_assert_num_queries(1):
            found = progress_of_many([attempt for _, attempt in running], timezone.now())
        assert [found[job.pk].by_limit for job, _ in running] == [True, False, True, True]


class TestNextStep:
    def primary_action(self, owner: User, job: Job) -> str:
        page = compact(client_of(owner).get(f"/jobs/{job.pk}/").content.decode())
        return page[page.index('class="button primary"') :][:400]

    def test_a_failure_of_the_code_proposes_to_change_something(
        self, owner: User, project: Project, node: Node
    ) -> None:
        job, attempt = start(project, node)
        world.exit(attempt.containers.get(), 1)
        assert "Duplicate and edit" in self.primary_action(owner, job)

    def test_a_failure_of_the_lab_proposes_to_run_it_again(self, owner: User, project: Project, node: Node) -> None:
        job, attempt = start(project, node)
        for _ in range(ERRORS_IN_A_ROW - 1):
            world.exit(attempt.containers.get(), None, "create_error")
            job.refresh_from_db()
            attempt = world.place(job, list(node.gpus.all()[:1]))
        world.exit(attempt.containers.get(), None, "create_error")
        job.refresh_from_db()
        assert job.state == "FAILED"
        assert "Run again" in self.primary_action(owner, job)
