"""What people read is stored as data, has its words in ``portal/sentences``, and rows of earlier releases keep theirs."""

import html
import importlib
import inspect
import json
import re
from dataclasses import fields
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from portal.cluster.models import Gpu
from portal.forecast import messages as changes
from portal.jobs import events
from portal.jobs.causes.classify import STOPPED_PROCESS
from portal.jobs.causes.kinds import HANGS, KINDS
from portal.jobs.events import Event
from portal.jobs.models import Attempt, Job, JobEvent, JobState, Outcome, StopReason
from portal.monitoring.events import GpusIdle, HeldForIdleGpus
from portal.scheduler import failures, services
from portal.scheduler.apply import StepDropped
from portal.scheduler.availability import LargerThanLab
from portal.scheduler.cycle import InCpuSlots
from portal.scheduler.events import DriverMoved, Moving, Resized
from portal.scheduler.models import Cycle, SchedulerConfig
from portal.sentences import SENTENCES, sentence_of
from portal.sentences.causes import CAUSES, explain_cause
from portal.sentences.events import OUTCOMES, STATES, STOP_REASONS
from portal.sentences.mails import MAILS
from portal.sentences.notices import NOTICES
from portal.sentences.reasons import DROPPED
from runners.messages import CLASSES as AGENTS
from scheduling.failures import GpusOfUnknownNodes, LimitExceeded, PlanRefused, PolicyFailed
from scheduling.messages import CLASSES, Message, Unknown, message_from
from tests.architecture.test_house import ROOT, tracked
from tests.portal.api_client import Script
from tests.portal.control_world import ready_node, turn
from tests.portal.jobs_world import make_job, make_node, make_project, make_user
from tests.portal.pages import one_line


def message_classes() -> list[type[Message]]:
    """The classes of all messages, also of modules that no test has imported yet."""
    for path in tracked("portal/*.py", "scheduling/*.py"):
        if "from scheduling.messages import" in path.read_text():
            importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
    ours = [kind for kind in CLASSES.values() if not kind.__module__.startswith("tests.")]
    return [kind for kind in ours if kind is not Unknown]


OF_THE_PREVIOUS_RELEASE = {"job_silent"}
"""Mails that its processes may have queued."""
FUNCTIONS = {
    code: function
    for code, function in {**SENTENCES, **MAILS, **NOTICES}.items()
    if code not in AGENTS and code not in OF_THE_PREVIOUS_RELEASE
}
"""The functions of this package; the messages of agents have their own sentences (``runners.messages``)."""


def parameters_of(function: object) -> set[str]:
    assert callable(function)
    return set(inspect.signature(function).parameters)


def test_every_message_has_a_sentence_with_its_fields_as_parameters() -> None:
    found = message_classes()
    assert len(found) > 20
    for kind in found:
        names = {field.name for field in fields(kind)}  # type: ignore[arg-type]  # all are dataclasses
        assert kind.code in FUNCTIONS, kind
        assert parameters_of(FUNCTIONS[kind.code]) == names, kind


def test_every_sentence_belongs_to_a_message() -> None:
    assert set(FUNCTIONS) == {kind.code for kind in message_classes()}


# --- the history of a job ----------------------------------------------------------------------------------------

ON_TWO_NODES = [
    events.NodeShare(node="a", gpus=2, cpu_slots=False),
    events.NodeShare(node="b", gpus=1, cpu_slots=True),
]
TAKEN = "2026-03-05T07:08:09+00:00"
FIVE_RANKS = [[f"rank {number}", "gpu-2"] for number in range(5)]


