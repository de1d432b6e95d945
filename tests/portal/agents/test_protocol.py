"""The protocol of agents: joining, reports, desired state, logs, outputs, code."""

import json
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.conf import LazySettings
from django.db import connections
from django.db.models import F
from django.http import JsonResponse
from django.test import AsyncClient, Client
from django.utils import timezone
from hypothesis import HealthCheck, given
from hypothesis import settings as settings_of
from hypothesis import strategies as st

from portal.agents import sync
from portal.agents.views import AgentError
from portal.cluster import services as cluster
from portal.cluster.models import Gpu, Node
from portal.environments.models import Environment
from portal.jobs import lifecycle, logs, services
from portal.jobs.models import Attempt, Container
from portal.jobs.rules import STOP_SECONDS
from portal.sentences import sentence_of
from tests.examples import HUNT, examples
from tests.portal.agents_world import Agent, about, job_on
from tests.portal.jobs_world import add_host, make_environment, make_job, make_project, make_user, place

pytestmark = [pytest.mark.django_db, pytest.mark.both_databases]


@pytest.fixture(autouse=True)
def nothing_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync, "ENVIRONMENTS_CACHE_SECONDS", 0.0)


def test_a_container_is_listed_run_reported_and_collected() -> None:
    agent = Agent()
    assert agent.sync()["approved"]
    job = job_on(agent)
    host, driver = Container.objects.order_by("index")
    answer = agent.sync()
    assert [item["wanted"] for item in answer["containers"]] == ["run", "run"]
    assert answer["containers"][1]["hosts"] == [{"name": "h0", "slots": 2}]
    agent.sync(about(host, "RUNNING"), about(driver, "RUNNING"))
    job.refresh_from_db()
    assert job.state == "RUNNING" and job.started_at
    sent = agent.http.post(
        f"/agent/v1/containers/{host.name}/logs/0?offset=0&label=rank%200",
        b"hello\n",
        content_type="application/octet-stream",
        headers={**agent.headers, "Marks": "0:1000"},
    )
    assert (sent.status_code, sent.json()["size"]) == (200, 6)
    answer = agent.sync(about(driver, "EXITED", exit_code=0, exit_reason="exited"), about(host, "RUNNING"))
    assert [item["wanted"] for item in answer["containers"]] == ["stop", "collect"]
    assert answer["containers"][0]["stop"] == {"reason": "done", "grace_seconds": 10}
    agent.sync(about(host, "EXITED", exit_reason="stopped"))
    job.refresh_from_db()
    assert job.state == "SUCCEEDED"
    answer = agent.sync(about(host, "EXITED", collected=True), about(driver, "EXITED", collected=True))
    assert answer["containers"] == []
    [stream] = host.streams.all()
    assert logs.read(stream, 0, 100) == b"hello\n" and logs.read_marks(stream) == [(0, 1000)]


# --- joining -----------------------------------------------------------------------------------------------------


def test_a_join_token_serves_one_machine() -> None:
    http = Client()
    token = cluster.issue_join_token(None)
    asked = {"join_token": token, "name": "gpu 1!", "runtime": "docker", "facts": {}}

    def join(**fields: Any) -> Any:
        return http.post("/agent/v1/join", json.dumps({**asked, **fields}), content_type="application/json")

    first = join()
    assert first.status_code == 201
    node = Node.objects.get()
    assert (node.name, node.approved_at) == ("gpu-1", None)
    again = join()  # the answer was lost on the way
    assert (again.status_code, again.json()["node"]) == (201, node.pk)
    assert cluster.node_for(first.json()["token"]) is None
    assert cluster.node_for(again.json()["token"]) == node
    assert join(name="another").status_code == 403
    Node.objects.update(last_seen_at=timezone.now())
    used = join()
    assert used.status_code == 403 and "used already" in used.json()["error"]["message"]
    assert join(join_token="sln_wrong").status_code == 403


def test_an_expired_token_and_a_foreign_runtime_are_refused(settings: LazySettings) -> None:
    http = Client()

    def join(token: str, runtime: str) -> Any:
        body = {"join_token": token, "name": "n", "runtime": runtime, "facts": {}}
        return http.post("/agent/v1/join", json.dumps(body), content_type="application/json")

    assert join(cluster.issue_join_token(None, lifetime=timedelta(0)), "fake").status_code == 403
    settings.LAB = True
    refused = join(cluster.issue_join_token(None), "process")
    assert refused.status_code == 403 and "Docker Engine" in refused.json()["error"]["message"]


def test_two_machines_of_one_name_are_distinguished() -> None:
    assert [Agent("twin").node.name, Agent("twin").node.name] == ["twin", "twin-2"]


