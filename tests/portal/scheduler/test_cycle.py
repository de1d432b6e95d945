"""One scheduling cycle decides, checks, applies and explains; it changes nothing when anything is wrong."""

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from portal.accounts.models import AuditEntry
from portal.cluster.models import Node
from portal.jobs import lifecycle, services
from portal.jobs.models import Allocation, Attempt, Container, Job, JobEvent
from portal.scheduler import apply as applying
from portal.scheduler import cycle, snapshot
from portal.scheduler.failures import (
    CycleFailed,
    ParametersRefused,
    PolicyStillBusy,
    PolicyTooSlow,
    UnknownPolicy,
)
from portal.scheduler.models import Cycle, Leader, SchedulerConfig
from portal.scheduler.policy_thread import policy_thread
from portal.scheduler.services import switch_policy
from portal.sentences import sentence_of
from portal.sentences.words import policy_words
from runners.spec import RunSpec
from scheduling import registry
from scheduling.failures import MoreGpusThanFree, PlanRefused, PolicyFailed
from scheduling.types import Plan, Snapshot
from tests.portal.control_world import gpus_of, lead, queue, ready_node, run_agents, turn
from tests.scheduling.worlds import draw, running, waiting

pytestmark = [pytest.mark.django_db, pytest.mark.both_databases]


@pytest.fixture
def policy(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Snapshot], Plan]], None]:
    """Put any function in the place of the policy in force."""

    def install(plan: Callable[[Snapshot], Plan]) -> None:
        made = type("Made", (), {"plan": lambda self, seen: plan(seen)})
        monkeypatch.setattr(registry, "build", lambda key, params: made())

    return install


def reason(job: Job) -> str:
    job.refresh_from_db()
    return job.why_waiting


# Starting


def test_a_start_makes_attempt_containers_allocations_and_a_line_of_history() -> None:
    node, job = ready_node("a", 2), queue(2)
    assert turn().applied.started == [job.pk]
    attempt = Attempt.objects.get()
    assert attempt.policy == f"{registry.DEFAULT} v{SchedulerConfig.objects.get().pk}" and len(attempt.secret) == 64
    assert attempt.allocations.count() == 2
    job.refresh_from_db()
    assert (job.state, job.why_waiting, job.queue_position) == ("RUNNING", "", None)
    text = f"Attempt 1 was placed on a (2 CPU slots) by {policy_words(attempt.policy)}."
    assert JobEvent.objects.get(kind="placed").sentence == text
    assert {part.node for part in Container.objects.all()} == {node}


def test_a_rank_group_of_fixed_size_has_a_driver_and_one_host_with_all_gpus() -> None:
    ready_node("a", 2)
    job = queue(2, env_vars={"SEED": "1"}, arguments=["--epochs", "3"])
    turn()
    driver, host = (RunSpec.from_json(part.spec) for part in Container.objects.order_by("index"))
    assert driver.group == host.group and driver.group.startswith(f"sl-{job.pk}-a1-")
    assert driver.name.endswith("-0") and (driver.hostname, driver.slots, driver.gpus) == ("driver", 0, ())
    assert host.name.endswith("-1") and (host.hostname, host.slots, host.gpus) == ("h1", 2, ("a-gpu0", "a-gpu1"))
    assert host.command == ("python", "train.py", "--epochs", "3") and host.env == (("SEED", "1"),)
    assert host.collective == driver.collective and host.collective is not None
    attempt = Attempt.objects.get()
    assert (host.collective.driver_host, host.collective.port, host.collective.secret) == (
        "driver",
        21000 + attempt.pk,
        attempt.secret,
    )
    assert (host.collective.min_ranks, host.collective.max_ranks) == (2, 2)


def test_an_elastic_job_has_a_base_and_single_hosts() -> None:
    ready_node("a", 4)
    queue(2, 4)
    turn()
    hosts = [RunSpec.from_json(part.spec) for part in Container.objects.filter(role="host").order_by("index")]
    assert [host.slots for host in hosts] == [2, 1, 1]
    assert hosts[0].collective is not None and (hosts[0].collective.min_ranks, hosts[0].collective.max_ranks) == (
        2,
        4 + 2,
    )
    assert all(host.elastic for host in hosts)


