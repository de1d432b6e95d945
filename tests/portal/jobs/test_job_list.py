"""The list of jobs: its order, filters and columns, hostile query strings, and what is done with several at once."""

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from portal.jobs import services
from portal.jobs.job_list import JOBS
from portal.jobs.models import Allocation, Attempt, Job
from portal.projects.models import Membership
from tests.portal import jobs_world as world
from tests.portal.pages import compact
from tests.portal.upgrades import upgrade_from

pytestmark = pytest.mark.django_db
NOW = timezone.now()


class Lab:
    """Alice owns a project with four jobs, Bob views it, and Charlie has a project of his own."""

    def __init__(self) -> None:
        self.alice, self.bob, self.charlie = (world.make_user(name) for name in ("alice", "bob", "charlie"))
        self.project = world.make_project(self.alice, "digits")
        Membership.objects.create(project=self.project, user=self.bob, role=Membership.Role.VIEWER)
        self.other = world.make_project(self.charlie, "secret plan")
        names = ("delta", "alpha", "Charlie's", "beta")
        self.jobs = [
            world.make_job(
                self.project,
                name=name,
                min_gpus=gpus,
                max_gpus=gpus,
                submitted_at=NOW - timedelta(days=days),
                time_limit_seconds=limit,
                priority=priority,
            )
            for name, gpus, days, limit, priority in zip(
                names, (1, 4, 2, 4), (40, 3, 10, 0), (60, 600, 60, 3600), (0, 5, -5, 5), strict=True
            )
        ]

    def finish(self, job: Job, started: float, took: float) -> None:
        """Let it have ended: ``started`` hours ago, after ``took`` hours."""
        since = NOW - timedelta(hours=started)
        Job.objects.filter(pk=job.pk).update(
            state="SUCCEEDED", started_at=since, finished_at=since + timedelta(hours=took)
        )


@pytest.fixture
def lab() -> Lab:
    return Lab()


def client_of(user: Any) -> Client:
    client = Client()
    client.force_login(user)
    return client


def names(client: Client, query: str) -> list[str]:
    return [job.name for job in client.get(f"/jobs/?{query}").context["page"]]


def problems(client: Client, query: str) -> tuple[str, ...]:
    found: tuple[str, ...] = client.get(f"/jobs/?{query}").context["table"].problems
    return found


class TestOrder:
    @pytest.mark.both_databases
    def test_each_column_sorts_in_both_directions(self, lab: Lab) -> None:
        client = client_of(lab.alice)
        lab.finish(lab.jobs[0], started=30, took=5)
        lab.finish(lab.jobs[2], started=10, took=9)
        expected = {
            "number": ["delta", "alpha", "Charlie's", "beta"],
            "name": ["alpha", "beta", "Charlie's", "delta"],
            "state": ["alpha", "beta", "delta", "Charlie's"],
            "gpus": ["delta", "Charlie's", "alpha", "beta"],
            "submitted": ["delta", "Charlie's", "alpha", "beta"],
            "limit": ["delta", "Charlie's", "alpha", "beta"],
            "priority": ["alpha", "beta", "delta", "Charlie's"],
            "started": ["delta", "Charlie's", "alpha", "beta"],
            "finished": ["delta", "Charlie's", "alpha", "beta"],
            "time": ["delta", "Charlie's", "alpha", "beta"],
            "wait": ["Charlie's", "delta", "alpha", "beta"],
        }
        for key, order in expected.items():
            assert names(client, f"sort={key}") == order, key
        assert names(client, "sort=-gpus") == ["beta", "alpha", "Charlie's", "delta"]
        assert names(client, "sort=-time")[:2] == ["Charlie's", "delta"], "jobs that never ran come last"
        assert names(client, "sort=-started")[:2] == ["Charlie's", "delta"]

    @pytest.mark.both_databases
    def test_every_declared_name_can_be_used(self, lab: Lab) -> None:
        for key in JOBS.sort_names:
            for minus in ("", "-"):
                assert len(names(client_of(lab.alice), f"sort={minus}{key}")) == 4, key

    def test_equal_rows_keep_one_order_over_pages(self, lab: Lab) -> None:
        for _ in range(60):
            world.make_job(lab.project, name="same")
        client = client_of(lab.alice)
        seen = [job.pk for page in (1, 2, 3) for job in client.get(f"/jobs/?sort=name&page={page}").context["page"]]
        assert len(seen) == len(set(seen)) == 64

    @pytest.mark.parametrize(
        "sort", ["nonsense", "submitted_by__password", "--name", "-", "name,pk", "?", "project__name", "gpu_hours"]
    )
    def test_an_unknown_order_is_named_and_the_usual_one_used(self, lab: Lab, sort: str) -> None:
        client = client_of(lab.alice)
        assert names(client, f"sort={sort}") == names(client, "")
        assert f"cannot be sorted by “{sort}”" in problems(client, f"sort={sort}")[0]

    def test_headers_are_links_that_keep_the_filter_and_mark_the_order(self, lab: Lab) -> None:
        page = compact(client_of(lab.alice).get("/jobs/?q=a&sort=-gpus&page=1").content.decode())
        assert 'aria-sort="descending"><a class="sort" href="?q=a&amp;sort=gpus">GPUs' in page
        assert 'href="?q=a&amp;sort=name"' in page, "text rises first"
        assert 'href="?q=a&amp;sort=-submitted"' in page, "times fall first"
        assert page.count("aria-sort=") == 1


