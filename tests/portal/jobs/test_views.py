"""The pages about jobs, as alice (owner), bob (viewer), charlie (no access), an admin, and without signing in."""

import io
import json
import zipfile
from datetime import UTC, datetime
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from portal.accounts.models import User
from portal.jobs import lifecycle, logs, outputs, services
from portal.jobs.models import Attempt, Job, JobState
from portal.jobs.spec import submission_of
from portal.projects.models import Membership
from tests.portal import jobs_world as world
from tests.portal.files import tiny_png, without_colours
from tests.portal.live_parts import fetch_part
from tests.portal.pages import compact

pytestmark = pytest.mark.django_db
PNG = tiny_png()
WAV = b"RIFF\x24\0\0\0WAVEfmt " + bytes(28)


class Lab:
    def __init__(self) -> None:
        self.alice, self.bob, self.charlie = (world.make_user(name) for name in ("alice", "bob", "charlie"))
        self.admin = world.make_user("admin", is_staff=True)
        self.project = world.make_project(self.alice)
        Membership.objects.create(project=self.project, user=self.bob, role=Membership.Role.VIEWER)
        self.code = world.make_code(self.project, ("train.py", "lib/model.py", "README.md"))
        self.code.guess = {
            "entry": "train.py",
            "candidates": ["train.py"],
            "launcher": "horovod",
            "elastic": True,
            "imports": {"torch": ["train.py", 1], "pandas": ["train.py", 2]},
            "warnings": [{"code": "no-checkpoint", "path": "train.py", "line": 9, "text": "Nothing is saved."}],
        }
        self.code.save(update_fields=["guess"])
        self.environment = world.make_environment("pytorch", ("torch",))
        self.node = world.make_node("alpha", gpus=2)

    def job(self, **fields: Any) -> Job:
        return world.make_job(self.project, code=self.code, environment=self.environment, **fields)

    def running(self, **fields: Any) -> tuple[Job, Attempt]:
        job = self.job(**fields)
        attempt = world.place(job, list(self.node.gpus.all()[:1]))
        for part in attempt.containers.all():
            lifecycle.advance(part, "RUNNING")
        job.refresh_from_db()
        return job, attempt

    def ended(self, code: int = 0, **fields: Any) -> tuple[Job, Attempt]:
        job, attempt = self.running(**fields)
        for part in attempt.containers.all():
            lifecycle.advance(part, "EXITED", exit_code=code, exit_reason="exited")
        job.refresh_from_db()
        return job, attempt


@pytest.fixture
def lab() -> Lab:
    return Lab()


def browser(user: User | None) -> Client:
    client = Client()
    if user is not None:
        client.force_login(user)
    return client


def form_of(response: Any) -> dict[str, Any]:
    """Return what a browser would send for the form as it was shown."""
    form = response.context["form"]
    values = {name: form[name].value() for name in form.fields}
    return {
        name: "on" if value is True else value
        for name, value in values.items()
        if value is not None and value is not False
    }


def body(response: Any) -> bytes:
    return b"".join(response.streaming_content) if response.streaming else response.content