def test_a_command_has_one_container_and_no_network() -> None:
    ready_node("a", 2)
    queue(2, launcher="command", entry="python 'my file.py' -v | tee log", arguments=["a b"])
    turn()
    spec = RunSpec.from_json(Container.objects.get().spec)
    assert spec.command == ("sh", "-ec", "python 'my file.py' -v | tee log 'a b'")
    assert (spec.hostname, spec.slots, len(spec.gpus), spec.collective, spec.network) == ("h0", 1, 2, None, None)


@pytest.mark.parametrize(
    ("entry", "words"), [("train.py", ["train.py"]), ("-m package.train", ["-m", "package.train"])]
)
def test_ranks_run_a_file_or_a_module(entry: str, words: list[str]) -> None:
    ready_node("a")
    queue(launcher="torchrun", entry=entry, arguments=["--log", "x"])
    turn()
    assert RunSpec.from_json(Container.objects.get().spec).command == ("python", *words, "--log", "x")


@pytest.mark.parametrize(("mode", "sent"), [("", None), ("asp", "asp")])
def test_a_mode_that_was_chosen_reaches_the_ranks(mode: str, sent: str | None) -> None:
    ready_node("a")
    queue(launcher="torchrun", mode=mode)
    turn()
    spec = RunSpec.from_json(Container.objects.get().spec)
    assert dict(spec.env).get("SCHEDULEARN_MODE") == sent


def test_torchrun_on_one_node_has_one_container_and_no_network() -> None:
    ready_node("a", 2)
    queue(2, launcher="torchrun")
    turn()
    spec = RunSpec.from_json(Container.objects.get().spec)
    assert (spec.hostname, spec.slots, spec.collective) == ("h0", 2, None)


def test_a_container_has_its_gpus_share_of_the_node() -> None:
    ready_node("a", 4, facts={"cpus": 8, "memory_mib": 17_408})
    queue(2, launcher="command", entry="true")
    turn()
    resources = RunSpec.from_json(Container.objects.get().spec).resources
    assert (resources.cpus, resources.memory_mib) == (4.0, 8192)


def test_processes_of_one_machine_meet_on_its_loopback() -> None:
    ready_node("a", 1, runtime="process")
    queue(1)
    turn()
    assert {part.spec["ring"]["driver_host"] for part in Container.objects.all()} == {"127.0.0.1"}


# Resizing


def test_an_elastic_job_shrinks_for_a_newcomer_and_grows_again() -> None:
    switch_policy(None, "elastic_fifo", {})
    ready_node("a", 4)
    old = queue(1, 4)
    turn()
    run_agents()
    new = queue(1)
    assert turn().applied.resized == [old.pk]
    assert gpus_of(old) == 3
    assert reason(new) == "1 CPU slot is being given back by other jobs; then it starts."
    assert [part.index for part in Container.objects.filter(wanted="stop")] == [4]
    assert not turn().applied.resized
    run_agents()
    assert turn().applied.started == [new.pk]
    run_agents()
    run_agents_of(new)
    turn()
    later = timezone.now() + timedelta(seconds=11)
    Node.objects.update(last_seen_at=later)
    assert turn(now=later).applied.resized == [old.pk]
    assert gpus_of(old) == 4
    assert [event.sentence for event in JobEvent.objects.filter(kind="resized")] == [
        "4 → 3 CPU slots",
        "3 → 4 CPU slots",
    ]
    assert Container.objects.filter(attempt__job=old).order_by("-index")[0].spec["hostname"] == "h5"


def run_agents_of(job: Job) -> None:
    for part in Container.objects.filter(attempt__job=job).exclude(state="EXITED"):
        lifecycle.advance(part, "EXITED", exit_code=0)


def test_a_policy_may_stop_a_preemptible_job(policy: Any) -> None:
    ready_node("a", 1)
    job = queue(1)
    turn()
    seen = snapshot.take()
    assert applying.apply(seen, Plan({}), "test v1").stopped == [job.pk]
    assert Attempt.objects.get().stop_reason == "preempted"


