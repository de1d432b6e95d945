"""Rules of retention on a whole month: what the preview announced is what goes, and what is kept can be run again."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from django.conf import LazySettings
from django.utils import timezone

from portal.accounts.models import User
from portal.jobs import outputs, services, trash
from portal.jobs.models import FINISHED_STATES, Job, JobState, LogStream, Output
from portal.jobs.retention import services as retention
from portal.jobs.retention.models import RetentionRule
from portal.jobs.spec import submission_of
from portal.jobs.stored import PARTS, space_of
from portal.ops.demo import month
from portal.ops.demo.workload import LabSize
from portal.projects import store

pytestmark = [pytest.mark.django_db, pytest.mark.both_databases]
NOW = datetime(2026, 11, 26, 15, 20, tzinfo=UTC)
RULES = {"outputs": ("any", 1), "logs": ("badly", 3), "jobs": ("badly", 20)}
"""By part: of which jobs, and after how many days."""


@pytest.fixture
def home(settings: LazySettings, tmp_path: Path) -> Iterator[Path]:
    settings.HOME, settings.DEMO = tmp_path, True
    month.fill(NOW, LabSize(2, 4), "http://127.0.0.1:1")
    yield tmp_path


def bytes_below(*folders: Path) -> int:
    files = (path for folder in folders if folder.is_dir() for path in folder.rglob("*"))
    return sum(path.stat().st_size for path in files if path.is_file())


def erase_all() -> None:
    """Erase what is in the trash, as if its time were over."""
    Job.objects.exclude(deleted_at=None).update(erase_at=timezone.now())
    while trash.erase_due():
        pass


@pytest.fixture
def admin(home: Path) -> User:
    return User.objects.filter(is_staff=True, is_active=True).order_by("pk").first() or User()


@pytest.mark.parametrize(
    "part", ["outputs", *(pytest.param(part, marks=pytest.mark.thorough) for part in ("logs", "jobs"))]
)
def test_what_the_preview_announced_is_what_goes(home: Path, admin: User, part: str) -> None:
    ended, days = RULES[part]
    rule = retention.add(admin, None, part, ended, days)
    announced = retention.preview(rule, NOW)
    meant = set(retention.meant_by(rule, NOW).values_list("pk", flat=True))
    assert announced.jobs == len(meant) > 3 and announced.bytes > 0
    before, on_disk = space_of(), bytes_below(home / "outputs", home / "logs")
    ends = NOW - timedelta(days=days)
    assert not Job.objects.filter(pk__in=meant).exclude(state__in=FINISHED_STATES, finished_at__lt=ends).exists()
    cleaned = 0
    while more := retention.carry_out_all(NOW):
        cleaned += more
    if part == "jobs":
        assert set(Job.objects.exclude(deleted_at=None).values_list("pk", flat=True)) == meant
        assert space_of() == before, "it can be restored"
        erase_all()
        assert not Job.objects.filter(pk__in=meant, erased_at=None).exists()
    assert cleaned == announced.jobs
    assert before.total - space_of().total == announced.bytes
    if part != "logs":  # files of outputs have the sizes of their rows; logs have marks beside
        assert on_disk - bytes_below(home / "outputs", home / "logs") >= announced.bytes
    assert retention.preview(rule, NOW) == retention.Preview(0, 0)
    untouched = Job.objects.exclude(pk__in=meant).values_list("pk", flat=True)
    assert all(other.bytes_of(**{"in": untouched}) for other in (PARTS["outputs"], PARTS["logs"]))


@pytest.mark.thorough
def test_a_kept_run_of_a_paper_stays_and_runs_again_after_everything_else_went(home: Path, admin: User) -> None:
    rows = Output.objects.filter(job__state=JobState.SUCCEEDED, job__launcher__in=Job.Launcher.values)
    paper = Job.objects.get(pk=rows.order_by("job__finished_at").values_list("job", flat=True)[:1].get())
    files = {row.path: b"".join(outputs.pieces(outputs.open_output(row))) for row in paper.outputs.all()}
    streams = LogStream.objects.filter(container__attempt__job=paper).count()
    trash.keep(admin, paper)
    for part in RetentionRule.Part.values:
        retention.add(admin, None, part, "any", 1)
    while retention.carry_out_all(NOW + timedelta(days=60)):
        pass
    erase_all()
    assert not Job.objects.filter(state__in=FINISHED_STATES, erased_at=None).exclude(pk=paper.pk).exists()
    assert {row.path: b"".join(outputs.pieces(outputs.open_output(row))) for row in paper.outputs.all()} == files != {}
    assert LogStream.objects.filter(container__attempt__job=paper).count() == streams > 0
    again = services.submit(paper.submitted_by, paper.project, submission_of(paper), copied_from=paper)
    assert again.state == JobState.QUEUED and store.path_of(again.code.sha256).exists()


@pytest.mark.thorough
def test_what_is_restored_from_the_trash_is_as_it_was(home: Path, admin: User) -> None:
    rule = retention.add(admin, None, "jobs", "any", 5)
    meant = list(retention.meant_by(rule, NOW).order_by("pk")[:40])
    before = {job.pk: space_of(pk=job.pk) for job in meant}
    while retention.carry_out_all(NOW):
        pass
    assert not Job.objects.filter(pk__in=before, deleted_at=None).exists()
    for job in meant:
        trash.restore(admin, Job.objects.get(pk=job.pk))
    for job in meant:
        restored = Job.objects.get(pk=job.pk)
        assert restored.deleted_at is None and restored.state == job.state and space_of(pk=job.pk) == before[job.pk]
