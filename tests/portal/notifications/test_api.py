"""Notices and webhooks over REST."""

from typing import Any

import pytest
from django.utils import timezone

from portal.accounts.models import User
from portal.jobs.models import Job
from portal.notifications import kinds
from portal.notifications.messages import JobSucceeded
from portal.notifications.models import Channel, Notice
from portal.projects.models import Project
from tests.portal import jobs_world as world
from tests.portal.api_client import Script
from tests.portal.outbox import Receiver, deliver

pytestmark = pytest.mark.django_db
HOOK = "https://hooks.example.org/x"


def json_of(response: Any, status: int = 200) -> Any:
    assert response.status_code == status, response.content
    return response.json()


def send(script: Script, method: str, address: str, **body: Any) -> Any:
    return getattr(script, method)(f"/api/v1/{address}", body, content_type="application/json")


def test_a_webhook_is_registered_tested_and_its_deliveries_are_sent_again(
    alice: User, project: Project, receiver: Receiver
) -> None:
    script, base = Script(alice), f"projects/{project.pk}/webhooks/"
    made = json_of(send(script, "post", base, url=HOOK, events=["job.ended", "job.submitted"]), 201)
    assert made["secret"].startswith("whsec_") and made["host"] == "hooks.example.org"
    assert made["events"] == ["job.submitted", "job.ended"]
    one = f"{base}{made['id']}/"
    assert "secret" not in json_of(script.get(f"/api/v1/{one}"))
    json_of(send(script, "post", f"{one}test/"), 202)
    deliver(sender=receiver)
    [row] = json_of(script.get(f"/api/v1/{one}deliveries/"))["results"]
    assert (row["status"], row["event"], row["uid"]) == ("sent", "test", str(receiver.requests[0].uid))
    again = json_of(send(script, "post", f"{one}deliveries/{row['id']}/again/"), 202)
    assert again["status"] == "waiting"
    deliver(sender=receiver)
    assert len({each.uid for each in receiver.requests}) == 1 and len(receiver.requests) == 2
    assert json_of(send(script, "patch", one, events=["job.idle"]))["events"] == ["job.idle"]
    assert script.delete(f"/api/v1/{one}").status_code == 204 and not Channel.objects.exists()


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"url": "https://127.0.0.1/", "events": ["job.ended"]}, "url"),
        ({"url": "http://hooks.example.org/", "events": ["job.ended"]}, "url"),
        ({"url": HOOK, "events": []}, "events"),
        ({"url": HOOK, "events": ["job.exploded"]}, "events.0"),
        ({"url": HOOK, "events": ["job.ended"], "secret": "mine"}, "secret"),
    ],
)
def test_what_is_wrong_is_named(alice: User, project: Project, body: dict[str, Any], field: str) -> None:
    error = json_of(send(Script(alice), "post", f"projects/{project.pk}/webhooks/", **body), 400)["error"]
    assert field in error["fields"], error


def test_notices_are_listed_and_marked(alice: User, job: Job) -> None:
    content = JobSucceeded(job.pk, "train", "digits", 60).data()
    rows = [
        Notice(kind=kinds.ENDED, user=alice, job=job, content=content, shown=True, expanded_at=timezone.now())
        for _ in range(3)
    ]
    made = Notice.objects.bulk_create(rows)
    bob = world.make_user("bob")
    script = Script(alice)
    found = json_of(script.get("/api/v1/notices/"))
    assert found["count"] == 3 and found["results"][0]["title"] == f"Job {job.pk} “train” succeeded"
    assert json_of(send(Script(bob), "post", "notices/read/", ids=[made[0].pk])) == {"marked": 0}
    assert json_of(send(script, "post", "notices/read/", ids=[made[0].pk])) == {"marked": 1}
    assert json_of(send(script, "post", "notices/read/")) == {"marked": 2}
