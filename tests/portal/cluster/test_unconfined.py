"""Nodes that run jobs as plain processes are for one person: a second one is not let in, or nothing more starts there."""

from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from portal.accounts import services as accounts
from portal.accounts.models import Invite, User
from portal.cluster import services as cluster
from portal.cluster import unconfined
from portal.cluster.models import Node
from portal.jobs.models import Job
from portal.monitoring.node_views import machines_for
from portal.ops.up.welcome import submit_examples
from portal.refused import Refused
from tests.portal import jobs_world as world
from tests.portal.control_world import queue, ready_node, run_agents, turn
from tests.portal.pages import one_line

pytestmark = pytest.mark.django_db


@pytest.fixture
def ada() -> User:
    return world.make_user("ada", is_staff=True)


def process_node() -> Node:
    return ready_node("laptop", 2, runtime="process")


def banner(reader: User) -> str:
    client = Client()
    client.force_login(reader)
    page = one_line(client.get("/").content.decode())
    return page[page.index('class="banner"') :]


def test_no_one_is_invited_while_a_node_runs_plain_processes(ada: User) -> None:
    node = process_node()
    with pytest.raises(Refused, match="No one else can join while node laptop runs jobs as plain processes"):
        accounts.create_invite(ada)
    client = Client()
    client.force_login(ada)
    page = client.post("/admin/invites/", {"email": "", "groups": []})
    assert page.status_code == 400 and "Install Docker Engine there" in page.content.decode()
    page = client.get("/admin/invites/")
    assert "Install Docker Engine there" in page.content.decode() and "Create link" not in page.content.decode()
    assert not Invite.objects.exists()
    Node.objects.filter(pk=node.pk).update(runtime="docker")
    assert accounts.create_invite(ada)


def test_an_invitation_that_was_given_before_is_not_taken_up_meanwhile(ada: User) -> None:
    _, token = accounts.create_invite(ada)
    process_node()
    with pytest.raises(Refused, match="No one else can join"):
        accounts.accept_invite(token, username="bob", password="correct horse battery")
    assert accounts.find_invite(token) is not None, "it is used up"
    asked = {"username": "bob", "password": "correct horse battery", "email": "bob@example.org"}
    page = Client().post(f"/accounts/invite/{token}/", asked)
    assert "No one else can join while node laptop" in page.content.decode()


def test_the_first_person_comes_in_by_the_set_up_link_as_ever() -> None:
    process_node()
    link = accounts.setup_link("http://localhost")
    assert link is not None
    accounts.accept_invite(link.rstrip("/").rpartition("/")[2], username="ada", password="correct horse battery")
    assert User.objects.get().is_admin


def test_the_owner_of_the_first_examples_counts_as_no_person() -> None:
    """In the order of a first start: the examples run already when the admin follows the link."""
    first_examples = submit_examples()
    process_node()
    link = accounts.setup_link("http://localhost")
    assert link is not None
    accounts.accept_invite(link.rstrip("/").rpartition("/")[2], username="ada", password="correct horse battery")
    assert first_examples and not unconfined.is_refused("process")
    job = queue(1, owner="ada")
    Job.objects.exclude(pk=job.pk).update(state="CANCELLED", finished_at=timezone.now())
    turn()
    assert job.attempts.exists()


def test_the_owner_of_the_first_examples_is_a_person_once_it_has_a_password(ada: User) -> None:
    submit_examples()
    assert not unconfined.is_refused("process")
    house = User.objects.get(username=accounts.EXAMPLES_OWNER)
    house.set_password("correct horse battery")
    house.save()
    assert unconfined.is_refused("process")


def test_another_whose_access_had_ended_does_not_come_back_either(ada: User) -> None:
    bob = world.make_user("bob", is_active=False)
    process_node()
    with pytest.raises(Refused, match="No one else can join"):
        accounts.set_active(ada, bob, True)


