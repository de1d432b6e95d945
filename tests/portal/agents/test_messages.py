"""What agents report in words: messages of this release, texts of the previous one, and what is neither."""

import html
from dataclasses import replace
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from portal.agents import protocol
from portal.cluster import findings, quarantine, services
from portal.cluster.models import Gpu, Node, usable_gpu
from portal.environments.models import NodeEnvironment
from portal.jobs.events import OutputsNotSent
from portal.jobs.models import Attempt, Container, Job
from portal.refused import Refused
from portal.scheduler import availability
from portal.scheduler.availability import why_closed
from portal.sentences import sentence_of
from portal.sentences.problems import FORMER_FIX, problem_of
from runners.agent.reconcile import DesiredContainer, Exit
from runners.agent.report import container_report, exit_message
from runners.environments.builds import Report
from runners.host.gpus import Gpu as RunnersGpu
from runners.messages import Message, Quotation
from runners.messages.confinement import FilesOnly, LimitsEnforced, LimitsNotEnforced
from runners.messages.containers import CheckpointsNotKept, EnvironmentInPreparation, FilesOverLimit
from runners.messages.environment_failures import MissingTools
from runners.messages.environments import InstallingPackages
from runners.messages.gpus import LostByDriver, Process, Processes, TooHot, XidError
from runners.messages.launch import AwaitingOtherHosts, RankEnded
from runners.messages.outputs import FileNotKept, OutputsNotKept, TooLarge
from runners.messages.portal import PortalDiskFull
from runners.messages.problems import EngineAway, NoLiveRestore, OldRunc
from tests.portal.agents_world import Agent, about, job_on
from tests.portal.jobs_world import make_environment, make_node, make_user
from tests.runners.agent_bench import spec_of

pytestmark = pytest.mark.django_db

RUNC = OldRunc("1.1.5")
FORMER = {
    "text": "This runc lets people out.",
    "fix": "Upgrade runc.",
    FORMER_FIX: "Upgrade runc.",
    "blocking": True,
}


@pytest.fixture
def agent() -> Agent:
    return Agent("alpha")


def problems_of(node: Node) -> list[dict[str, Any]]:
    client = Client()
    client.force_login(make_user("ada", is_staff=True))
    found = client.get(f"/api/v1/nodes/{node.pk}/").json()["problems"]
    page = html.unescape(client.get(f"/admin/nodes/{node.pk}/").content.decode())
    assert all(problem["text"] in page and problem["fix"] in page for problem in found)
    return list(found)


def test_a_problem_is_stored_as_data_and_shown_as_a_sentence(agent: Agent) -> None:
    agent.report["problems"] = [RUNC.to_json(), NoLiveRestore().to_json()]
    agent.sync()
    node = Node.objects.get()
    assert node.problems == [
        {"code": "problem.old_runc", "version": "1.1.5", "blocking": True},
        {"code": "problem.no_live_restore", "blocking": False},
    ]
    first = problems_of(node)[0]
    assert first == {
        "code": RUNC.code,
        "text": RUNC.text,
        "fix": RUNC.fix,
        FORMER_FIX: RUNC.fix,
        "blocking": True,
    }


def test_a_blocking_problem_keeps_a_node_out(agent: Agent) -> None:
    agent.report["problems"] = [NoLiveRestore().to_json(), RUNC.to_json()]
    agent.sync()
    node = Node.objects.get()
    assert services.blocking_problems(node) == [f"{RUNC.text} {RUNC.fix}"]
    closed = why_closed(node, timezone.now())
    assert closed is not None
    assert f"alpha is unfit: {RUNC.text}" in sentence_of(availability.NoNodeAccepts([closed]).data())
    Node.objects.update(approved_at=None)
    node.refresh_from_db()
    with pytest.raises(Refused, match="CVE-2024-21626"):
        services.approve(make_user("admin", is_staff=True), node)


def test_a_report_of_the_previous_release_s_agent_is_shown_as_it_is(agent: Agent) -> None:
    agent.report["problems"] = [FORMER]
    agent.sync()
    node = Node.objects.get()
    assert node.problems == [FORMER]
    assert problems_of(node) == [FORMER | {"code": ""}]


def test_a_row_of_the_previous_release_is_shown_as_it_is() -> None:
    node = make_node("alpha", problems=[FORMER, {"text": "Loud."}])
    assert [each["text"] for each in problems_of(node)] == ["This runc lets people out.", "Loud."]
    assert services.blocking_problems(node) == ["This runc lets people out. Upgrade runc."]


