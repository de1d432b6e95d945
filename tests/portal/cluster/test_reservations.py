"""The calendar of reserved GPUs: what it accepts, who sees what, and that the scheduler keeps to it."""

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import IntegrityError, connection, transaction
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from portal.accounts.models import AuditEntry, User
from portal.cluster import reservations
from portal.cluster.models import Reservation
from portal.refused import Refused
from portal.scheduler import snapshot
from tests.portal import jobs_world as world
from tests.portal.control_world import queue, ready_node, turn

pytestmark = [pytest.mark.django_db, pytest.mark.both_databases]
HOUR = timedelta(hours=1)


@pytest.fixture
def ada() -> User:
    return world.make_user("ada", is_staff=True)


def ask(
    ada: User, node: Any, gpus: int = 2, start: timedelta = -HOUR, end: timedelta = HOUR, **more: Any
) -> Reservation:
    now = timezone.now()
    more.setdefault("users", [ada])
    return reservations.reserve(ada, name="Course", node=node, gpus=gpus, start=now + start, end=now + end, **more)


def test_it_is_kept_and_audited(ada: User) -> None:
    row = ask(ada, ready_node("alpha", 4))
    assert reservations.owner_ids(row) == {ada.pk}
    entry = AuditEntry.objects.get(action="reservation.made")
    assert entry.after["node"] == "alpha" and entry.after["for"] == ["ada"]


def test_the_same_request_twice_makes_one_reservation(ada: User) -> None:
    node, start = ready_node("alpha", 4), timezone.now()
    group = Group.objects.create(name="course")

    def reserve(name: str = "Course", **more: Any) -> Reservation:
        asked: dict[str, Any] = {
            "gpus": 1,
            "start": start,
            "end": start + HOUR,
            "users": [ada],
            "groups": [group],
        } | more
        return reservations.reserve(ada, name=name, node=node, **asked)

    first = reserve()
    assert reserve() == first and AuditEntry.objects.filter(action="reservation.made").count() == 1
    others = [reserve("Deadline"), reserve(groups=[]), reserve(end=start + 2 * HOUR)]
    assert len({first, *others}) == 4 == Reservation.objects.count()


def test_the_same_request_makes_another_once_the_first_is_cancelled_or_old(ada: User) -> None:
    node, start = ready_node("alpha", 4), timezone.now()

    def reserve() -> Reservation:
        return reservations.reserve(ada, name="Course", node=node, gpus=1, start=start, end=start + HOUR, users=[ada])

    first = reserve()
    reservations.cancel(ada, first)
    second = reserve()
    Reservation.objects.filter(pk=second.pk).update(created_at=start - 2 * reservations.RESENT_WITHIN)
    assert len({first, second, reserve()}) == 3


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"gpus": 5}, "gpus"),
        ({"end": -2 * HOUR}, "end"),
        ({"start": -3 * HOUR, "end": -2 * HOUR}, "end"),
        ({"end": 100 * 24 * HOUR}, "end"),
        ({"users": []}, "users"),
    ],
)
def test_what_cannot_be_reserved_is_refused_in_words(ada: User, more: dict[str, Any], field: str) -> None:
    with pytest.raises(Refused) as refused:
        ask(ada, ready_node("alpha", 4), **more)
    assert refused.value.field == field and refused.value.message.endswith(".")
    assert not Reservation.objects.exists()


def test_no_moment_has_more_reserved_than_there_is(ada: User) -> None:
    node = ready_node("alpha", 4)
    ask(ada, node, 3, HOUR, 2 * HOUR)
    ask(ada, node, 3, 2 * HOUR, 3 * HOUR)
    with pytest.raises(Refused, match="only 1 of 4 CPU slots"):
        ask(ada, node, 2, timedelta(0), 4 * HOUR)
    ask(ada, node, 1, timedelta(0), 4 * HOUR)


def test_a_cancelled_one_makes_room(ada: User) -> None:
    node = ready_node("alpha", 4)
    row = ask(ada, node, 4)
    reservations.cancel(ada, row)
    reservations.cancel(ada, row)
    ask(ada, node, 4)
    assert AuditEntry.objects.filter(action="reservation.cancelled").count() == 1


