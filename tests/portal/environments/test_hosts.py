"""Allowed hosts: who decides, which apply to a job, what agents get, what is shown."""

import json
from pathlib import Path
from typing import Any

import pytest
from django.db import transaction
from django.test import Client
from django.utils import timezone

from portal.accounts.models import AuditEntry, User
from portal.environments import hosts
from portal.environments.hosts import PlacesWithHosts, rules_for
from portal.environments.models import AllowedHost
from portal.jobs import lifecycle, network_use
from portal.jobs.models import Container
from portal.projects.models import Membership
from portal.refused import Refused
from portal.scheduler import apply as applying
from portal.scheduler import availability, run_specs
from portal.scheduler.availability import HOSTS, availability_of, read_nodes, why_blocked
from portal.scheduler.run_specs import ContainerPlacement, HostsUnknownError
from portal.sentences import sentence_of
from runners.spec import RunSpec
from tests.portal import control_world as control
from tests.portal import environments_world as made
from tests.portal import jobs_world as world
from tests.portal.agents_world import Agent
from tests.portal.api_client import Script
from tests.portal.pages import one_line

pytestmark = pytest.mark.django_db
HOSTILE = "<script>alert(1)</script>"


class Lab:
    def __init__(self) -> None:
        self.alice, self.bob, self.charlie = (world.make_user(name) for name in ("alice", "bob", "charlie"))
        self.ada = world.make_user("ada", is_staff=True)
        self.project = world.make_project(self.alice, "Vision")
        Membership.objects.create(project=self.project, user=self.bob, role=Membership.Role.MEMBER)
        self.environment = world.make_environment()

    def get(self, user: User, address: str) -> Any:
        client = Client()
        client.force_login(user)
        return client.get(address)

    def post(self, user: User, address: str, **data: Any) -> Any:
        client = Client()
        client.force_login(user)
        return client.post(address, data)


@pytest.fixture
def lab(settings: Any, tmp_path: Path) -> Lab:
    settings.HOME = tmp_path
    return Lab()


def text_of(response: Any) -> str:
    return one_line(response.content.decode())


# --- which apply -------------------------------------------------------------------------------------------------


def test_a_job_gets_the_hosts_of_the_lab_its_project_and_its_environment(lab: Lab) -> None:
    other = world.make_project(lab.charlie, "Other")
    based = made.make_environment(lab.alice, lab.project, ["rich"], base=made.make_base("pytorch"))
    assert rules_for(lab.project.pk, lab.environment) == [] and PlacesWithHosts.read() == PlacesWithHosts(
        False, frozenset(), frozenset()
    )
    hosts.allow(lab.ada, "huggingface.co", lab.project)
    hosts.allow(lab.ada, "10.0.0.5:5000", lab.project, internal=True)
    hosts.allow(lab.ada, "*.pytorch.org", None, lab.environment)
    assert rules_for(lab.project.pk, based) == ["*.pytorch.org", "10.0.0.5:5000 internal", "huggingface.co"]
    assert rules_for(other.pk, lab.environment) == ["*.pytorch.org"]
    places = PlacesWithHosts.read()
    assert places.include(lab.project.pk, 0) and places.include(0, based.pk) and places.include(0, lab.environment.pk)
    assert not places.include(other.pk, 0)
    hosts.allow(lab.ada, "wheels.example.org")
    assert (
        rules_for(other.pk, lab.environment) == ["*.pytorch.org", "wheels.example.org"] and PlacesWithHosts.read().lab
    )


def test_a_host_allowed_twice_is_internal_if_any_row_is(lab: Lab) -> None:
    hosts.allow(lab.ada, "mlflow.example.org", lab.project, internal=True)
    hosts.allow(lab.ada, "mlflow.example.org")
    assert rules_for(lab.project.pk, lab.environment) == ["mlflow.example.org internal"]


# --- who decides -------------------------------------------------------------------------------------------------