class TestFilters:
    @pytest.mark.both_databases
    def test_several_states_people_and_days_at_once(self, lab: Lab) -> None:
        client = client_of(lab.alice)
        services.cancel(lab.alice, lab.jobs[0])
        services.hold(lab.alice, lab.jobs[1])
        Job.objects.filter(pk=lab.jobs[2].pk).update(submitted_by=lab.bob)
        assert set(names(client, "state=held&state=cancelled")) == {"delta", "alpha"}
        assert set(names(client, "state=active")) == {"alpha", "Charlie's", "beta"}
        assert names(client, "person=BOB") == ["Charlie's"]
        assert set(names(client, "period=7d")) == {"beta", "alpha"}
        assert set(names(client, "period=30d")) == {"beta", "alpha", "Charlie's"}
        day = (NOW - timedelta(days=10)).date()
        assert names(client, f"from={day}&to={day}") == ["Charlie's"]
        assert set(names(client, f"to={day}")) == {"Charlie's", "delta"}

    @pytest.mark.both_databases
    def test_words_are_searched_in_commands_notes_people_and_projects(self, lab: Lab) -> None:
        client = client_of(lab.alice)
        world.make_job(lab.project, name="one", arguments=["--lr", "0.003"], description="Étude of the Plateau")
        world.make_job(lab.other, name="hidden", description="plateau")
        world.make_job(
            lab.project, name="two", launcher="command", entry="python x.py | tee log", env_vars={"K": "pw9"}
        )
        assert names(client, "q=0.003") == ["one"]
        assert names(client, "q=éTUDE+of") == ["one"]
        assert names(client, "q=plateau") == ["one"]
        assert names(client, "q=TEE+log") == ["two"]
        assert names(client, "q=pw9") == [], "values of variables may be secrets"
        assert len(names(client, "q=alice")) == 6 and len(names(client, "q=digit")) == 6
        assert names(client, f"q=%23{lab.jobs[1].pk}") == ["alpha"]

    @pytest.mark.parametrize(
        ("query", "problem"),
        [
            ("state=gone", "There is no state “gone”"),
            ("period=100y", "There is no period “100y”"),
            ("from=yesterday", "“yesterday” is not a day"),
            ("from=2026-02-31", "“2026-02-31” is not a day"),
            ("to=0001-01-01", "“0001-01-01” is not a day"),
            ("to=9999-12-31", "“9999-12-31” is not a day"),
            ("from=2026-02-03&to=2026-02-01", "The first day is after the last one"),
            ("project=x", "“x” is not the number of a project"),
            ("person=no-such-user", "No user is called “no-such-user”"),
            ("columns=name,password", "This list has no column “password”"),
        ],
    )
    def test_what_means_nothing_is_named(self, lab: Lab, query: str, problem: str) -> None:
        assert problem in problems(client_of(lab.alice), query)[0]

    def test_a_project_that_one_may_not_see_is_as_one_that_does_not_exist(self, lab: Lab) -> None:
        client = client_of(lab.alice)
        mine, none = problems(client, f"project={lab.other.pk}"), problems(client, "project=987654")
        assert mine[0].replace(str(lab.other.pk), "") == none[0].replace("987654", "")

    @pytest.mark.parametrize(
        "query",
        [
            "q=%25%5F%27%22;DROP",
            "q=" + "x" * 5000,
            "person=" + "x" * 3000,
            "state='&state=" + "x" * 999,
            "columns='," + "y," * 400,
            "page=99999999999999999999",
            "page=x",
            "project=%D9%A3",
            "tags=" + "t," * 100,
            "sort=<script>alert(1)</script>&state=<b>&person=<i>&from=<u>&columns=<s>",
        ],
    )
    @pytest.mark.both_databases
    def test_hostile_queries_are_answered(self, lab: Lab, query: str) -> None:
        response = client_of(lab.alice).get(f"/jobs/?{query}")
        assert response.status_code == 200
        page = response.content.decode()
        assert "<script>alert" not in page and "<b>" not in page


