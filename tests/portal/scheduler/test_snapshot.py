"""Rows to Snapshot: what is free, what is leaving, who may start where, and why not."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from portal.accounts.models import Limit
from portal.cluster.models import Node
from portal.environments.models import Environment, NodeEnvironment
from portal.jobs import lifecycle
from portal.jobs.models import Allocation, Attempt, CheckpointSet, Container, Job
from portal.scheduler import apply as applying
from portal.scheduler import snapshot
from portal.scheduler.job_history import History
from portal.sentences import agents, sentence_of
from scheduling.types import Job as JobView
from scheduling.types import Node as NodeView
from scheduling.types import Plan
from tests.portal.control_world import project_of, queue, ready_node, run_agents, turn
from tests.portal.jobs_world import exit, make_code, make_environment, make_node
from tests.portal.past import changed, ran

pytestmark = [pytest.mark.django_db, pytest.mark.both_databases]


LAYER_FAILURE = agents.layer_failures.ContradictsBase("torch==2.9.1", "torch", "2.13.0")


def view(job: Job) -> JobView:
    return next(item for item in snapshot.take().jobs if item.id == str(job.pk))


def node_view(node: Node) -> NodeView:
    return next(item for item in snapshot.take().nodes if item.id == str(node.pk))


def test_free_held_and_leaving_add_up() -> None:
    node, job = ready_node("a", 4), queue(1, 3)
    turn()
    run_agents()
    lifecycle.stop_container(Container.objects.filter(role="host").order_by("-index")[0], "preempted")
    assert (node_view(node).total, node_view(node).free, node_view(node).leaving) == (4, 1, 1)
    assert dict(view(job).now_on) == {str(node.pk): 2}
    assert dict(view(job).base) == {str(node.pk): 1}


def test_broken_and_vanished_gpus_do_not_count() -> None:
    node = ready_node("a", 4)
    node.gpus.filter(index=0).update(healthy=False)
    node.gpus.filter(index=1).update(present=False)
    assert (node_view(node).total, node_view(node).free) == (2, 2)


def test_a_held_gpu_that_breaks_is_neither_free_nor_taken_from_another() -> None:
    node, job = ready_node("a", 2), queue(1)
    turn()
    Allocation.objects.get().gpu.__class__.objects.filter(allocations__isnull=False).update(healthy=False)
    assert (node_view(node).total, node_view(node).free) == (1, 1)
    assert view(job).gpus == 1


@pytest.mark.parametrize(
    "facts",
    [
        {"cordoned": True},
        {"draining": True},
        {"ready": False},
        {"last_seen_at": timezone.now() - timedelta(seconds=60)},
        {"last_seen_at": None},
        {"problems": [{"text": "No space.", "fix": "Make some.", "blocking": True}]},
    ],
)
def test_a_node_that_may_not_or_cannot_work_is_closed(facts: dict[str, Any]) -> None:
    assert not node_view(ready_node("a", **facts)).open


def test_a_node_with_small_problems_is_open() -> None:
    assert node_view(ready_node("a", problems=[{"text": "Old engine.", "fix": "Update."}])).open


def test_unapproved_and_removed_nodes_are_not_there() -> None:
    ready_node("a", approved_at=None)
    ready_node("b", removed_at=timezone.now())
    assert snapshot.take().nodes == ()


def test_only_jobs_that_want_or_hold_gpus_are_seen() -> None:
    ready_node("a", 1)
    waits, runs = queue(), queue(priority=5)
    queue(intent="hold", state="HELD")
    queue(state="SUCCEEDED", finished_at=timezone.now())
    turn()
    assert {job.id for job in snapshot.take().jobs} == {str(waits.pk), str(runs.pk)}


def test_a_stopping_job_gets_nothing_and_its_gpus_are_leaving() -> None:
    node, job = ready_node("a", 2), queue(1, 2)
    turn()
    lifecycle.stop_attempt(job.attempts.get(), "preempted")
    assert view(job).stopping and not view(job).now_on
    assert node_view(node).leaving == 2


def test_a_job_whose_hosts_have_ended_is_not_started_twice() -> None:
    """Its driver still cleans up: it holds no GPU, but its attempt is live."""
    ready_node("a", 2)
    job = queue(1, 2)
    turn()
    run_agents()
    for host in Container.objects.filter(role="host"):
        exit(host)
    assert not view(job).waiting
    turn()
    assert job.attempts.count() == 1


def test_attempts_and_served_time_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    ready_node("a", 2)
    job = queue(1, 2)
    turn()
    begun = timezone.now()
    Allocation.objects.update(allocated_at=begun)
    monkeypatch.setattr(timezone, "now", lambda: begun + timedelta(seconds=30))
    run_agents()
    lifecycle.stop_attempt(job.attempts.get(), "preempted")
    run_agents()
    Node.objects.update(last_seen_at=timezone.now())
    turn()
    assert view(job).restarts == 1
    assert view(job).served_gpu_seconds == 60


def test_limits_of_users_and_groups_count_what_is_leaving() -> None:
    ready_node("a", 4)
    mine = queue(1, 3)
    turn()
    run_agents()
    lifecycle.stop_container(Container.objects.filter(role="host").order_by("-index")[0], "preempted")
    group = Group.objects.create(name="vision")
    project_of().created_by.groups.add(group)
    Limit.objects.create(user=mine.submitted_by, max_gpus=5)
    Limit.objects.create(group=group, max_gpus=7)
    Limit.objects.create(user=queue(owner="bob").submitted_by, max_queued=3)
    limits = snapshot.take().limits
    assert [(limit.name, limit.max_gpus, limit.leaving) for limit in limits] == [
        ("alice", 5, 1),
        ("group vision", 7, 1),
    ]
    assert all(str(mine.pk) in limit.jobs for limit in limits)


def test_only_rank_groups_spread_and_only_between_nodes_that_reach_each_other() -> None:
    a, b = ready_node("a"), ready_node("b")
    group, command = queue(), queue(launcher="command", entry="python train.py")
    torchrun = queue(2, launcher="torchrun")
    assert not view(group).spread
    for node in (a, b):
        node.facts = {"ring_address": f"10.0.0.{node.pk}"}
        node.save(update_fields=["facts"])
    assert view(group).spread and view(torchrun).spread
    assert not view(command).spread


def test_a_rank_group_spreads_over_the_nodes_that_reach_each_other_and_goes_to_another_only_for_room() -> None:
    a, b = (ready_node(name, 2, runtime="docker", facts={"ring_address": f"10.0.0.{name}"}) for name in "ab")
    lone = ready_node("c", 2, runtime="docker")
    group, command = queue(2), queue(launcher="command", entry="python train.py")
    linked, everywhere = {str(a.pk), str(b.pk)}, {str(node.pk) for node in (a, b, lone)}
    assert (view(group).nodes, view(group).spread) == (linked, True)
    assert (view(command).nodes, view(command).spread) == (everywhere, False)
    filler = queue(3)
    plan = Plan({str(filler.pk): {str(a.pk): 2, str(b.pk): 1}})
    assert applying.apply(snapshot.take(), plan, "t").started == [filler.pk]
    assert (view(group).nodes, view(group).spread) == (everywhere, False)
    assert (view(filler).nodes, view(filler).spread) == (linked, True)
    wide = queue(3)
    assert view(wide).nodes == linked  # it has room nowhere now, and would never have on the other


# Why a job cannot start anywhere


def blocked(job: Job) -> str:
    reason = view(job).blocked
    return sentence_of(reason.data() if reason else None)


def test_without_a_node_the_reason_names_who_can_add_one() -> None:
    assert blocked(queue()) == "No node has joined the lab yet. An admin can add one under Nodes."


def test_more_than_the_lab_has_is_reported_at_once() -> None:
    ready_node("a", 2)
    ready_node("b", 2)
    assert blocked(queue(9)) == ("It needs 9 GPUs at once, but the lab has 4. Submit it with fewer, or ask an admin.")


@pytest.mark.parametrize(
    ("facts", "clause"),
    [
        ({"ready": False}, "a is still starting"),
        ({"draining": True}, "a is being drained"),
        ({"cordoned": True}, "a is cordoned by an admin"),
        ({"last_seen_at": None}, "a has not reported for a while"),
        ({"problems": [{"text": "No space.", "fix": "", "blocking": True}]}, "a is unfit: No space"),
    ],
)
def test_a_lab_with_no_open_node_gives_the_reason(facts: dict[str, Any], clause: str) -> None:
    ready_node("a", **facts)
    assert blocked(queue()) == f"No node accepts new jobs now: {clause}."


def test_an_environment_that_is_being_prepared_shows_how_far_it_is() -> None:
    environment = make_environment("chemistry")
    job = queue(environment=environment)
    for name, percent in (("slow", 10), ("quick", 62)):
        NodeEnvironment.objects.create(
            node=make_node(name), environment=environment, state="preparing", progress_percent=percent,
            detail="compiling Horovod",
        )  # fmt: skip
    assert blocked(job) == ("Its environment chemistry is being prepared on node quick: 62 % (compiling Horovod).")


def test_an_environment_that_is_not_begun_differs_from_one_that_failed() -> None:
    environment = make_environment("chemistry")
    node, job = make_node("a"), queue(environment=environment)
    assert blocked(job) == "Its environment chemistry will be prepared on a node first."
    row = NodeEnvironment.objects.create(
        node=node, environment=environment, detail=agents.environments.BehindOthers().data()
    )
    assert blocked(job) == (
        "Its environment chemistry will be prepared on node a, which prepares other environments first."
    )
    row.delete()
    NodeEnvironment.objects.create(
        node=node, environment=environment, state="failed", detail="No compiler. Install g++."
    )
    assert blocked(job) == ("Its environment chemistry could not be prepared on node a: No compiler. Install g++.")


def test_agents_of_the_release_before_do_not_hold_up_an_environment_with_a_recipe_silently() -> None:
    environment = make_environment("tools")
    Environment.objects.filter(pk=environment.pk).update(recipe="r" * 64)
    job = queue(environment=environment)
    make_node("old"), make_node("older")
    assert blocked(job) == (
        "The agents of old, older are too old for its environment tools. Ask an admin to update the agents."
    )
    new = make_node("new")
    Node.objects.filter(pk=new.pk).update(facts={"layer_format": 1})
    assert blocked(job) == "Its environment tools will be prepared on a node first."
    NodeEnvironment.objects.create(
        node=new, environment=environment, state="failed", detail=LAYER_FAILURE.data()
    )  # the old ones are not waited for
    assert blocked(job).startswith("Its environment tools could not be prepared on node new: torch==2.9.1 contradicts")


def test_a_job_runs_only_where_its_environment_is_ready() -> None:
    a, _ = ready_node("a"), ready_node("b", environments=())
    assert view(queue()).nodes == frozenset({str(a.pk)})


# What a policy may know of a job


def test_the_owners_wishes_are_passed_on() -> None:
    ready_node("a")
    plain, special = queue(), queue(resumable=True, tier="basic", deadline=timezone.now() + timedelta(hours=1))
    assert (view(plain).preemptible, view(plain).tier, view(plain).deadline) == (False, "standard", None)
    assert (view(special).preemptible, view(special).tier) == (True, "basic")
    assert special.deadline is not None and view(special).deadline == special.deadline.timestamp()
    idle = queue(opportunistic=True)
    assert view(idle).opportunistic and view(idle).preemptible


def test_a_machine_with_two_models_is_a_node_for_each() -> None:
    node = ready_node("a", 4)
    node.gpus.filter(index=0).update(model="NVIDIA A100", memory_mib=40_960)
    node.gpus.filter(index__gt=0).update(model="NVIDIA T4", memory_mib=15_360)
    node.gpus.filter(index=1).update(memory_mib=15_109)
    node.gpus.filter(index=3).update(healthy=False)
    assert [(each.id, each.total, each.kind, each.gpu_memory_mib) for each in snapshot.take().nodes] == [
        (f"{node.pk}:NVIDIA A100", 1, "NVIDIA A100", 40_960),
        (f"{node.pk}:NVIDIA T4", 2, "NVIDIA T4", 15_109),
    ]
    node.gpus.filter(index__gt=0).update(present=False)
    (only,) = snapshot.take().nodes
    assert (only.id, only.kind, only.total, only.part_of) == (str(node.pk), "NVIDIA A100", 1, "")


def test_a_model_that_a_job_still_holds_remains_a_part_of_its_machine() -> None:
    node = ready_node("a", 2)
    node.gpus.filter(index=0).update(model="NVIDIA A100")
    job = queue(1)
    turn()
    held = Allocation.objects.get(attempt__job=job).gpu
    node.gpus.filter(pk=held.pk).update(present=False)
    seen = snapshot.take()
    assert seen.jobs[0].now_on == {f"{node.pk}:{held.model}": 1}
    assert {each.id: each.total for each in seen.nodes}[f"{node.pk}:{held.model}"] == 0


def test_times_of_a_job_that_was_stopped_and_started_again() -> None:
    ready_node("a", 2)
    job = queue(2, resumable=True, time_limit_seconds=1000)
    assert (view(job).since, view(job).first_started_at, view(job).run_seconds) == (None, None, 0)
    turn()
    run_agents()
    begin = timezone.now() - timedelta(seconds=100)
    Attempt.objects.update(started_at=begin)
    Allocation.objects.update(allocated_at=begin)
    running = view(job)
    assert running.first_started_at == running.since == begin.timestamp()
    assert (running.run_seconds, running.lost_gpu_seconds_if_stopped) == pytest.approx((100, 200), abs=5)
    assert running.longest_seconds == 1000

    lifecycle.stop_attempt(job.attempts.get(), "preempted")
    run_agents()
    waiting = view(job)
    assert waiting.since == Allocation.objects.latest("pk").released_at.timestamp()  # type: ignore[union-attr]
    assert waiting.longest_seconds == pytest.approx(900, abs=5)
    assert waiting.lost_gpu_seconds_if_stopped == 0

    turn()
    again = view(job)
    assert again.first_started_at == begin.timestamp()
    assert again.since is not None and waiting.since is not None and again.since >= waiting.since
    assert again.run_seconds == pytest.approx(100, abs=5)
    assert again.lost_gpu_seconds_if_stopped < 10


@pytest.mark.parametrize(("resumable", "lost"), [(True, 2 * 40 + 40), (False, 2 * 100 + 40 + 30)])
def test_a_stop_wastes_what_was_done_since_the_newest_checkpoint(resumable: bool, lost: float) -> None:
    """One of its GPUs came after the checkpoint, one went before it."""
    ready_node("a", 4)
    job = queue(4, resumable=resumable)
    turn()
    run_agents()
    now = timezone.now()
    Attempt.objects.update(started_at=now - timedelta(seconds=100))
    Allocation.objects.update(allocated_at=now - timedelta(seconds=100))
    late, gone = Allocation.objects.order_by("-pk").values_list("pk", flat=True)[:2]
    Allocation.objects.filter(pk=late).update(allocated_at=now - timedelta(seconds=40))
    Allocation.objects.filter(pk=gone).update(released_at=now - timedelta(seconds=70))
    CheckpointSet.objects.create(job=job, attempt=job.attempts.get(), size=8, taken_at=now - timedelta(seconds=40))
    assert view(job).lost_gpu_seconds_if_stopped == pytest.approx(lost, abs=5)


def test_a_checkpoint_of_an_attempt_before_saves_nothing_of_this_one() -> None:
    ready_node("a", 1)
    job = queue(1, resumable=True)
    turn()
    run_agents()
    CheckpointSet.objects.create(job=job, attempt=job.attempts.get(), size=8)
    lifecycle.stop_attempt(job.attempts.get(), "preempted")
    run_agents()
    turn()
    run_agents()
    Allocation.objects.filter(attempt__number=2).update(allocated_at=timezone.now() - timedelta(seconds=50))
    assert view(job).lost_gpu_seconds_if_stopped == pytest.approx(50, abs=5)


def test_taking_a_part_back_is_a_change_too() -> None:
    ready_node("a", 4)
    job = queue(1, 3)
    turn()
    run_agents()
    Allocation.objects.update(allocated_at=timezone.now() - timedelta(seconds=50))
    lifecycle.stop_container(Container.objects.filter(role="host").order_by("-index")[0], "preempted")
    since = view(job).since
    assert since is not None and timezone.now().timestamp() - since < 10


def test_the_same_program_is_one_script_across_code_versions() -> None:
    one = queue()
    two = queue(code=make_code(one.project), arguments=["--seed", "2"])
    others = queue(entry="other.py"), queue(launcher="command"), queue(owner="bob")
    assert view(one).script == view(two).script
    assert len({view(one).script, *(view(other).script for other in others)}) == 4


def test_work_is_estimated_from_the_past_minus_what_was_done() -> None:
    node = ready_node("a", 4)
    job = queue(resumable=True)
    assert (view(job).work, view(job).restart_seconds, view(job).resize_seconds) == (None, 30, 10)
    for _ in range(3):
        ran(node, 1, 1000, first_line=4)
    before = view(job).work
    assert before is not None and (before.value, before.source) == (pytest.approx(1000), "history")
    assert (view(job).restart_seconds, view(job).resize_seconds) == (4, 4)
    changed(ran(node, 1, 1000, first_line=4), None, 2.5)
    assert view(job).resize_seconds == 2.5
    turn()
    run_agents()
    Allocation.objects.filter(attempt__job=job).update(allocated_at=timezone.now() - timedelta(seconds=300))
    after = view(job).work
    assert after is not None and after.value == pytest.approx(700, abs=5)


def test_speed_is_learnt_from_runs_of_different_sizes() -> None:
    node = ready_node("a", 4)
    job = queue(1, 4)
    assert view(job).speed is None
    for gpus in (1, 2, 4):
        ran(node, gpus, 1000 / gpus)
    speed = view(job).speed
    assert speed is not None and speed.source == "history" and len(speed.speeds) == 4


def test_accounts_are_people_within_groups_with_their_weights_and_use() -> None:
    node = ready_node("a", 4)
    vision = Group.objects.create(name="vision")
    ran(node, 2, 100, group=vision)
    ran(node, 1, 50, group=vision, owner="bob")
    ours, alone = queue(group=vision), queue()
    Limit.objects.create(user=ours.submitted_by, weight=2.5)
    Limit.objects.create(group=vision, weight=4)
    group, mine, of_group = snapshot.take().accounts
    assert (group.name, group.weight, group.parent, group.jobs) == ("group vision", 4, "", {str(ours.pk)})
    assert group.used[0] == pytest.approx(250, abs=0.3)
    assert (mine.name, mine.weight, mine.parent, mine.jobs) == ("alice", 2.5, "", {str(alone.pk)})
    assert sum(mine.used) == 0
    assert (of_group.name, of_group.parent, of_group.jobs) == ("alice", "group vision", {str(ours.pk)})
    assert of_group.used[0] == pytest.approx(200, abs=0.3)
    assert view(ours).group == "group vision" and view(alone).group == ""
    assert snapshot.take().limits == (), "a weight alone is no limit"


def test_a_history_that_was_kept_gives_the_same_snapshot() -> None:
    node = ready_node("a", 4)
    kept = History()
    queue(1, 4)
    for gpus in (1, 2, 4):
        ran(node, gpus, 1000 / gpus, timezone.now())
        snapshot.take(history=kept)
    now = timezone.now()
    assert snapshot.take(now, history=kept) == snapshot.take(now)


def test_whatever_becomes_of_a_waiting_job_a_kept_history_shows_it_as_a_fresh_one_does() -> None:
    node, kept = ready_node("a", 4), History()
    job, others = queue(1, 4, priority=1), [queue(1, 2, entry=f"train{number % 2}.py") for number in range(4)]
    rows = Job.objects.filter(pk=job.pk)
    happens: list[Callable[[], object]] = [
        lambda: rows.update(priority=5),
        lambda: ran(node, 2, 500, timezone.now()),
        lambda: ran(node, 2, 900, timezone.now(), arguments=["--seed", "2"]),
        lambda: rows.update(arguments=["--seed", "2"]),
        lambda: rows.update(time_limit_seconds=60, deadline=timezone.now()),
        lambda: rows.update(group=Group.objects.create(name="vision")),
        lambda: Group.objects.update(name="sound"),
        lambda: rows.update(max_gpus=9, min_gpus=9),
        lambda: Node.objects.update(cordoned=True),
        lambda: Node.objects.update(cordoned=False),
        lambda: rows.update(max_gpus=4, min_gpus=1),
        turn,
        lambda: lifecycle.stop_attempt(Attempt.objects.get(job=job, ended_at=None), "preempted"),
        lambda: Job.objects.filter(pk=others[0].pk).update(intent="hold"),
        lambda: Job.objects.filter(pk=others[1].pk).update(intent="cancel"),
    ]
    for number, happen in enumerate(happens):
        now = timezone.now() + timedelta(seconds=1)  # the same before and after: that time passes is no change
        before = snapshot.take(now, history=kept)
        happen()
        after = snapshot.take(now, history=kept)
        assert after == snapshot.take(now), number
        assert (before.jobs, before.nodes) != (after.jobs, after.nodes), number


def test_a_waiting_job_that_nothing_happens_to_is_not_made_again() -> None:
    ready_node("a", 1)
    queue(2, 2)
    kept = History()
    (one,), (other,) = snapshot.take(history=kept).jobs, snapshot.take(history=kept).jobs
    assert one is other


def queries(jobs: int) -> int:
    while (missing := jobs - Job.objects.exclude(state="SUCCEEDED").count()) > 0:
        queue(1, 2, owner=f"person{missing % 7}", entry=f"train{missing % 20}.py")
    with CaptureQueriesContext(
        connection,
    ) as seen:
        assert len(snapshot.take().jobs) == jobs
    return len(seen)


def test_the_number_of_queries_does_not_grow_with_the_jobs() -> None:
    node = ready_node("a", 4)
    ready_node("b", 4)
    ran(node, 2, 100, group=Group.objects.create(name="vision"))
    Limit.objects.create(user=queue().submitted_by, max_gpus=3)
    turn()  # running jobs take more queries
    few = queries(10)
    turn()
    for number in range(20):
        ran(node, 1 + number % 4, 100 + number, entry=f"train{number}.py")
    assert queries(300) == few
    assert few <= 20