def test_a_problem_of_a_later_release_is_shown_as_its_code_and_parameters() -> None:
    shown = problem_of({"code": "problem.too_loud", "decibels": 90, "blocking": True})
    assert shown.text == "Problem.too loud (decibels 90)." and shown.blocking and not shown.fix
    assert "1.1.5" in problem_of({"code": RUNC.code, "release": "1.1.5", "blocking": False}).text


@pytest.mark.parametrize(
    "content",
    [
        {"code": 1},
        {"code": "Problem"},
        {"code": "text", "text": "Not a message of agents."},
        {"code": "problem.old_runc", **{f"p{number}": 1 for number in range(30)}},
    ],
)
def test_what_is_no_message_is_read_as_texts(content: dict[str, Any]) -> None:
    (problem,) = protocol.read_report({"problems": [{**content, "text": "Loud."}]}).problems
    assert problem["text"] == "Loud." and "code" not in problem


def test_parameters_are_limited() -> None:
    deep: dict[str, Any] = {"code": "problem.no_engine"}
    for _ in range(10):
        deep = {"code": "problem.no_engine", "error": deep}
    values = {"version": "x" * 5000, "many": ["yes", 7] * 50, "odd": {"no": "code"}, "none": None}
    read = protocol.read_report({"problems": [deep, {"code": RUNC.code, **values}]}).problems
    assert len(str(read[0])) < 300 and sentence_of(read[0])
    assert len(read[1]["version"]) == 1000 and len(read[1]["many"]) <= 20
    assert read[1]["odd"] is None and read[1]["none"] is None


def test_how_jobs_are_confined_comes_as_data_or_as_a_text(agent: Agent) -> None:
    agent.report["facts"] |= {"confinement": FilesOnly().text, "confinement_message": FilesOnly().data()}
    agent.sync()
    facts = Node.objects.get().facts
    assert facts["confinement_message"] == {"code": "confinement.files_only"}
    assert findings.confinement(facts) == FilesOnly().text
    for odd in ("a text", {"code": "no code"}, ["a"], None):
        agent.report["facts"]["confinement_message"] = odd
        agent.sync()
        facts = Node.objects.get().facts
        assert "confinement_message" not in facts and findings.confinement(facts) == FilesOnly().text


def test_a_node_reports_whether_limits_are_enforced(agent: Agent) -> None:
    for message in (LimitsEnforced(), LimitsNotEnforced("the agent is not root")):
        agent.report["facts"]["limits_message"] = message.data()
        agent.sync()
        assert findings.limits(Node.objects.get().facts) == message.text
    agent.report["facts"]["limits_message"] = ["odd"]
    agent.sync()
    assert findings.limits(Node.objects.get().facts) == ""


def shown_environment(node: Node) -> str:
    """Return the detail in the API, which the page of the lab's nodes and a waiting job have as well."""
    client = Client()
    client.force_login(make_user("ada", is_staff=True))
    (found,) = client.get(f"/api/v1/nodes/{node.pk}/").json()["environments"]
    assert found["detail"][:150] in html.unescape(client.get("/admin/nodes/").content.decode())
    environment = NodeEnvironment.objects.get().environment
    reason = availability.why_blocked(1, environment.pk, "Torch", availability.read_nodes(timezone.now()), frozenset())
    assert reason is not None and found["detail"] in sentence_of(reason.data())
    return str(found["detail"])


@pytest.mark.parametrize(
    ("state", "message"),
    [("preparing", InstallingPackages(17, seconds=5)), ("failed", MissingTools(("make", "nvcc")))],
    ids=["a step", "a failure"],
)
def test_how_far_an_environment_is_comes_as_data(agent: Agent, state: str, message: Message) -> None:
    key = make_environment().key
    agent.report["environments"] = [Report(key, state=state, progress_percent=50, message=message).to_json()]  # type: ignore[arg-type]
    agent.sync()
    assert NodeEnvironment.objects.get().detail == message.data()
    assert shown_environment(Node.objects.get()) == message.text


def test_how_far_an_environment_is_on_a_node_of_the_previous_release(agent: Agent) -> None:
    report = {
        "key": make_environment().key,
        "state": "preparing",
        "progress_percent": 4,
        "detail": "installing 17 packages",
    }
    agent.report["environments"] = [report]
    agent.sync()
    assert NodeEnvironment.objects.get().detail == "installing 17 packages"
    assert shown_environment(Node.objects.get()) == "installing 17 packages"


def test_a_row_that_the_previous_release_wrote_is_shown_as_it_is(agent: Agent) -> None:
    agent.sync()
    row = NodeEnvironment.objects.create(node=Node.objects.get(), environment=make_environment(), state="preparing")
    with connection.cursor() as cursor:
        cursor.execute("UPDATE cluster_nodeenvironment SET detail = 'compiling' WHERE id = %s", [row.pk])
    assert shown_environment(Node.objects.get()) == "compiling"