def test_only_admins_decide_and_each_decision_is_recorded(lab: Lab) -> None:
    for user in (lab.alice, lab.bob):
        with pytest.raises(Refused, match="Only admins"):
            hosts.allow(user, "wheels.example.org", lab.project)
    row = hosts.allow(lab.ada, "Wheels.Example.org", lab.project, note="for the sweep of Bob")
    with pytest.raises(Refused, match="allowed there already"):
        hosts.allow(lab.ada, "wheels.example.org", lab.project)
    hosts.allow(lab.ada, "wheels.example.org")
    with pytest.raises(Refused, match="Only admins"):
        hosts.forbid(lab.alice, row)
    hosts.forbid(lab.ada, row)
    entries = list(AuditEntry.objects.order_by("pk").values_list("action", "target"))
    assert entries == [("host.allow", "host wheels.example.org")] * 2 + [("host.forbid", "host wheels.example.org")]
    page = text_of(lab.get(lab.ada, "/admin/audit/"))
    assert "allowed jobs of Vision to reach" in page and "no longer allows jobs of Vision to reach" in page


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"typed": "https://x.org"}, "host"),
        ({"typed": "10.0.0.1"}, "internal"),
        ({"typed": "x.org", "note": "two\nlines"}, "note"),
        ({"typed": "x.org", "note": "x" * 201}, "note"),
    ],
)
def test_bad_input_is_refused_at_its_field(lab: Lab, fields: dict[str, Any], field: str) -> None:
    with pytest.raises(Refused) as refusal:
        hosts.allow(lab.ada, **fields)
    assert refusal.value.field == field and not AllowedHost.objects.exists()


def test_the_admin_page_allows_and_removes(lab: Lab) -> None:
    page = lab.get(lab.ada, f"/admin/network/?project={lab.project.pk}&host=huggingface.co")
    assert 'value="huggingface.co"' in page.content.decode()
    assert f'value="project:{lab.project.pk}" selected' in page.content.decode()
    answer = lab.post(lab.ada, "/admin/network/", host="10.0.0.5", place="lab")
    assert answer.status_code == 400 and "Confirm that jobs may reach it" in text_of(answer)
    lab.post(lab.ada, "/admin/network/", host="10.0.0.5", place="environment:pytorch", internal="on", note=HOSTILE)
    (row,) = AllowedHost.objects.all()
    assert (row.host, row.environment, row.internal, row.created_by) == ("10.0.0.5", lab.environment, True, lab.ada)
    page = text_of(lab.get(lab.ada, "/admin/network/"))
    assert "in the local network" in page and HOSTILE not in page
    assert lab.get(lab.alice, "/admin/network/").status_code in (302, 403, 404)
    lab.post(lab.alice, f"/admin/network/{row.pk}/remove")
    assert AllowedHost.objects.exists()
    lab.post(lab.ada, f"/admin/network/{row.pk}/remove")
    assert not AllowedHost.objects.exists()


def test_members_see_the_hosts_of_their_project_and_whom_to_ask(lab: Lab) -> None:
    address = f"/projects/{lab.project.pk}/network"
    assert "Ask an admin" in text_of(lab.get(lab.bob, address))
    hosts.allow(lab.ada, "huggingface.co", lab.project, note="weights")
    page = text_of(lab.get(lab.bob, address))
    assert "huggingface.co" in page and "weights" in page and "Allow a host" not in page
    assert "Allow a host" in text_of(lab.get(lab.ada, address))
    assert lab.get(lab.charlie, address).status_code == 404
    hosts.allow(lab.ada, "*.pytorch.org", None, lab.environment)
    assert "*.pytorch.org" in text_of(lab.get(lab.bob, "/environments/pytorch/"))


def test_the_api_lists_what_concerns_a_member_and_changes_for_admins(lab: Lab) -> None:
    other = world.make_project(lab.charlie, "Other")
    admin, member = Script(lab.ada), Script(lab.bob)
    for project, host in (
        (lab.project.pk, "huggingface.co"),
        (other.pk, "secret.example.org"),
        (None, "wheels.example.org"),
    ):
        assert admin.send("post", "allowed-hosts/", {"host": host, "project": project}).status_code == 201
    listed = member.get("allowed-hosts/").json()["results"]
    assert [(row["host"], row["project"]) for row in listed] == [
        ("huggingface.co", lab.project.pk),
        ("wheels.example.org", None),
    ]
    assert admin.get("allowed-hosts/").json()["count"] == 3
    assert member.send("post", "allowed-hosts/", {"host": "x.org"}).status_code == 404
    answer = admin.send("post", "allowed-hosts/", {"host": "http://x.org"})
    assert answer.status_code == 400 and "without https://" in str(answer.json())
    assert member.delete(f"allowed-hosts/{listed[0]['id']}/").status_code == 404
    assert admin.delete(f"allowed-hosts/{listed[0]['id']}/").status_code == 204


