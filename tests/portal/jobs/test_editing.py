"""Changes to jobs after they were submitted."""

from datetime import timedelta
from typing import Any

import pytest
from django.http import QueryDict
from django.utils import timezone

from portal.jobs import services
from portal.jobs.job_list import read_filter
from portal.jobs.models import Job
from portal.wake import wake_scheduler
from tests.laws.people import World, make_world
from tests.portal.api_client import Script

pytestmark = [pytest.mark.django_db, pytest.mark.both_databases]


@pytest.fixture
def world() -> World:
    return make_world()


@pytest.fixture
def wakes(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    seen: list[bool] = []

    def wake() -> None:
        seen.append(True)
        wake_scheduler()

    monkeypatch.setattr("portal.jobs.editing.wake_scheduler", wake)
    return seen


def patch(world: World, job: Job, role: str = "alice", **fields: Any) -> Any:
    return Script(world.users[role]).send("patch", f"jobs/{job.pk}/", fields)


def last_line(job: Job) -> str:
    return str(job.events.order_by("-seq")[0].sentence)


def test_a_waiting_job_changes_and_keeps_its_place(world: World, wakes: list[bool]) -> None:
    job = world.jobs["QUEUED"]
    Job.objects.filter(pk=job.pk).update(queue_position=3)
    deadline = (timezone.now() + timedelta(days=3)).replace(microsecond=0)
    fields: dict[str, Any] = {"name": "sweep 7", "description": "two\nlines", "tags": ["baseline", "lr-sweep"]}
    fields |= {"priority": 4, "time_limit_seconds": 7200, "deadline": deadline.isoformat().replace("+00:00", "Z")}
    answer = patch(world, job, **fields)
    assert answer.status_code == 200, answer.content
    shown = answer.json()
    assert {name: shown[name] for name in fields} == fields
    row = Job.objects.get(pk=job.pk)
    assert (row.submitted_at, row.queue_position, row.state, row.deadline) == (job.submitted_at, 3, "QUEUED", deadline)
    line = row.events.order_by("-seq")[0]
    assert (line.kind, line.actor) == ("edited", world.alice) and "time limit" in line.sentence
    assert "the description" in line.sentence and "two" not in line.sentence
    assert wakes


def test_a_job_is_found_by_its_new_name_and_tag(world: World) -> None:
    job = world.jobs["QUEUED"]
    patch(world, job, name="Zebra", tags=["striped"])
    found = Script(world.alice).get("jobs/?q=zebra&tags=striped").json()["results"]
    assert [row["id"] for row in found] == [job.pk]
    condition = read_filter(QueryDict("q=zebra"), world.alice).condition
    assert list(Job.objects.filter(condition)) == [job]


@pytest.mark.parametrize("state", ["SUCCEEDED", "FAILED", "CANCELLED"])
def test_labels_change_at_any_time_and_goals_do_not(world: World, wakes: list[bool], state: str) -> None:
    job = world.jobs[state]
    assert patch(world, job, name="a better name", tags=["kept"]).status_code == 200
    refused = patch(world, job, description="x", time_limit_seconds=600)
    assert refused.status_code == 409
    assert refused.json()["error"]["fields"]["time_limit_seconds"] == [
        "The time limit can only be changed while the job waits, and it has ended. "
        "Name, description and tags can still be changed."
    ]
    row = Job.objects.get(pk=job.pk)
    assert (row.name, row.tags, row.description) == ("a better name", ("kept",), job.description)
    assert not wakes


def test_a_running_job_keeps_its_goals_and_a_held_one_does_not(world: World) -> None:
    assert "it is running" in patch(world, world.running, priority=1).json()["error"]["message"]
    assert patch(world, world.jobs["HELD"], priority=1).json()["priority"] == 1


def test_a_job_that_has_run_gets_more_time_only_on_request(world: World) -> None:
    job = world.jobs["HELD"]
    Job.objects.filter(pk=job.pk).update(started_at=timezone.now())
    longer, shorter = job.time_limit_seconds + 60, job.time_limit_seconds - 60
    refused = patch(world, job, time_limit_seconds=longer)
    assert refused.status_code == 409 and "Ask for more time" in refused.json()["error"]["message"]
    assert patch(world, job, time_limit_seconds=shorter).json()["time_limit_seconds"] == shorter
    assert patch(world, job, role="ada", time_limit_seconds=longer).json()["time_limit_seconds"] == longer


def test_what_is_as_it_was_is_no_change(world: World, wakes: list[bool]) -> None:
    job = world.running
    lines = job.events.count()
    same: dict[str, Any] = {"priority": job.priority, "time_limit_seconds": job.time_limit_seconds, "deadline": None}
    assert patch(world, job, **same).status_code == 200
    assert patch(world, job).status_code == 200
    assert job.events.count() == lines and not wakes


def test_a_name_that_is_emptied_is_the_default_one(world: World) -> None:
    job = world.jobs["QUEUED"]
    patch(world, job, name="mine")
    assert patch(world, job, name="  ").json()["name"] not in ("", "mine")


def test_a_deadline_that_has_passed_blocks_no_other_change_and_can_be_removed(world: World) -> None:
    job = world.jobs["QUEUED"]
    Job.objects.filter(pk=job.pk).update(deadline=timezone.now() - timedelta(days=1))
    assert patch(world, job, priority=1).status_code == 200
    assert patch(world, job, deadline=None).json()["deadline"] is None
    assert "is gone" in last_line(job)


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"priority": 11}, "priority"),
        ({"priority": None}, "priority"),
        ({"time_limit_seconds": 9}, "time_limit_seconds"),
        ({"deadline": "2020-01-01T00:00:00Z"}, "deadline"),
        ({"deadline": "9999-12-31T00:00:00Z"}, "deadline"),
        ({"name": "x" * 81}, "name"),
        ({"tags": ["no spaces"]}, "tags"),
        ({"tags": [f"t{number}" for number in range(21)]}, "tags"),
        ({"description": "x" * 10_001}, "description"),
        ({"min_gpus": 2}, "min_gpus"),
        ({"state": "SUCCEEDED"}, "state"),
        ({"entry": "python evil.py"}, "entry"),
    ],
)
def test_nonsense_and_what_never_changes_are_refused(world: World, fields: dict[str, Any], name: str) -> None:
    job = world.jobs["QUEUED"]
    before = Job.objects.filter(pk=job.pk).values().get()
    refused = patch(world, job, **fields)
    assert refused.status_code == 400 and any(name in key for key in refused.json()["error"]["fields"])
    assert Job.objects.filter(pk=job.pk).values().get() == before
    assert not job.events.filter(kind="edited").exists()