class TestColumns:
    def test_a_choice_is_kept_for_the_user_and_reset(self, lab: Lab) -> None:
        client = client_of(lab.alice)
        data = {"column": ["name", "command", "gpu_hours", "attempts", "environment", "group"], "next": "/jobs/?q=a"}
        assert client.post("/lists/jobs/columns", data)["Location"] == "/jobs/?q=a"
        page = compact(client_of(lab.alice).get("/jobs/").content.decode())
        assert "Command</a></th>" in page and "GPU-hours</th>" in page and ">Project</a></th>" not in page
        assert ">Project</a></th>" in compact(client_of(lab.bob).get("/jobs/").content.decode())
        client.post("/lists/jobs/columns", {"reset": "1"})
        assert ">Project</a></th>" in compact(client.get("/jobs/").content.decode())

    def test_a_column_that_does_not_exist_is_refused(self, lab: Lab) -> None:
        client = client_of(lab.alice)
        response = client.post("/lists/jobs/columns", {"column": ["password"], "next": "/jobs/"}, follow=True)
        assert "no column “password”" in response.content.decode()
        assert client.post("/lists/jobs/columns", {"next": "//evil.example/"})["Location"] == "/"

    def test_every_column_shows_its_value(self, lab: Lab) -> None:
        job = lab.jobs[0]
        Job.objects.filter(pk=job.pk).update(group=Group.objects.create(name="vision"))
        attempt = world.place(job, list(world.make_node(gpus=1).gpus.all()))
        start = timezone.now() - timedelta(hours=3)
        Allocation.objects.filter(attempt=attempt).update(allocated_at=start, released_at=start + timedelta(hours=1.5))
        Attempt.objects.filter(pk=attempt.pk).update(created_at=start)
        every = ",".join(column.key for column in JOBS.columns)
        page = compact(client_of(lab.alice).get(f"/jobs/?columns={every}&q=delta").content.decode())
        for text in ("<td>1.50</td>", "vision", "python train.py", "PyTorch", "Horovod", "1 min", "standard"):
            assert text in page.replace(' class="num"', "").replace(' data-label="CPU slot-hours"', ""), text

    def test_all_columns_cost_the_same_for_any_number_of_rows(self, lab: Lab) -> None:
        client = client_of(lab.alice)
        every = ",".join(column.key for column in JOBS.columns)

        def cost() -> int:
            with CaptureQueriesContext(connection) as queries:
                client.get(f"/jobs/?columns={every}&q=a&state=queued&period=7d&person=alice")
            return len(queries)

        cost()
        few = cost()
        for _ in range(12):
            world.make_job(lab.project, name="another")
        assert cost() == few <= 16


