"""Switching the policy: the preview, the ticket that binds a confirmation to it, the history and its undo."""

import dataclasses
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any, ClassVar

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from portal.accounts.models import AuditEntry, User
from portal.cluster.models import Node
from portal.jobs import services as jobs
from portal.jobs.models import Attempt, Job
from portal.refused import Refused
from portal.scheduler import preview, services
from portal.scheduler.forms import PolicyForm, form_query
from portal.scheduler.models import Cycle, PolicyState, SchedulerConfig
from scheduling import registry
from scheduling.params import Param
from scheduling.registry import Description
from scheduling.types import Plan, Snapshot
from scheduling.version import version_of
from tests.portal import jobs_world as world
from tests.portal.api_client import Script
from tests.portal.control_world import queue, ready_node, run_agents, turn
from tests.portal.pages import one_line

pytestmark = pytest.mark.django_db


@pytest.fixture
def ada() -> User:
    return world.make_user("ada", is_staff=True)


@pytest.fixture
def client(ada: User) -> Client:
    client = Client()
    client.force_login(ada)
    return client


@pytest.fixture
def policy(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Snapshot], Plan]], None]:
    """Register a policy called ``made`` that plans with any function."""

    def install(plan: Callable[[Snapshot], Plan]) -> None:
        class Made:
            title: ClassVar[str] = "Made for a test"
            explanation: ClassVar[str] = "It does what the test sets."
            experimental: ClassVar[bool] = True

            def plan(self, snapshot: Snapshot) -> Plan:
                return plan(snapshot)

        monkeypatch.setitem(registry.POLICIES, "made", dataclasses.dataclass(frozen=True)(Made))

    return install


def keep(seen: Snapshot) -> dict[str, Any]:
    return {job.id: job.now_on for job in seen.jobs if job.now_on}


def shrunk(seen: Snapshot) -> Plan:
    """Shrink every elastic job to its base."""
    return Plan({job.id: job.base for job in seen.jobs if job.now_on})


def a_lab_at_work() -> tuple[Job, Job]:
    """An elastic job on three GPUs of three, and one that waits for two."""
    ready_node("alpha", 3)
    runs = queue(1, 3)
    turn()
    run_agents()
    return runs, queue(2, elastic=False)


# What is shown


def test_a_preview_shows_what_happens_to_each_job() -> None:
    runs, waits = a_lab_at_work()
    services.switch_policy(None, "fifo", {})
    found = preview.compute("elastic_fifo", {})
    assert [(change.job, change.kind) for change in found.changes] == [
        (str(runs.pk), "shrinks"),
        (str(waits.pk), "starts"),
    ]
    assert found.present == {str(runs.pk): "goes on", str(waits.pk): "waits"}
    assert (found.counts["shrinks"], found.counts["starts"], found.counts["waits"]) == (1, 1, 0)
    assert Attempt.objects.count() == 1 and services.current_config().policy == "fifo"


def test_it_shows_when_jobs_would_start_and_end_under_both() -> None:
    runs, waits = a_lab_at_work()
    services.switch_policy(None, "fifo", {})
    found = preview.compute("elastic_fifo", {})
    before, after = found.before[str(waits.pk)], found.after[str(waits.pk)]
    assert before.starts is not None and after.starts is not None and before.ends is not None and after.ends is not None
    assert found.snapshot.now < after.starts < before.starts < before.ends and after.ends < before.ends
    assert found.after[str(runs.pk)].starts is None, "it runs already"
    assert found.after[str(runs.pk)].ends > found.before[str(runs.pk)].ends, "it shrinks"  # type: ignore[operator]


def test_the_page_shows_it_with_links_and_in_words(client: Client) -> None:
    runs, waits = a_lab_at_work()
    services.switch_policy(None, "fifo", {})
    page = one_line(client.get("/admin/policy/preview/?policy=elastic_fifo").content.decode())
    assert f'href="/jobs/{runs.pk}/"' in page and f'href="/jobs/{waits.pk}/"' in page
    assert "3 on alpha → 1 on alpha" in page and "none → 2 on alpha" in page
    assert "No running job is stopped; 1 is resized or moved." in page
    assert 'name="ticket"' in page


