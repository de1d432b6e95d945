"""Notices of a lab whose programs are all killed, one after the other: each arrives, exactly once by its id.

Everything is real: a server for mail, one for webhooks, and the programs of a lab on PostgreSQL and Redis.
"""

import base64
import hashlib
import hmac
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.portal.notifications.servers import Request, Sink, mail_sink, web_sink
from tests.system.docker_lab import docker_lab, engine
from tests.system.product import Product, wait_for

pytestmark = [pytest.mark.system, pytest.mark.thorough, pytest.mark.timeout(1800)]

PEOPLE = 8
QUIET, TROUBLED = 0, 1
"""A person with quiet hours, and one of whose channels some fail."""
PROGRAMS = ("web", "scheduler", "worker", "agent")
ARRIVE_SECONDS = 300
"""The lease of a message whose sender was killed is three minutes (``portal.notifications.delivery``)."""
SCRIPT = "print('hello')\n"
SEED = """
import json
from datetime import timedelta
from django.utils import timezone
from portal.accounts.models import ApiToken, User
from portal.notifications import services
from portal.notifications.models import NotificationSettings, Preferences
NotificationSettings.objects.create(pk=1, allowed_hosts=["127.0.0.1"])
def add(user, path):
    return services.add_channel(user, "webhook", path, {{"url": f"http://127.0.0.1:{port}/{{path}}"}})[1]
people = [User.objects.create_user(f"person{{number}}", f"person{{number}}@example.org") for number in range({people})]
secrets = [add(user, user.username) for user in people]
hours = [(timezone.now() + timedelta(hours=each)).time() for each in (-2, 2)]
Preferences.objects.create(user=people[{quiet}], zone="UTC", quiet_from=hours[0], quiet_until=hours[1])
for path in ("gone", "busy"):
    add(people[{troubled}], path)
tokens = [ApiToken.issue(user, "system test")[1] for user in people]
print("FOUND", json.dumps([tokens, secrets]))
"""
REPORT = """
import json
from portal.notifications.models import Channel, Delivery, Notice
rows = Delivery.objects.filter(lead=None).order_by("pk")
print("FOUND", json.dumps({
    "to expand": Notice.objects.filter(expanded_at=None).count(),
    "deliveries": [
        {"uid": str(row.uid), "person": row.notice.user.username, "job": row.notice.job_id, "status": row.status,
         "place": row.channel.name if row.channel else "mail", "due": row.due_at.isoformat()}
        for row in rows.select_related("notice__user", "channel")],
    "troubles": list(Notice.objects.filter(kind="trouble").values_list("user__username", flat=True)),
    "paused": list(Channel.objects.exclude(paused_at=None).values_list("name", flat=True)),
}))
"""


@dataclass
class World:
    lab: Product
    mails: Sink
    hooks: Sink
    busy: list[int]
    """Requests that the receiver "busy" has refused so far, as one number."""
    tokens: list[str]
    secrets: list[str]

    def report(self) -> dict[str, Any]:
        found: dict[str, Any] = printed(self.lab, REPORT)
        return found

    def nothing_is_due(self) -> bool:
        found, now = self.report(), datetime.now(UTC)
        waiting = [row for row in found["deliveries"] if row["status"] == "waiting"]
        return not found["to expand"] and all(
            (datetime.fromisoformat(row["due"]) - now).total_seconds() > 900 for row in waiting
        )


def printed(lab: Product, code: str) -> Any:
    return json.loads(lab.shell(code).partition("FOUND ")[2])


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    refused = [0]

    def gone(handler: Any) -> None:
        handler.send_response(410)
        handler.end_headers()

    def busy(handler: Any) -> None:
        handler.send_response(503 if refused[0] < 1 else 200)
        refused[0] += 1
        handler.end_headers()

    with (
        mail_sink() as mails,
        web_sink({"/gone": gone, "/busy": busy}) as hooks,
        engine() as docker,
        docker_lab(
            docker,
            tmp_path,
            EMAIL_BACKEND="django.core.mail.backends.smtp.EmailBackend",
            EMAIL_HOST="127.0.0.1",
            EMAIL_PORT=str(mails.port),
            SITE_URL="https://lab.example.org",
        ) as lab,
    ):
        seeded = SEED.format(port=hooks.port, people=PEOPLE, quiet=QUIET, troubled=TROUBLED)
        tokens, secrets = printed(lab, seeded)
        yield World(lab, mails, hooks, refused, tokens, secrets)