@pytest.mark.parametrize(
    ("event", "kind", "sentence"),
    [
        (events.Submitted("alice"), "submitted", "Submitted by alice."),
        (events.Submitted("alice", 7), "submitted", "Submitted by alice, copied from job 7."),
        (
            events.LineTranslated("torchrun", "train.py", ["Ask for 4 GPUs."]),
            "translated",
            "The entry was a line of torchrun: its ranks run train.py, and Schedulearn starts them itself. Ask for 4 GPUs.",
        ),
        (events.LineAdvised("No environment has srun."), "advised", "No environment has srun."),
        (events.Cancelled("alice"), "cancel_asked", "Cancelled by alice."),
        (events.Held("alice"), "held", "Put on hold by alice."),
        (events.Released("alice"), "released", "Released by alice."),
        (
            events.Edited(
                "alice",
                [
                    {"field": "name", "before": "a", "after": "b"},
                    {"field": "tags", "before": None, "after": None},
                    {"field": "priority", "before": 0, "after": -2},
                    {"field": "time_limit_seconds", "before": 60, "after": 7200},
                    {"field": "deadline", "before": None, "after": "2026-03-05T07:08:09+00:00"},
                ],
            ),
            "edited",
            "Changed by alice: the name from “a” to “b”, the tags, the priority from 0 to -2, the time limit from 1 min to 2 h, "
            "the deadline to 05 Mar 2026 07:08 UTC.",
        ),
        (
            events.Edited("alice", [{"field": "deadline", "before": "2026-03-05T07:08:09+00:00", "after": None}]),
            "edited",
            "Changed by alice: the deadline, which was 05 Mar 2026 07:08 UTC, is gone.",
        ),
        (events.TimeAsked("bob", 7200, ""), "time_asked", "bob asked for 2 h more."),
        (events.TimeAsked("bob", 7200, "a paper"), "time_asked", "bob asked for 2 h more: “a paper”"),
        (
            events.TimeWithdrawn("bob", 60),
            "time_withdrawn",
            "The request for 1 min more was withdrawn by bob.",
        ),
        (
            events.TimeGranted("ada", 7200, 10_800, "bob"),
            "time_granted",
            "2 h more granted by ada: the time limit is 3 h now.",
        ),
        (
            events.TimeGranted("", 7200, 10_800, "bob"),
            "time_granted",
            "2 h more granted by the rule of the lab, as bob asked: the time limit is 3 h now.",
        ),
        (events.TimeRefused("ada", 60, ""), "time_refused", "1 min more refused by ada."),
        (events.Placed(1, "fifo v1", []), "placed", "Attempt 1 was placed by FIFO."),
        (
            events.Placed(1, "fifo v1", ON_TWO_NODES),
            "placed",
            "Attempt 1 was placed on a (2 GPUs) and b (1 CPU slot) by FIFO.",
        ),
        (events.Started(2), "started", "Attempt 2 started."),
        (
            events.Restarts(2, TAKEN, 3 << 20),
            "checkpoint",
            "Attempt 2 restarts from the checkpoint of 05 Mar 07:08:09 UTC, 3.0 MiB.",
        ),
        (events.ContainerLost("sl-1-a1-0", "gpu-2", "fenced"), "lost", "The container on gpu-2 was lost."),
        (
            events.Stopping(1, "preempted", False),
            "stopping",
            "Attempt 1 was asked to stop: to make room for others; it restarts from the beginning later.",
        ),
        (events.Stopping(1, "timed_out", True), "stopping", "Attempt 1 was asked to stop: time limit reached."),
        (events.Ended(1, "succeeded", None), "ended", "Attempt 1 ended: succeeded."),
        (
            events.Ended(1, "timed_out", {"code": "time_limit", "parameters": {"seconds": 90, "was_silent": False}}),
            "ended",
            "Attempt 1 ended: timed out. It reached its time limit of 1 min 30 s.",
        ),
        (events.OutputsNotSent("2 files were too large."), "outputs", "2 files were too large."),
        (
            events.Silent(1, TAKEN, 1860, []),
            "silent",
            "No output for 31 min: its worker processes (ranks) are alive, but no line of log, no metric and no "
            "checkpoint has come from them. It is not stopped for this.",
        ),
        (
            events.Silent(1, TAKEN, 1860, FIVE_RANKS),
            "silent",
            "Some of its worker processes are silent: rank 0 on gpu-2, rank 1 on gpu-2, rank 2 on gpu-2, rank 3 on gpu-2 "
            "and 1 other have printed nothing for 31 min. Others continue. It is not stopped for this.",
        ),
        (events.StateChanged("HELD"), "state", "The job is held."),
        (events.StateChanged("QUEUED", again=True), "state", "The job is queued again."),
        (
            events.StateChanged("QUEUED", again=True, restarts=True),
            "state",
            "The job is queued again, to restart from the beginning.",
        ),
        (GpusIdle(1, 5, 840, False), "idle", "Its GPUs have done less than 5 % for 14 min."),
        (
            GpusIdle(1, 5, 840, True),
            "idle",
            "Its GPUs have done less than 5 % for 14 min. If it stays so, the job is put on hold.",
        ),
        (HeldForIdleGpus(1680), "held", "Put on hold by the lab's rule: its GPUs were idle for 28 min."),
        (Resized(4, 1, False), "resized", "4 → 1 GPU"),
        (Resized(1, 3, True), "resized", "1 → 3 CPU slots"),
        (Moving(["a", "b"]), "moving", "It leaves a, b for other nodes while it runs, because of a drain."),
        (DriverMoved("sl-1-a1-4", "b"), "driver", "The driver moved to b; the ranks keep training."),
        (
            changes.Requeued(7, changes.OtherEnvironment("jax", 1, True)),
            "requeued",
            "It has the place of job 7 in the queue, in the environment jax, which is ready on 1 other node.",
        ),
    ],
)
def test_events_in_words(event: Event, kind: str, sentence: str) -> None:
    stored = json.loads(json.dumps(event.data()))
    assert (event.kind, sentence_of(stored)) == (kind, sentence)
    assert message_from(stored).data() == stored


