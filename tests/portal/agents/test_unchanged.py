"""A report that equals the one before costs two statements, and loses nothing by that."""

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection, connections, transaction
from django.test.utils import CaptureQueriesContext
from hypothesis import HealthCheck, given
from hypothesis import settings as settings_of
from hypothesis import strategies as st

from portal.agents import sync
from portal.agents.protocol import READINGS, digest_of
from portal.cluster import services as cluster
from portal.cluster.models import Gpu, Node
from portal.environments.models import NodeEnvironment
from portal.jobs import lifecycle
from portal.jobs.models import Container
from portal.monitoring.models import Sample
from tests.examples import HUNT, examples
from tests.portal.agents_world import Agent, about, job_on
from tests.portal.jobs_world import make_environment, make_user

pytestmark = pytest.mark.django_db
TWO = ["UPDATE", "SELECT"] if connection.vendor == "sqlite" else ["UPDATE"]
"""The number of statements: PostgreSQL gets both at once."""
NOON = datetime(2026, 11, 21, 12, 0, 1, tzinfo=UTC)


class Clock:
    """The clock of the module that stores reports."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_is = NOON
        monkeypatch.setattr(sync, "timezone", self)

    def now(self) -> datetime:
        return self.now_is


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setattr(sync, "FULL_COMPARISON_SECONDS", 10**6)
    return Clock(monkeypatch)


@pytest.fixture
def agent() -> Agent:
    make_environment("pytorch")
    agent = Agent()
    agent.report["facts"] = {"cpus": 2}
    agent.report["environments"] = [{"key": "pytorch", "state": "ready"}]
    agent.sync()
    return agent


def statements(agent: Agent, *containers: dict[str, Any]) -> list[str]:
    with CaptureQueriesContext(connection) as asked:
        agent.sync(*containers)
    return [word for each in asked if (word := each["sql"].split()[0]) not in ("SAVEPOINT", "RELEASE")]


def test_it_costs_two_statements_with_containers_too(agent: Agent, clock: Clock) -> None:
    clock.now_is += timedelta(seconds=5)
    assert statements(agent) == TWO
    assert Node.objects.get().last_seen_at == clock.now_is
    job_on(agent, launcher="command")
    driver, host = Container.objects.order_by("role")
    driver.delete()
    agent.sync(about(host, "RUNNING"))
    assert statements(agent, about(host, "RUNNING")) == TWO
    assert statements(agent, about(host, "RUNNING")) == TWO, "GPUs without readings make no sample that is due"


def test_whatever_differs_is_written(agent: Agent) -> None:
    report = agent.report
    report["gpus"][0].update(healthy=False, problem="Xid 79")
    agent.sync()
    assert Gpu.objects.get(index=0).problem == "Xid 79"
    report["environments"][0].update(state="failed", detail="no space")
    agent.sync()
    assert NodeEnvironment.objects.get().detail == "no space"
    report["facts"] = {"cpus": 4}
    agent.sync()
    assert Node.objects.get().facts == {"cpus": 4}
    for name in ("fix", "mend"):  # the second is the name in the previous release
        report["problems"] = [{"text": "too hot", name: f"{name} it", "blocking": True}]
        agent.sync()
        found = {"text": "too hot", "fix": f"{name} it", "mend": f"{name} it", "blocking": True}
        assert Node.objects.get().problems == [found]
    report.update(boot="b2", full_pass=False)
    agent.sync()
    assert (Node.objects.get().boot, Node.objects.get().ready) == ("b2", False)
    del report["gpus"][1]
    agent.sync()
    assert not Gpu.objects.get(index=1).present


def test_readings_and_containers_are_not_part_of_what_is_known() -> None:
    gpu = {"uuid": "a", "healthy": True}
    known = digest_of({"boot": "b", "gpus": [gpu | {"utilisation_percent": 3}], "containers": []}, "salt")
    assert known == digest_of({"boot": "b", "gpus": [gpu | {"temperature_celsius": 70}], "containers": [{}]}, "salt")
    assert known != digest_of({"boot": "b", "gpus": [gpu | {"healthy": False}]}, "salt")
    assert known != digest_of({"boot": "b", "gpus": [gpu]}, "pepper")


def test_what_containers_do_is_heard_although_nothing_else_is_new(agent: Agent) -> None:
    job_on(agent)
    host = Container.objects.get(role="host")
    agent.sync(about(host, "RUNNING"))
    host.refresh_from_db()
    assert host.state == "RUNNING"
    agent.sync(about(host, "RUNNING", detail="waiting for the other ranks"))
    host.refresh_from_db()
    assert host.detail == "waiting for the other ranks"
    agent.sync(about(host, "EXITED", exit_code=0, exit_reason="exited"))
    agent.sync(about(host, "EXITED", collected=True))
    host.refresh_from_db()
    assert host.state == "EXITED" and host.collected_at is not None


def test_a_container_declared_lost_between_two_reports_gets_no_lease(agent: Agent) -> None:
    job_on(agent)
    host = Container.objects.get(role="host")
    agent.sync(about(host, "RUNNING"))
    lifecycle.advance(host, "EXITED", exit_reason="lost")
    wanted_by_name = {each["spec"]["name"]: each["wanted"] for each in agent.sync(about(host, "RUNNING"))["containers"]}
    assert wanted_by_name[host.name] == "collect"


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
def test_one_declared_lost_while_its_node_s_report_waits_gets_no_lease(agent: Agent) -> None:
    """Both statements are sent at once, but the second reads after the first has locked the node's row."""
    job_on(agent)
    host = Container.objects.get(role="host")
    agent.sync(about(host, "RUNNING"))
    with ThreadPoolExecutor(1) as thread:
        with transaction.atomic():
            Node.objects.select_for_update().get(pk=agent.node.pk)
            answer = thread.submit(_sync_beside, agent, about(host, "RUNNING"))
            _until_an_agent_waits()
            lifecycle.advance(host, "EXITED", exit_reason="lost")
        wanted_by_name = {each["spec"]["name"]: each["wanted"] for each in answer.result(30)["containers"]}
    assert wanted_by_name[host.name] == "collect"


