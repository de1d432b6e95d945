"""A user leaves: what the page shows of them, and what becomes of it."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from portal.accounts.models import ApiToken, AuditEntry, User
from portal.accounts.services import EXAMPLES_OWNER, create_invite, set_active
from portal.cluster import reservations
from portal.cluster.models import Reservation
from portal.jobs import departures
from portal.jobs.departures import Choices
from portal.jobs.models import Job
from portal.projects import services as projects
from portal.projects.git import fetches
from portal.projects.models import Membership, Project
from portal.refused import Refused
from portal.sentences import sentence_of
from tests.portal import git_world
from tests.portal import jobs_world as world
from tests.portal.control_world import ready_node

pytestmark = [pytest.mark.django_db, pytest.mark.both_databases]
HOUR = timedelta(hours=1)


@pytest.fixture
def ada() -> User:
    return world.make_user("ada", is_staff=True)


@pytest.fixture
def bob() -> User:
    return world.make_user("bob")


@pytest.fixture
def eve() -> User:
    return world.make_user("eve", email="eve@example.org")


def running_job(project: Project, **fields: Any) -> Job:
    node = ready_node(f"node{Job.objects.count()}", 1)
    job = world.make_job(project, **fields)
    for part in world.place(job, list(node.gpus.all())).containers.all():
        world.run(part)
    job.refresh_from_db()
    assert job.state == "RUNNING"
    return job


def page_of(person: User) -> str:
    return reverse("jobs:deactivate-user", args=[person.pk])


def press(admin: User, person: User, **sent: Any) -> Any:
    client = Client()
    client.force_login(admin)
    return client.post(page_of(person), sent, follow=True)


def test_the_page_has_all_that_is_theirs_and_what_stopping_costs(ada: User, bob: User, eve: User) -> None:
    alone, shared = world.make_project(bob, "alone"), world.make_project(bob, "shared")
    projects.share(bob, shared, "eve", "owner")
    waiting, running = world.make_job(alone, name="waits"), running_job(alone, name="runs")
    other = world.make_job(world.make_project(eve), name="foreign")
    ApiToken.issue(bob, "laptop")
    create_invite(bob, makes_admin=True)
    bob.groups.add(Group.objects.create(name="students"))
    now = timezone.now()
    reservations.reserve(
        ada, name="Course", node=ready_node("r", 2), gpus=1, start=now + HOUR, end=now + 2 * HOUR, users=[bob]
    )
    client = Client()
    client.force_login(ada)
    text = client.get(page_of(bob)).content.decode()
    for shown in (
        f"waits #{waiting.pk}",
        f"runs #{running.pk}",
        "are lost",
        "laptop",
        "students",
        "Course",
        "1 open invitation of bob",
    ):
        assert shown in text, shown
    assert "New owner of alone" in text and "New owner of shared" not in text and ">shared</a> (owner)" in text
    assert f"foreign #{other.pk}" not in text


def test_by_default_waiting_jobs_are_cancelled_and_running_ones_run_on(ada: User, bob: User) -> None:
    project = world.make_project(bob)
    waiting, running = world.make_job(project), running_job(project)
    done = departures.deactivate(ada, bob, Choices())
    waiting.refresh_from_db()
    running.refresh_from_db()
    assert (waiting.state, running.state, running.intent) == ("CANCELLED", "RUNNING", Job.Intent.RUN)
    assert (done.waiting, done.running, done.projects) == (1, 0, 0)
    assert Membership.objects.get(project=project).role == "owner"


def test_the_page_does_all_that_was_chosen_and_counts_it(ada: User, bob: User, eve: User) -> None:
    project = world.make_project(bob)
    waiting, running = world.make_job(project), running_job(project)
    token = ApiToken.issue(bob, "laptop")[1]
    now = timezone.now()
    row = reservations.reserve(
        ada, name="Course", node=ready_node("r", 2), gpus=1, start=now + HOUR, end=now + 2 * HOUR, users=[bob]
    )
    sent = {"cancel_waiting": "on", "cancel_running": "on", f"owner_{project.pk}": "eve@example.org"}
    page = press(ada, bob, **sent, reservations="hand_over", reservations_to="eve").content.decode()
    for counted in (
        "1 API token revoked",
        "1 waiting job cancelled",
        "1 running job being stopped",
        "1 project handed over",
        "1 reservation handed over to eve",
    ):
        assert counted in page, counted
    waiting.refresh_from_db()
    running.refresh_from_db()
    assert waiting.state == "CANCELLED" and running.intent == Job.Intent.CANCEL
    assert dict(project.memberships.values_list("user__username", "role")) == {"bob": "member", "eve": "owner"}
    assert {user.username for user in row.users.all()} == {"eve"}
    assert set(AuditEntry.objects.values_list("action", flat=True)) >= {
        "user.deactivate",
        "project.hand_over",
        "reservation.people",
    }
    answer = Client().get("/api/v1/jobs/", headers={"authorization": f"Bearer {token}"})
    assert answer.status_code == 401


def test_their_fetches_end(ada: User, bob: User, eve: User, settings: Any, tmp_path: Path) -> None:
    settings.HOME = tmp_path
    project = world.make_project(bob)
    projects.share(bob, project, "eve", "member")
    git_world.bind(bob, project)
    theirs = fetches.request(eve, project)
    departures.deactivate(ada, eve, Choices())
    theirs.refresh_from_db()
    assert theirs.state == "cancelled" and sentence_of(theirs.message).startswith("eve, who requested it")
    assert fetches.request(bob, project).is_open


def test_what_is_not_chosen_stays(ada: User, bob: User) -> None:
    project = world.make_project(bob)
    waiting = world.make_job(project)
    press(ada, bob, reservations="keep")
    waiting.refresh_from_db()
    assert waiting.state == "QUEUED" and not User.objects.get(pk=bob.pk).is_active
    assert projects.owned_alone(bob).get() == project


def test_a_reservation_ends_only_if_it_was_theirs_alone(ada: User, bob: User, eve: User) -> None:
    node, now = ready_node("r", 4), timezone.now()
    group = Group.objects.create(name="course")

    def reserve(**who: Any) -> Reservation:
        return reservations.reserve(ada, name="X", node=node, gpus=1, start=now, end=now + HOUR, **who)

    own, both, grouped = reserve(users=[bob]), reserve(users=[bob, eve]), reserve(users=[bob], groups=[group])
    assert departures.deactivate(ada, bob, Choices()).reservations == 3
    for row in (own, both, grouped):
        row.refresh_from_db()
    assert own.cancelled_at and not both.cancelled_at and not grouped.cancelled_at
    assert [list(row.users.all()) for row in (both, grouped)] == [[eve], []]


@pytest.mark.parametrize("name", ["unknown", "bob", "inactive", EXAMPLES_OWNER])
def test_a_new_owner_who_cannot_be_one_changes_nothing(ada: User, bob: User, name: str) -> None:
    world.make_user("inactive", is_active=False)
    User.objects.create_user(EXAMPLES_OWNER)
    project = world.make_project(bob)
    job = world.make_job(project)
    answer = press(ada, bob, **{"cancel_waiting": "on", f"owner_{project.pk}": name})
    job.refresh_from_db()
    assert answer.status_code == 400 and name in answer.content.decode()
    assert job.state == "QUEUED" and User.objects.get(pk=bob.pk).is_active


def test_all_or_nothing(ada: User, bob: User, eve: User, monkeypatch: pytest.MonkeyPatch) -> None:
    project = world.make_project(bob)
    job = world.make_job(project)
    gone = world.make_user("gone", is_active=False)
    with pytest.raises(Refused):
        departures.deactivate(ada, bob, Choices(owners={project.pk: gone}))
    job.refresh_from_db()
    assert job.state == "QUEUED" and User.objects.get(pk=bob.pk).is_active


def test_neither_the_last_admin_nor_oneself_nor_the_owner_of_the_examples(ada: User, bob: User) -> None:
    internal = User.objects.create_user(EXAMPLES_OWNER)
    with pytest.raises(Refused, match="last admin"):
        set_active(bob, ada, False)
    second = world.make_user("second", is_staff=True)
    with pytest.raises(Refused, match="yourself"):
        set_active(ada, ada, False)
    with pytest.raises(Refused, match="examples"):
        set_active(ada, internal, False)
    client = Client()
    client.force_login(ada)
    assert client.get(page_of(internal)).status_code == 404
    listed = client.get(reverse("accounts:users")).content.decode()
    assert page_of(internal) not in listed and page_of(ada) not in listed and page_of(second) in listed
    assert "3 active users" in client.get(reverse("scheduler:admin")).content.decode()


def test_activation_states_what_does_not_come_back(ada: User, bob: User) -> None:
    token = ApiToken.issue(bob, "laptop")[0]
    departures.deactivate(ada, bob, Choices())
    client = Client()
    client.force_login(ada)
    page = client.post(reverse("accounts:user-act", args=[bob.pk, "activate"]), follow=True)
    assert "do not come back" in page.content.decode()
    token.refresh_from_db()
    assert User.objects.get(pk=bob.pk).is_active and token.revoked_at


def test_tokens_of_a_user_whom_an_earlier_release_deactivated_do_not_come_back(ada: User, bob: User) -> None:
    token = ApiToken.issue(bob, "laptop")[0]
    User.objects.filter(pk=bob.pk).update(is_active=False)
    assert set_active(ada, bob, True) == 1
    token.refresh_from_db()
    assert token.revoked_at


def test_times_of_reservations_have_their_zone(ada: User, bob: User) -> None:
    node, start = ready_node("node", 1), timezone.now() + HOUR
    reservations.reserve(ada, name="r", node=node, gpus=1, start=start, end=start + HOUR, users=[bob])
    client = Client()
    client.force_login(ada)
    client.cookies["zone"] = "Asia/Tokyo"
    assert "JST</time>" in client.get(page_of(bob)).content.decode()


def test_an_inactive_owner_does_not_count_and_the_project_can_be_handed_over_later(
    ada: User, bob: User, eve: User
) -> None:
    project = world.make_project(bob)
    departures.deactivate(ada, bob, Choices())
    membership = projects.share(ada, project, "eve", "owner")
    with pytest.raises(Refused, match="last owner"):
        projects.unshare(eve, membership)
    projects.unshare(ada, project.memberships.get(user=bob))


def test_the_page_needs_the_same_queries_for_many_as_for_few(
    ada: User, bob: User, django_assert_max_num_queries: Any
) -> None:
    for number in range(8):
        project = world.make_project(bob, f"p{number}")
        world.make_job(project)
        running_job(project)
    with django_assert_max_num_queries(14):
        departures.belongings_of(bob, timezone.now())
