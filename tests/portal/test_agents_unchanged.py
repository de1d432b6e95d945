"""A report that says what the one before said costs three statements, and loses nothing by that."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from portal.cluster import services as cluster
from portal.cluster.models import Gpu, Node, NodeEnvironment
from portal.control import agent_sync
from portal.control.agent_reports import digest_of
from portal.jobs import lifecycle
from portal.jobs.models import Container
from tests.portal.agents_world import Agent, about, job_on
from tests.portal.jobs_world import make_environment, make_user

pytestmark = pytest.mark.django_db
NOON = datetime(2026, 11, 21, 12, 0, 1, tzinfo=UTC)


class Clock:
    """Of the module that takes reports in."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_is = NOON
        monkeypatch.setattr(agent_sync, "timezone", self)

    def now(self) -> datetime:
        return self.now_is


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setattr(agent_sync, "COMPARE_SECONDS", 10**6)
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
    return [each["sql"].split()[0] for each in asked]


def test_it_costs_three_statements_with_containers_too(agent: Agent, clock: Clock) -> None:
    clock.now_is += timedelta(seconds=5)
    assert statements(agent) == ["SELECT", "UPDATE", "SELECT"]
    assert Node.objects.get().last_seen_at == clock.now_is
    job_on(agent, launcher="command")
    driver, host = Container.objects.order_by("role")
    driver.delete()
    agent.sync(about(host, "RUNNING"))
    assert statements(agent, about(host, "RUNNING")) == ["SELECT", "UPDATE", "SELECT"]


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
    report["problems"] = [{"text": "too hot", "mend": "cool it", "blocking": True}]
    agent.sync()
    assert Node.objects.get().problems == report["problems"]
    report.update(boot="b2", full_pass=False)
    agent.sync()
    assert (Node.objects.get().boot, Node.objects.get().ready) == ("b2", False)
    del report["gpus"][1]
    agent.sync()
    assert not Gpu.objects.get(index=1).present


def test_readings_and_containers_are_not_part_of_what_is_known() -> None:
    gpu = {"uuid": "a", "healthy": True}
    said = digest_of({"boot": "b", "gpus": [gpu | {"utilisation_percent": 3}], "containers": []}, "salt")
    assert said == digest_of({"boot": "b", "gpus": [gpu | {"temperature_celsius": 70}], "containers": [{}]}, "salt")
    assert said != digest_of({"boot": "b", "gpus": [gpu | {"healthy": False}]}, "salt")
    assert said != digest_of({"boot": "b", "gpus": [gpu]}, "pepper")


def test_what_containers_do_is_heard_although_nothing_else_is_new(agent: Agent) -> None:
    job_on(agent)
    host = Container.objects.get(role="host")
    agent.sync(about(host, "RUNNING"))
    host.refresh_from_db()
    assert host.state == "RUNNING"
    agent.sync(about(host, "RUNNING", detail="waiting for the ring"))
    host.refresh_from_db()
    assert host.detail == "waiting for the ring"
    agent.sync(about(host, "EXITED", exit_code=0, exit_reason="exited"))
    agent.sync(about(host, "EXITED", collected=True))
    host.refresh_from_db()
    assert host.state == "EXITED" and host.collected_at is not None


def test_a_container_declared_lost_between_two_reports_gets_no_lease(agent: Agent) -> None:
    job_on(agent)
    host = Container.objects.get(role="host")
    agent.sync(about(host, "RUNNING"))
    lifecycle.advance(host, "EXITED", exit_reason="lost")
    told = {each["spec"]["name"]: each["wanted"] for each in agent.sync(about(host, "RUNNING"))["containers"]}
    assert told[host.name] == "collect"


def test_an_admin_s_word_counts_at_once(agent: Agent) -> None:
    admin = make_user("admin", is_staff=True)
    cluster.rotate_token(admin, agent.node)
    assert agent.sync()["rotate"] is True
    old, agent.token = agent.token, agent.post("token", {}).json()["token"]
    assert agent.sync()["rotate"] is False  # by its first use the old one has ended
    assert cluster.node_for(old) is None
    cluster.revoke_token(admin, Node.objects.get())
    assert agent.post("sync", agent.report).status_code == 401


def test_after_a_silence_everything_is_compared(agent: Agent, clock: Clock) -> None:
    Gpu.objects.update(present=False)
    agent.sync()
    assert not Gpu.objects.filter(present=True).exists()
    clock.now_is += timedelta(seconds=21)
    agent.sync()
    assert Gpu.objects.filter(present=True).count() == 2


def test_rows_that_went_astray_are_mended_in_time(agent: Agent, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_sync, "COMPARE_SECONDS", 300)
    agent.sync()
    Gpu.objects.update(present=False)
    for _ in range(61):
        clock.now_is += timedelta(seconds=5)
        agent.sync()
    assert Gpu.objects.filter(present=True).count() == 2


def test_an_environment_that_is_offered_later_is_noted(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_sync, "ENVIRONMENTS_SECONDS", 0.0)
    agent.report["environments"].append({"key": "later", "state": "ready"})
    agent.sync()
    make_environment("later")
    agent.sync()
    assert NodeEnvironment.objects.filter(environment__key="later", state="ready").exists()


def test_a_report_that_could_not_be_written_is_not_known(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    agent.report["environments"][0].update(state="failed")
    with monkeypatch.context() as broken, pytest.raises(RuntimeError):
        broken.setattr(agent_sync, "_take_environments", _break)
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