def test_a_policy_that_cannot_decide_cannot_be_confirmed(client: Client, policy: Any) -> None:
    a_lab_at_work()

    def fail(seen: Snapshot) -> Plan:
        raise KeyError("gpu")

    policy(fail)
    page = client.get("/admin/policy/preview/?policy=made").content.decode()
    assert "It failed on the present state of the lab: KeyError" in page and "Confirm" not in page
    policy(lambda seen: Plan({job.id: {"9999": 1} for job in seen.jobs}))
    page = one_line(client.get("/admin/policy/preview/?policy=made").content.decode())
    assert "is not allowed: Job " in page and "is given GPUs of unknown nodes: 9999." in page
    ticket = preview.compute("made", {}).ticket
    with pytest.raises(Refused, match="not allowed"):
        preview.confirm(None, "made", {}, ticket)


def test_a_policy_that_thinks_too_long_is_not_waited_for(policy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    a_lab_at_work()
    monkeypatch.setattr(preview, "DECISION_SECONDS", 0.05)
    decides = threading.Event()

    def ponder(seen: Snapshot) -> Plan:
        decides.wait(60)
        return Plan(keep(seen))

    policy(ponder)
    assert (
        preview.compute("made", {}).wrong
        == "The policy did not decide on the present state of the lab within 0.05 seconds."
    )
    assert not decides.is_set()
    decides.set()


def test_it_names_what_happens_in_any_case(client: Client) -> None:
    ready_node("alpha", 2)
    queue(1, elastic=False)
    assert "either way" in one_line(client.get("/admin/policy/preview/?policy=fifo").content.decode())


@pytest.mark.both_databases
def test_the_table_is_paged_and_its_queries_do_not_grow(client: Client) -> None:
    ready_node("alpha", 1)
    counts = []
    for number in (3, 60):
        while Job.objects.count() < number:
            queue(1, elastic=False)
        client.get("/admin/policy/preview/?policy=fifo")
        with CaptureQueriesContext(
            connection,
        ) as queries:
            page = client.get("/admin/policy/preview/?policy=fifo").content.decode()
        counts.append(len(queries))
    assert counts[0] == counts[1]
    assert page.count('data-label="Owner"') == 50
    assert 'href="?policy=fifo&amp;page=2"' in page
    assert client.get("/admin/policy/preview/?policy=fifo&page=2").content.decode().count('data-label="Owner"') == 10


# Confirming


@pytest.mark.parametrize("key", registry.POLICIES)
def test_a_confirmed_switch_is_live_recorded_and_audited(client: Client, ada: User, key: str) -> None:
    a_lab_at_work()
    values = {item.name: item.default for item in registry.describe(key).params}
    path = f"/admin/policy/preview/?{form_query(key, values)}"
    found = client.get(path).context["found"]
    assert not found.wrong
    response = client.post(path, {"ticket": found.ticket}, follow=True)
    config = services.current_config()
    assert (config.policy, config.params, config.created_by) == (key, values, ada)
    assert (config.version, config.snapshot_sha256) == (version_of(registry.POLICIES[key]), found.sha256)
    assert AuditEntry.objects.get().action == "scheduler.policy_switched"
    page = one_line(response.content.decode())
    assert 'class="notice success"' in page and "by ada" in page


def test_a_running_job_that_was_not_shown_as_touched_goes_on() -> None:
    ready_node("alpha", 3)
    runs = queue(1, 3)
    turn()
    run_agents()
    before = list(Attempt.objects.get().allocations.values_list("pk", "requested_back_at", "released_at"))
    ticket = preview.compute("fifo", {}).ticket
    preview.confirm(None, "fifo", {}, ticket)
    turn()
    turn()
    assert (
        list(Attempt.objects.get(job=runs).allocations.values_list("pk", "requested_back_at", "released_at")) == before
    )


@pytest.mark.both_databases
def test_it_is_shown_again_when_another_admin_has_switched(client: Client) -> None:
    a_lab_at_work()
    path = "/admin/policy/preview/?policy=fifo"
    ticket = client.get(path).context["found"].ticket
    services.switch_policy(world.make_user("eve", is_staff=True), "round_robin", {})
    answer = client.post(path, {"ticket": ticket})
    assert answer.status_code == 409 and services.current_config().policy == "round_robin"
    page = answer.content.decode()
    assert "eve has switched to “Round robin over nodes” meanwhile. Nothing was switched." in page
    assert client.post(path, {"ticket": answer.context["found"].ticket}).status_code == 302


def test_it_is_shown_again_when_other_running_jobs_would_be_resized(policy: Any) -> None:
    ready_node("alpha", 4)
    policy(shrunk)
    queue(1, 2)
    turn()
    run_agents()
    ticket = preview.compute("made", {}).ticket
    queue(1, 2)
    turn()
    with pytest.raises(Refused, match="Other running jobs would now be stopped or resized") as refused:
        preview.confirm(None, "made", {}, ticket)
    assert refused.value.code == "conflict"
    assert preview.confirm(None, "made", {}, preview.compute("made", {}).ticket).policy == "made"


def test_jobs_that_come_and_wait_are_no_reason_to_look_again() -> None:
    _, waits = a_lab_at_work()
    ticket = preview.compute("fifo", {}).ticket
    queue(1, elastic=False)
    jobs.cancel(waits.submitted_by, waits)
    assert preview.confirm(None, "fifo", {}, ticket).policy == "fifo"


def test_a_ticket_is_for_what_was_shown_and_for_an_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    ticket = preview.compute("fifo", {"strict": False}).ticket
    for params, given, why in (
        ({"strict": True}, ticket, "for other parameters"),
        ({"strict": False}, ticket + "x", "no valid preview ticket"),
        ({"strict": False}, "", "no valid preview ticket"),
    ):
        with pytest.raises(Refused, match=why):
            preview.confirm(None, "fifo", params, given)
    monkeypatch.setattr(preview, "TICKET_SECONDS", -1)
    with pytest.raises(Refused, match="more than an hour old"):
        preview.confirm(None, "fifo", {"strict": False}, ticket)
    assert services.current_config().policy == registry.DEFAULT


def test_the_default_is_the_same_before_and_after_it_was_stored() -> None:
    ticket = preview.compute("fifo", {}).ticket
    assert not SchedulerConfig.objects.exists(), "looking stores nothing"
    services.config_in_force()
    assert preview.confirm(None, "fifo", {}, ticket).policy == "fifo"


@pytest.mark.both_databases
def test_a_switch_in_the_last_moment_is_noticed_under_the_lock() -> None:
    services.switch_policy(None, "fifo", {})
    with pytest.raises(Refused, match="The portal has switched to"):
        services.switch_policy(None, "round_robin", {}, expected=0)
    assert services.current_config().policy == "fifo"


# Undoing


@pytest.mark.both_databases
def test_undo_returns_to_the_one_before_as_a_new_row(client: Client, ada: User) -> None:
    services.switch_policy(ada, "elastic_fifo", {"grow_after_seconds": 7})
    services.switch_policy(ada, "fifo", {"strict": False})
    taken_back = services.current_config()
    page = client.get("/admin/policy/").content.decode()
    assert "Undo: back to “Elastic first come, first served”" in page
    page = client.post("/admin/policy/undo/", {"config": taken_back.pk}, follow=True).content.decode()
    config = services.current_config()
    assert (config.policy, config.params["grow_after_seconds"]) == ("elastic_fifo", 7)
    assert (config.undoes, config.created_by) == (taken_back, ada)
    assert SchedulerConfig.objects.count() == 4, "the default, two switches and the undo"
    assert AuditEntry.objects.latest("pk").action == "scheduler.switch_undone"
    assert "Switch back to “First come, first served”" in page and "Undo:" not in page
    assert f"undoes v{taken_back.pk}" in page and "decides again from the next scheduling cycle on" in page
    assert services.undo_switch(ada).policy == "fifo", "undoing twice is doing it again"


def test_the_first_switch_can_be_undone_too(ada: User) -> None:
    services.switch_policy(ada, "fifo", {})
    assert services.undo_switch(ada).policy == registry.DEFAULT


def test_a_policy_that_was_switched_to_itself_can_still_be_undone(client: Client, ada: User) -> None:
    services.switch_policy(ada, "fifo", {})
    services.switch_policy(ada, "tiresias", {})
    for _ in range(2):
        services.switch_policy(ada, "tiresias", {})
    assert "Undo: back to “First come, first served”" in one_line(client.get("/admin/policy/").content.decode())
    assert services.undo_switch(ada).policy == "fifo"
    assert services.undo_switch(ada).policy == "tiresias"


def test_an_undo_starts_with_an_empty_memory(ada: User) -> None:
    config = services.config_in_force()
    PolicyState.objects.create(config=config, state={"wish": {"1": 2.0}})
    services.switch_policy(ada, "fifo", {})
    assert services.state_of(services.undo_switch(ada)) == {}


def test_a_refused_undo_gives_the_reason(client: Client, ada: User) -> None:
    with pytest.raises(Refused, match="There is no switch to undo"):
        services.undo_switch(ada)
    SchedulerConfig.objects.create(policy="old_one", params={})
    last = services.switch_policy(ada, "fifo", {})
    with pytest.raises(Refused, match="can no longer be chosen"):
        services.undo_switch(ada)
    for stale in (str(last.pk - 1), "x", ""):
        page = client.post("/admin/policy/undo/", {"config": stale}, follow=True).content.decode()
        assert 'class="notice error"' in page
    assert services.current_config() == last


# The page where one chooses


def test_parameters_stand_in_the_groups_of_their_policy() -> None:
    about = Description(
        "x",
        "X",
        "It. Is.",
        (
            Param("a", int, 1, "A", "h", group="Late"),
            Param("b", int, 1, "B", "h"),
            Param("c", int, 1, "C", "h", group="Late"),
        ),
    )
    assert [(heading, [item.name for item in items]) for heading, items in PolicyForm(about).groups()] == [
        ("", ["b"]),
        ("Late", ["a", "c"]),
    ]


def test_an_experimental_policy_is_marked(client: Client, policy: Any) -> None:
    warning = "Experimental: it has not proved itself"
    assert warning not in client.get("/admin/policy/?policy=fifo").content.decode()
    policy(lambda seen: Plan(keep(seen)))
    page = client.get("/admin/policy/?policy=made").content.decode()
    assert warning in page and page.count(">experimental</span>") >= 2


@pytest.mark.both_databases
def test_the_history_is_paged_and_its_queries_do_not_grow(client: Client) -> None:
    counts = []
    for number in (3, 30):
        while SchedulerConfig.objects.count() < number:
            services.switch_policy(world.make_user(f"u{SchedulerConfig.objects.count()}"), "fifo", {})
        with CaptureQueriesContext(connection) as queries:
            page = one_line(client.get("/admin/policy/").content.decode())
        counts.append(len(queries))
    assert counts[0] == counts[1]
    assert page.count("What would change with v") == 9
    assert one_line(client.get("/admin/policy/?page=2").content.decode()).count("What would change with v") == 10


def test_a_link_of_the_history_fills_the_form(client: Client, ada: User) -> None:
    services.switch_policy(ada, "elastic_fifo", {"strict": True, "grow_after_seconds": 33})
    services.switch_policy(ada, "fifo", {"strict": False})
    query = form_query("elastic_fifo", registry.complete("elastic_fifo", {"strict": True, "grow_after_seconds": 33}))
    assert f"/admin/policy/preview/?{query}".replace("&", "&amp;") in client.get("/admin/policy/").content.decode()
    form = client.get(f"/admin/policy/?{query}").context["form"]
    assert form["strict"].value() is True or form["strict"].value() == "on"
    assert str(form["grow_after_seconds"].value()) == "33"


# Over REST


@pytest.mark.both_databases
def test_a_script_looks_switches_and_undoes(ada: User) -> None:
    runs, waits = a_lab_at_work()
    services.switch_policy(ada, "fifo", {})
    script = Script(ada)
    answer = script.send("post", "policy/preview/?page_size=1", {"policy": "elastic_fifo"}).json()
    assert answer["count"] == 2 and len(answer["results"]) == 1 and "page=2" in answer["next"]
    (first,) = answer["results"]
    assert (first["job"], first["kind"], first["present"]) == (runs.pk, "shrinks", "goes on")
    assert list(first["before"].values()) == [3] and first["eta_after"]["ends"] > first["eta_before"]["ends"]
    assert answer["preview"]["counts"]["starts"] == 1 and answer["preview"]["wrong"] == ""
    ticket = answer["preview"]["ticket"]
    assert script.send("put", "policy/", {"policy": "elastic_fifo", "ticket": "nonsense"}).status_code == 409
    switched = script.send("put", "policy/", {"policy": "elastic_fifo", "ticket": ticket}).json()
    assert (switched["policy"], switched["created_by"]) == ("elastic_fifo", "ada") and switched["version"]
    assert script.send("put", "policy/", {"policy": "elastic_fifo", "ticket": ticket}).status_code == 409
    assert script.send("post", "policy/undo/", {"config": switched["id"] - 1}).status_code == 409
    undone = script.send("post", "policy/undo/", {"config": switched["id"]}).json()
    assert (undone["policy"], undone["undoes"]) == ("fifo", switched["id"])
    history = script.get("policy/history/").json()
    assert [row["policy"] for row in history["results"]] == ["fifo", "elastic_fifo", "fifo", registry.DEFAULT]
    assert script.send("post", "policy/preview/", {"policy": "lottery"}).status_code == 400
    assert waits.attempts.count() == 0


def test_turns_are_listed_with_their_policy(ada: User) -> None:
    a_lab_at_work()
    turn()
    Cycle.objects.create(epoch=1, snapshot_sha256="", duration_ms=1.0, at=timezone.now() + timedelta(seconds=1))
    rows = Script(ada).get("cycles/").json()
    assert rows["count"] == Cycle.objects.count() == 3
    bare, *_, first = rows["results"]
    assert (bare["policy"], bare["recorded"]) == (None, False)
    assert (first["policy"], first["recorded"], first["started"]) == (registry.DEFAULT, True, 1)
    assert first["version"] == version_of(registry.POLICIES[registry.DEFAULT]) and len(first["snapshot_sha256"]) == 64
    assert Node.objects.count() == 1


def test_the_policy_in_force_has_nothing_to_confirm(client: Client, ada: User) -> None:
    services.switch_policy(ada, "fifo", {})
    same = one_line(client.get("/admin/policy/preview/?policy=fifo").content.decode())
    assert "as it is in force" in same and "Confirm: " not in same
    other = form_query("fifo", registry.complete("fifo", {"backfill": True}))
    assert (
        "Other parameters for “First come, first served”?"
        in client.get(f"/admin/policy/preview/?{other}").content.decode()
    )


def test_the_times_of_many_waiting_jobs_are_known(ada: User) -> None:
    ready_node("many", 8)
    for number in range(200):
        queue(1, owner=f"user-{number % 7}")
    found = preview.compute("fair_share", {})
    waiting = [change.job for change in found.changes if change.kind == "waits"]
    assert len(waiting) > 150
    for job in waiting:
        eta = found.after[job]
        assert eta.starts is not None and eta.ends is not None and eta.ends > eta.starts > found.snapshot.now
