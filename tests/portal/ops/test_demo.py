"""``manage.py demo``: a separate lab that is marked as such, with a plausible month, and nothing left after its removal."""

import json
import os
import random
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import transaction
from django.test import Client, override_settings

from portal.accounts.models import AuditEntry, User
from portal.cluster.models import Gpu, Node, Reservation
from portal.environments.models import Environment
from portal.jobs import causes, logs
from portal.jobs.models import (
    Allocation,
    Attempt,
    Container,
    Job,
    JobState,
    LogStream,
    MetricPoint,
    Outcome,
    Output,
    Progress,
)
from portal.jobs.resize_timeline.timeline import timeline_of
from portal.monitoring.models import Hour, Sample
from portal.ops.demo import month, people, traffic
from portal.ops.demo.rows import MonthRows
from portal.ops.demo.workload import DAYS, LabSize
from portal.ops.management.commands import demo
from portal.ops.up.preflight import lock_home
from portal.projects.models import CodeVersion, Project
from portal.scheduler import snapshot
from portal.scheduler.models import SchedulerConfig
from portal.usage.models import LedgerDay, UsageDay
from portal.whatif import figures, history
from runners.agent.journal import ContainerJournal
from runners.demo.nodes import DemoRuntime, JobProgress, SimulatedRun
from runners.host.node_files import NodeFiles
from runners.runtime import Folders, ObservedContainer
from tests.runners.agent_bench import spec_of

pytestmark = pytest.mark.django_db
NOW = datetime(2026, 11, 26, 15, 20, tzinfo=UTC)
"""A Thursday afternoon."""
SIZE = LabSize(2, 4)
GPU_SECONDS = SIZE.total * DAYS * 86_400
WAITS_SECONDS = 600


def fill(home: Path, now: datetime) -> MonthRows:
    with override_settings(HOME=home, DEMO=True):
        return month.fill(now, SIZE, "http://127.0.0.1:1")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def lab(django_db_setup: None, django_db_blocker: Any, home: Path) -> Iterator[MonthRows]:
    """Make it once for all tests of this module, which only read it or undo what they change."""
    with django_db_blocker.unblock(), transaction.atomic(), override_settings(HOME=home, DEMO=True):
        yield fill(home, NOW)
        transaction.set_rollback(True)


# --- the month -----------------------------------------------------------------------------------------------------


def test_the_gpus_are_busy_for_most_of_the_month(lab: MonthRows) -> None:
    held = sum(((row.released_at or NOW) - row.allocated_at).total_seconds() for row in Allocation.objects.iterator())
    assert 0.7 <= held / GPU_SECONDS <= 0.9
    assert UsageDay.objects.exists() and LedgerDay.objects.filter(borrowed__gt=0, group__isnull=False).exists()


def test_no_gpu_is_held_twice_and_no_job_runs_before_it_came(lab: MonthRows) -> None:
    last: dict[int, datetime] = defaultdict(lambda: lab.start)
    for row in Allocation.objects.order_by("gpu", "allocated_at").select_related("attempt__job"):
        assert row.allocated_at >= last[row.gpu_id]
        assert row.attempt.job.submitted_at <= row.allocated_at <= (row.released_at or NOW) <= NOW
        last[row.gpu_id] = row.released_at or NOW


def test_jobs_wait_and_those_that_wait_now_have_a_reason(lab: MonthRows) -> None:
    waits = [
        (first.created_at - first.job.submitted_at).total_seconds()
        for first in Attempt.objects.filter(number=1).select_related("job")
    ]
    assert sum(wait > WAITS_SECONDS for wait in waits) >= 50
    waiting = list(Job.objects.filter(state=JobState.QUEUED))
    assert len(waiting) >= 2 and all(job.why_waiting.endswith(".") for job in waiting)


def test_every_attempt_that_did_not_succeed_has_the_cause_that_the_portal_finds(lab: MonthRows) -> None:
    ended = Attempt.objects.exclude(outcome__in=("", Outcome.SUCCEEDED)).select_related("job")
    codes: Counter[str] = Counter()
    for attempt in ended:
        found = causes.explain(attempt.job, attempt, list(attempt.containers.select_related("node")))
        assert attempt.cause == found and attempt.explanation["title"], attempt.pk
        codes[str(found["code"])] += 1
    assert set(codes) >= {"gpu_out_of_memory", "import_error", "file_not_found", "exception", "time_limit", "preempted"}
    assert "unknown" not in codes and "exit_code" not in codes
    failed = Job.objects.filter(state=JobState.FAILED)
    assert failed.count() > 20
    assert all(list(job.attempts.all())[-1].cause for job in failed.prefetch_related("attempts"))