# --- what agents get ---------------------------------------------------------------------------------------------


def test_the_hosts_of_an_attempt_are_fixed_when_it_is_placed(lab: Lab) -> None:
    node = control.ready_node("new", facts={"allowed_hosts": True})
    hosts.allow(lab.ada, "wheels.example.org")
    job = control.queue()
    control.lead()
    control.turn()
    hosts.allow(lab.ada, "huggingface.co")
    (part,) = Container.objects.filter(attempt__job=job, role="host")
    assert RunSpec.from_json(part.spec).allowed_hosts == ("wheels.example.org",) and part.node == node
    driver = run_specs.driver_spec(part.attempt, 1, node, 1)
    assert driver.allowed_hosts == () and "allowed_hosts" not in driver.to_json()


def test_agents_of_an_earlier_release_get_no_jobs_with_hosts(lab: Lab) -> None:
    old = control.ready_node("old")
    job = control.queue()
    nodes = read_nodes(timezone.now())
    assert availability_of(nodes, lab.environment.pk).ready == {old.pk}
    needs = frozenset({HOSTS})
    assert not availability_of(nodes, lab.environment.pk, needs).ready
    reason = why_blocked(1, lab.environment.pk, "PyTorch", nodes, frozenset(), needs)
    assert isinstance(reason, availability.AgentsWithoutHosts)
    assert "The agent of old is too old" in sentence_of(reason.data()).replace("the agent", "The agent")
    hosts.allow(lab.ada, "wheels.example.org")
    control.lead()
    control.turn()
    assert not Container.objects.filter(attempt__job=job).exists()
    job.refresh_from_db()
    assert "too old" in job.why_waiting
    attempt = lifecycle.start_attempt(job, "fifo v1")
    with pytest.raises(HostsUnknownError):
        run_specs.host_spec(attempt, 0, ContainerPlacement(old, tuple(old.gpus.all()[:1])), 1, 2, 1)


def test_a_step_is_dropped_for_hosts_that_were_allowed_after_it_was_planned(lab: Lab) -> None:
    old, job = control.ready_node("old"), control.queue()
    hosts.allow(lab.ada, "wheels.example.org")
    step = applying.PlanStep(job.pk, "start", {}, {str(old.pk): 1}, {})
    with pytest.raises(applying.PlanStaleError) as stale, transaction.atomic():
        applying._PlanApplier([step], "fifo v1", timezone.now()).apply_step(step)
    assert "agent of node old is too old" in sentence_of(stale.value.dropped.data())


def test_containers_get_the_cache_of_their_project_where_the_agent_keeps_one(lab: Lab) -> None:
    old, new = control.ready_node("old"), control.ready_node("new", facts={"project_caches": True})
    other = world.make_project(lab.charlie, "Other")
    first = run_specs.cache_on(new, lab.project)
    assert run_specs.cache_on(old, lab.project) == "" and run_specs.cache_on(new, other)[:32] != first[:32]
    assert Script(lab.bob).post(f"projects/{lab.project.pk}/empty-caches/").status_code == 403
    assert Script(lab.alice).post(f"projects/{lab.project.pk}/empty-caches/").status_code == 204
    lab.project.refresh_from_db()
    assert first.endswith("-1") and run_specs.cache_on(new, lab.project) == f"{first[:32]}-2"
    page = text_of(lab.get(lab.alice, f"/projects/{lab.project.pk}/"))
    assert "Empty caches" in page and "Empty caches" not in text_of(lab.get(lab.bob, f"/projects/{lab.project.pk}/"))
    attempt = lifecycle.start_attempt(world.make_job(lab.project), "fifo v1")
    spec = run_specs.host_spec(attempt, 0, ContainerPlacement(new, tuple(new.gpus.all()[:1])), 1, 2, 1)
    assert spec.cache == f"{first[:32]}-2" and run_specs.driver_spec(attempt, 1, new, 1).cache == ""


