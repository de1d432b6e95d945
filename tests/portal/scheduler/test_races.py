"""Two schedulers at once with the lock removed, policies switched under load: nothing twice, nothing lost."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, connections

from portal.jobs.models import Attempt
from portal.scheduler import cycle, leader_election
from portal.scheduler.leader_election import Leadership
from portal.scheduler.management.commands.runscheduler import Command
from portal.scheduler.models import Leader
from tests.portal.control_world import lead, queue, ready_node, turn
from tests.portal.homes import migrate
from tests.portal.scheduler_load import LoadResult, run_load

ROOT = Path(__file__).resolve().parents[3]


def assert_nothing_went_wrong(result: LoadResult) -> None:
    assert result.crashed == []
    assert (result.unfinished, result.started_twice, result.held_twice) == (0, 0, 0), result


@pytest.mark.postgres
@pytest.mark.timeout(240)
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("jobs", "schedulers"), [pytest.param(400, 2, marks=pytest.mark.thorough), (100, 4)])
def test_schedulers_without_a_lock_give_no_gpu_and_start_no_job_twice(
    jobs: int, schedulers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cycle, "take_lock", lambda: True)
    result = run_load(jobs, schedulers=schedulers, seconds=200)
    assert_nothing_went_wrong(result)
    assert result.dropped > 0, "they never met, so this showed nothing"


@pytest.mark.postgres
@pytest.mark.timeout(240)
@pytest.mark.django_db(transaction=True)
@pytest.mark.thorough
def test_switching_the_policy_ten_times_a_second_loses_nothing() -> None:
    result = run_load(150, schedulers=2, switch_every=0.1, switches=11, seconds=200)
    assert_nothing_went_wrong(result)
    assert result.switches > 10


@pytest.mark.usefixtures("django_db_setup")
@pytest.mark.thorough
def test_the_same_holds_on_sqlite(tmp_path: Path, django_db_blocker: Any) -> None:
    """In a process of its own, because the tests' database is in memory and takes one writer only."""
    migrate(tmp_path, django_db_blocker)
    env = {**os.environ, "SCHEDULEARN_HOME": str(tmp_path), "DATABASE_URL": "", "REDIS_URL": ""}
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.portal.scheduler_load", "40"],
        cwd=ROOT, env=env, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-2000:]
    result = LoadResult(**json.loads(run.stdout.splitlines()[-1]))
    assert_nothing_went_wrong(result)
    assert result.database_errors == []
    assert result.switches >= 10


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
def test_a_turn_returns_at_once_while_another_has_the_lock() -> None:
    ready_node("a", 1)
    queue()
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_lock(%s)", [cycle.LOCK])
    try:
        busy: list[bool] = []
        epoch = lead()

        def other() -> None:
            busy.append(turn(epoch).busy)
            connection.close()

        thread = threading.Thread(target=other)
        thread.start()
        thread.join(60)
        assert busy == [True]
        assert not Attempt.objects.exists()
    finally:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_unlock(%s)", [cycle.LOCK])


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
def test_no_scheduler_takes_over_in_the_middle_of_a_cycle(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next leader's epoch waits until the current cycle is written, so no cycle is half the old leader's."""
    ready_node("a", 1)
    queue()
    epoch = lead()
    order: list[str] = []
    real = cycle.apply

    def succeed() -> None:
        lead()
        order.append("took over")
        connection.close()

    successor = threading.Thread(target=succeed)

    def slow_apply(*args: object) -> object:
        successor.start()
        successor.join(0.5)
        order.append("applied")
        return real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(cycle, "apply", slow_apply)
    assert turn(epoch).applied.started
    successor.join(60)
    assert order == ["applied", "took over"]
    with pytest.raises(cycle.LeadershipLostError):
        turn(epoch)


@pytest.mark.django_db(transaction=True)
def test_a_scheduler_that_ends_is_no_longer_named_unless_another_leads(tmp_path: Path) -> None:
    first = Leadership(tmp_path / "lock")
    assert first.take() and Leader.objects.get().holder
    first.resign()
    assert Leader.objects.get().holder == "" and first.epoch is None
    late, second = Leadership(tmp_path / "lock"), Leadership(tmp_path / "lock")
    assert late.take()
    Leader.objects.update(epoch=99, holder="another")  # it took the lead while the first one slept
    late.resign()
    assert Leader.objects.get().holder == "another"
    assert second.take()
    second.release()


@pytest.mark.django_db(transaction=True)
def test_one_scheduler_leads_and_the_other_takes_over_when_it_is_gone(tmp_path: Path) -> None:
    first, second = Leadership(tmp_path / "lock"), Leadership(tmp_path / "lock")
    assert first.take()
    answers: list[object] = []

    def other(*, release: bool) -> None:
        try:
            answers.append(second.take() and second.epoch)
        finally:
            if release:
                second.release()
            connections.close_all()

    thread = threading.Thread(target=other, kwargs={"release": False})
    thread.start()
    thread.join(60)
    before = first.epoch
    assert before is not None
    first.release()
    thread = threading.Thread(target=other, kwargs={"release": True})
    thread.start()
    thread.join(60)
    assert answers == [False, before + 1]
    assert Leader.objects.get().epoch == before + 1


@pytest.mark.django_db(transaction=True)
def test_the_loop_stands_by_leads_and_gives_up_the_lead_when_deposed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready_node("a", 2)
    job = queue()
    mine, command = Leadership(tmp_path / "lock"), Command()
    monkeypatch.setattr(leader_election.Leadership, "_lock", lambda self: False)
    command.run_cycle(mine)
    assert mine.epoch is None and not job.attempts.exists()
    monkeypatch.setattr(leader_election.Leadership, "_lock", lambda self: True)
    command.run_cycle(mine)
    assert job.attempts.count() == 1
    lead()
    other = queue()
    command.run_cycle(mine)
    assert mine.epoch is None and not other.attempts.exists()
    command.run_cycle(mine)
    assert other.attempts.count() == 1