def test_a_text_that_looks_like_a_message_stays_a_text(agent: Agent) -> None:
    text = '{"code": "node_silent", "node": 1}'
    agent.report["environments"] = [{"key": make_environment().key, "state": "failed", "detail": text}]
    agent.sync()
    assert shown_environment(Node.objects.get()).strip() == text


# --- containers ---------------------------------------------------------------------------------------------------


def shown_container(job: Job) -> str:
    client = Client()
    client.force_login(job.submitted_by)
    (attempt,) = client.get(f"/api/v1/jobs/{job.pk}/attempts/").json()["results"]
    detail = next(each["detail"] for each in attempt["containers"] if each["role"] == "host")
    assert detail in html.unescape(client.get(f"/jobs/{job.pk}/").content.decode())
    return str(detail)


def reported(container: Container, state: str, message: Message, **fields: Any) -> dict[str, Any]:
    known = DesiredContainer(replace(spec_of("0" * 64), name=container.name), "run")
    return container_report(known, state, None, message) | {"epoch": container.attempt.number} | fields


def test_what_happens_with_a_container_comes_as_data_and_costs_no_statements_again(agent: Agent) -> None:
    agent.sync()
    job = job_on(agent, launcher="command")
    host = Container.objects.get(role="host")
    report = reported(host, "PREPARING", EnvironmentInPreparation("torch", InstallingPackages(17)))
    agent.sync(report)
    host.refresh_from_db()
    assert host.detail["code"] == "container.environment_in_preparation"
    assert shown_container(job) == "waiting for the environment “torch”: installing 17 packages"
    with CaptureQueriesContext(connection) as asked:
        agent.sync(report)
    assert not [each for each in asked if 'UPDATE "jobs_container"' in each["sql"]]


def test_an_end_is_data_in_the_cause_too(agent: Agent) -> None:
    agent.sync()
    job = job_on(agent, launcher="command")
    Container.objects.filter(role="driver").delete()
    host = Container.objects.get(role="host")
    agent.sync(reported(host, "EXITED", FilesOverLimit(70, 64), exit_code=143, exit_reason="disk"))
    cause = Attempt.objects.get().cause
    assert cause["detail"] == {
        "code": "container.files_over_limit",
        "used_mib": 70,
        "limit_mib": 64,
        "temporary": False,
    }
    assert Attempt.objects.get().explanation["detail"] == FilesOverLimit(70, 64).text
    assert shown_container(job) == FilesOverLimit(70, 64).text


def test_what_a_supervisor_wrote_is_data_too(agent: Agent) -> None:
    agent.sync()
    job = job_on(agent, launcher="command")
    Container.objects.filter(role="driver").delete()
    host = Container.objects.get(role="host")
    agent.sync(reported(host, "RUNNING", AwaitingOtherHosts()))
    host.refresh_from_db()
    assert host.detail == {"code": "launch.awaiting_other_hosts"}
    assert shown_container(job) == "waiting for the other hosts"
    agent.sync(reported(host, "EXITED", RankEnded(1, "h2", 7), exit_code=7, exit_reason="exited"))
    cause = Attempt.objects.get().cause
    assert cause["detail"] == {"code": "launch.rank_ended", "rank": 1, "host": "h2", "exit_code": 7}
    assert shown_container(job) == "Rank 1 on h2 ended with exit code 7"


def test_an_end_with_a_quotation_and_a_remark_is_shown_whole(agent: Agent) -> None:
    message = exit_message(Exit(1, "exited", Quotation("It broke.")), CheckpointsNotKept(PortalDiskFull()))
    assert message is not None
    agent.sync()
    job = job_on(agent, launcher="command")
    Container.objects.filter(role="driver").delete()
    agent.sync(reported(Container.objects.get(role="host"), "EXITED", message, exit_code=1, exit_reason="exited"))
    assert shown_container(job) == f"It broke. Its checkpoints were not kept in the portal: {PortalDiskFull().text}"


NOT_KEPT = OutputsNotKept((FileNotKept("a.pt", TooLarge(64)), FileNotKept("b", Quotation("full"))), 2)