# What is gone by the time it is applied


def test_a_line_is_dropped_when_its_job_no_longer_waits() -> None:
    ready_node("a", 2)
    job, other = queue(), queue()
    seen = snapshot.take()
    services.cancel(job.submitted_by, job)
    done = applying.apply(seen, plan_for(seen), "test v1")
    assert done.started == [other.pk]
    assert done.dropped[job.pk] == applying.StepDropped("no_longer_waits")


def test_a_line_is_dropped_when_its_gpus_are_taken() -> None:
    ready_node("a", 1)
    first, second = queue(), queue()
    seen = snapshot.take()
    stale = Plan({str(second.pk): {seen.nodes[0].id: 1}})
    turn()
    assert gpus_of(first) == 1
    assert applying.apply(seen, stale, "test v1").dropped == {second.pk: applying.StepDropped("too_few_left", "a", 1)}
    assert not second.attempts.exists()


def test_a_job_gets_all_its_gpus_or_none() -> None:
    a, b = (
        ready_node("a", 2, facts={"ring_address": "10.1.0.1"}),
        ready_node("b", 2, facts={"ring_address": "10.1.0.2"}),
    )
    job = queue(4)
    seen = snapshot.take()
    b.gpus.filter(index=1).update(healthy=False)
    done = applying.apply(seen, plan_for(seen), "test v1")
    assert done.dropped and not Allocation.objects.exists() and not job.attempts.exists()
    assert a.gpus.count() == 2


def test_a_line_is_dropped_when_its_node_was_closed() -> None:
    ready_node("a", 1)
    job = queue()
    seen = snapshot.take()
    Node.objects.update(draining=True)
    assert applying.apply(seen, plan_for(seen), "t").dropped == {job.pk: applying.StepDropped("node_closed", "a")}


def test_a_resize_is_dropped_when_the_job_changed_meanwhile() -> None:
    ready_node("a", 3)
    job = queue(1, 3)
    turn()
    run_agents()
    seen = snapshot.take()
    lifecycle.stop_container(Container.objects.order_by("-index")[0], "drained")
    shrunk = Plan({str(job.pk): {seen.nodes[0].id: 1}})
    assert applying.apply(seen, shrunk, "t").dropped == {job.pk: applying.StepDropped("gpus_changed")}
    services.cancel(job.submitted_by, job)
    assert applying.apply(seen, shrunk, "t").dropped == {job.pk: applying.StepDropped("no_longer_runs")}


def test_shrinking_stops_the_youngest_parts_and_never_the_first_host() -> None:
    ready_node("a", 3)
    job = queue(1, 3)
    turn()
    run_agents()
    seen = snapshot.take()
    node = seen.nodes[0].id
    first, *others = Container.objects.filter(role="host").order_by("index")
    everything = applying.PlanStep(job.pk, "resize", {node: 3}, {}, {node: 3})
    with pytest.raises(applying.PlanStaleError, match="nothing_to_release"):
        applying._PlanApplier([everything], "t", timezone.now()).apply_step(everything)
    assert applying.apply(seen, Plan({str(job.pk): {node: 2}}), "t").resized == [job.pk]
    assert list(Container.objects.filter(wanted="stop")) == others[-1:] and first not in others


def test_a_plan_gives_back_before_it_takes() -> None:
    jobs = [
        running("1", {"7": 1}, 1, 4),
        waiting("2"),
        running("3", {"7": 3}, 1, 4),
        running("4", {"7": 2}, preemptible=True),
    ]
    plan = Plan({"1": {"7": 2}, "2": {"7": 1}, "3": {"7": 2}, "4": {"7": 0}})
    lines = applying.plan_steps(draw({"7": 8}, *jobs), plan)
    assert [(line.job, line.kind) for line in lines] == [(4, "stop"), (3, "resize"), (2, "start"), (1, "resize")]