def test_every_attempt_that_ran_has_a_log_to_read(lab: MonthRows) -> None:
    ran = Attempt.objects.filter(started_at__isnull=False)
    silent = [attempt.pk for attempt in ran if not logs.tail(attempt).strip()]
    assert ran.count() > 300 and not silent
    for stream in LogStream.objects.order_by("?")[:50]:
        assert logs.path_of(stream).stat().st_size == stream.size > 0
        assert [at for at, _ in logs.read_marks(stream)] == sorted({at for at, _ in logs.read_marks(stream)})


def test_trainings_have_curves_and_the_last_ones_left_files(lab: MonthRows) -> None:
    curves = set(MetricPoint.objects.values_list("attempt", "name").distinct())
    assert {name for _, name in curves} == {"train/loss", "train/samples per second", "validation/accuracy"}
    long = Attempt.objects.filter(outcome=Outcome.SUCCEEDED, started_at__lt=NOW - timedelta(hours=1))
    assert {attempt for attempt, _ in curves} >= set(long.values_list("pk", flat=True)) - _short()
    assert {output.path for output in Output.objects.all()} == {"metrics.json", "plots/loss.png", "model.pt"}


def _short() -> set[int]:
    rows = Attempt.objects.filter(ended_at__isnull=False, started_at__isnull=False)
    return {row.pk for row in rows if row.ended_at - row.started_at < timedelta(minutes=5)}  # type: ignore[operator]


def test_elastic_jobs_grow_and_shrink(lab: MonthRows) -> None:
    grown, shrunk = 0, 0
    for job in Job.objects.filter(elastic=True, state=JobState.SUCCEEDED):
        changes = timeline_of(job).changes
        grown += any(change.after > change.before for change in changes)
        shrunk += any(change.after < change.before for change in changes)
        assert all(1 <= change.after <= job.max_gpus for change in changes)
    assert grown >= 3 and shrunk >= 3, (grown, shrunk)


def test_an_admin_switched_the_policy_twice_and_reserved_gpus(lab: MonthRows) -> None:
    assert [config.policy for config in SchedulerConfig.objects.order_by("pk")] == [
        "fifo",
        "elastic_fifo",
        "fair_share",
    ]
    assert AuditEntry.objects.filter(action="scheduler.policy_switched").count() == 2
    assert {attempt.policy for attempt in Attempt.objects.all()} == {
        f"{config.policy} v{config.pk}" for config in SchedulerConfig.objects.all()
    }
    assert Reservation.objects.filter(end__lt=NOW).exists() and Reservation.objects.filter(start__gt=NOW).exists()


def test_no_other_user_held_what_was_reserved(lab: MonthRows) -> None:
    kept = Reservation.objects.get(end__lt=NOW)
    others = Allocation.objects.filter(gpu__node=kept.node, allocated_at__lt=kept.end, released_at__gt=kept.start)
    others = others.exclude(attempt__job__submitted_by__groups__in=kept.groups.all())
    middle = kept.start + (kept.end - kept.start) / 2
    held = others.filter(allocated_at__lt=middle, released_at__gt=middle).count()
    assert held <= kept.node.gpus.count() - kept.gpus


def test_the_policy_remembers_what_groups_used(lab: MonthRows) -> None:
    seen = snapshot.take(NOW)
    used = {account.name: sum(account.used) for account in seen.accounts}
    assert used["group vision"] > 0 and not Job.objects.filter(group=None).exists()


def test_the_simulation_of_the_past_sees_the_jobs_as_they_were(lab: MonthRows) -> None:
    world = history.read(NOW - timedelta(days=14), NOW)
    found = figures.summarise(world, figures.actual_outcomes(world))
    assert 0.7 <= found["total"]["utilisation"] <= 1.0 and found["total"]["waiting"]["mean"] > WAITS_SECONDS


def test_gpus_have_hours_and_samples_without_a_gap(lab: MonthRows) -> None:
    hours = Hour.objects.values_list("gpu", "at")
    assert len(set(hours)) == len(hours) and len(hours) > SIZE.total * (DAYS - 1) * 24
    assert Hour.objects.filter(utilisation_max__gt=50).exists()
    assert Sample.objects.filter(at__gt=NOW - timedelta(minutes=61)).count() == SIZE.nodes * 60
    assert not Gpu.objects.filter(utilisation_percent=None).exists()