def test_all_states_and_reasons_have_words() -> None:
    assert set(STATES) == set(JobState)
    assert set(StopReason) - {StopReason.PREEMPTED, StopReason.CANCELLED} == set(STOP_REASONS)
    assert all(OUTCOMES.get(outcome, outcome) == outcome.label for outcome in Outcome)


# --- causes ------------------------------------------------------------------------------------------------------


def test_the_parameters_that_the_log_gives_are_those_of_the_words() -> None:
    for kind in KINDS:
        assert set(kind.regex.groupindex) <= parameters_of(CAUSES[kind.code]), kind
    assert set(HANGS.groupindex) == parameters_of(CAUSES["rank_hangs"]) and STOPPED_PROCESS.groups == 1


def test_the_cause_of_another_release_is_shown_by_its_code() -> None:
    unknown = {"code": "power_cut", "parameters": {"node": "a"}, "detail": "dark", "ended_early": False}
    assert explain_cause(unknown) == {"code": "power_cut", "title": "Power cut", "detail": "dark", "advice": ""}
    other = {"code": "node_lost", "parameters": {"rack": 3}, "detail": "", "ended_early": False}
    assert explain_cause(other)["title"] == "Node lost"


# --- rows of the release before ----------------------------------------------------------------------------------


@pytest.fixture
def old_job() -> Job:
    """A job that failed under a release that stored sentences."""
    job = make_job(make_project(make_user("alice")), state="FAILED", finished_at=timezone.now())
    JobEvent.objects.create(
        job=job, seq=1, kind="resized", text="4 → 2 GPUs, as before", data={"before": 4, "after": 2}
    )
    JobEvent.objects.create(job=job, seq=2, kind="held", text="Put on hold by bob.")
    cause = {"code": "exit", "title": "It ended with 1, as before", "detail": "x < 1", "advice": "Look at that log."}
    Attempt.objects.create(job=job, number=1, outcome="failed", ended_at=job.finished_at, cause=cause)
    return job


@pytest.mark.django_db
def test_the_page_of_an_old_job_shows_its_texts(client: Client, old_job: Job) -> None:
    client.force_login(old_job.submitted_by)
    page = client.get(reverse("jobs:detail", args=[old_job.pk])).content.decode()
    assert "4 → 2 GPUs, as before" in page and "Put on hold by bob." in page
    assert "It ended with 1, as before" in page and "Look at that log." in page and "x &lt; 1" in page