@pytest.mark.parametrize("another", ["is there", "is invited"])
def test_no_such_node_joins_a_lab_of_several_people(ada: User, another: str) -> None:
    if another == "is there":
        world.make_user("bob")
    else:
        accounts.create_invite(ada)
    # On PostgreSQL no such node joins, whoever is there.
    with pytest.raises(
        Refused, match=r"This machine runs jobs as plain processes.*Install|only a portal with SQLite.*Install"
    ):
        cluster.join(cluster.issue_join_token(ada), "laptop", "process", {})
    assert not Node.objects.exists()
    cluster.join(cluster.issue_join_token(ada), "laptop", "docker", {})


def test_a_lab_that_has_both_keeps_what_runs_and_starts_nothing_more() -> None:
    process_node()
    running = queue(1)
    turn()
    run_agents()
    world.make_user("bob")  # as from a release that let him in
    waiting = queue(1)
    turn()
    running.refresh_from_db()
    waiting.refresh_from_db()
    assert (running.state, waiting.state) == ("RUNNING", "QUEUED")
    assert "laptop runs jobs as plain processes" in waiting.why_waiting
    assert "No new job starts on nodes that run jobs as plain processes" in banner(
        world.make_user("eve", is_staff=True)
    )
    [machine] = machines_for(waiting.submitted_by)
    assert (machine.state_text, machine.accepts_jobs) == ("not accepting jobs", False)


def test_jobs_go_where_containers_keep_them_apart(ada: User) -> None:
    process_node()
    world.make_user("bob")
    safe = ready_node("server", 2)
    job = queue(1)
    turn()
    assert set(job.attempts.get().containers.values_list("node", flat=True)) == {safe.pk}


def test_a_lab_may_say_that_everybody_may_see_everything(ada: User, settings: Any) -> None:
    settings.UNSAFE_PROCESSES = True
    process_node()
    accounts.create_invite(ada)
    world.make_user("bob")
    job = queue(1)
    turn()
    assert Job.objects.get(pk=job.pk).attempts.exists() and not unconfined.is_refused("process")
    assert "several people share this lab: each can see and change everything" in banner(ada)


def test_one_person_is_reminded_that_processes_are_for_one(ada: User) -> None:
    process_node()
    assert (
        "Jobs run as plain processes, without containers. That is for a single person: no one else can be invited."
        in banner(ada)
    )


def test_the_banner_is_for_admins_and_stays_away_once_dismissed(ada: User) -> None:
    node = process_node()
    client = Client()
    client.force_login(ada)
    assert 'class="banner"' in client.get("/jobs/").content.decode()
    answer = client.post("/banner/dismiss", HTTP_REFERER="http://testserver/jobs/?mine=1")
    assert answer.headers["Location"] == "/jobs/?mine=1"
    assert 'class="banner"' not in client.get("/jobs/").content.decode()
    page = one_line(client.get(f"/admin/nodes/{node.pk}/").content.decode())
    assert (
        "Jobs run as plain processes, without containers. That is for a single person: no one else can be invited."
        in page
    )
    again = Client()
    again.force_login(ada)
    assert 'class="banner"' in again.get("/jobs/").content.decode(), "another session reads it once more"


def test_members_read_it_where_they_submit(ada: User, settings: Any) -> None:
    process_node()
    code = world.make_code(world.make_project(ada))
    about = "several people share this lab: each can see and change everything"
    settings.UNSAFE_PROCESSES = True
    client = Client()
    client.force_login(ada)
    assert about not in one_line(client.get(f"/jobs/new?code={code.pk}").content.decode()), "she is alone"
    bob = world.make_user("bob")
    own = world.make_code(world.make_project(bob))
    client.force_login(bob)
    assert 'class="banner"' not in client.get("/").content.decode()
    assert about in one_line(client.get(f"/jobs/new?code={own.pk}").content.decode())
    assert client.post("/banner/dismiss").status_code == 404