def test_a_resumed_job_never_falls_behind_its_checkpoint(lab: MonthRows) -> None:
    reached = defaultdict(list)
    for row in Progress.objects.filter(attempt__job__resumable=True).order_by("attempt__number"):
        reached[row.attempt.job_id].append((row.total, row.step))
    several = {job: rows for job, rows in reached.items() if len(rows) > 1}
    assert several
    for job, rows in several.items():
        assert len({total for total, _ in rows}) == 1, job
        assert rows == sorted(rows), job


def test_where_a_job_stands_is_read_from_attempts_that_ended(lab: MonthRows) -> None:
    ended = Progress.objects.filter(attempt__job__resumable=True, attempt__ended_at__isnull=False, batch__gt=0)
    assert ended.exists()
    for row in ended:
        known = demo.reached_step(row.attempt.job_id)
        assert known is not None and 0 < row.step <= known.step <= known.steps
    assert demo.reached_step(0) is None


def test_what_runs_now_can_be_taken_up_by_the_nodes(lab: MonthRows) -> None:
    running = set(Container.objects.filter(state="RUNNING").values_list("name", flat=True))
    found: set[str] = set()
    for node in Node.objects.filter(runtime="fake"):
        files = NodeFiles(people.node_home(node.name))
        runtime = DemoRuntime(node.name, SIZE.gpus, wall_clock=lambda: NOW.timestamp(), clock=lambda: 1e6)
        runtime.resume(files)
        found |= {seen.name for seen in runtime.list() if seen.state == "running"}
        assert all(SimulatedRun.read(files.container(name)) for name in ContainerJournal(files).entries())
    assert running and found == running


@pytest.mark.parametrize("size", [LabSize(1, 1), LabSize(3, 2), LabSize(4, 8)])
@pytest.mark.parametrize(
    "now", [NOW, pytest.param(datetime(2026, 11, 29, 3, 5, tzinfo=UTC), marks=pytest.mark.thorough)]
)
def test_labs_of_any_size_are_as_busy_at_any_hour(size: LabSize, now: datetime) -> None:
    start = now - timedelta(days=DAYS)
    planned = month.reservations(start, size)
    demo_jobs = month.simulate_jobs(start, size, month.SEED, planned)
    held = sum(
        holding.gpus * ((DAYS * 86_400 if holding.until is None else holding.until) - holding.since)
        for demo_job in demo_jobs
        for simulated in demo_job.attempts
        for holding in simulated.holdings
    )
    assert 0.7 <= held / (size.total * DAYS * 86_400) <= 0.9
    assert any(demo_job.status == "QUEUED" and demo_job.reason for demo_job in demo_jobs)


# --- the lab's pages -------------------------------------------------------------------------------------------------


def test_people_sign_in_with_the_password_of_the_lab(lab: MonthRows) -> None:
    answer = Client().post("/accounts/sign-in/", {"username": "chen", "password": people.demo_password()})
    assert (answer.status_code, answer["Location"]) == (302, "/")
    assert [user.username for user in User.objects.filter(is_staff=True)] == ["ada"]


def test_every_page_is_marked_as_a_demo(lab: MonthRows) -> None:
    client = Client()
    client.force_login(User.objects.get(username="ada"))
    failed = Job.objects.filter(state=JobState.FAILED).latest("pk")
    for path in ("/", "/gpus/", "/gpus/timeline/?window=week", "/nodes/", "/usage/", "/admin/", f"/jobs/{failed.pk}/"):
        assert "<strong>Demo lab.</strong>" in client.get(path).content.decode(), path
    assert "<strong>Demo lab.</strong>" in Client().get("/accounts/sign-in/").content.decode()
    with override_settings(DEMO=False):
        assert "Demo lab." not in client.get("/").content.decode()


def test_the_page_of_a_failed_job_names_its_cause(lab: MonthRows) -> None:
    client = Client()
    client.force_login(User.objects.get(username="ada"))
    attempt = Attempt.objects.filter(cause__code="import_error").latest("pk")
    assert "The package albumentations is missing" in client.get(f"/jobs/{attempt.job_id}/").content.decode()


# --- the command -----------------------------------------------------------------------------------------------------


def test_jobs_keep_coming_until_enough_run_and_wait(lab: MonthRows) -> None:
    chance = random.Random(1)
    Job.objects.filter(state=JobState.RUNNING).update(state=JobState.QUEUED)
    Job.objects.filter(pk=Job.objects.filter(state=JobState.QUEUED).latest("pk").pk).update(min_gpus=99, max_gpus=99)
    assert traffic.submit_one(chance, SIZE) is None
    Job.objects.filter(state=JobState.QUEUED).update(state=JobState.HELD)
    made = [job for job in (traffic.submit_one(chance, SIZE) for _ in range(60)) if job is not None]
    assert 1 <= len(made) < 60 and _asked() <= (traffic.MAX_LOAD + 2) * SIZE.total
    assert all(job.max_gpus <= SIZE.total for job in made)