class TestSelected:
    def post(self, client: Client, do: str, jobs: list[Any], **more: Any) -> Any:
        numbers = [getattr(job, "pk", job) for job in jobs]
        return client.post("/jobs/selected", {"do": do, "job": numbers, "next": "/jobs/?q=a", **more}, follow=True)

    def test_each_action_reports_what_it_did_and_what_not(self, lab: Lab) -> None:
        client = client_of(lab.alice)
        foreign = world.make_job(lab.other)
        page = self.post(client, "hold", [*lab.jobs[:3], foreign, 99_999]).content.decode()
        assert "3 jobs are on hold." in page and "2 of the selected jobs do not exist" in page
        page = self.post(client, "release", [lab.jobs[0], lab.jobs[3]]).content.decode()
        assert "1 job is queued again." in page and f"Job {lab.jobs[3].pk}: This job is not on hold." in page
        assert "1 job was cancelled." in self.post(client, "cancel", [lab.jobs[3]]).content.decode()
        page = self.post(client, "retry", lab.jobs).content.decode()
        assert "1 job was submitted again, as a copy." in page and page.count("has not finished yet") == 3
        foreign.refresh_from_db()
        assert foreign.intent == "run"

    def test_a_viewer_may_do_nothing_but_compare(self, lab: Lab) -> None:
        client = client_of(lab.bob)
        for do in ("cancel", "hold", "release", "retry"):
            page = self.post(client, do, lab.jobs).content.decode()
            assert f"Job {lab.jobs[0].pk}:" in page, do
        assert set(Job.objects.values_list("intent", "state")) == {("run", "QUEUED")}
        assert Job.objects.count() == 4
        response = self.post(client, "compare", lab.jobs[:2])
        first, second = lab.jobs[:2]
        assert response.redirect_chain == [(f"/jobs/compare?job={first.pk}&job={second.pk}", 302)]

    @pytest.mark.parametrize(
        ("do", "count", "text"),
        [
            ("cancel", 0, "Select jobs first"),
            ("compare", 1, "Select from 2 to 6 jobs to compare; 1 selected."),
            ("compare", 7, "Select from 2 to 6 jobs to compare; 7 selected."),
            ("rename", 2, "Choose what to do with the jobs"),
            ("", 2, "Choose what to do with the jobs"),
            ("cancel", 201, "At most 200 jobs at once; 201 were selected. Nothing was done."),
        ],
    )
    def test_what_cannot_be_done_is_explained(self, lab: Lab, do: str, count: int, text: str) -> None:
        page = self.post(client_of(lab.alice), do, list(range(1, count + 1))).content.decode()
        assert text in page
        assert set(Job.objects.values_list("intent", flat=True)) == {"run"}

    def test_many_refusals_are_summed_up(self, lab: Lab) -> None:
        jobs = [world.make_job(lab.project) for _ in range(8)]
        page = self.post(client_of(lab.bob), "cancel", jobs).content.decode()
        assert page.count("Only the user who submitted") == 5 and "Nothing changed for 3 more" in page

    def test_every_row_has_a_box(self, lab: Lab) -> None:
        services.cancel(lab.alice, lab.jobs[0])
        page = client_of(lab.bob).get("/jobs/").content.decode()
        assert page.count('name="job"') == 4


def test_the_jobs_of_a_project_are_those_of_the_project(lab: Lab) -> None:
    world.make_job(world.make_project(lab.alice, "another"), name="elsewhere")
    page = client_of(lab.bob).get(f"/projects/{lab.project.pk}/jobs").content.decode()
    assert "alpha" in page and "elsewhere" not in page and "digits" not in page and 'name="job"' not in page
    assert client_of(lab.charlie).get(f"/projects/{lab.project.pk}/jobs").status_code == 404


@pytest.mark.django_db(transaction=True)
@pytest.mark.both_databases
@pytest.mark.thorough
def test_jobs_of_the_release_before_can_be_searched() -> None:
    job = world.make_job(world.make_project(world.make_user("alice")), name="Größe", arguments=["--lr", "0.1"])
    Job.objects.filter(pk=job.pk).update(search_text="lost", description="ÉTUDE")
    upgrade_from("jobs", "0023_long_commands")
    job.refresh_from_db()
    assert job.search_text == "grösse\ntrain.py\n--lr 0.1\nétude"
    Job.objects.filter(pk=job.pk).update(search_text="set by hand")
    job.save(update_fields=["intent"])
    job.refresh_from_db()
    assert job.search_text == "set by hand", "saving other fields writes only these"