class TestWhoSeesWhat:
    def paths(self, job: Job, attempt: Attempt) -> list[str]:
        stream = attempt.containers.get().streams.get()
        return [
            f"/jobs/{job.pk}/",
            f"/jobs/{job.pk}/live",
            f"/jobs/{job.pk}/log.txt",
            f"/jobs/{job.pk}/streams/{stream.pk}.log",
            f"/jobs/{job.pk}/outputs.zip",
            f"/jobs/{job.pk}/outputs/plot.png",
            f"/jobs/{job.pk}/view/plot.png",
            f"/jobs/{job.pk}/image/plot.png",
            f"/jobs/{job.pk}/media/sound.wav",
            f"/jobs/{job.pk}/framed/page.html",
            f"/jobs/new?code={job.code_id}",
            f"/jobs/new?copy={job.pk}",
            f"/jobs/new/warnings?code={job.code_id}&environment=pytorch",
        ]

    def test_members_and_admins_see_a_job_strangers_get_404_and_visitors_must_sign_in(self, lab: Lab) -> None:
        job, attempt = lab.ended()
        stream = logs.open_stream(attempt.containers.get(), "0")
        logs.append(stream, 0, b"hello\n")
        outputs.store(attempt, "plot.png", [PNG])
        outputs.store(attempt, "sound.wav", [WAV])
        outputs.store(attempt, "page.html", [b"<p>x"])
        for path in self.paths(job, attempt):
            for user in (lab.alice, lab.bob, lab.admin):
                response = browser(user).get(path)
                assert response.status_code == 200, (path, user)
                body(response)
            assert browser(lab.charlie).get(path).status_code == 404, path
            answer = browser(None).get(path)
            assert answer.status_code == 302 and answer["Location"].startswith("/accounts/sign-in/"), path

    def test_lists_of_strangers_do_not_show_a_job(self, lab: Lab) -> None:
        job = lab.job(name="secret-name")
        for path in (
            "/",
            "/jobs/",
            "/jobs/?q=secret",
            f"/jobs/?project={lab.project.pk}",
            f"/jobs/?q={job.pk}",
            "/jobs/new",
        ):
            assert b"secret-name" not in browser(lab.charlie).get(path).content
        assert b"secret-name" in browser(lab.bob).get("/jobs/").content

    @pytest.mark.parametrize("what", ["cancel", "hold", "release", "retry"])
    def test_only_those_who_may_act_do(self, lab: Lab, what: str) -> None:
        job = lab.job()
        assert browser(lab.charlie).post(f"/jobs/{job.pk}/{what}").status_code == 404
        assert browser(None).post(f"/jobs/{job.pk}/{what}").status_code == 302
        browser(lab.bob).post(f"/jobs/{job.pk}/{what}")
        job.refresh_from_db()
        assert (job.intent, job.state, Job.objects.count()) == ("run", "QUEUED", 1)
        assert browser(lab.alice).get(f"/jobs/{job.pk}/{what}").status_code == 405

    def test_every_form_wants_its_token(self, lab: Lab) -> None:
        job = lab.job()
        client = Client(enforce_csrf_checks=True)
        client.force_login(lab.alice)
        for path in (f"/jobs/{job.pk}/cancel", "/jobs/selected", f"/jobs/new?code={lab.code.pk}"):
            assert client.post(path).status_code == 403


class TestList:
    def names(self, client: Client, query: str) -> list[str]:
        return [job.name for job in client.get(f"/jobs/?{query}").context["page"]]

    def test_it_filters_by_state_owner_project_and_words(self, lab: Lab) -> None:
        client = browser(lab.alice)
        lab.job(name="one")
        running, _ = lab.running(name="two")
        held = lab.job(name="three", submitted_by=lab.admin)
        services.hold(lab.alice, held)
        other = world.make_job(world.make_project(lab.alice, "other"), name="four")
        services.cancel(lab.alice, other)
        assert self.names(client, "") == ["four", "three", "two", "one"]
        assert self.names(client, "state=active") == ["three", "two", "one"]
        assert self.names(client, "state=running") == ["two"]
        assert self.names(client, "state=cancelled") == ["four"]
        assert self.names(client, "mine=1") == ["four", "two", "one"]
        assert self.names(client, f"project={other.project_id}") == ["four"]
        assert self.names(client, "q=THRE") == ["three"]
        assert self.names(client, "q=admin") == ["three"]
        assert self.names(client, f"q=%23{running.pk}") == ["two"]
        assert self.names(client, "state=nonsense&project=x&page=99&q=") == ["four", "three", "two", "one"]

    @pytest.mark.parametrize(
        "query", ["q=99999999999999999999", "project=99999999999999999999", "page=-1", "state=%27", "q=%25"]
    )
    def test_odd_queries_are_answered(self, lab: Lab, query: str) -> None:
        lab.job()
        assert browser(lab.alice).get(f"/jobs/?{query}").status_code == 200

    def test_pages_keep_the_query(self, lab: Lab) -> None:
        for number in range(30):
            lab.job(name=f"job {number}")
        page = browser(lab.alice).get("/jobs/?q=job").content.decode()
        assert "?q=job&amp;page=2" in page and "1–25 of 30 jobs" in page

    def test_many_are_cancelled_at_once_and_refusals_are_shown(self, lab: Lab) -> None:
        jobs = [lab.job() for _ in range(3)]
        services.cancel(lab.alice, jobs[2])
        foreign = world.make_job(world.make_project(lab.charlie))
        data = {"do": "cancel", "job": [str(job.pk) for job in (*jobs, foreign)], "next": "/jobs/?state=queued"}
        response = browser(lab.alice).post("/jobs/selected", data, follow=True)
        page = response.content.decode()
        assert response.redirect_chain == [("/jobs/?state=queued", 302)]
        assert "2 jobs were cancelled." in page and "already ended" in page
        foreign.refresh_from_db()
        assert foreign.intent == "run"
        assert browser(lab.alice).post("/jobs/selected", {"next": "https://evil.example/"})["Location"] == "/jobs/"
        assert browser(lab.alice).post("/jobs/selected", {"next": "//evil.example/"})["Location"] == "/jobs/"

    @pytest.mark.parametrize("path", ["/", "/jobs/", "/jobs/new", "/nodes/"])
    def test_more_jobs_cost_no_more_queries(self, lab: Lab, path: str) -> None:
        client = browser(lab.alice)

        def cost() -> int:
            with CaptureQueriesContext(
                connection,
            ) as queries:
                client.get(path)
            return len(queries)

        lab.job()
        lab.running()
        client.get(path)
        few = cost()
        for number in range(8):
            project = world.make_project(lab.alice, f"project {number}")
            world.make_job(project, submitted_by=lab.alice)
            job = world.make_job(project, submitted_by=lab.alice)
            world.place(job, list(world.make_node(gpus=2).gpus.all()))
        assert cost() <= few


