"""The pages and the API of schedules: who sees them, who may change them, and what is refused."""

from datetime import time
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from portal.accounts.models import User
from portal.jobs.models import Job
from portal.projects.models import Membership
from portal.schedules import services
from portal.schedules.models import Schedule, ScheduleRun
from tests.portal.api_client import Script
from tests.portal.jobs_world import make_job, make_project, make_user

pytestmark = [pytest.mark.django_db, pytest.mark.both_databases]
FORM = {
    "name": "nightly",
    "at": "02:00",
    "zone": "Europe/Berlin",
    "weekdays": ["0", "1", "2", "3", "4"],
    "newest_code": "yes",
    "overlap": "skip",
    "max_late_hours": "6",
}


class Lab:
    def __init__(self) -> None:
        self.alice, self.bob, self.victor = make_user("alice"), make_user("bob"), make_user("victor")
        self.charlie, self.ada = make_user("charlie"), make_user("ada", is_staff=True)
        self.project = make_project(self.alice)
        for user, role in ((self.bob, "member"), (self.victor, "viewer")):
            Membership.objects.create(project=self.project, user=user, role=role)
        self.job: Job = make_job(self.project, launcher="command", entry="true", env_vars={"TOKEN": "canary"})
        self.row = services.create(self.bob, self.job, {"at": time(2), "zone": "Europe/Berlin", "name": "of bob"})

    def send(self, user: User, path: str, data: Any = None) -> Any:
        client = Client()
        client.force_login(user)
        return client.get(path) if data is None else client.post(path, data)


@pytest.fixture
def lab() -> Lab:
    return Lab()


def text_of(response: Any) -> str:
    return " ".join(response.content.decode().split())


def test_a_schedule_is_made_from_the_page_of_a_job(lab: Lab) -> None:
    assert f"/schedules/new?job={lab.job.pk}" in text_of(lab.send(lab.alice, f"/jobs/{lab.job.pk}/"))
    page = text_of(lab.send(lab.alice, f"/schedules/new?job={lab.job.pk}"))
    assert 'value="02:00"' in page and lab.job.name in page
    assert lab.send(lab.alice, f"/schedules/new?job={lab.job.pk}", FORM).status_code == 302
    row = Schedule.objects.get(name="nightly")
    assert (row.owner, row.weekdays, row.zone, row.code) == (lab.alice, "01234", "Europe/Berlin", None)
    shown = text_of(lab.send(lab.alice, f"/schedules/{row.pk}/"))
    assert "Monday to Friday at 02:00 by the clocks of Europe/Berlin" in shown and "It has not run yet" in shown


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("zone", "Mars/Olympus", "knows no time zone"),
        ("weekdays", [], "at least one day"),
        ("at", "25:00", "Enter a valid time"),
        ("max_late_hours", "24", "less than or equal to 23"),
        ("overlap", "burst", "Select a valid choice"),
        ("name", "a\u202eb", "character"),
    ],
)
def test_wrong_values_are_refused_at_their_field(lab: Lab, field: str, value: Any, words: str) -> None:
    answer = lab.send(lab.alice, f"/schedules/new?job={lab.job.pk}", FORM | {field: value})
    assert answer.status_code == 400 and words in text_of(answer)
    assert not Schedule.objects.filter(owner=lab.alice).exists()


def test_viewers_see_and_do_not_make_and_strangers_see_nothing(lab: Lab) -> None:
    address = f"/schedules/new?job={lab.job.pk}"
    assert "You may only view this project" in text_of(lab.send(lab.victor, address))
    assert lab.send(lab.victor, address, FORM).status_code == 400
    for path in (address, f"/schedules/{lab.row.pk}/", f"/projects/{lab.project.pk}/schedules"):
        assert lab.send(lab.charlie, path).status_code == 404
        assert lab.send(lab.victor, path).status_code == 200
    for path in ("/schedules/new", "/schedules/new?job=x", "/schedules/new?job=99999999"):
        assert lab.send(lab.alice, path).status_code == 404


def test_only_its_owner_edits_and_others_may_at_most_stop_it(lab: Lab) -> None:
    edit = f"/schedules/{lab.row.pk}/edit"
    for user in (lab.alice, lab.victor, lab.ada, lab.charlie):
        assert lab.send(user, edit).status_code == 404, "jobs run as Bob: no one else decides what they are"
    assert lab.send(lab.bob, edit, FORM | {"at": "03:30"}).status_code == 302
    lab.row.refresh_from_db()
    assert lab.row.at == time(3, 30)
    for user, paused in ((lab.victor, False), (lab.alice, True)):
        lab.send(user, f"/schedules/{lab.row.pk}/pause", {})
        lab.row.refresh_from_db()
        assert bool(lab.row.paused_at) == paused
    lab.send(lab.alice, f"/schedules/{lab.row.pk}/resume", {})
    lab.row.refresh_from_db()
    assert lab.row.paused_at, "only Bob resumes it"
    lab.send(lab.bob, f"/schedules/{lab.row.pk}/resume", {})
    lab.row.refresh_from_db()
    assert lab.row.paused_at is None
    lab.send(lab.victor, f"/schedules/{lab.row.pk}/delete", {})
    assert Schedule.objects.exists()
    lab.send(lab.ada, f"/schedules/{lab.row.pk}/delete", {})
    assert not Schedule.objects.exists()