def test_the_database_refuses_one_that_ends_before_it_starts(ada: User) -> None:
    node, now = ready_node("alpha", 4), timezone.now()
    with pytest.raises(IntegrityError), transaction.atomic():
        Reservation.objects.create(name="x", node=node, gpus=1, start=now, end=now)


def test_the_scheduler_leaves_reserved_gpus_to_those_they_are_for(ada: User) -> None:
    node = ready_node("alpha", 4)
    job = queue(3, 3)
    bob = world.make_user("someone-else")
    ask(ada, node, 2, users=[bob])
    assert turn().applied.started == []
    job.refresh_from_db()
    assert "2 CPU slots of node alpha are reserved for Course for another 60 minutes." in job.why_waiting
    Reservation.objects.all().delete()
    ask(ada, node, 2, users=[job.submitted_by])
    assert turn().applied.started == [job.pk]


def test_members_of_a_group_may_use_what_is_reserved_for_it(ada: User) -> None:
    group = Group.objects.create(name="course")
    job = queue(3, 3)
    job.submitted_by.groups.add(group)
    ask(ada, ready_node("alpha", 4), 4, users=[], groups=[group])
    assert turn().applied.started == [job.pk]


def test_the_snapshot_reads_many_in_as_many_queries_as_one(ada: User) -> None:
    node = ready_node("alpha", 8)
    ask(ada, node, 1)

    def queries() -> int:
        with CaptureQueriesContext(
            connection,
        ) as seen:
            snapshot.take()
        return len(seen)

    one = queries()
    for _ in range(5):
        ask(ada, node, 1)
    assert queries() == one


def test_others_see_when_but_not_for_whom(ada: User) -> None:
    secret, bob = world.make_user("secret-person"), world.make_user("bob")
    ask(ada, ready_node("alpha", 4), users=[secret])
    client = Client()
    client.force_login(bob)
    page = client.get("/reservations/").content.decode()
    assert "Course" in page and "secret-person" not in page
    shown = client.get("/api/v1/reservations/").json()
    assert shown[0]["name"] == "Course" and shown[0]["users"] == [] and shown[0]["mine"] is False
    client.force_login(secret)
    assert "secret-person" in client.get("/reservations/").content.decode()
    assert client.get("/api/v1/reservations/").json()[0]["mine"] is True


def test_admins_reserve_and_cancel_on_the_page(ada: User) -> None:
    node, client = ready_node("alpha", 4), Client()
    client.force_login(ada)
    now = timezone.localtime()
    form = {
        "name": "Course",
        "node": node.pk,
        "gpus": 2,
        "start": now.strftime("%Y-%m-%dT%H:%M"),
        "end": (now + HOUR).strftime("%Y-%m-%dT%H:%M"),
        "users": "ada",
    }
    wrong = client.post("/reservations/new", {**form, "gpus": 9, "users": "ada"})
    assert "alpha (4 CPU slots)" in client.get("/reservations/new").content.decode()
    assert wrong.status_code == 400 and "has only 4 CPU slots." in wrong.content.decode()
    assert client.post("/reservations/new", form).status_code == 302
    row = Reservation.objects.get()
    assert client.post(f"/reservations/{row.pk}/cancel").status_code == 302
    assert "No reservations" in client.get("/reservations/").content.decode()


def test_scripts_reserve_over_the_api(ada: User) -> None:
    ready_node("alpha", 4)
    client, now = Client(), timezone.now()
    client.force_login(ada)
    asked = {
        "name": "Course",
        "node": "alpha",
        "gpus": 2,
        "start": now.isoformat(),
        "end": (now + HOUR).isoformat(),
        "users": ["ada"],
    }
    made = client.post("/api/v1/reservations/", asked, content_type="application/json")
    assert made.status_code == 201 and made.json()["node"] == "alpha" and made.json()["users"] == ["ada"]
    refused = client.post("/api/v1/reservations/", {**asked, "gpus": 3}, content_type="application/json")
    assert refused.status_code == 400 and "only 2 of 4 CPU slots" in str(refused.json())
    assert client.delete(f"/api/v1/reservations/{made.json()['id']}/").status_code == 204