class TestSubmit:
    def test_the_guess_is_filled_in_with_warnings(self, lab: Lab) -> None:
        response = browser(lab.alice).get(f"/jobs/new?code={lab.code.pk}")
        form = response.context["form"]
        assert (form["entry"].value(), form["launcher"].value(), form["elastic"].value()) == (
            "train.py",
            "horovod",
            True,
        )
        assert (form["min_gpus"].value(), form["max_gpus"].value(), form["environment"].value()) == (
            1,
            2,
            "pytorch-vision",  # the code imports pandas
        )
        page = response.content.decode()
        assert "Nothing is saved." in page and "does not have" not in page

    def test_an_environment_that_has_the_imports_is_chosen(self, lab: Lab) -> None:
        world.make_environment("pandas", ("torch", "horovod", "pandas"))
        assert (
            browser(lab.alice).get(f"/jobs/new?code={lab.code.pk}").context["form"]["environment"].value() == "pandas"
        )

    def test_another_environment_changes_the_warnings(self, lab: Lab) -> None:
        world.make_environment("pandas", ("torch", "pandas"))
        page = browser(lab.alice).get(f"/jobs/new/warnings?code={lab.code.pk}&environment=pandas").content.decode()
        assert "Nothing is saved." in page and "does not have" not in page
        page = browser(lab.alice).get(f"/jobs/new/warnings?code={lab.code.pk}&environment=pytorch").content.decode()
        assert "does not have" in page

    def test_sending_the_form_as_it_is_submits_the_job(self, lab: Lab) -> None:
        client = browser(lab.alice)
        data = form_of(client.get(f"/jobs/new?code={lab.code.pk}"))
        response = client.post(f"/jobs/new?code={lab.code.pk}", data)
        job = Job.objects.get()
        assert response["Location"] == f"/jobs/{job.pk}/"
        assert (job.entry, job.launcher, job.elastic, job.min_gpus, job.max_gpus) == ("train.py", "horovod", True, 1, 2)
        assert (job.time_limit_seconds, job.state, job.submitted_by) == (4 * 3600, JobState.QUEUED, lab.alice)

    def test_sent_twice_it_submits_once(self, lab: Lab) -> None:
        client = browser(lab.alice)
        data = form_of(client.get(f"/jobs/new?code={lab.code.pk}"))
        first, second = (client.post(f"/jobs/new?code={lab.code.pk}", data)["Location"] for _ in range(2))
        assert first == second and Job.objects.count() == 1

    def test_everything_under_more_arrives(self, lab: Lab) -> None:
        client = browser(lab.alice)
        data = form_of(client.get(f"/jobs/new?code={lab.code.pk}")) | {
            "arguments": "--name 'two words' --lr=0.1",
            "env_vars": "SEED=7\n\nPATH_LIKE=a=b\n",
            "retries": "2",
            "priority": "-3",
            "resumable": "on",
            "tier": "basic",
            "opportunistic": "on",
            "deadline": "2999-01-02T03:04",
            "mode": "bsp_balanced",
            "restarts_without_progress": "7",
            "silent_rank_minutes": "0",
            "name": "mine",
            "description": "a note",
            "time_amount": "90",
            "time_unit": "60",
        }
        client.post(f"/jobs/new?code={lab.code.pk}", data)
        job = Job.objects.get()
        assert job.arguments == ["--name", "two words", "--lr=0.1"]
        assert job.env_vars == {"SEED": "7", "PATH_LIKE": "a=b"}
        assert (job.resumable, job.tier, job.opportunistic) == (True, "basic", True)
        assert job.deadline == datetime(2999, 1, 2, 3, 4, tzinfo=UTC)
        assert job.mode == "bsp_balanced"
        assert (job.restarts_without_progress, job.silent_rank_minutes) == (7, 0)
        assert (job.retries, job.priority, job.name, job.description, job.time_limit_seconds) == (
            2,
            -3,
            "mine",
            "a note",
            5400,
        )

    def test_tags_are_taken_from_the_form_and_unfit_ones_refused_beside_them(self, lab: Lab) -> None:
        client, path = browser(lab.alice), f"/jobs/new?code={lab.code.pk}"
        data = form_of(client.get(path)) | {"launcher": "horovod", "entry": "train.py"}
        refused = client.post(path, data | {"tags": "fine <b>"})
        assert refused.status_code == 400 and "tags" in refused.context["form"].errors
        assert "&#x27;&lt;b&gt;&#x27; cannot be used" in refused.content.decode()
        assert not Job.objects.exists()
        client.post(path, data | {"tags": "Baseline, lr-0.1 baseline"})
        assert Job.objects.get().tags == ("baseline", "lr-0.1")

    def test_after_back_in_the_browser_the_form_submits_another_job(self, lab: Lab) -> None:
        client, path = browser(lab.alice), f"/jobs/new?code={lab.code.pk}"
        data = form_of(client.get(path)) | {"launcher": "horovod", "entry": "train.py"}
        client.post(path, data | {"arguments": "--lr 0.1"})
        client.post(path, data | {"arguments": "--lr 0.1"})
        assert Job.objects.count() == 1, "the same values are the same job"
        answer = client.post(path, data | {"arguments": "--lr 0.2"})
        assert "has already submitted job" in answer.content.decode()
        again = form_of(answer)
        assert again["arguments"] == "--lr 0.2" and again["key"] != data["key"]
        assert client.post(path, again).status_code == 302
        assert [job.arguments for job in Job.objects.order_by("pk")] == [["--lr", "0.1"], ["--lr", "0.2"]]

    def test_a_plain_command_needs_its_line_and_takes_it(self, lab: Lab) -> None:
        client = browser(lab.alice)
        data = form_of(client.get(f"/jobs/new?code={lab.code.pk}")) | {
            "launcher": "command",
            "command": "",
            "max_gpus": "1",
        }
        assert "Write the command line to run." in client.post(f"/jobs/new?code={lab.code.pk}", data).content.decode()
        client.post(f"/jobs/new?code={lab.code.pk}", data | {"command": "python train.py | tee log"})
        job = Job.objects.get()
        assert (job.launcher, job.entry, job.elastic) == ("command", "python train.py | tee log", False)

    def test_torchrun_may_be_elastic_too(self, lab: Lab) -> None:
        client = browser(lab.alice)
        data = form_of(client.get(f"/jobs/new?code={lab.code.pk}")) | {"launcher": "torchrun", "elastic": "on"}
        client.post(f"/jobs/new?code={lab.code.pk}", data)
        job = Job.objects.get()
        assert (job.launcher, job.elastic) == ("torchrun", True)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"max_gpus": "99"}, "The lab has 2 CPU slots."),
            ({"min_gpus": "2", "max_gpus": "1"}, "cannot be less than the minimum"),
            ({"min_gpus": "0"}, "greater than or equal to 1"),
            ({"env_vars": "LD_PRELOAD=x"}, "A job cannot set LD_PRELOAD"),
            ({"env_vars": "no equals sign"}, "Line 1 has no “=”"),
            ({"arguments": "'unclosed"}, "Check the quotes"),
            ({"time_amount": "31", "time_unit": "86400"}, "30 days"),
            ({"time_amount": "x"}, "whole number"),
            ({"entry": "nowhere.py"}, "not one of the available choices"),
            ({"environment": "nowhere"}, "not one of the available choices"),
            ({"launcher": "mpi"}, "not one of the available choices"),
            ({"key": ""}, "required"),
        ],
    )
    def test_an_error_is_shown_at_its_field_and_no_input_is_lost(
        self, lab: Lab, change: dict[str, str], message: str
    ) -> None:
        client = browser(lab.alice)
        data = form_of(client.get(f"/jobs/new?code={lab.code.pk}")) | {"description": "typed with care"} | change
        response = client.post(f"/jobs/new?code={lab.code.pk}", data)
        page = response.content.decode()
        assert response.status_code == 400 and Job.objects.count() == 0
        assert "typed with care" in page
        if "key" not in change:
            assert message in page and 'aria-invalid="true"' in page

    def test_a_viewer_sees_why_not(self, lab: Lab) -> None:
        client = browser(lab.bob)
        page = client.get(f"/jobs/new?code={lab.code.pk}")
        assert "Ask an owner to make you a member" in page.content.decode()
        response = client.post(f"/jobs/new?code={lab.code.pk}", form_of(page))
        assert response.status_code == 400 and Job.objects.count() == 0

    def test_a_copy_begins_with_everything_of_the_first(self, lab: Lab) -> None:
        first = lab.job(
            arguments=["a b", "c"],
            env_vars={"X": "1"},
            min_gpus=1,
            max_gpus=2,
            elastic=True,
            time_limit_seconds=5400,
            retries=1,
            priority=2,
            resumable=True,
            tier="basic",
            opportunistic=True,
            deadline=datetime(2999, 1, 2, 3, 4, tzinfo=UTC),
            restarts_without_progress=2,
            silent_rank_minutes=0,
            name="n",
            description="d",
        )
        client = browser(lab.alice)
        client.post(f"/jobs/new?copy={first.pk}", form_of(client.get(f"/jobs/new?copy={first.pk}")))
        second = Job.objects.latest("pk")
        assert second.copied_from == first and second.pk != first.pk
        assert submission_of(second) == submission_of(first)

    def test_limits_of_progress_that_are_left_empty_are_the_labs(self, lab: Lab, settings: Any) -> None:
        settings.RESTARTS_WITHOUT_PROGRESS, settings.SILENT_RANK_MINUTES = 4, 90
        client = browser(lab.alice)
        path = f"/jobs/new?code={lab.code.pk}"
        data = form_of(client.get(path))
        assert not any(data.get(name) for name in ("restarts_without_progress", "silent_rank_minutes"))
        client.post(path, data)
        job = Job.objects.get()
        assert (job.restarts_without_progress, job.silent_rank_minutes) == (None, None)
        page = compact(client.get(f"/jobs/{job.pk}/details/").content.decode())
        assert "<dd>after 1 h 30 min without output</dd>" in page
        assert ("<dd>fails after 4 in a row without progress</dd>" in page) == job.elastic
        own = lab.job(elastic=True, restarts_without_progress=1, silent_rank_minutes=0)
        page = compact(client.get(f"/jobs/{own.pk}/details/").content.decode())
        assert "<dt>Notice of silence</dt><dd>off</dd>" in page and "<dd>fails after 1 in a row" in page
        by_variable = lab.job(elastic=True, env_vars={"SCHEDULEARN_RING_RETRIES": "12"})
        assert "<dd>fails after 12 in a row" in compact(client.get(f"/jobs/{by_variable.pk}/details/").content.decode())

    @pytest.mark.parametrize(
        ("name", "value"),
        [("restarts_without_progress", "0"), ("silent_rank_minutes", "10081"), ("silent_rank_minutes", "x")],
    )
    def test_a_wrong_limit_of_progress_is_shown_at_its_field(self, lab: Lab, name: str, value: str) -> None:
        client = browser(lab.alice)
        path = f"/jobs/new?code={lab.code.pk}"
        response = client.post(path, form_of(client.get(path)) | {name: value})
        assert response.status_code == 400 and response.context["form"].errors.keys() == {name}
        assert response.context["form"].more_is_open

    @pytest.mark.parametrize(("limit", "shown"), [(7200, (2, 3600)), (150, (3, 60)), (10, (1, 60))])
    def test_a_copy_has_no_less_time(self, lab: Lab, limit: int, shown: tuple[int, int]) -> None:
        first = lab.job(time_limit_seconds=limit)
        form = browser(lab.alice).get(f"/jobs/new?copy={first.pk}").context["form"]
        assert (form["time_amount"].value(), form["time_unit"].value()) == shown

    def test_a_copy_can_use_newer_code(self, lab: Lab) -> None:
        first = lab.job()
        newer = world.make_code(lab.project, ("train.py",), "d" * 64)
        client = browser(lab.alice)
        assert "use the newest, version 2" in " ".join(
            client.get(f"/jobs/new?copy={first.pk}").content.decode().split()
        )
        path = f"/jobs/new?copy={first.pk}&code={newer.pk}"
        client.post(path, form_of(client.get(path)))
        assert Job.objects.latest("pk").code == newer

    def test_code_of_a_project_in_which_one_may_not_submit_is_not_offered(self, lab: Lab) -> None:
        assert "digits" not in browser(lab.bob).get("/jobs/new").content.decode()
        assert f"?code={lab.code.pk}" in browser(lab.alice).get("/jobs/new").content.decode()

    @pytest.mark.parametrize("query", ["code=x", "code=99999999999999999999", "copy=-1", "code=0"])
    def test_nonsense_in_the_address_is_404(self, lab: Lab, query: str) -> None:
        assert browser(lab.alice).get(f"/jobs/new?{query}").status_code == 404