def test_the_last_guard_drops_a_line_and_the_rest_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """When a process without any lock was quicker, only the index refuses."""
    ready_node("a", 3)
    first, second, third = queue(priority=1), queue(), queue()
    turn_of = snapshot.take()
    real = applying._PlanApplier.reload_free_gpus
    calls = []

    def blind(self: Any) -> None:
        real(self)
        calls.append(1)
        if len(calls) == 1:
            thief = lifecycle.start_attempt(third, "thief v1")
            part = Container.objects.create(
                attempt=thief, node=self.gpus[0].node, index=0, role="host", name="t", spec={}
            )
            Allocation.objects.create(gpu=self.free[self.gpus[0].node_id][0], attempt=thief, container=part)

    monkeypatch.setattr(applying._PlanApplier, "reload_free_gpus", blind)
    done = applying.apply(turn_of, plan_for(turn_of), "t")
    assert done.dropped[first.pk] == applying.StepDropped("another_scheduler")
    assert done.started == [second.pk]
    assert Allocation.objects.filter(released_at=None).values("gpu").distinct().count() == 2


def plan_for(seen: Snapshot) -> Plan:
    return registry.build("elastic_fifo", {}).plan(seen)


# When something is wrong


def test_a_policy_that_fails_changes_nothing_and_is_reported_once(policy: Any) -> None:
    ready_node("a", 1)
    job = queue()

    def fail(seen: Snapshot) -> Plan:
        raise KeyError("gpu")

    policy(fail)
    assert turn().error == PolicyFailed("KeyError: 'gpu'")
    turn()
    assert [sentence_of(row.error) for row in Cycle.objects.all()] == ["The policy failed: KeyError: 'gpu'"]
    assert reason(job) == "The scheduler cannot decide at the moment. Admins see why on the policy page."
    assert not Attempt.objects.exists()