def test_who_may_not_act_changes_nothing(world: World) -> None:
    for role, status in (("victor", 403), ("bob", 403), ("charlie", 404), ("ada", 200)):
        assert patch(world, world.jobs["QUEUED"], role, priority=5).status_code == status, role


def test_a_job_that_is_being_cancelled_keeps_its_goals(world: World) -> None:
    job = services.cancel(world.alice, world.jobs["QUEUED"])
    assert patch(world, job, priority=5).status_code == 409


def test_a_copy_has_the_changed_values(world: World) -> None:
    job = world.jobs["FAILED"]
    patch(world, job, tags=["kept"])
    copy = Script(world.alice).post(f"jobs/{job.pk}/retry/").json()
    assert copy["tags"] == ["kept"]


def test_a_name_with_invisible_characters_is_refused_but_a_copy_keeps_it(world: World) -> None:
    job = world.jobs["FAILED"]
    answer = patch(world, job, name="\u202eevil")
    assert answer.status_code == 400 and "invisible" in answer.json()["error"]["fields"]["name"][0]
    Job.objects.filter(pk=job.pk).update(name="from \u200bearlier")  # as earlier releases allowed
    again = Script(world.alice).send("post", f"jobs/{job.pk}/retry/", {})
    assert again.status_code == 201 and again.json()["name"] == "from \u200bearlier"
    assert patch(world, job, description="kept").status_code == 200


def test_tags_that_are_the_same_words_are_no_change(world: World) -> None:
    job = world.jobs["QUEUED"]
    patch(world, job, tags=["abc"])
    lines = job.events.count()
    for tags in (["ABC"], ["abc", "abc"]):
        assert patch(world, job, tags=tags).json()["tags"] == ["abc"]
    assert job.events.count() == lines