def test_lists_have_ones_own_and_for_admins_all(lab: Lab) -> None:
    assert "of bob" in text_of(lab.send(lab.bob, "/schedules/"))
    assert "of bob" not in text_of(lab.send(lab.alice, "/schedules/"))
    assert "of bob" not in text_of(lab.send(lab.alice, "/schedules/?all=1")), "only admins list all"
    assert "of bob" in text_of(lab.send(lab.ada, "/schedules/?all=1"))
    assert "of bob" in text_of(lab.send(lab.alice, f"/projects/{lab.project.pk}/schedules"))


def test_its_page_shows_the_runs_and_no_variables(lab: Lab) -> None:
    now = timezone.now()
    ScheduleRun.objects.create(schedule=lab.row, date=now.date(), due_at=now, result="refused", why="No room.")
    shown = text_of(lab.send(lab.victor, f"/schedules/{lab.row.pk}/"))
    assert "refused: No room." in shown and "canary" not in shown


def test_one_person_has_a_bounded_number(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "MAX_SCHEDULES", 1)
    answer = Script(lab.bob).send("post", "schedules/", {"job": lab.job.pk, "at": "02:00", "zone": "UTC"})
    assert answer.status_code == 429


def test_a_script_makes_changes_pauses_and_deletes_one(lab: Lab) -> None:
    alice = Script(lab.alice)
    made = alice.send(
        "post", "schedules/", {"job": lab.job.pk, "at": "02:00", "zone": "Asia/Tokyo", "weekdays": [6, 0]}
    )
    assert made.status_code == 201, made.json()
    body = made.json()
    assert body["weekdays"] == [0, 6] and body["at"] == "02:00" and body["code"] is None and body["owner"] == "alice"
    assert "canary" not in made.content.decode()
    address = f"schedules/{body['id']}/"
    changed = alice.send("patch", address, {"at": "04:15", "newest_code": False})
    assert (changed.json()["at"], changed.json()["code"]) == ("04:15", lab.job.code.number)
    assert alice.send("post", f"{address}pause/").json()["paused"] is True
    assert alice.send("post", f"{address}resume/").json()["paused"] is False
    assert alice.send("get", f"{address}runs/").json()["results"] == []
    assert [row["id"] for row in alice.send("get", "schedules/?mine=true").json()["results"]] == [body["id"]]
    assert alice.send("delete", address).status_code == 204
    assert alice.send("get", address).status_code == 404


@pytest.mark.parametrize(
    "data",
    [
        {"at": "02:00", "zone": "UTC"},
        {"job": 1, "zone": "UTC"},
        {"at": "2 o'clock", "zone": "UTC"},
        {"at": "02:00", "zone": "Mars"},
        {"at": "02:00", "zone": "UTC", "weekdays": [7]},
        {"at": "02:00", "zone": "UTC", "weekdays": []},
        {"at": "02:00", "zone": "UTC", "cron": "* * * * *"},
    ],
)
def test_wrong_requests_are_refused(lab: Lab, data: dict[str, Any]) -> None:
    sent = data if "job" not in data and data == {"at": "02:00", "zone": "UTC"} else {"job": lab.job.pk, **data}
    if sent.get("job") == 1:
        sent["job"] = lab.job.pk
    assert Script(lab.alice).send("post", "schedules/", sent).status_code == 400


def test_others_cannot_act_by_script(lab: Lab) -> None:
    address = f"schedules/{lab.row.pk}/"
    for user, status in ((lab.victor, 403), (lab.charlie, 404)):
        script = Script(user)
        assert script.send("patch", address, {"name": "x"}).status_code == status
        assert script.send("post", f"{address}pause/").status_code == status
        assert script.send("delete", address).status_code == status
    assert Script(lab.ada).send("patch", address, {"name": "x"}).status_code == 403
    assert Script(lab.alice).send("post", f"{address}resume/").status_code == 403


def test_fields_are_taken_from_jobs_of_the_same_project_only(lab: Lab) -> None:
    other = make_job(make_project(lab.bob, "other"), launcher="command", entry="rm -rf")
    same = make_job(lab.project, launcher="command", entry="echo two", submitted_by=lab.bob)
    script = Script(lab.bob)
    assert script.send("patch", f"schedules/{lab.row.pk}/", {"job": other.pk}).status_code == 400
    assert script.send("patch", f"schedules/{lab.row.pk}/", {"job": same.pk}).json()["entry"] == "echo two"


def test_its_owner_submits_its_job_now_and_the_next_run_stays(lab: Lab) -> None:
    before = lab.row.next_run_at
    services.pause(lab.bob, lab.row)
    answer = lab.send(lab.bob, f"/schedules/{lab.row.pk}/submit", {})
    job = Job.objects.order_by("-pk")[0]
    assert answer["Location"] == f"/jobs/{job.pk}/" and (job.submitted_by, job.entry) == (lab.bob, "true")
    services.resume(lab.bob, lab.row)
    sent = Script(lab.bob).post(f"schedules/{lab.row.pk}/submit/")
    assert sent.status_code == 201 and sent.json() == {"job": Job.objects.order_by("-pk")[0].pk}
    lab.row.refresh_from_db()
    assert lab.row.next_run_at == before and not lab.row.runs.exists()
    for user in (lab.alice, lab.victor, lab.ada):
        assert Script(user).post(f"schedules/{lab.row.pk}/submit/").status_code == 403
    assert Job.objects.count() == 3
