"""The page that changes a job after it was submitted."""

from datetime import timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.test import Client
from django.utils import timezone

from portal import zones
from portal.jobs.models import Job
from tests.laws.people import World, make_world

pytestmark = pytest.mark.django_db


@pytest.fixture
def world() -> World:
    return make_world()


@pytest.fixture
def alice(client: Client, world: World) -> Client:
    client.force_login(world.alice)
    return client


def opened(client: Client, job: Job) -> dict[str, str]:
    """Return what the browser sends if the form is submitted as it was opened."""
    page = client.get(f"/jobs/{job.pk}/edit")
    form = page.context["form"]
    values = {name: form[name].value() for name in form.fields}
    shown = {name: form[name].field.widget.format_value(form[name].value()) for name in form.fields}
    hidden = page.content.decode().split('name="shown_values" value="')[1].split('"')[0]
    sent = {name: shown[name] for name, value in values.items() if value not in (None, "")}
    sent |= {"time_unit": str(values["time_unit"])} if "time_unit" in values else {}
    return {name: str(value) for name, value in sent.items()} | {"shown_values": hidden.replace("&quot;", '"')}


def send(client: Client, job: Job, **values: str) -> Any:
    return client.post(f"/jobs/{job.pk}/edit", values)


def test_a_waiting_job_is_changed_and_keeps_its_place(alice: Client, world: World) -> None:
    job = world.jobs["QUEUED"]
    values = opened(alice, job) | {"name": "sweep 7", "tags": "lr-sweep baseline", "priority": "3"}
    answer = send(alice, job, **values | {"time_amount": "90", "time_unit": "60"})
    assert answer.status_code == 302 and answer.url == f"/jobs/{job.pk}/"
    row = Job.objects.get(pk=job.pk)
    assert (row.name, list(row.tags), row.priority, row.time_limit_seconds) == (
        "sweep 7",
        ["lr-sweep", "baseline"],
        3,
        5400,
    )
    assert (row.submitted_at, row.queue_position) == (job.submitted_at, job.queue_position)


def test_values_that_the_form_shows_rounded_stay_as_they_are(alice: Client, world: World) -> None:
    job = world.jobs["QUEUED"]
    deadline = (timezone.now() + timedelta(days=2)).replace(second=41, microsecond=7)
    Job.objects.filter(pk=job.pk).update(time_limit_seconds=3601, deadline=deadline)
    assert send(alice, job, **opened(alice, job) | {"priority": "1"}).status_code == 302
    row = Job.objects.get(pk=job.pk)
    assert (row.time_limit_seconds, row.deadline, row.priority) == (3601, deadline, 1)


@pytest.mark.parametrize("state", ["RUNNING", "SUCCEEDED", "FAILED", "CANCELLED"])
def test_a_job_that_does_not_wait_has_only_its_labels(alice: Client, world: World, state: str) -> None:
    job = world.jobs[state]
    page = alice.get(f"/jobs/{job.pk}/edit")
    assert set(page.context["form"].fields) == {"name", "description", "tags"}
    assert "only while a job waits" in page.content.decode()
    assert send(alice, job, **opened(alice, job) | {"description": "kept for the paper"}).status_code == 302
    assert Job.objects.get(pk=job.pk).description == "kept for the paper"


def test_a_form_opened_while_the_job_waited_is_not_half_stored(alice: Client, world: World) -> None:
    job = world.jobs["QUEUED"]
    values = opened(alice, job) | {"name": "renamed", "priority": "5"}
    Job.objects.filter(pk=job.pk).update(state="RUNNING")
    answer = send(alice, job, **values)
    assert answer.status_code == 400 and "it is running" in answer.context["form"].errors["priority"][0]
    assert Job.objects.get(pk=job.pk).name == job.name
    assert send(alice, job, **values | {"priority": str(job.priority)}).status_code == 302
    assert Job.objects.get(pk=job.pk).name == "renamed"


def test_a_change_by_another_person_is_not_overwritten(alice: Client, world: World) -> None:
    job = world.jobs["QUEUED"]
    values = opened(alice, job) | {"priority": "5"}
    Job.objects.filter(pk=job.pk).update(priority=2)
    answer = send(alice, job, **values)
    assert answer.status_code == 409 and Job.objects.get(pk=job.pk).priority == 2
    assert "from “0” to “2”" in answer.content.decode()