def _sync_beside(agent: Agent, *containers: dict[str, Any]) -> dict[str, Any]:
    try:
        return agent.sync(*containers)
    finally:
        connections.close_all()


def _until_an_agent_waits() -> None:
    until = time.monotonic() + 20
    with connection.cursor() as cursor:
        while time.monotonic() < until:
            cursor.execute("SELECT count(*) FROM pg_locks WHERE NOT granted")
            if cursor.fetchone()[0]:
                return
            time.sleep(0.05)
    raise AssertionError("the report did not wait for the node's row")


def test_an_admin_s_word_counts_at_once(agent: Agent) -> None:
    admin = make_user("admin", is_staff=True)
    cluster.rotate_token(admin, agent.node)
    assert agent.sync()["rotate"] is True
    old, agent.token = agent.token, agent.post("token", {}).json()["token"]
    assert agent.sync()["rotate"] is False  # by its first use the old one has ended
    assert cluster.node_for(old) is None
    cluster.revoke_token(admin, Node.objects.get())
    assert agent.post("sync", agent.report).status_code == 401


def test_after_a_silence_everything_is_compared(agent: Agent, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync, "FULL_COMPARISON_SECONDS", 10**9)  # for no other reason
    monkeypatch.setattr(sync, "ENVIRONMENTS_CACHE_SECONDS", 0.0)
    agent.sync()
    Gpu.objects.update(present=False)
    agent.sync()
    assert not Gpu.objects.filter(present=True).exists()
    clock.now_is += timedelta(seconds=21)
    agent.sync()
    assert Gpu.objects.filter(present=True).count() == 2