@pytest.mark.parametrize("former", [False, True], ids=["data", "text of the previous release"])
def test_which_outputs_were_not_kept_is_an_event_with_the_agent_s_message(agent: Agent, former: bool) -> None:
    agent.sync()
    job = job_on(agent, launcher="command")
    Container.objects.filter(role="driver").delete()
    host = Container.objects.get(role="host")
    agent.sync(reported(host, "EXITED", Quotation(""), exit_code=0, exit_reason="exited"))
    report = reported(host, "EXITED", NOT_KEPT, exit_code=0, exit_reason="exited", collected=True)
    agent.sync(report | {"message": None} if former else report)
    event = job.events.get(kind="outputs")
    assert event.data == OutputsNotSent(NOT_KEPT.text if former else NOT_KEPT.data()).data()
    client = Client()
    client.force_login(job.submitted_by)
    (shown,) = [
        each for each in client.get(f"/api/v1/jobs/{job.pk}/events/").json()["results"] if each["kind"] == "outputs"
    ]
    assert shown["text"] == NOT_KEPT.text
    assert NOT_KEPT.text in html.unescape(client.get(f"/jobs/{job.pk}/").content.decode())


def test_messages_in_messages_survive_the_limits(agent: Agent) -> None:
    ended = exit_message(Exit(1, "exited", Quotation("It broke.")), Quotation("a"), NOT_KEPT)
    assert ended is not None
    (read,) = protocol.read_report({"containers": [{**about_nothing(), "message": ended.data()}]}).containers
    assert sentence_of(read.detail) == f"It broke. a {NOT_KEPT.text}"
    first = [{"code": "output.of_a_later_release"}, 7, ["a"], {"no": "code"}] * 10
    odd = {"code": "output.not_kept", "first": first, "more": 0}
    (read,) = protocol.read_report({"containers": [{**about_nothing(), "message": odd}]}).containers
    assert len(read.detail["first"]) == 5 and sentence_of(read.detail)


def about_nothing() -> dict[str, Any]:
    return {"name": "sl-1-a1-0", "epoch": 1, "state": "EXITED"}


def test_a_container_on_a_node_of_the_previous_release_has_its_text(agent: Agent) -> None:
    agent.sync()
    job = job_on(agent, launcher="command")
    agent.sync(about(Container.objects.get(role="host"), "PREPARING", detail="fetching the code"))
    assert Container.objects.get(role="host").detail == "fetching the code" == shown_container(job)


def test_an_engine_that_is_away_is_quoted(agent: Agent) -> None:
    agent.report["problems"] = [EngineAway(Quotation("No socket.")).to_json()]
    agent.sync()
    assert Node.objects.get().shown_problems[0].text == "No socket."


def test_what_is_wrong_with_a_gpu_comes_as_data(agent: Agent) -> None:
    sick = RunnersGpu("alpha-0", 0, "cpu", "CPU slot", healthy=False, problem=TooHot(104))
    agent.report["gpus"] = [sick.to_json(), {**sick.to_json(), "uuid": "alpha-1", "index": 1, "message": None}]
    agent.sync()
    first, second = Gpu.objects.order_by("index")
    assert first.problem == {"code": "gpu.too_hot", "celsius": 104} and second.problem == TooHot(104).text
    client = Client()
    client.force_login(make_user("ada", is_staff=True))
    shown = client.get(f"/api/v1/nodes/{agent.node.pk}/").json()["gpus"]
    assert [gpu["problem"] for gpu in shown] == [TooHot(104).text] * 2
    assert client.get(f"/admin/nodes/{agent.node.pk}/").content.decode().count("104 °C: check its cooling") == 2


XID = XidError(79, "2026-11-21T12:00:00+00:00")


def faulty(fault: XidError | None, *, with_data: bool) -> dict[str, Any]:
    report = RunnersGpu("alpha-0", 0, "cuda", "A100", fault=fault).to_json()
    return report if with_data else {name: value for name, value in report.items() if name != "fault_message"}


def test_a_grave_error_comes_as_data_and_its_text_beside_it(agent: Agent) -> None:
    agent.report["gpus"] = [faulty(XID, with_data=True)]
    assert agent.report["gpus"][0]["fault"] == "XID 79 (it has fallen off the bus) at 2026-11-21 12:00:00 UTC"
    agent.sync()
    gpu = Gpu.objects.get()
    assert gpu.fault == XID.data() and gpu.quarantine_reason == quarantine.Fault(XID.data()).data()
    assert sentence_of(gpu.quarantine_reason) == f"{XID.text}."
    client = Client()
    client.force_login(make_user("ada", is_staff=True))
    (shown,) = client.get(f"/api/v1/nodes/{agent.node.pk}/").json()["gpus"]
    assert shown["quarantine_reason"] == f"{XID.text}."
    assert f"{XID.text}." in client.get(f"/admin/nodes/{agent.node.pk}/").content.decode()