@pytest.mark.django_db
def test_the_api_returns_the_texts_of_an_old_job(old_job: Job) -> None:
    script = Script(old_job.submitted_by)
    rows = script.get(f"jobs/{old_job.pk}/events/").json()["results"]
    assert [row["text"] for row in rows] == ["4 → 2 GPUs, as before", "Put on hold by bob."]
    cause = {"code": "exit", "title": "It ended with 1, as before", "detail": "x < 1", "advice": "Look at that log."}
    assert script.get(f"jobs/{old_job.pk}/").json()["cause"] == cause
    assert script.get(f"jobs/{old_job.pk}/attempts/1/").json()["cause"] == cause


@pytest.mark.django_db
def test_new_rows_have_the_same_fields_in_the_api(old_job: Job) -> None:
    event = events.Released("alice")
    JobEvent.objects.create(job=old_job, seq=3, kind=event.kind, data=event.data())
    stored = {"code": "exit_code", "parameters": {"number": 3}, "detail": "", "ended_early": True}
    Attempt.objects.filter(job=old_job).update(cause=stored)
    script = Script(old_job.submitted_by)
    assert script.get(f"jobs/{old_job.pk}/events/").json()["results"][-1]["text"] == "Released by alice."
    cause = script.get(f"jobs/{old_job.pk}/").json()["cause"]
    assert cause == script.get(f"jobs/{old_job.pk}/attempts/1/").json()["cause"]
    assert (cause["code"], cause["title"]) == ("exit_code", "It ended with exit code 3")
    assert cause["advice"] == "The code chose this exit code. Its last lines in the log usually give the reason."
    assert cause["detail"].startswith("A rank ended without an error while others still worked")


# --- steps that were not applied ---------------------------------------------------------------------------------


def test_all_reasons_why_steps_are_dropped_have_words() -> None:
    source = (ROOT / "portal/scheduler/apply.py").read_text()
    used = set(re.findall(r'(?:PlanStaleError|StepDropped)\(\s*"(\w+)"', source))
    assert used == set(DROPPED)


@pytest.mark.django_db
def test_a_cycle_shows_the_steps_that_it_dropped_as_sentences(client: Client) -> None:
    old = {"job": 7, "why": "Node b no longer has 2 free."}
    Cycle.objects.create(
        epoch=1, duration_ms=1.0, dropped=[old, {"job": 8, "why": StepDropped("node_closed", "a").data()}]
    )
    admin = make_user("ada", is_staff=True)
    client.force_login(admin)
    page = one_line(client.get("/admin/policy/").content.decode())
    assert "job 7: Node b no longer has 2 free." in page and "job 8: Node a no longer accepts new jobs." in page
    (row,) = Script(admin).get("cycles/").json()["results"]
    assert row["dropped"] == [old, {"job": 8, "why": "Node a no longer accepts new jobs."}]


# --- why a cycle made no plan -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (failures.CycleFailed("TypeError: ours"), "The scheduling cycle failed: TypeError: ours"),
        (PolicyFailed.from_error(KeyError("gpu")), "The policy failed: KeyError: 'gpu'"),
        (failures.PolicyTooSlow(0.05), "The policy did not decide within 0.05 seconds."),
        (
            failures.PolicyStillBusy(),
            "The policy is still busy with an earlier scheduling cycle. Switch to another, then restart the scheduler.",
        ),
        (
            failures.UnknownPolicy("old", ["fifo", "afs"]),
            "There is no policy 'old'. The policies are: fifo, afs.",
        ),
        (failures.ParametersRefused("There is no parameter nice."), "There is no parameter nice."),
        (
            PlanRefused.from_violations([GpusOfUnknownNodes("7", ["x", "y"]), LimitExceeded(4, "alice", 3, 2)]),
            "The plan was refused: Job 7 is given GPUs of unknown nodes: x, y. "
            "The limit of 4 GPUs for alice is exceeded: 3 are held and 2 more given.",
        ),
    ],
    ids=lambda value: value.code if isinstance(value, Message) else "",
)
@pytest.mark.django_db
def test_why_a_cycle_made_no_plan_is_shown_as_a_sentence(client: Client, error: Message, sentence: str) -> None:
    Cycle.objects.create(epoch=1, duration_ms=1.0, error=error.data())
    assert Cycle.objects.get().error == json.loads(json.dumps(error.data()))
    assert message_from(Cycle.objects.get().error) == error
    admin = make_user("ada", is_staff=True)
    client.force_login(admin)
    assert one_line(html.unescape(client.get("/admin/policy/").content.decode())).count(sentence) == 2
    (row,) = Script(admin).get("cycles/").json()["results"]
    assert row["error"] == sentence