@pytest.fixture
async def threads() -> AsyncIterator[None]:
    """Close the connection of the thread in which async views read rows."""
    yield
    await sync_to_async(connections.close_all)()


# --- who sees what -----------------------------------------------------------------------------------------------

ENDPOINTS = [
    ("post", "/agent/v1/sync"),
    ("get", "/agent/v1/code/" + "c" * 64),
    ("post", "/agent/v1/containers/sl-1-a1-0/logs/0?offset=0"),
    ("put", "/agent/v1/containers/sl-1-a1-0/outputs/a"),
    ("post", "/agent/v1/containers/sl-1-a1-0/outputs/a?size=1"),
    ("get", "/agent/v1/wait?seen=x"),
]


@pytest.mark.parametrize(("method", "path"), ENDPOINTS)
@pytest.mark.parametrize("token", ["", "Bearer", "Bearer sln_wrong", "Basic eDp5"])
@pytest.mark.usefixtures("threads")
@pytest.mark.django_db(transaction=True)
async def test_no_endpoint_answers_without_a_token_of_a_node(method: str, path: str, token: str) -> None:
    answer = await getattr(AsyncClient(), method)(path, headers={"Authorization": token} if token else {})
    assert answer.status_code == 401 and answer.json()["error"]["code"] == "token"


def test_a_node_touches_only_its_own_containers() -> None:
    mine, other = Agent("mine"), Agent("other")
    mine.sync()
    other.sync()
    job = job_on(mine)
    host = Container.objects.get(attempt__job=job, role="host")
    other.sync(about(host, "EXITED", exit_code=0, collected=True))
    host.refresh_from_db()
    assert host.state == "ASSIGNED"
    assert other.sync()["containers"] == []
    for method, path in (("post", "logs/0?offset=0"), ("put", "outputs/a"), ("post", "outputs/a?size=1")):
        send = getattr(other.http, method)
        answer = send(
            f"/agent/v1/containers/{host.name}/{path}",
            b"x",
            content_type="application/octet-stream",
            headers=other.headers,
        )
        assert answer.status_code == 404


@pytest.mark.parametrize("epoch", [0, 2])
def test_a_report_of_another_epoch_changes_nothing(epoch: int) -> None:
    agent = Agent()
    agent.sync()
    job_on(agent)
    host = Container.objects.get(role="host")
    agent.sync(about(host, "EXITED", exit_code=0) | {"epoch": epoch})
    host.refresh_from_db()
    assert host.state == "ASSIGNED"


def test_a_node_that_is_not_approved_gets_no_work_and_a_removed_one_no_answer() -> None:
    agent = Agent(approve=False)
    answer = agent.sync()
    assert (answer["approved"], answer["containers"], answer["environments"]) == (False, [], [])
    admin = make_user("admin", is_staff=True)
    cluster.approve(admin, agent.node)
    assert agent.sync()["approved"]
    cluster.remove(admin, agent.node)
    assert agent.post("sync", agent.report).status_code == 401


# --- reports -----------------------------------------------------------------------------------------------------


def test_gpus_come_change_and_go() -> None:
    agent = Agent()
    agent.sync()
    agent.report["gpus"] = [
        {**agent.report["gpus"][0], "healthy": False, "problem": "Xid 79", "utilisation_percent": 250}
    ]
    agent.sync()
    one, two = Gpu.objects.order_by("index")
    assert (one.healthy, one.problem, one.utilisation_percent, two.present) == (False, "Xid 79", 100, False)


def test_a_gpu_that_two_nodes_report_is_used_on_the_older_one() -> None:
    older, newer = Agent("older"), Agent("newer")
    slots = [{"uuid": f"cpu-{i}", "index": i, "kind": "cpu", "model": "CPU slot", "healthy": True} for i in range(2)]
    device = {"uuid": "GPU-5e1f", "index": 2, "kind": "cuda", "model": "A100", "healthy": True}
    for agent in (older, newer):
        agent.report["gpus"] = [*slots, device]
        agent.sync()

    def usable(agent: Agent) -> list[bool]:
        return [gpu.usable for gpu in agent.node.gpus.order_by("index")]

    assert (usable(older), usable(newer)) == ([True] * 3, [True, True, False])
    assert sentence_of(newer.node.gpus.get(index=2).problem).startswith("older reports this GPU, too, and keeps it.")
    Node.objects.filter(pk=older.node.pk).update(last_seen_at=timezone.now() - timedelta(hours=1))
    newer.report["boot"] = "b2"  # whatever is new lets a report be compared with the rows
    newer.sync()
    assert usable(newer) == [True] * 3