def test_another_persons_deadline_is_shown_and_taken_over(alice: Client, world: World) -> None:
    job = world.jobs["QUEUED"]
    values = opened(alice, job) | {"priority": "5"}
    deadline = (timezone.now() + timedelta(days=2)).replace(second=0, microsecond=0)
    Job.objects.filter(pk=job.pk).update(deadline=deadline)
    answer = send(alice, job, **values)
    local = f"{timezone.localtime(deadline):%Y-%m-%dT%H:%M}"
    assert answer.status_code == 409 and f"from empty to “{local}”" in answer.content.decode()
    assert f'value="{local}"' in answer.content.decode()


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("priority", "99", "less than or equal to 10"),
        ("time_amount", "0", "Enter at least 1."),
        ("time_amount", "99999", "30 days"),
        ("tags", " ".join(f"tag{number}" for number in range(40)), "tags"),
        ("deadline", "2001-01-01T00:00", "has passed"),
    ],
)
def test_a_wrong_value_is_named_at_its_field(
    alice: Client, world: World, field: str, value: str, sentence: str
) -> None:
    job = world.jobs["QUEUED"]
    answer = send(alice, job, **opened(alice, job) | {field: value, "time_unit": "3600"})
    assert answer.status_code == 400
    assert sentence in str(answer.context["form"].errors[field]), answer.context["form"].errors
    assert Job.objects.get(pk=job.pk).priority == job.priority


def test_only_those_who_may_act_see_the_button(client: Client, world: World) -> None:
    job = world.jobs["QUEUED"]
    for role, sees in {"alice": True, "ada": True, "bob": False, "victor": False}.items():
        client.force_login(world.users[role])
        assert (f'href="/jobs/{job.pk}/edit"' in client.get(f"/jobs/{job.pk}/").content.decode()) is sees, role


def test_another_persons_change_beside_ones_own_is_kept_with_it(alice: Client, world: World) -> None:
    job = world.jobs["QUEUED"]
    values = opened(alice, job) | {"description": "mine"}
    Job.objects.filter(pk=job.pk).update(name="theirs")
    answer = send(alice, job, **values)
    page = answer.content.decode()
    assert answer.status_code == 409 and "save it again to keep both" in page and 'value="theirs"' in page
    hidden = page.split('name="shown_values" value="')[1].split('"')[0].replace("&quot;", '"')
    assert send(alice, job, **values | {"name": "theirs", "shown_values": hidden}).status_code == 302
    row = Job.objects.get(pk=job.pk)
    assert (row.name, row.description) == ("theirs", "mine")


def test_a_form_opened_by_another_clock_is_not_stale(alice: Client, world: World) -> None:
    """The first page of a visit is by the lab's clock, before the browser has sent its zone."""
    job = world.jobs["QUEUED"]
    deadline = (timezone.now() + timedelta(days=2)).replace(second=0, microsecond=0)
    Job.objects.filter(pk=job.pk).update(deadline=deadline)
    values = opened(alice, job) | {"deadline_zone": "UTC"}
    alice.cookies[zones.COOKIE] = "Asia/Tokyo"
    later = deadline + timedelta(hours=1)
    assert send(alice, job, **values | {"deadline": f"{later:%Y-%m-%dT%H:%M}"}).status_code == 302
    assert Job.objects.get(pk=job.pk).deadline == later
    # What someone else changed meanwhile is shown by the present clock, with its zone.
    Job.objects.filter(pk=job.pk).update(deadline=deadline)
    answer = send(alice, job, **values | {"priority": "3", "deadline": values["deadline"]})
    assert answer.status_code == 302 and Job.objects.get(pk=job.pk).deadline == deadline
    Job.objects.filter(pk=job.pk).update(deadline=later)
    page = send(alice, job, **values | {"priority": "4"}).content.decode()
    tokyo = f"{later.astimezone(ZoneInfo('Asia/Tokyo')):%Y-%m-%dT%H:%M}"
    assert f'value="{tokyo}"' in page and 'name="deadline_zone" value="Asia/Tokyo"' in page