@pytest.mark.django_db
def test_a_cycle_of_the_release_before_shows_its_text_and_a_failure_that_persists_is_recorded_again_once(
    client: Client,
) -> None:
    ready_node("a", 1)
    config = services.switch_policy(None, "fifo", {})
    SchedulerConfig.objects.update(policy="old_one")
    Cycle.objects.create(epoch=1, duration_ms=1.0, config=config)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE control_cycle SET error = 'There is no policy, as before.'")
    admin = make_user("ada", is_staff=True)
    client.force_login(admin)
    assert "There is no policy, as before." in client.get("/admin/policy/").content.decode()
    (row,) = Script(admin).get("cycles/").json()["results"]
    assert row["error"] == "There is no policy, as before."
    turn()
    turn()
    new, old = Cycle.objects.all()
    assert sentence_of(new.error).startswith("There is no policy 'old_one'.") and isinstance(old.error, str)


# --- why a job waits ---------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_a_job_that_waited_under_the_release_before_shows_its_sentence_until_the_next_cycle(client: Client) -> None:
    ready_node("a", 1)
    job = make_job(make_project(make_user("alice")), waiting_reason="It waits, as before.", min_gpus=2, max_gpus=2)
    client.force_login(job.submitted_by)
    assert "It waits, as before." in client.get("/jobs/").content.decode()
    assert Script(job.submitted_by).get(f"jobs/{job.pk}/").json()["waiting_reason"] == "It waits, as before."
    turn()
    job.refresh_from_db()
    assert job.waiting_reason == InCpuSlots(LargerThanLab(2, 1)).data()
    assert "It needs 2 CPU slots; the lab has 1." in client.get("/jobs/").content.decode()


# --- whatever is stored can be shown ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [
        StepDropped("of_a_later_release").data(),
        {"code": "no_node_accepts", "closed": [{"node": "a", "why": "of_a_later_release", "problem": None}]},
        {"code": "attempt_restarts", "attempt": 1, "taken_at": "soon", "size": 1},
        {"code": "beside_reserved", "reason": 5, "count": 1, "node": "a", "name": "b", "minutes": "x", "begun": 1},
        {"code": "container.with_remark", "end": 5, "remark": ["x"]},
        {"code": 5},
        {"no": "code"},
        ["x"],
        7,
    ],
)
def test_every_content_has_a_sentence(content: Any) -> None:
    assert sentence_of(content)


LOOKS_LIKE_ONE = ['{"code": boom', '{"code": 5}', '{"code": ["x"]}', '{"code":' + "[" * 100_000]


@pytest.mark.django_db
@pytest.mark.parametrize("text", LOOKS_LIKE_ONE, ids=["no JSON", "a number", "a list", "too deep"])
def test_a_text_of_an_earlier_release_that_looks_like_a_message_stays_one(text: str, client: Client) -> None:
    job = make_job(make_project(make_user("alice")), waiting_reason="x")
    node = make_node("a", gpus=1)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE jobs_job SET waiting_reason = %s", [text])
        cursor.execute("UPDATE cluster_gpu SET quarantine_reason = %s, problem = %s", [text, text])
    job.refresh_from_db()
    assert job.why_waiting == text == Gpu.objects.get(node=node).quarantine_reason
    client.force_login(job.submitted_by)
    assert client.get(reverse("jobs:detail", args=[job.pk])).status_code == 200
    job.save()
    job.refresh_from_db()
    assert job.waiting_reason == text