def test_visitors_who_change_the_projects_do_not_end_the_lab(lab: MonthRows) -> None:
    Job.objects.filter(state__in=(JobState.QUEUED, JobState.RUNNING)).update(state=JobState.HELD)
    chance = random.Random(2)
    for project in Project.objects.order_by("pk")[:2]:
        project.memberships.all().delete()
    for project in Project.objects.order_by("pk")[2:4]:
        Project.objects.filter(pk=project.pk).update(name=f"{project.name} again")
    twice = CodeVersion.objects.filter(project__git=None).order_by("-pk")[0]
    CodeVersion.objects.filter(pk=twice.pk).update(number=1)
    CodeVersion.objects.create(
        project=twice.project, number=2, sha256=twice.sha256, size=1, created_by=twice.created_by
    )
    tried = [traffic.submit_one(chance, SIZE) for _ in range(40)]
    assert None in tried and any(tried)
    Environment.objects.update(retired=True)
    assert traffic.submit_one(chance, SIZE) is None


def _asked() -> int:
    return sum(Job.objects.filter(state__in=("QUEUED", "RUNNING")).values_list("min_gpus", flat=True))


def test_filling_twice_adds_nothing(lab: MonthRows, home: Path) -> None:
    people.store_facts(edition=demo.CONTENT_VERSION)
    before = (User.objects.count(), Job.objects.count())
    call_command("demo", "--fill-only")
    assert (User.objects.count(), Job.objects.count()) == before


def test_a_demo_lab_of_an_older_release_is_refused_with_what_to_do(lab: MonthRows, home: Path, tmp_path: Path) -> None:
    """Make a demo lab that stored only its password beside its database."""
    (tmp_path / "demo.json").write_text('{"password": "old"}')
    with override_settings(HOME=tmp_path), pytest.raises(CommandError, match="make demo OPTIONS=--remove.*make demo"):
        call_command("demo", "--fill-only")