class TestOneJob:
    def test_a_waiting_job_shows_why(self, lab: Lab) -> None:
        job = lab.job(waiting_reason="It needs 4 GPUs at once; 2 are free.", queue_position=3)
        page = " ".join(browser(lab.bob).get(f"/jobs/{job.pk}/").content.decode().split())
        assert "It needs 4 GPUs at once; 2 are free." in page and "number 3 in the queue" in page
        assert f"/jobs/{job.pk}/cancel" not in page  # bob may only look

    def test_a_running_job_shows_where(self, lab: Lab) -> None:
        job, _ = lab.running()
        page = " ".join(browser(lab.alice).get(f"/jobs/{job.pk}/").content.decode().split())
        assert "alpha" in page and "on 1 CPU slot" in page and f'data-url="/ws/jobs/{job.pk}/log/"' in page

    def test_a_failed_job_shows_the_cause_and_the_next_step(self, lab: Lab) -> None:
        job, attempt = lab.ended(code=1)
        cause = {
            "code": "x",
            "title": "A package is <missing>",
            "detail": "line 3",
            "advice": "Choose another environment.",
        }
        Attempt.objects.filter(pk=attempt.pk).update(cause=cause)
        page = browser(lab.alice).get(f"/jobs/{job.pk}/").content.decode()
        assert "A package is &lt;missing&gt;" in page and "Choose another environment." in page

    def test_it_shows_what_the_scheduler_may_do_with_it(self, lab: Lab) -> None:
        group = Group.objects.create(name="vision")
        job = lab.job(resumable=True, tier="basic", group=group, deadline=datetime(2999, 1, 2, 3, 4, tzinfo=UTC))
        response = browser(lab.alice).get(f"/jobs/{job.pk}/details/")
        page = " ".join(response.content.decode().split())
        assert "restarts from /checkpoints" in page and "basic; counts for the group vision" in page
        spec = json.loads(without_colours(response.context["spec"]))
        assert (spec["resumable"], spec["tier"], spec["deadline"]) == (True, "basic", "2999-01-02T03:04:00+00:00")

    def test_the_page_asks_again_only_while_something_may_change(self, lab: Lab) -> None:
        job, attempt = lab.ended()
        assert "hx-get" in browser(lab.alice).get(f"/jobs/{job.pk}/").content.decode()
        lab.job()
        attempt.containers.update(collected_at=attempt.containers.get().exited_at)
        page = browser(lab.alice).get(f"/jobs/{job.pk}/").content.decode()
        assert f"/jobs/{job.pk}/live" not in page

    def test_it_shows_that_outputs_are_still_on_their_way(self, lab: Lab) -> None:
        """A node sends them after the job has ended; thousands of small ones take minutes."""
        job, attempt = lab.ended()

        def page() -> str:
            return browser(lab.alice).get(f"/jobs/{job.pk}/files/").content.decode()

        assert "No files have arrived yet." in page() and "This job left no files." not in page()
        outputs.store(attempt, "1.txt", [b"x"])
        assert "The zip has only those that have arrived." in page()
        lab.node.removed_at = datetime.now(UTC)
        lab.node.save()
        assert "The zip has only" not in page(), "nothing more is expected of a node that has left"
        lab.node.removed_at = None
        lab.node.save()
        attempt.containers.update(collected_at=attempt.containers.get().exited_at)
        assert "The zip has only" not in page()

    def test_the_live_part_answers_nothing_when_nothing_has_changed(self, lab: Lab) -> None:
        client = browser(lab.alice)
        job = lab.job()
        edition = fetch_part(client, f"/jobs/{job.pk}/live")["Edition"]
        assert fetch_part(client, f"/jobs/{job.pk}/live", edition).status_code == 204
        services.hold(lab.alice, job)
        again = fetch_part(client, f"/jobs/{job.pk}/live", edition)
        assert again.status_code == 200 and "held" in again.content.decode()

    def test_acting_leads_back_to_the_job_and_shows_what_happened(self, lab: Lab) -> None:
        client = browser(lab.alice)
        job = lab.job()
        for what, state in (("hold", "HELD"), ("release", "QUEUED"), ("cancel", "CANCELLED")):
            response = client.post(f"/jobs/{job.pk}/{what}", follow=True)
            job.refresh_from_db()
            assert job.state == state and response.redirect_chain[-1][0] == f"/jobs/{job.pk}/"
            assert 'class="notice success"' in response.content.decode()
        response = client.post(f"/jobs/{job.pk}/cancel", follow=True)
        assert "already ended" in response.content.decode()
        response = client.post(f"/jobs/{job.pk}/retry", follow=True)
        copy = Job.objects.latest("pk")
        assert copy.copied_from == job and response.redirect_chain[-1][0] == f"/jobs/{copy.pk}/"

    def test_more_attempts_and_parts_cost_no_more_queries(self, lab: Lab) -> None:
        client = browser(lab.alice)
        job, attempt = lab.ended(code=1, retries=5)

        def cost() -> int:
            with CaptureQueriesContext(connection) as queries:
                client.get(f"/jobs/{job.pk}/")
            return len(queries)

        client.get(f"/jobs/{job.pk}/")
        few = cost()
        for code in (2, 3, 4):
            again = world.place(job, list(lab.node.gpus.all()))
            for part in again.containers.all():
                lifecycle.advance(part, "EXITED", exit_code=code, exit_reason="exited")
            job.refresh_from_db()
        for number in range(20):
            outputs.store(attempt, f"{number}.txt", [b"x"])
        assert cost() <= few