def test_each_notice_arrives_once_while_every_program_is_killed(world: World) -> None:
    kills, jobs = Counter[str](), {}
    for number, token in enumerate(world.tokens):
        own = replace(world.lab, token=token)
        jobs[f"person{number}"] = own.submit(own.upload(f"of person {number}", hello=SCRIPT), "python hello.py")
        victim = PROGRAMS[number % len(PROGRAMS)]
        # The later rounds kill when the job has ended and its notices are on their way.
        states = ("STARTING", "RUNNING", "SUCCEEDED") if number < PEOPLE / 2 else ("SUCCEEDED",)
        own.wait_for_job(jobs[f"person{number}"], *states)
        world.lab.kill(victim)
        kills[victim] += 1
        world.lab.start(victim)
        own.succeeds(jobs[f"person{number}"])
    assert kills == dict.fromkeys(PROGRAMS, PEOPLE // len(PROGRAMS))
    wait_for("all that is due has been sent", world.nothing_is_due, ARRIVE_SECONDS, every=2)

    found = world.report()
    rows = {row["uid"]: row for row in found["deliveries"]}
    places = {(row["person"], row["job"], row["place"]) for row in rows.values()}
    quiet = f"person{QUIET}"
    expected = {(name, job, place) for name, job in jobs.items() for place in ("mail", name)}
    expected |= {(f"person{TROUBLED}", jobs[f"person{TROUBLED}"], place) for place in ("gone", "busy")}
    assert places == expected and len(rows) == len(expected), "one for each place of each job"
    unsent = {(row["person"], row["place"], row["status"]) for row in rows.values() if row["status"] != "sent"}
    assert unsent == {(quiet, "mail", "waiting"), (f"person{TROUBLED}", "gone", "gave_up")}, (
        "webhooks have no quiet hours"
    )
    assert found["paused"] == ["gone"] and found["troubles"] == [f"person{TROUBLED}"]

    sent = Counter({uid: 0 for uid, row in rows.items() if row["status"] == "sent"})
    for mail in world.mails.mails:
        uid = str(mail["Message-ID"]).strip("<>").partition("@")[0]
        assert mail["To"] == f"{rows[uid]['person']}@example.org" and f"/jobs/{rows[uid]['job']}/" in plain(mail)
        sent[uid] += 1
    for request in world.hooks.requests:
        uid = request.headers["webhook-id"]
        assert request.path.strip("/") == rows[uid]["place"]
        if request.path not in ("/gone", "/busy"):
            assert signed(request, world.secrets[int(rows[uid]["person"].removeprefix("person"))])
            sent[uid] += 1
    assert world.busy == [2], "refused once, and delivered at the next attempt"
    repeated = [uid for uid, times in sent.items() if times > 1]
    assert len(repeated) <= kills["worker"], "only what the worker had sent when it was killed"
    assert not [uid for uid, times in sent.items() if times == 0 and rows[uid]["place"] not in ("gone", "busy")]


def plain(mail: Any) -> str:
    return "".join(
        str(part.get_payload(decode=True), "utf-8") for part in mail.walk() if part.get_content_type() == "text/plain"
    )


def signed(request: Request, secret: str) -> bool:
    """Return whether a receiver that knows the secret believes a request (Standard Webhooks)."""
    head = f"{request.headers['webhook-id']}.{request.headers['webhook-timestamp']}.".encode()
    key = base64.b64decode(secret.removeprefix("whsec_"))
    wanted = base64.b64encode(hmac.new(key, head + request.body, hashlib.sha256).digest()).decode()
    return f"v1,{wanted}" in request.headers["webhook-signature"].split()