def test_a_real_lab_only_makes_way_for_another_process(
    tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With nothing of the real lab's database, in a folder of its own."""
    settings.HOME, settings.DEMO = tmp_path, False
    started: list[tuple[list[str], dict[str, str]]] = []
    monkeypatch.setenv("DATABASE_URL", "postgres://real")
    monkeypatch.setenv("SECRET_KEY_FILE", "/etc/real")
    monkeypatch.setattr(demo.os, "execve", lambda program, command, env: started.append((command, env)))
    call_command("demo", "--nodes=3", "--fill-only")
    ((command, env),) = started
    assert command[2:] == ["demo", "--nodes=3", "--gpus=4", "--fill-only"]
    assert env["SCHEDULEARN_HOME"] == str(tmp_path / "demo") and env["SCHEDULEARN_DEMO"] == "true"
    assert not {"DATABASE_URL", "SECRET_KEY_FILE"} & set(env)


def test_removing_it_leaves_nothing(tmp_path: Path, settings: Any, capsys: pytest.CaptureFixture[str]) -> None:
    settings.HOME, settings.DEMO = tmp_path, False
    (tmp_path / "demo" / "nodes").mkdir(parents=True)
    (tmp_path / "db.sqlite3").write_text("real")
    with lock_home(tmp_path / "demo"), pytest.raises(CommandError, match="Stop it first"):
        call_command("demo", "--remove")
    call_command("demo", "--remove")
    assert [path.name for path in tmp_path.iterdir()] == ["db.sqlite3"]
    call_command("demo", "--remove")
    assert "There is no demo lab." in capsys.readouterr().out


@pytest.mark.parametrize("option", ["--nodes=0", "--gpus=17"])
def test_odd_sizes_are_refused(option: str) -> None:
    with pytest.raises(CommandError, match="1 to 20 nodes"):
        call_command("demo", option)


def test_a_demo_lab_is_not_for_postgresql(tmp_path: Path) -> None:
    env = {
        "PATH": os.environ["PATH"],
        "SCHEDULEARN_HOME": str(tmp_path),
        "SCHEDULEARN_DEMO": "true",
        "DATABASE_URL": "postgres://x",
        "REDIS_URL": "redis://x",
    }
    ended = subprocess.run([sys.executable, "-c", "import portal.settings"], env=env, capture_output=True, text=True)
    assert "A demo lab runs on SQLite" in ended.stderr


# --- its nodes -------------------------------------------------------------------------------------------------------


def folders_in(folder: Path) -> Folders:
    return Folders(*(folder / name for name in ("workspace", "control", "scribe", "outputs", "checkpoints")))


def test_pretended_gpus_work_where_something_runs(tmp_path: Path) -> None:
    clock = [0.0]
    runtime = DemoRuntime("n", 3, clock=lambda: clock[0])
    runtime.create(spec_of("0" * 64, job=8, gpus=(runtime.uuids[1],)), folders_in(tmp_path))
    runtime.start("sl-1-a1-0")
    busy = [gpu.utilisation_percent or 0 for gpu in runtime.devices()]
    assert busy[0] == busy[2] == 0 and busy[1] > 20
    clock[0] = 15.0
    (seen,) = runtime.list()
    assert seen.state == "running"  # it states no length, so it takes some minutes
    assert b"loss" in (tmp_path / "scribe" / "log" / "0.log").read_bytes()
    assert b'"kind": "step"' in (tmp_path / "scribe" / "log" / "metrics.log").read_bytes()


def job_with(mishap: str | None) -> int:
    """Return the number of a job whose program ends in this way."""
    return next(n for n in range(1000) if SimulatedRun.draw(spec_of("0" * 64, job=n), 0.0).mishap == mishap)


def ended(folder: Path, job: int) -> ObservedContainer:
    clock = [0.0]
    runtime = DemoRuntime("n", 1, wall_clock=lambda: 0.0, clock=lambda: clock[0], fence_seconds=1e9)
    runtime.create(spec_of("0" * 64, job=job, gpus=runtime.uuids), folders_in(folder))
    runtime.start("sl-1-a1-0")
    clock[0] = 2000.0
    (seen,) = runtime.list()
    return seen


def test_a_job_that_fails_prints_why(tmp_path: Path) -> None:
    seen = ended(tmp_path, job_with("file_not_found"))
    assert (seen.state, seen.exit_code) == ("exited", 1)
    assert b"FileNotFoundError" in (tmp_path / "scribe" / "log" / "0.log").read_bytes()


def test_a_job_that_succeeds_leaves_the_files_that_its_log_names(tmp_path: Path) -> None:
    seen = ended(tmp_path, job_with(None))
    assert (seen.state, seen.exit_code) == ("exited", 0)
    log = (tmp_path / "scribe" / "log" / "0.log").read_text()
    files = [path for path in (tmp_path / "outputs").rglob("*") if path.is_file()]
    assert len(files) == 3
    assert all(str(file.relative_to(tmp_path / "outputs")) in log and file.stat().st_size for file in files)


def test_a_job_resumes_at_the_step_that_its_earlier_attempts_reached(tmp_path: Path) -> None:
    clock = [0.0]
    reached = {7: JobProgress(4_000, 10_000)}
    runtime = DemoRuntime(
        "n", 1, wall_clock=lambda: clock[0], reached=reached.get, clock=lambda: clock[0], fence_seconds=1e9
    )
    runtime.create(spec_of("0" * 64, job=7, gpus=runtime.uuids), folders_in(tmp_path))
    runtime.start("sl-1-a1-0")
    clock[0] = 20.0
    runtime.list()
    assert "Restored the checkpoint of step 4,000." in (tmp_path / "scribe" / "log" / "0.log").read_text()
    clock[0] = 5000.0
    (seen,) = runtime.list()
    steps = [
        json.loads(line)["step"] for line in (tmp_path / "scribe" / "log" / "metrics.log").read_text().splitlines()
    ]
    assert 4_000 < steps[0] < 5_000 and steps == sorted(steps)
    assert seen.exit_code == 0 and "Finished after 10,000 steps" in (tmp_path / "scribe" / "log" / "0.log").read_text()


def test_ranks_of_later_hosts_have_numbers_of_their_own(tmp_path: Path) -> None:
    clock = [0.0]
    runtime = DemoRuntime("n", 2, clock=lambda: clock[0], fence_seconds=1e9)
    folders = folders_in(tmp_path)
    folders.control.mkdir()
    hosts = [{"name": "h1", "slots": 2}, {"name": "h2", "slots": 2}]
    (folders.control / "control.json").write_text(json.dumps({"hosts": hosts}))
    spec = spec_of("0" * 64, job=job_with(None), gpus=runtime.uuids)
    runtime.create(replace(spec, hostname="h2", launcher="horovod", slots=2), folders)
    runtime.start(spec.name)
    for _ in range(10):
        clock[0] += 7
        runtime.list()
    streams = json.loads((folders.scribe / "log" / "streams.json").read_text())
    assert {name: stream["label"] for name, stream in streams.items()} == {
        "setup": "set-up",
        "0": "rank 2",
        "1": "rank 3",
    }