def test_environments_are_noted_and_unknown_ones_passed_over() -> None:
    Environment.objects.update(retired=True)  # those that come with the house
    make_environment("ours")
    agent = Agent()
    agent.report["environments"] = [
        {"key": "ours", "state": "preparing", "progress_percent": 40, "detail": "building Horovod"},
        {"key": "unknown-key", "state": "ready"},
    ]
    assert agent.sync()["environments"] == ["ours"]
    [row] = agent.node.environments.all()
    assert (row.state, row.progress_percent, row.detail) == ("preparing", 40, "building Horovod")


def test_what_jobs_wait_for_is_prepared_first() -> None:
    Environment.objects.update(retired=True)  # those that come with the house
    first, second = make_environment("a"), make_environment("b")
    project = make_project(make_user("alice"))
    agent = Agent()
    assert agent.sync()["environments"] == ["a", "b"]
    make_job(project, environment=second)
    assert agent.sync()["environments"][:2] == ["b", "a"]
    make_job(project, environment=first)
    assert agent.sync()["environments"][:2] == ["b", "a"]


def test_some_are_prepared_only_while_a_job_asks_for_them() -> None:
    Environment.objects.update(retired=True)
    make_environment("a")
    heavy = make_environment("heavy")
    Environment.objects.filter(pk=heavy.pk).update(on_demand=True)
    agent = Agent()
    assert agent.sync()["environments"] == ["a"]
    alice = make_user("alice")
    job = make_job(make_project(alice), environment=heavy)
    assert agent.sync()["environments"][:2] == ["heavy", "a"]
    services.cancel(alice, job)
    assert "heavy" not in agent.sync()["environments"]


def test_a_lost_container_is_not_renewed_but_collected() -> None:
    agent = Agent()
    agent.sync()
    job_on(agent)
    host = Container.objects.get(role="host")
    agent.sync(about(host, "RUNNING"))
    lifecycle.advance(host, "EXITED", exit_reason="lost")
    [item] = [item for item in agent.sync(about(host, "RUNNING"))["containers"] if item["spec"]["role"] == "host"]
    assert item["wanted"] == "collect"


def test_what_the_fence_has_ended_while_the_portal_was_away_has_not_run_into_its_time_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """This holds although the rules of time run while the first report after the absence is stored."""
    agent = Agent()
    agent.sync()
    job = job_on(agent, time_limit_seconds=360)
    parts = list(Container.objects.order_by("index"))
    agent.sync(*(about(part, "RUNNING", running_at=time.time()) for part in parts))
    away = timedelta(minutes=10)
    Node.objects.update(last_seen_at=F("last_seen_at") - away)
    Attempt.objects.update(started_at=F("started_at") - away, created_at=F("created_at") - away)
    store_report = sync._store_report

    def with_a_look(*args: Any, **named: Any) -> None:
        store_report(*args, **named)
        lifecycle.sweep()

    monkeypatch.setattr(sync, "_store_report", with_a_look)
    agent.sync(*(about(part, "EXITED", exit_code=1, exit_reason="fenced") for part in parts))
    lifecycle.sweep()
    job.refresh_from_db()
    assert (job.state, job.attempts.get().outcome) == ("QUEUED", "lost")


def test_an_exit_reason_of_another_release_is_not_blamed_on_the_job() -> None:
    agent = Agent()
    agent.sync()
    job_on(agent)
    host = Container.objects.get(role="host")
    agent.sync(about(host, "EXITED", exit_code=1, exit_reason="swallowed"))
    host.refresh_from_db()
    assert (host.state, host.exit_reason) == ("EXITED", "create_error")


def test_what_will_not_stop_is_to_be_collected_without_a_lease() -> None:
    """It is still listed, so that its node does not remove it with the rest of its log."""
    agent = Agent()
    agent.sync()
    job = job_on(agent)
    attempt = job.attempts.get()
    lifecycle.stop_attempt(attempt, "preempted")
    assert [item["wanted"] for item in agent.sync()["containers"]] == ["stop", "stop"]
    Container.objects.update(stop_requested_at=timezone.now() - timedelta(seconds=STOP_SECONDS + 1))
    parts = Container.objects.order_by("index")
    answer = agent.sync(*(about(part, "STOPPING") for part in parts))
    assert [item["wanted"] for item in answer["containers"]] == ["collect", "collect"]
    agent.sync(*(about(part, "EXITED", exit_code=137, exit_reason="stopped", collected=True) for part in parts))
    assert agent.sync()["containers"] == []
    attempt.refresh_from_db()
    assert attempt.outcome == "preempted"