class TestDownloads:
    def stream(self, attempt: Attempt, name: str, data: bytes, marks: list[tuple[int, int]]) -> Any:
        stream = logs.open_stream(attempt.containers.get(), name, f"rank {name}")
        logs.append(stream, 0, data, marks)
        stream.refresh_from_db()
        return stream

    def test_the_log_as_text_is_merged_by_time_and_has_no_control_characters(self, lab: Lab) -> None:
        job, attempt = lab.running()
        self.stream(attempt, "0", b"\x1b[31mred\x1b[0m\nlast\n", [(0, 1000), (13, 3000)])
        self.stream(attempt, "1", b"10%\r100%\n\x1b]0;title\x07x\n", [(0, 2000)])
        response = browser(lab.bob).get(f"/jobs/{job.pk}/log.txt")
        assert body(response) == b"[rank 0] red\n[rank 1] 100%\n[rank 1] x\n[rank 0] last\n"
        timed = body(browser(lab.bob).get(f"/jobs/{job.pk}/log.txt?times=1")).decode().splitlines()
        assert timed[0] == "1970-01-01T00:00:01.000+00:00 [rank 0] red"

    def test_one_rank_comes_as_it_was_written(self, lab: Lab) -> None:
        job, attempt = lab.running()
        data = bytes(range(256)) * 1000
        stream = self.stream(attempt, "0", data, [])
        response = browser(lab.bob).get(f"/jobs/{job.pk}/streams/{stream.pk}.log")
        assert body(response) == data and response["Content-Length"] == str(len(data))
        other = lab.job()
        assert browser(lab.bob).get(f"/jobs/{other.pk}/streams/{stream.pk}.log").status_code == 404

    @pytest.mark.parametrize("attempt", ["1", "2", "x", "99999999999999999999"])
    def test_an_attempt_of_the_log(self, lab: Lab, attempt: str) -> None:
        job, placed = lab.running()
        self.stream(placed, "0", b"one\n", [])
        assert body(browser(lab.alice).get(f"/jobs/{job.pk}/log.txt?attempt={attempt}")) == (
            b"one\n" if attempt == "1" else b""
        )

    def test_all_outputs_come_in_one_zip(self, lab: Lab) -> None:
        job, attempt = lab.running()
        files = {"a.txt": b"a" * 200_000, "deep/er/b.bin": bytes(range(256)), "empty": b"", "ü ö.txt": b"x"}
        for path, data in files.items():
            outputs.store(attempt, path, [data] if data else [])
        response = browser(lab.bob).get(f"/jobs/{job.pk}/outputs.zip")
        with zipfile.ZipFile(io.BytesIO(body(response))) as archive:
            assert archive.testzip() is None
            assert {name: archive.read(name) for name in archive.namelist()} == files
        assert browser(lab.bob).get(f"/jobs/{lab.job().pk}/outputs.zip").status_code == 404

    @pytest.mark.parametrize("path", ["page.html", "image.svg", "script.js", 'quo"te\u202egpj.exe'])
    def test_no_output_is_ever_shown_as_a_page(self, lab: Lab, path: str) -> None:
        job, attempt = lab.running()
        evil = b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>"
        outputs.store(attempt, path, [evil])
        response = browser(lab.alice).get(f"/jobs/{job.pk}/outputs/{path}")
        assert body(response) == evil
        assert response["Content-Disposition"].startswith("attachment")
        assert response["Content-Type"] == "application/octet-stream"
        assert response["X-Content-Type-Options"] == "nosniff" and "sandbox" in response["Content-Security-Policy"]
        page = browser(lab.alice).get(f"/jobs/{job.pk}/view/{path}").content.decode()
        assert "<script>alert" not in page and "<script>alert" in without_colours(page)
        assert browser(lab.alice).get(f"/jobs/{job.pk}/image/{path}").status_code == 404

    def test_an_image_is_what_begins_like_one(self, lab: Lab) -> None:
        job, attempt = lab.running()
        outputs.store(attempt, "plot.txt", [PNG])
        response = browser(lab.alice).get(f"/jobs/{job.pk}/image/plot.txt")
        assert response["Content-Type"] == "image/png" and "sandbox" in response["Content-Security-Policy"]
        assert body(response).startswith(PNG[:8])
        assert (
            f"/jobs/{job.pk}/image/plot.txt" in browser(lab.alice).get(f"/jobs/{job.pk}/view/plot.txt").content.decode()
        )

    @pytest.mark.parametrize(
        ("data", "shown"),
        [
            (b"plain", "plain"),
            ("ü".encode() * 200_000, "ü"),
            (b"\xff\xfe\x00", None),
            (b"caf\xe9 and more text", "café and more text"),
        ],
    )
    def test_text_is_shown_and_anything_else_offered(self, lab: Lab, data: bytes, shown: str | None) -> None:
        job, attempt = lab.running()
        outputs.store(attempt, "file", [data] if data else [])
        response = browser(lab.alice).get(f"/jobs/{job.pk}/view/file")
        assert response.status_code == 200
        assert response.context["preview"]["kind"] == ("other" if shown is None else "text")
        if shown:
            assert response.context["preview"]["lines"][0].startswith(shown)

    @pytest.mark.parametrize("path", ["../../secret_key", "..%2f..%2fsecret_key", "nothing"])
    def test_no_path_leads_out(self, lab: Lab, path: str) -> None:
        job, attempt = lab.running()
        outputs.store(attempt, "file", [b"x"])
        for kind in ("outputs", "view", "image", "media", "framed"):
            assert browser(lab.alice).get(f"/jobs/{job.pk}/{kind}/{path}").status_code == 404