@pytest.mark.parametrize("before", [False, True], ids=["text, then data", "data, then text"])
def test_a_fault_that_another_release_reported_takes_no_gpu_out_again(agent: Agent, before: bool) -> None:
    agent.report["gpus"] = [faulty(XID, with_data=before)]
    agent.sync()
    gpu = Gpu.objects.get()
    assert gpu.fault == (XID.data() if before else XID.text) and not gpu.usable
    quarantine.release(make_user("root", is_superuser=True), gpu)
    for fault, with_data in ((XID, not before), (None, True), (XID, before)):
        agent.report["gpus"] = [faulty(fault, with_data=with_data)]
        agent.sync()
        assert Gpu.objects.get().usable
    agent.report["gpus"] = [faulty(replace(XID, xid=48), with_data=True)]
    agent.sync()
    assert not Gpu.objects.get().usable


@pytest.mark.parametrize("former", [False, True], ids=["data", "text of the previous release"])
def test_who_uses_a_gpu_outside_the_portal_comes_as_data(agent: Agent, former: bool) -> None:
    busy = Processes((Process("python", 4711), Process("Xorg", 8)), 1)
    report = RunnersGpu("alpha-0", 0, "cuda", "A100", outside=busy).to_json()
    assert report["outside"] == "python, process 4711; Xorg, process 8 and 1 more" == busy.text
    agent.report["gpus"] = [report | {"outside_message": None} if former else report]
    agent.sync()
    gpu = Gpu.objects.get()
    assert gpu.outside == (busy.text if former else busy.data()) and not gpu.usable
    assert not Gpu.objects.filter(usable_gpu()).exists()
    client = Client()
    client.force_login(make_user("ada", is_staff=True))
    assert client.get(f"/api/v1/nodes/{agent.node.pk}/").json()["gpus"][0]["in_use_outside"] is True
    for path in (f"/admin/nodes/{agent.node.pk}/", "/nodes/"):
        assert busy.text in html.unescape(client.get(path).content.decode())
    agent.report["gpus"] = [RunnersGpu("alpha-0", 0, "cuda", "A100").to_json()]
    agent.sync()
    assert Gpu.objects.get().outside == "" and Gpu.objects.filter(usable_gpu()).exists()


def test_long_parameters_fit_into_the_columns(agent: Agent) -> None:
    """PostgreSQL refuses more than a column's maximum length; SQLite does not know it."""
    lost = LostByDriver("the bus " * 110)
    agent.report["gpus"] = [RunnersGpu("a", 0, "cuda", "A", healthy=False, problem=lost).to_json()]
    agent.sync()
    gpu = Gpu.objects.get()
    quarantine.quarantine(gpu, quarantine.Fault("Xid 79 " * 60))
    gpu.refresh_from_db()
    assert sentence_of(gpu.problem) == lost.text
    assert sentence_of(gpu.quarantine_reason) == f"{'Xid 79 ' * 60}."


def test_a_message_of_a_later_release_leaves_the_text_beside_it(agent: Agent) -> None:
    agent.report["problems"] = [{"code": "problem.too_loud", "decibels": 90, "text": "It is loud.", "fix": "Wait."}]
    agent.report["environments"] = [
        {
            "key": make_environment().key,
            "state": "failed",
            "message": {"code": "environment.odd"},
            "detail": "It is odd.",
        }
    ]
    agent.sync()
    (shown,) = Node.objects.get().shown_problems
    assert (shown.text, shown.fix) == ("It is loud.", "Wait.")
    assert NodeEnvironment.objects.get().detail == "It is odd."


def test_a_message_that_is_too_long_leaves_the_text_beside_it(agent: Agent) -> None:
    lines = {"code": "environment.missing_tools", "missing": ["x" * 900] * 20}
    agent.report["environments"] = [
        {"key": make_environment().key, "state": "failed", "message": lines, "detail": "Tools are missing."}
    ]
    agent.sync()
    assert NodeEnvironment.objects.get().detail == "Tools are missing."


@pytest.mark.parametrize("end", [5, ["x"], {"code": "container.with_remark", "end": None}])
def test_an_odd_message_of_one_node_does_not_concern_another(agent: Agent, end: Any) -> None:
    other = Agent("beta")
    agent.sync()
    other.sync()
    job_on(agent, launcher="command")
    Container.objects.filter(role="driver").delete()
    host = Container.objects.get(role="host")
    odd = {"code": "container.with_remark", "end": end, "remark": 5}
    agent.sync(about(host, "EXITED", message=odd, exit_code=0, exit_reason="exited"))
    assert Attempt.objects.get().outcome == "succeeded"
    other.sync()