def test_a_policy_that_takes_too_long_is_abandoned(policy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ready_node("a", 1)
    queue()
    monkeypatch.setattr(cycle, "POLICY_SECONDS", 0.05)
    enough = threading.Event()

    def ponder(seen: Snapshot) -> Plan:
        enough.wait(60)
        return Plan({})

    policy(ponder)
    assert turn().error == PolicyTooSlow(0.05)
    assert turn().error == PolicyStillBusy()
    enough.set()
    for thread in policy_thread.left_behind:
        thread.join(60)
    monkeypatch.setattr(cycle, "POLICY_SECONDS", 60)
    assert turn().error is None


def test_a_plan_with_one_violation_is_not_applied_at_all(policy: Any) -> None:
    ready_node("a", 1)
    queue()
    queue()
    policy(lambda seen: Plan({job.id: {seen.nodes[0].id: 1} for job in seen.jobs}))
    assert turn().error == PlanRefused([MoreGpusThanFree("a", 1, 2).data()])
    assert not Attempt.objects.exists()


def test_parameters_that_no_longer_fit_their_policy_are_reported() -> None:
    ready_node("a", 1)
    queue()
    switch_policy(None, "fifo", {})
    SchedulerConfig.objects.update(params={"nice": 1})
    error = turn().error
    assert isinstance(error, ParametersRefused) and "There is no parameter nice" in error.error
    SchedulerConfig.objects.update(policy="old_one")
    assert turn().error == UnknownPolicy("old_one", list(registry.POLICIES))


def test_running_jobs_go_on_while_the_policy_fails_and_lost_time_is_still_kept(policy: Any) -> None:
    ready_node("a", 1)
    job = queue(time_limit_seconds=10)
    turn()
    run_agents()
    Attempt.objects.update(started_at=timezone.now() - timedelta(seconds=20))
    policy(lambda seen: Plan({"?": {}}))
    turn()
    assert job.attempts.get().stop_reason == "timed_out"


def test_a_bug_of_ours_keeps_nothing_but_its_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    ready_node("a", 1)
    queue()

    def broken(*args: Any) -> None:
        raise TypeError("ours")

    monkeypatch.setattr(cycle, "_update_reasons", broken)
    assert turn().error == CycleFailed("TypeError: ours")
    assert not Attempt.objects.exists()
    assert sentence_of(Cycle.objects.get().error) == "The scheduling cycle failed: TypeError: ours"


def test_a_deposed_scheduler_writes_nothing() -> None:
    ready_node("a", 1)
    queue()
    old = lead()
    lead()
    with pytest.raises(cycle.LeadershipLostError):
        turn(old)
    assert not Attempt.objects.exists() and not Cycle.objects.exists()
    assert Job.objects.get().why_waiting == ""


def test_a_scheduler_that_never_led_writes_nothing() -> None:
    assert not Leader.objects.exists()
    with pytest.raises(cycle.LeadershipLostError):
        turn(7)


# What is shown and recorded


def test_waiting_jobs_know_their_place_and_why() -> None:
    switch_policy(None, "elastic_fifo", {})
    ready_node("a", 1)
    running, second, urgent = queue(), queue(), queue(priority=3)
    turn()
    urgent.refresh_from_db()
    assert urgent.state == "RUNNING"
    for job in (running, second):
        job.refresh_from_db()
    assert [(job.queue_position, job.why_waiting) for job in (running, second)] == [
        (1, "The only CPU slot is in use."),
        (2, "1 job is ahead of it and the only CPU slot is in use."),
    ]


def test_a_job_that_left_the_queue_has_no_place_in_it() -> None:
    ready_node("a", 1)
    queue(priority=1)
    held, cancelled = queue(), queue()
    turn()
    services.hold(held.submitted_by, held)
    services.cancel(cancelled.submitted_by, cancelled)
    turn()
    for job in (held, cancelled):
        assert reason(job) == "" and job.queue_position is None


def test_a_turn_without_news_leaves_no_row() -> None:
    switch_policy(None, "elastic_fifo", {})
    ready_node("a", 1)
    queue()
    queue()
    turn()
    assert Cycle.objects.count() == 1
    turn()
    turn()
    assert Cycle.objects.count() == 1
    row = Cycle.objects.get()
    assert (row.started, row.waiting, row.jobs_seen, len(row.snapshot_sha256)) == (1, 1, 2, 64)


def queries_of_turns(waiting: int) -> tuple[int, int]:
    """For a cycle that changes nothing, and for one that starts a job and moves all others up in the queue."""
    while Job.objects.filter(state="QUEUED").count() < waiting:
        queue(2)
    turn()
    run_agents()
    with CaptureQueriesContext(connection) as idle:
        assert not turn().recorded
    run_agents(finish=True)
    with CaptureQueriesContext(connection) as busy:
        assert len(turn().applied.started) == 1
    return len(idle), len(busy)


def test_the_number_of_queries_of_a_turn_does_not_grow_with_the_jobs_that_wait() -> None:
    switch_policy(None, "elastic_fifo", {})
    ready_node("a", 2)
    few = queries_of_turns(5)
    assert queries_of_turns(60) == few
    assert few[0] <= 43 and few[1] <= 100


def test_the_growth_clock_of_the_policy_is_kept_between_turns() -> None:
    switch_policy(None, "elastic_fifo", {})
    ready_node("a", 2)
    job = queue(1, 2)
    node = Node.objects.get()
    node.gpus.filter(index=1).update(healthy=False)
    turn()
    node.gpus.update(healthy=True)
    assert not turn().applied.resized
    later = timezone.now() + timedelta(seconds=12)
    Node.objects.update(last_seen_at=later)
    assert turn(now=later).applied.resized == [job.pk]


def test_switching_the_policy_disturbs_nothing_and_is_audited() -> None:
    ready_node("a", 4)
    job = queue(1, 2)
    turn()
    config = switch_policy(job.submitted_by, "round_robin", {"size": "least"})
    other = queue(1, 2)
    turn()
    assert (gpus_of(job), gpus_of(other)) == (2, 1)
    assert other.attempts.get().policy == f"round_robin v{config.pk}"
    entry = AuditEntry.objects.get()
    assert entry.before["policy"] == registry.DEFAULT
    assert entry.after == {"policy": "round_robin", "params": config.params} and config.params["size"] == "least"
    with pytest.raises(ValueError, match="There is no policy"):
        switch_policy(job.submitted_by, "lottery", {})
    assert AuditEntry.objects.count() == 1
