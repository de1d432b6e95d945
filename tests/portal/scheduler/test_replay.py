"""Recorded scheduling cycles: what is kept and for how long, and replaying them."""

import json
import zlib
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from portal.jobs.models import Container
from portal.scheduler import recording, tasks
from portal.scheduler.models import Cycle, Recording, SchedulerConfig
from portal.scheduler.recording import read_recordings
from portal.scheduler.replay import Summary, replay
from portal.scheduler.services import switch_policy
from scheduling import registry
from scheduling.version import version_of
from scheduling.wire import snapshot_to_text
from tests.examples import mostly_thorough
from tests.portal.control_world import heartbeat, queue, ready_node, run_agents, turn
from tests.portal.jobs_world import exit

pytestmark = pytest.mark.django_db


def live_a_little(rounds: int = 5) -> None:
    """Jobs of all kinds come, run, are resized and end."""
    for number in range(rounds):
        queue(1, 1 + number, priority=number % 2)
        queue(2, elastic=False)
        for _ in range(2):
            heartbeat()
            turn()
            run_agents()
        if part := Container.objects.filter(role="host", state="RUNNING").order_by("pk").first():
            for each in part.attempt.containers.all():
                exit(each)
    turn()


def fidelity() -> Summary:
    summary = Summary()
    for one in replay():
        summary.add(one)
    return summary


def output_of(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    call_command("replay", *args)
    return capsys.readouterr().out


@pytest.mark.parametrize("key", mostly_thorough(registry.POLICIES, "fair_share", "goodput"))
def test_every_turn_is_decided_again_as_it_was(key: str) -> None:
    ready_node("a", 4)
    ready_node("b", 2, facts={"ring_address": "b"})
    switch_policy(None, key, {})
    live_a_little()
    summary = fidelity()
    assert summary.cycles == Recording.objects.count() >= 5
    assert (summary.same, summary.edited, summary.fidelity) == (summary.compared, 0, 1.0)


def test_a_recording_has_what_the_policy_saw_and_planned() -> None:
    ready_node("a", 2)
    job = queue(2)
    done = turn()
    (kept,) = read_recordings()
    assert kept.snapshot == done.seen and kept.plan is not None
    assert kept.plan.target == {str(job.pk): {kept.snapshot.nodes[0].id: 2}}
    cycle = Cycle.objects.get()
    assert cycle.snapshot_sha256 == recording.sha256_of(snapshot_to_text(kept.snapshot))
    assert cycle.version == version_of(registry.POLICIES[registry.DEFAULT])


def test_turns_come_in_the_order_in_which_they_were() -> None:
    ready_node("a", 4)
    live_a_little(2)
    numbers = [each.cycle.pk for each in read_recordings()]
    assert len(numbers) > 2 and numbers == sorted(numbers)


def test_a_quiet_turn_keeps_nothing() -> None:
    ready_node("a", 2)
    queue(2)
    turn()
    for _ in range(3):
        turn()
    assert Recording.objects.count() == Cycle.objects.count() == 1


def test_switches_between_turns_are_followed() -> None:
    ready_node("a", 4)
    for key, params in (("fifo", {"strict": False}), ("elastic_fifo", {"grow_after_seconds": 0}), ("fifo", {})):
        switch_policy(None, key, params)
        live_a_little(1)
    summary = fidelity()
    assert summary.compared == summary.same >= 4 and Recording.objects.values("cycle__config").distinct().count() == 3


def change_plan(row: Recording, **changes: Any) -> None:
    content = json.loads(zlib.decompress(row.content))
    content["plan"].update(changes)
    row.content = zlib.compress(json.dumps(content).encode())
    row.save(update_fields=["content"])


def test_a_turn_that_comes_out_otherwise_is_shown_with_its_difference(capsys: pytest.CaptureFixture[str]) -> None:
    ready_node("a", 2)
    job = queue(2)
    turn()
    change_plan(Recording.objects.get(), target={}, reasons={str(job.pk): "It waits."})
    with pytest.raises(CommandError, match="Not every cycle"):
        call_command("replay")
    output = capsys.readouterr().out
    assert f"job {job.pk}: no GPUs -> 2 on a; It waits. -> none" in output
    assert "0 of 1 gave the same plan (fidelity): 0.00 %." in output


def test_another_memory_is_a_difference_too() -> None:
    ready_node("a", 2)
    queue(2)
    turn()
    change_plan(Recording.objects.get(), state={"wish": {"7": 1.0}})
    assert fidelity().same == 0


def test_the_command_shows_the_fidelity_of_recent_cycles(capsys: pytest.CaptureFixture[str]) -> None:
    ready_node("a", 2)
    queue(2)
    turn()
    assert "1 of 1 gave the same plan (fidelity): 100.00 %." in output_of(capsys)
    Recording.objects.update(at=timezone.now() - timedelta(days=3))
    assert "No cycle is recorded" in output_of(capsys, "--since", "2")
    assert "100.00 %" in output_of(capsys, "--since", "4")


def test_another_policy_is_compared_job_by_job(capsys: pytest.CaptureFixture[str]) -> None:
    ready_node("a", 2)
    queue(1, elastic=False)
    turn()
    large, small = queue(2, elastic=False), queue(1, elastic=False)
    turn()
    output = output_of(capsys, "--policy", "fifo", "--set", "strict=true")
    assert "1 of 2 would have been decided equally by fifo: 50.00 %." in output
    assert "1 times a job that starts would have been one that waits" in output
    assert f"job {small.pk}: another decision in 1 cycles" in output and f"job {large.pk}:" not in output


@pytest.mark.parametrize("args", [("--policy", "lottery"), ("--policy", "fifo", "--set", "strict"), ("--set", "a=1")])
def test_a_wrong_question_is_refused(args: tuple[str, ...]) -> None:
    with pytest.raises(CommandError):
        call_command("replay", *args)


def test_turns_that_made_no_plan_are_counted_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    ready_node("a", 2)
    queue(2)
    SchedulerConfig.objects.create(policy="gone", params={})
    turn()
    summary = fidelity()
    assert (summary.cycles, summary.compared, summary.fidelity) == (1, 0, 1.0)
    assert summary.why_not["no plan could be applied then"] == 1


def test_an_edited_policy_is_named_as_edited() -> None:
    ready_node("a", 2)
    queue(2)
    turn()
    Cycle.objects.update(version="another")
    assert fidelity().edited == 1


def test_old_and_surplus_recordings_go_and_their_turns_stay(settings: Any) -> None:
    ready_node("a", 9)
    for _ in range(5):
        queue(1)
        turn()
    first, *_, last = Recording.objects.order_by("pk")
    Recording.objects.filter(pk=first.pk).update(at=timezone.now() - timedelta(days=settings.RECORDED_DAYS + 1))
    settings.RECORDED_TURNS = 2
    tasks.tidy()
    assert list(Recording.objects.order_by("-pk").values_list("pk", flat=True)) == [last.pk, last.pk - 1]
    assert Cycle.objects.count() == 5
