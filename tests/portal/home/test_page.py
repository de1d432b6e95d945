"""The home page and its parts: what each reader sees, in how many queries, and what the buttons do."""

import re
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from portal.accounts.models import LabSettings, User
from portal.cluster.models import Node
from portal.forecast.models import Forecast
from portal.home.runs import live_attempts, runs_of
from portal.hues import mark_of_person
from portal.jobs import lifecycle
from portal.jobs.models import Attempt, Job, MetricPoint, Progress
from portal.projects.models import Membership, Project
from tests.portal import jobs_world as world
from tests.portal.home import large_lab
from tests.portal.live_parts import fetch_part
from tests.portal.pages import compact, one_line

pytestmark = pytest.mark.django_db
PARTS = ("cluster", "queue", "runs", "attention")


class Lab:
    """Alice owns the project, Bob is a member, Charlie has no access; a node with four slots."""

    def __init__(self) -> None:
        self.alice, self.bob, self.charlie = (world.make_user(name) for name in ("alice", "bob", "charlie"))
        self.admin = world.make_user("admin", is_staff=True)
        self.project: Project = world.make_project(self.alice, "Secret birds")
        Membership.objects.create(project=self.project, user=self.bob, role=Membership.Role.MEMBER)
        self.node: Node = world.make_node("alpha", gpus=4)
        self.used = 0

    def running(self, gpus: int = 1, **fields: Any) -> Job:
        job = world.make_job(self.project, **{"name": "owl", **fields})
        attempt = world.place(job, list(self.node.gpus.all()[self.used : self.used + gpus]))
        self.used += gpus
        for part in attempt.containers.all():
            lifecycle.advance(part, "RUNNING")
        job.refresh_from_db()
        return job


@pytest.fixture
def lab() -> Lab:
    return Lab()


