"""What a new demo lab shows in addition to its month: models of GPUs, a schedule, chains, more time, notices and Git."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import transaction
from django.test import Client, override_settings

from portal.accounts.models import User
from portal.cluster.models import Gpu
from portal.jobs.models import Container, Job, JobState
from portal.jobs.time_extensions.models import TimeExtension
from portal.notifications import kinds
from portal.notifications.models import Delivery, Notice
from portal.ops.demo import month
from portal.ops.demo.rows import MonthRows
from portal.ops.demo.workload import LabSize
from portal.projects.git.models import GitFetch, GitSource, VersionCommit
from portal.schedules.models import Schedule, ScheduleRun
from runners.demo.nodes import LARGE_GPU, SMALL_GPU, DemoRuntime
from runners.runtime import Folders
from tests.runners.agent_bench import spec_of

pytestmark = pytest.mark.django_db
NOW = datetime(2026, 11, 26, 15, 20, tzinfo=UTC)
SIZE = LabSize(2, 4)


@pytest.fixture(scope="module")
def lab(django_db_setup: None, django_db_blocker: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MonthRows]:
    """Make it once for all tests of this module, which only read it."""
    home = tmp_path_factory.mktemp("demo")
    with django_db_blocker.unblock(), transaction.atomic(), override_settings(HOME=home, DEMO=True):
        yield month.fill(NOW, SIZE, "http://127.0.0.1:1")
        transaction.set_rollback(True)


def page(path: str, username: str = "ada") -> str:
    client = Client()
    client.force_login(User.objects.get(username=username))
    answer = client.get(path)
    assert answer.status_code == 200, path
    return answer.content.decode()


# --- GPUs ------------------------------------------------------------------------------------------------------------


def test_one_node_has_two_models_of_gpus(lab: MonthRows) -> None:
    models = dict(Gpu.objects.values_list("uuid", "model"))
    small = {uuid for uuid, model in models.items() if model == SMALL_GPU.name}
    assert small == {"demo-demo-1-2", "demo-demo-1-3"}
    assert set(models.values()) == {LARGE_GPU.name, SMALL_GPU.name}
    assert not Gpu.objects.filter(memory_used_mib__gt=LARGE_GPU.memory_mib).exists()
    assert not Gpu.objects.filter(model=SMALL_GPU.name, memory_used_mib__gt=SMALL_GPU.memory_mib).exists()


def test_jobs_get_only_gpus_that_they_accept_and_each_container_those_of_one_model(lab: MonthRows) -> None:
    held: dict[int, set[str]] = {}
    rows = Container.objects.filter(allocations__isnull=False)
    for pk, model, memory, models in rows.values_list(
        "pk", "allocations__gpu__model", "attempt__job__gpu_memory_mib", "attempt__job__gpu_models"
    ):
        held.setdefault(pk, set()).add(model)
        assert model != SMALL_GPU.name or not (memory or models)
    assert all(len(models) == 1 for models in held.values())
    assert Job.objects.filter(gpu_memory_mib=LARGE_GPU.memory_mib).exists()
    assert Job.objects.exclude(gpu_models=[]).exists()


def test_a_lab_of_one_node_has_one_model_and_no_requests() -> None:
    size = LabSize(1, 4)
    assert [part.model for part in size.parts] == [LARGE_GPU]
    assert sum(part.gpus for part in LabSize(3, 5).parts) == 15


def test_a_node_reports_the_models_that_its_demo_lab_was_made_with(tmp_path: Path) -> None:
    """A demo lab of an earlier release has one model on all nodes."""
    runtime = DemoRuntime("demo-1", 2, models=[LARGE_GPU, SMALL_GPU], clock=lambda: 0.0)
    folders = Folders(*(tmp_path / name for name in ("workspace", "control", "scribe", "outputs", "checkpoints")))
    runtime.create(spec_of("0" * 64, job=27, gpus=runtime.uuids), folders)
    runtime.start("sl-1-a1-0")
    found = runtime.devices()
    assert [(gpu.model, gpu.memory_mib) for gpu in found] == [LARGE_GPU, SMALL_GPU]
    assert all((gpu.memory_used_mib or 0) < gpu.memory_mib for gpu in found)
    assert {gpu.model for gpu in DemoRuntime("demo-1", 2, clock=lambda: 0.0).devices()} == {LARGE_GPU.name}


# --- schedules and chains --------------------------------------------------------------------------------------------


def test_the_schedule_has_runs_of_each_kind_and_a_next_one(lab: MonthRows) -> None:
    schedule = Schedule.objects.get()
    runs = list(schedule.runs.all())
    assert {run.result for run in runs} == {"submitted", "missed", "overlap"}
    assert schedule.next_run_at is not None and NOW < schedule.next_run_at <= NOW + timedelta(days=1)
    for run in runs:
        assert (run.job is not None) == (run.result == ScheduleRun.Result.SUBMITTED)
        assert run.job is None or abs(run.job.submitted_at - run.due_at) < timedelta(minutes=1)
    skipped = next(run for run in runs if run.result == ScheduleRun.Result.OVERLAP)
    before = next(run.job for run in runs if run.job is not None and run.date < skipped.date)
    assert before.finished_at is not None and before.finished_at > skipped.due_at
    assert "Nightly evaluation" in page(f"/schedules/{schedule.pk}/", "dana")


def test_one_job_waits_for_another_and_one_has_used_the_outputs_of_another(lab: MonthRows) -> None:
    waits = Job.objects.get(after__isnull=False, ready_at=None)
    assert waits.after is not None and waits.after.state == JobState.RUNNING and waits.why_waiting.endswith(".")
    past = Job.objects.get(after__isnull=False, ready_at__isnull=False)
    assert past.after is not None and past.use_outputs and past.state == JobState.SUCCEEDED
    assert past.after.finished_at is not None and past.ready_at is not None
    first = past.attempts.get()
    assert past.after.finished_at < past.ready_at < first.created_at
    assert list(past.events.filter(kind="ready")) and past.after.outputs.exists()


# --- more time and notices -------------------------------------------------------------------------------------------


def test_one_request_for_more_time_waits_and_one_was_granted(lab: MonthRows) -> None:
    waits, granted = (TimeExtension.objects.get(status=status) for status in ("asked", "granted"))
    assert waits.is_open and waits.asked_at <= NOW
    assert granted.decided_at is not None and granted.asked_at < granted.decided_at <= NOW
    assert waits.reason.split(".")[0] in page("/admin/more-time/")
    for request in (waits, granted):
        at = list(request.job.events.order_by("seq").values_list("at", flat=True))
        assert at == sorted(at)


def test_notices_are_those_of_the_jobs_in_the_history(lab: MonthRows) -> None:
    shown = Notice.objects.filter(shown=True)
    assert set(shown.values_list("kind", flat=True)) >= {kinds.ENDED, kinds.FAILED, kinds.MORE_TIME, kinds.TIME_ASKED}
    assert not Notice.objects.filter(expanded_at=None).exists() and not Delivery.objects.exists()
    for notice in shown.filter(job__isnull=False).select_related("job"):
        assert notice.job is not None and notice.job.submitted_by_id == notice.user_id and notice.at <= NOW
        assert notice.kind != kinds.FAILED or notice.job.state == JobState.FAILED
    assert shown.filter(read_at=None).exists() and shown.exclude(read_at=None).exists()


# --- Git -------------------------------------------------------------------------------------------------------------


def test_a_project_is_bound_to_a_repository_whose_commits_are_code_versions(lab: MonthRows) -> None:
    source = GitSource.objects.get()
    versions = list(source.project.code_versions.order_by("number"))
    commits = [commit.version for commit in VersionCommit.objects.order_by("version__number")]
    assert commits == versions[1:] and len(commits) == 2
    assert len({version.sha256 for version in versions}) == 3
    assert not GitFetch.objects.exclude(state=GitFetch.State.DONE).exists()
    for job in source.project.jobs.select_related("code"):
        newest = [each for each in versions if each.created_at <= job.submitted_at][-1]
        assert job.code == newest or job.submitted_at >= NOW - timedelta(minutes=15)
    assert "git.example.org" in page(f"/projects/{source.project_id}/git")