def test_a_full_comparison_corrects_rows_that_differ(
    agent: Agent, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync, "FULL_COMPARISON_SECONDS", 300)
    agent.sync()
    Gpu.objects.update(present=False)
    for _ in range(61):
        clock.now_is += timedelta(seconds=5)
        agent.sync()
    assert Gpu.objects.filter(present=True).count() == 2


def test_an_environment_that_is_offered_later_is_noted(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync, "ENVIRONMENTS_CACHE_SECONDS", 0.0)
    agent.report["environments"].append({"key": "later", "state": "ready"})
    agent.sync()
    make_environment("later")
    agent.sync()
    assert NodeEnvironment.objects.filter(environment__key="later", state="ready").exists()


def test_a_report_that_could_not_be_written_is_not_known(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    agent.report["environments"][0].update(state="failed")
    with monkeypatch.context() as broken, pytest.raises(RuntimeError):
        broken.setattr(sync, "_store_environments", _break)
        agent.sync()
    agent.sync()
    assert NodeEnvironment.objects.get().state == "failed"


def _break(*_: object) -> None:
    raise RuntimeError("no disk")


def test_gpus_that_read_otherwise_are_sampled_in_each_slot(agent: Agent, clock: Clock) -> None:
    clock.now_is = NOON + timedelta(seconds=15)
    agent.report["gpus"][0].update(utilisation_percent=40, memory_used_mib=1000, temperature_celsius=None)
    agent.sync()
    one, two = Gpu.objects.order_by("index")
    assert (one.utilisation_percent, one.memory_used_mib, one.temperature_celsius) == (40, 1000, None)
    assert two.utilisation_percent is None


def test_a_gpu_that_stops_saying_what_it_does_is_heard_at_once(agent: Agent, clock: Clock) -> None:
    for gpu in agent.report["gpus"]:
        gpu.update(utilisation_percent=40, memory_used_mib=1000, temperature_celsius=50)
    agent.sync()
    clock.now_is += timedelta(seconds=5)
    agent.report["gpus"][1].update(utilisation_percent=None, memory_used_mib=None, temperature_celsius=None)
    agent.sync()
    one, two = Gpu.objects.order_by("index")
    assert (one.utilisation_percent, two.utilisation_percent) == (40, None)


CHANGE = st.fixed_dictionaries(
    {},
    optional={
        "healthy": st.booleans(),
        "outside": st.sampled_from(["", "bob's notebook"]),
        "utilisation_percent": st.none() | st.integers(0, 3),
        "memory_used_mib": st.none() | st.integers(0, 3),
    },
)


@settings_of(
    max_examples=examples(40),
    deadline=None,
    derandomize=not HUNT,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(changes=st.lists(st.tuples(st.integers(0, 1), CHANGE, st.sampled_from([5, 15, 30])), max_size=8))
def test_a_node_known_by_its_digest_has_the_rows_of_one_that_is_always_compared(
    changes: list[tuple[int, dict[str, Any], int]], clock: Clock
) -> None:
    clock.now_is += timedelta(days=1)
    name = clock.now_is.isoformat()
    known, compared = Agent(f"known {name}"), Agent(f"compared {name}")
    for number, (index, change, seconds) in enumerate([(0, {}, 5), *changes]):
        clock.now_is += timedelta(seconds=seconds)
        for agent in (known, compared):
            agent.report["gpus"][index].update(change)
            agent.sync()
        Node.objects.filter(pk=compared.node.pk).update(report_digest=f"forgotten {number}")
        assert samples_of(known) == samples_of(compared)
        assert rows_of(known) == rows_of(compared)


def rows_of(agent: Agent) -> list[Any]:
    names = ["index", "healthy", "outside", "present", *READINGS]
    return list(Gpu.objects.filter(node=agent.node).order_by("index").values_list(*names))


def samples_of(agent: Agent) -> list[Any]:
    """Return a container without the ids of its GPUs."""
    rows = Sample.objects.filter(node=agent.node).order_by("at").values_list("at", "readings")
    return [(at, [reading[1:] for reading in readings]) for at, readings in rows]