# --- what was contacted ------------------------------------------------------------------------------------------

SEEN = {"host": "huggingface.co", "port": 443, "connections": 2, "received_bytes": 5_000_000, "sent_bytes": 300,
        "refused": 0, "reason": "", "detail": "", "first_at": 1_700_000_000.5, "last_at": 1_700_000_100}  # fmt: skip
REFUSED = {
    **SEEN,
    "host": "evil.example",
    "connections": 0,
    "refused": 3,
    "reason": "not_allowed",
    "last_at": 1_700_000_200,
}


@pytest.fixture
def part(lab: Lab) -> tuple[Agent, Container]:
    agent = Agent("one")
    agent.sync()
    job = world.make_job(lab.project)
    attempt = world.place(job, list(agent.node.gpus.all()[:1]))
    return agent, attempt.containers.get()


def test_reports_are_added_up_and_shown_with_advice(lab: Lab, part: tuple[Agent, Container]) -> None:
    agent, container = part
    address = f"containers/{container.name}/network"
    for count in (1, 2):
        hostile = {**REFUSED, "host": HOSTILE + "\n", "last_at": 1_700_000_000.5}
        sent = [{**SEEN, "connections": count}, REFUSED, hostile]
        assert agent.post(address, {"hosts": sent}).status_code == 200
    job = container.attempt.job
    (first, second, _) = network_use.of_attempt(container.attempt)
    assert (first.host, first.refused, second.connections) == ("evil.example", 3, 2)
    refused = network_use.last_refused(network_use.of_attempt(container.attempt))
    assert refused is not None and refused.host == "evil.example"
    page = text_of(lab.get(lab.bob, f"/jobs/{job.pk}/details/"))
    assert "Ask an admin to allow evil.example for this project." in page and HOSTILE not in page
    assert "Allow it" not in page and "host=evil.example" in text_of(lab.get(lab.ada, f"/jobs/{job.pk}/details/"))
    answer = Script(lab.bob).get(f"jobs/{job.pk}/network/").json()
    assert answer["attempt"] == 1 and answer["allowed"] == []
    assert answer["contacted"][1]["received_bytes"] == 5_000_000
    assert Script(lab.charlie).get(f"jobs/{job.pk}/network/").status_code == 404


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"hosts": 1},
        {"hosts": [1]},
        {"hosts": [{}] * 202},
        {"hosts": [{**SEEN, "connections": "many"}]},
        {"hosts": [{**SEEN, "first_at": None}]},
        {"hosts": [{**SEEN, "port": True}]},
    ],
)
def test_a_report_that_is_none_is_refused(part: tuple[Agent, Container], body: Any) -> None:
    agent, container = part
    assert agent.post(f"containers/{container.name}/network", body).status_code == 400
    assert network_use.of_attempt(container.attempt) == []


def test_numbers_are_brought_into_bounds(part: tuple[Agent, Container]) -> None:
    agent, container = part
    strange = {
        **SEEN,
        "host": "x" * 1000,
        "port": 10**9,
        "connections": -5,
        "last_at": 1e15,
        "reason": "?",
        "detail": 7,
    }
    assert agent.post(f"containers/{container.name}/network", {"hosts": [strange]}).status_code == 200
    (use,) = network_use.of_attempt(container.attempt)
    assert (len(use.host), use.port, use.connections, use.reason, use.detail) == (253, 65535, 0, "", "")
    assert use.last_at <= timezone.now().timestamp()
    json.dumps(use.place)


def test_another_nodes_container_cannot_be_reported(part: tuple[Agent, Container]) -> None:
    other = Agent("two")
    other.sync()
    assert other.post(f"containers/{part[1].name}/network", {"hosts": []}).status_code == 404