def test_a_driver_gets_the_hosts_that_should_run() -> None:
    agent, helper = Agent("one"), Agent("two")
    agent.sync()
    helper.sync()
    job = job_on(agent, elastic=True, max_gpus=4)
    more = add_host(job.attempts.get(), 7, helper.node, list(helper.node.gpus.all()))

    def hosts() -> list[dict[str, Any]]:
        [driver] = [item for item in agent.sync()["containers"] if item["spec"]["role"] == "driver"]
        return driver["hosts"]

    assert hosts() == [{"name": "h0", "slots": 2}, {"name": "h7", "slots": 2}]
    before = agent.sync()["seen"]
    lifecycle.stop_container(more, "preempted")
    assert hosts() == [{"name": "h0", "slots": 2}]
    assert agent.sync()["seen"] != before


@pytest.mark.parametrize(("launcher", "gets_hosts"), [("horovod", True), ("torchrun", True), ("command", False)])
def test_hosts_of_a_rank_group_get_the_list_of_its_hosts(launcher: str, gets_hosts: bool) -> None:
    agent = Agent()
    agent.sync()
    job_on(agent, launcher=launcher)
    [host] = [item for item in agent.sync()["containers"] if item["spec"]["role"] == "host"]
    assert host["hosts"] == ([{"name": "h0", "slots": 2}] if gets_hosts else [])


def test_a_sync_costs_the_same_few_queries_however_much_runs(django_assert_max_num_queries: Any) -> None:
    agent = Agent()
    agent.report["gpus"] = [{"uuid": f"g{number}", "index": number, "kind": "cpu"} for number in range(30)]
    agent.sync()
    project = make_project(make_user("alice"))
    for gpu in Gpu.objects.select_related("node"):
        place(make_job(project), [gpu])
    running = [about(part, "RUNNING") for part in Container.objects.select_related("attempt")]
    agent.sync(*running)
    with django_assert_max_num_queries(16):  # savepoints included
        assert len(agent.sync(*running)["containers"]) == 30


# --- garbage -----------------------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from(["RUNNING", "EXITED", "\0", "\ud800", 10**400, "ready"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
KEYS = ["boot", "full_pass", "runtime", "facts", "problems", "gpus", "environments", "containers", "join_token", "name"]
FIELDS = [
    "uuid",
    "index",
    "kind",
    "name",
    "epoch",
    "state",
    "detail",
    "running_at",
    "exit_code",
    "exit_reason",
    "key",
    "text",
    "progress_percent",
    "memory_mib",
    "collected",
]


@settings_of(max_examples=examples(150), deadline=None, derandomize=not HUNT, suppress_health_check=list(HealthCheck))
@given(
    body=st.binary(max_size=60)
    | st.dictionaries(
        st.sampled_from(KEYS),
        JSON | st.lists(st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=6), max_size=3),
        max_size=8,
    ).map(lambda data: json.dumps({"runtime": "fake", **data}).encode()),
    endpoint=st.sampled_from(["sync", "join"]),
)
def test_garbage_is_answered_not_stumbled_over(body: bytes, endpoint: str) -> None:
    node = Node.objects.filter(name="fuzzed").first()
    agent = Agent("fuzzed") if node is None else fuzzed[0]
    fuzzed[:] = [agent]
    assert agent.post(endpoint, body).status_code in (200, 201, 400, 403, 413)


fuzzed: list[Agent] = []


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b'{"facts": ' + b'{"a":' * 50_000,
        b'{"runtime": "fake", "facts": {"x": NaN}}',
        b'{"runtime": "fake", "facts": {"memory_mib": 1' + b"0" * 400 + b"}}",
        b"[]",
        b"",
        b'"x"',
    ],
)
def test_nested_and_endless_garbage_too(body: bytes) -> None:
    assert Agent().post("sync", body).status_code == 400


def test_refusals_keep_nothing_of_what_was_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    agent, seen = Agent(), list[AgentError]()

    def response(error: AgentError) -> JsonResponse:
        seen.append(error)
        return JsonResponse({}, status=error.status)

    monkeypatch.setattr(AgentError, "response", response)
    for _ in range(2):
        agent.post("containers/of-no-node/logs/0?offset=0", b"")
    agent.token = "sln_wrong"
    for _ in range(2):
        agent.post("sync", {})
    assert len({id(each) for each in seen}) == 4, "an exception that is raised again keeps what it was raised through"


def test_too_large_a_report_is_refused() -> None:
    assert Agent().post("sync", b"x" * (2 * 1024 * 1024 + 1)).status_code == 413
    assert Agent().post("sync", b"x" * (6 * 1024 * 1024)).status_code == 413