def browser(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def home(user: User, query: str = "") -> str:
    answer = browser(user).get(f"/{query}")
    assert answer.status_code == 200
    return one_line(answer.content.decode())


class TestFirstSteps:
    def test_a_new_user_sees_the_first_steps_and_where_to_start(self, lab: Lab) -> None:
        lab.running(4, max_gpus=4)
        page = home(lab.charlie)
        assert "First steps" in page and "None of your jobs is waiting or running" in page
        assert "Nothing is running" not in page, "others' jobs are"
        assert 'href="/jobs/new"' in page and 'href="/gallery/"' in page

    def test_they_disappear_with_the_first_success(self, lab: Lab) -> None:
        job = lab.running()
        part = job.attempts.get().containers.get()
        lifecycle.advance(part, "EXITED", exit_code=0, exit_reason="exited")
        assert "First steps" not in home(lab.alice)

    def test_without_a_machine_the_next_step_depends_on_the_reader(self, lab: Lab) -> None:
        Node.objects.all().delete()
        assert "Jobs wait until an admin adds one." in home(lab.charlie)
        assert "Add a machine" in home(lab.admin)


class TestCluster:
    @pytest.mark.parametrize(("all_see_queue", "holder"), [(True, "alice"), (False, "another project")])
    def test_a_square_leads_members_to_the_job_and_hides_it_from_others(
        self, lab: Lab, all_see_queue: bool, holder: str
    ) -> None:
        LabSettings.objects.create(pk=1, queue_for_members=all_see_queue)
        job = lab.running()
        sentence = f"alpha, CPU slot 0: job {job.pk} (owl) of alice, less than a minute"
        for reader in (lab.alice, lab.bob, lab.admin):
            page = home(reader)
            assert f'href="/jobs/{job.pk}/"' in page and f'aria-label="{sentence}"' in page
        page = home(lab.charlie)
        assert f'aria-label="alpha, CPU slot 0: {holder}, less than a minute"' in page
        assert (
            "owl" not in page
            and ("alice" in page) is all_see_queue
            and "Secret birds" not in page
            and "/jobs/1/" not in page
        )

    def test_it_shows_what_is_busy_and_what_is_being_prepared(self, lab: Lab) -> None:
        about = {"state": "preparing", "progress_percent": 40, "detail": "building"}
        lab.node.environments.create(environment=world.make_environment("torch"), **about)
        lab.running()
        page = home(lab.alice)
        assert "1 of 4 CPU slots busy, 1 of 1 node up." in page and "40 %" in page

    def test_a_machine_that_waits_for_approval_is_not_shown(self, lab: Lab) -> None:
        new = world.make_node("newcomer", approved_at=None)
        new.environments.create(
            environment=world.make_environment("torch"), state="failed", detail="no compiler on newcomer"
        )
        page = home(lab.charlie)
        assert "newcomer" not in page and "1 of 1 node up" in page

    @pytest.mark.parametrize(
        ("fields", "css", "word"),
        [
            ({"cordoned": True}, "is-held", "cordoned"),
            ({"draining": True}, "is-draining", "draining"),
            ({"last_seen_at": timezone.now() - timedelta(days=2)}, "is-lost", "not reporting"),
        ],
    )
    def test_a_node_that_takes_no_jobs_has_a_pattern_and_a_word(
        self, lab: Lab, fields: dict[str, Any], css: str, word: str
    ) -> None:
        Node.objects.update(**fields)
        page = home(lab.charlie)
        assert f"machine {css}" in page and f"</svg>{word}</span>" in page
        assert f"CPU slot 0: idle, node {word}" in page

    @pytest.mark.parametrize(
        ("fields", "css", "word"),
        [
            ({"quarantined_at": timezone.now()}, "quarantined", "quarantined"),
            ({"healthy": False}, "unfit", "broken"),
            ({"outside": "blender"}, "outside", "in use outside the portal"),
        ],
    )
    def test_a_slot_that_cannot_be_used_has_a_pattern_and_a_word(
        self, lab: Lab, fields: dict[str, Any], css: str, word: str
    ) -> None:
        lab.node.gpus.filter(index=2).update(**fields)
        page = home(lab.charlie)
        assert f'class="square {css}"' in page and f"alpha, CPU slot 2: {word}" in page and "blender" not in page

    def test_colours_are_by_person_or_by_project_and_remembered(self, lab: Lab) -> None:
        lab.running()
        client = browser(lab.alice)
        person = mark_of_person(lab.alice.pk, "alice")
        assert f"square busy hue-{person.hue} person" in client.get("/").content.decode()
        page = client.get("/?by=project").content.decode()
        assert "project mine" in page and ">SB</a>" in page
        assert ">SB</a>" in client.get("/").content.decode(), "it is remembered"
        assert ">SB</a>" in client.get("/home/cluster").content.decode()
        client.get("/?by=nonsense")
        assert ">SB</a>" in client.get("/").content.decode()
        client.get("/?by=person")
        assert ">AL</a>" in client.get("/").content.decode()

    def test_names_with_markup_are_text(self, lab: Lab) -> None:
        lab.running(name='"><script>alert(1)</script>')
        for query in ("", "?by=project"):
            assert "<script>alert" not in home(lab.alice, query)


class TestQueue:
    @pytest.mark.parametrize(("all_see_queue", "holder"), [(True, "alice"), (False, "another project")])
    def test_it_shows_reasons_and_expected_starts_and_hides_others(
        self, lab: Lab, all_see_queue: bool, holder: str
    ) -> None:
        LabSettings.objects.create(pk=1, queue_for_members=all_see_queue)
        job = world.make_job(lab.project, name="wren", queue_position=1, waiting_reason="It needs 4 GPUs; 1 is free.")
        now = timezone.now()
        Forecast.objects.create(
            job=job, snapshot_at=now, made_at=now, low=now + timedelta(minutes=20.4), high=now + timedelta(minutes=40.4),
            until=now + timedelta(days=1), draws=9,
        )  # fmt: skip
        page = home(lab.bob)
        assert "wren" in page and "It needs 4 GPUs." in page and "Starts in 20 to 41 min" in page
        page = home(lab.charlie)
        assert f"A job of {holder}" in page and "Starts in 20 to 41 min" in page
        assert "wren" not in page and "It needs 4" not in page and ("alice" in page) is all_see_queue

    def test_it_is_in_the_order_of_the_queue_and_counts_the_others(self, lab: Lab) -> None:
        for number in range(12):
            world.make_job(lab.project, name=f"job-{number:02}", queue_position=12 - number)
        page = browser(lab.bob).get("/home/queue").content.decode()
        assert re.findall(r"job-\d\d", page) == [f"job-{number:02}" for number in range(11, 3, -1)]
        assert "and 4 more jobs" in page and "12 jobs wait" in page


class TestRuns:
    def test_the_curve_of_a_run_is_beside_it(self, lab: Lab) -> None:
        trains, silent = lab.running(name="trains"), lab.running(name="silent")
        attempt = trains.attempts.get()
        Progress.objects.create(
            attempt=attempt, at=timezone.now(), step=3, epoch=0, batch=8, ranks=1, done=0.5, points=3
        )
        for step, value in enumerate((2.5, 1.5, 0.5)):
            MetricPoint.objects.create(attempt=attempt, name="train/loss", step=step, value=value, at=timezone.now())
        page = compact(browser(lab.alice).get("/home/runs").content.decode())
        assert page.count('class="chart-small') == 1 and "from 2.5 to 0.5" in page
        assert silent.name in page

    def test_those_that_run_come_before_those_that_wait(self, lab: Lab) -> None:
        older, newer = lab.running(name="older"), lab.running(name="newer")
        waits = world.make_job(lab.project, name="waits")
        shown = runs_of(lab.alice, live_attempts(lab.alice, timezone.now()))
        assert [run.job.pk for run in shown.active] == [newer.pk, older.pk, waits.pk]

    def test_progress_is_that_of_the_training_or_of_the_time_limit(self, lab: Lab) -> None:
        now = timezone.now()
        trains, silent = lab.running(name="trains"), lab.running(name="counts down", time_limit_seconds=4000)
        Attempt.objects.filter(job__in=[trains, silent]).update(started_at=now - timedelta(seconds=1000))
        Progress.objects.create(
            attempt=trains.attempts.get(), at=now, step=300, epoch=1, batch=8, ranks=1, done=0.25, step_seconds=1.0
        )
        shown = runs_of(lab.alice, live_attempts(lab.alice, now))
        by_name = {run.job.name: run for run in shown.active}
        of_work, of_limit = by_name["trains"].progress, by_name["counts down"].progress
        assert of_work and not of_work.by_limit and of_work.percent == 25.0 and by_name["trains"].time_left == "15 min"
        assert of_limit and of_limit.by_limit
        assert of_limit.percent == 25.0 and by_name["counts down"].time_left == "50 min"
        page = compact(browser(lab.alice).get("/home/runs").content.decode())
        assert "25 % trained" in page and "25 % of its time limit" in page and "15 min left" in page

    def test_they_are_mine_alone(self, lab: Lab) -> None:
        lab.running(name="of alice")
        assert "of alice" not in browser(lab.bob).get("/home/runs").content.decode()
        Membership.objects.filter(user=lab.alice).delete()
        assert "of alice" not in browser(lab.alice).get("/home/runs").content.decode(), "she left the project"


class TestParts:
    @pytest.mark.parametrize("name", PARTS)
    def test_a_part_is_sent_once_and_again_when_it_changes(self, lab: Lab, name: str) -> None:
        client = browser(lab.alice)
        edition = fetch_part(client, f"/home/{name}")["Edition"]
        assert fetch_part(client, f"/home/{name}", edition).status_code == 204
        job = lab.running(name="new")
        world.make_job(lab.project, name="waits")
        Job.objects.filter(pk=job.pk).update(time_limit_seconds=60)
        assert fetch_part(client, f"/home/{name}", edition).status_code == 200

    def test_all_have_their_address_and_what_refreshes_them(self, lab: Lab) -> None:
        page = home(lab.alice)
        for name, topic in zip(PARTS, ("lab", "lab", "mine", "mine"), strict=True):
            assert f'hx-get="/home/{name}"' in page
            assert f'hx-trigger="live-{topic} from:document' in page
        assert "live-lab from:document" in browser(lab.admin).get("/home/attention").content.decode()
        assert browser(lab.alice).get("/home/nothing").status_code == 404


def queries_of(user: User, path: str) -> int:
    client = browser(user)
    client.get(path)
    with CaptureQueriesContext(connection) as found:
        assert client.get(path).status_code == 200
    return len(found)


def test_queries_do_not_depend_on_nodes_gpus_and_jobs() -> None:
    people = large_lab.fill(nodes=2, gpus=4, finished=84, waiting=13)
    paths = ("/", *(f"/home/{name}" for name in PARTS))
    readers = (people["person0"], people["ada"])
    before = {(user, path): queries_of(user, path) for user in readers for path in paths}
    more_nodes = [world.make_node(f"more-{number}", gpus=16) for number in range(12)]
    for number, node in enumerate(more_nodes):
        gpus = list(node.gpus.all())
        job = world.make_job(Project.objects.all()[number % 3], name=f"more {number}")
        for part in world.place(job, gpus[:8]).containers.all():
            lifecycle.advance(part, "RUNNING")
        world.make_job(Project.objects.all()[number % 3], name=f"waits {number}")
    assert {key: queries_of(*key) for key in before} == before
    assert max(before.values()) <= 32
