"""Rules of retention: what the preview announces is what goes, and nothing that is kept or needed goes."""

import os
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.conf import LazySettings
from django.db import DatabaseError
from django.utils import timezone

from portal.accounts.models import AuditEntry, User
from portal.jobs import checkpoints, lifecycle, logs, outputs, services, trash
from portal.jobs.models import CheckpointSet, Job, LogStream, Output, RetentionRule
from portal.jobs.retention import services as retention
from portal.projects.models import Membership, Project
from portal.refused import Refused
from tests.portal.jobs_world import exit, make_job, make_node, make_project, make_user, place, run

pytestmark = [pytest.mark.django_db, pytest.mark.both_databases]
DAY = timedelta(days=1)


@pytest.fixture(autouse=True)
def home(settings: LazySettings, tmp_path: Path) -> Path:
    settings.HOME = tmp_path
    return tmp_path


@pytest.fixture
def alice() -> User:
    return make_user("alice", is_staff=True)


@pytest.fixture
def project(alice: User) -> Project:
    return make_project(alice)


def ended(project: Project, code: int = 0, content: bytes = b"weights", **fields: Any) -> Job:
    job = make_job(project, launcher="command", **fields)
    gpu = make_node(f"node-{job.pk}").gpus.first()
    assert gpu is not None
    part = place(job, [gpu]).containers.get()
    run(part)
    logs.append(logs.open_stream(part, "0"), 0, b"epoch 1\n")
    outputs.store(part.attempt, "model.pt", [content])
    checkpoints.folder_of(job).mkdir(parents=True, exist_ok=True)
    (checkpoints.folder_of(job) / ("a" * 64)).write_bytes(content)
    CheckpointSet.objects.create(job=job, attempt=part.attempt, size=len(content), files={})
    exit(part, code)
    type(part).objects.filter(pk=part.pk).update(collected_at=timezone.now())
    job.refresh_from_db()
    return job


def later(days: float) -> Any:
    return timezone.now() + days * DAY


def files_of(home: Path, name: str) -> list[Path]:
    return [path for path in (home / name).rglob("*") if path.is_file()]


PARTS = {"outputs": "outputs", "checkpoints": "checkpoints", "logs": "logs"}


@pytest.mark.parametrize("part", PARTS)
def test_what_the_preview_announces_is_what_goes(alice: User, project: Project, home: Path, part: str) -> None:
    jobs = [ended(project, code, b"x" * 100 * number) for number, code in enumerate((0, 1, 0, 1), 1)]
    trash.keep(alice, jobs[1])
    rule = retention.add(alice, None, part, "badly", 30)
    before = {name: len(files_of(home, name)) for name in PARTS}
    assert retention.preview(rule, later(29)) == retention.Preview(0, 0)
    assert retention.carry_out_all(later(29)) == 0

    seen = retention.preview(rule, later(31))
    sizes = {"outputs": 400, "checkpoints": 400, "logs": len(b"epoch 1\n")}
    assert seen == retention.Preview(1, sizes[part]), "the last one failed and is not kept"
    assert retention.carry_out_all(later(31)) == 1
    assert retention.preview(rule, later(31)) == retention.Preview(0, 0)
    left = {name: len(files_of(home, name)) for name in PARTS}
    per_job = before[part] // 4
    assert left == before | {part: before[part] - per_job}
    assert "by a rule, 30 days after its end." in jobs[3].events.order_by("-seq")[0].sentence
    assert retention.carry_out_all(later(31)) == 0, "once is enough"
    rows = {"outputs": Output.objects.filter(job=jobs[3]), "checkpoints": CheckpointSet.objects.filter(job=jobs[3])}
    rows["logs"] = LogStream.objects.filter(container__attempt__job=jobs[3])
    assert {name: found.exists() for name, found in rows.items()} == {name: name != part for name in PARTS}


def test_whole_jobs_go_to_the_trash_and_come_back(alice: User, project: Project) -> None:
    job = ended(project)
    retention.add(alice, project, "jobs", "any", 10)
    assert retention.carry_out_all(later(11)) == 1
    job.refresh_from_db()
    assert job.deleted_at is not None and job.deleted_by is None
    assert trash.restore(alice, job).deleted_at is None
    assert job.outputs.exists()


def test_what_another_job_needs_stays_until_that_has_ended(alice: User, project: Project) -> None:
    parent = ended(project)
    child = make_job(project, after=parent, use_outputs=True, ready_at=timezone.now())
    rule = retention.add(alice, None, "outputs", "any", 1)
    assert retention.preview(rule, later(2)).jobs == 0
    services.cancel(alice, child)
    assert retention.carry_out_all(later(2)) == 1


def test_a_rule_of_a_project_counts_instead_of_that_of_the_lab(alice: User, project: Project) -> None:
    other = make_project(alice, "other")
    of_project, of_other = ended(project), ended(other)
    lab = retention.add(alice, None, "outputs", "any", 10)
    own = retention.add(alice, project, "outputs", "any", 100)
    assert list(retention.meant_by(lab, later(20))) == [of_other]
    assert list(retention.meant_by(own, later(20))) == []
    assert list(retention.meant_by(own, later(101))) == [of_project]
    checkpoints_rule = retention.add(alice, None, "checkpoints", "any", 10)
    assert set(retention.meant_by(checkpoints_rule, later(20))) == {of_project, of_other}


def test_a_job_that_is_kept_at_the_last_moment_stays(
    alice: User, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = ended(project)
    rule = retention.add(alice, None, "outputs", "any", 1)
    real = lifecycle.get_locked

    def kept_first(pk: int) -> Job:
        Job.objects.filter(pk=pk).update(kept=True)
        return real(pk)

    monkeypatch.setattr(lifecycle, "get_locked", kept_first)
    assert not retention.clean(job, rule, later(2))
    assert job.outputs.exists() and (outputs.folder_of(job)).is_dir()


class TestCheckpointsWithoutRule:
    """They go after 30 days, unless a rule means their job: then after its days."""

    def left(self, days: float) -> set[int]:
        retention.carry_out_all(later(days))
        retention.remove_checkpoints_without_rule(later(days))
        return set(CheckpointSet.objects.values_list("job", flat=True))

    def test_they_go_after_a_month(self, project: Project) -> None:
        job = ended(project)
        assert self.left(29) == {job.pk} and self.left(31) == set()

    def test_a_rule_of_more_days_keeps_them_longer(self, alice: User, project: Project) -> None:
        job = ended(project)
        retention.add(alice, None, "checkpoints", "any", 90)
        assert self.left(60) == {job.pk} and self.left(91) == set()

    def test_a_rule_for_failed_jobs_leaves_the_others_their_month(self, alice: User, project: Project) -> None:
        good, bad = ended(project), ended(project, code=1)
        other = ended(make_project(alice, "other"), code=1)
        retention.add(alice, project, "checkpoints", "badly", 90)
        assert self.left(29) == {good.pk, bad.pk, other.pk}
        assert self.left(31) == {bad.pk} and self.left(91) == set()

    def test_those_that_came_late_stay_as_long(self, project: Project) -> None:
        ended(project)
        CheckpointSet.objects.update(stored_at=later(20))
        assert len(self.left(31)) == 1 and self.left(51) == set()


def test_an_error_of_one_job_keeps_no_other(alice: User, project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = ended(project), ended(project)
    retention.add(alice, None, "outputs", "any", 1)
    real = lifecycle.get_locked

    def fails_for_one(pk: int) -> Job:
        if pk == first.pk:
            raise DatabaseError("deadlock detected")
        return real(pk)

    monkeypatch.setattr(lifecycle, "get_locked", fails_for_one)
    assert retention.carry_out_all(later(2)) == 1
    assert first.outputs.exists() and not second.outputs.exists()


class TestLeftovers:
    @pytest.fixture
    def aged(self, home: Path) -> Iterator[Any]:
        def age() -> None:
            for path in (*(home / "outputs").iterdir(), *(home / "logs").iterdir()):
                os.utime(path, (time.time() - 2 * retention.LEFTOVER_SECONDS,) * 2)

        yield age

    def test_files_that_a_crash_left_are_found_and_all_others_stay(
        self, alice: User, project: Project, home: Path, aged: Any
    ) -> None:
        left, whole = ended(project), ended(project)
        Output.objects.filter(job=left).delete()
        LogStream.objects.filter(container__attempt__job=left).delete()
        (home / "outputs" / "987654-of-a-restored-backup").mkdir()
        (home / "outputs" / ("9" * 40)).mkdir()  # no number of a job, nor of a database
        assert retention.remove_leftovers() == 0, "they are of today"
        aged()
        assert retention.remove_leftovers() == 2
        assert not outputs.folder_of(left).exists() and outputs.folder_of(whole).is_dir()
        assert len(files_of(home, "logs")) == 2, "the log and its index"
        assert (home / "outputs" / "987654-of-a-restored-backup").is_dir()


class TestWhoMay:
    def test_owners_set_those_of_their_projects_and_admins_those_of_the_lab(self, alice: User) -> None:
        bob = make_user("bob")
        own = make_project(bob, "Bob's")
        theirs = make_project(alice, "hers")
        Membership.objects.create(project=theirs, user=bob, role=Membership.Role.MEMBER)
        rule = retention.add(bob, own, "outputs", "any", 5)
        for project in (None, theirs):
            with pytest.raises(Refused):
                retention.add(bob, project, "logs", "any", 5)
        lab = retention.add(alice, None, "logs", "any", 5)
        with pytest.raises(Refused):
            retention.remove(bob, lab)
        retention.remove(bob, rule)
        assert list(RetentionRule.objects.all()) == [lab]
        assert AuditEntry.objects.filter(action__startswith="retention.").count() == 3

    @pytest.mark.parametrize(
        ("part", "which", "days", "field"),
        [
            ("all", "any", 5, "part"),
            ("logs", "some", 5, "ended"),
            ("logs", "any", 0, "days"),
            ("logs", "any", 9999, "days"),
        ],
    )
    def test_values_that_no_rule_has_are_refused(
        self, alice: User, part: str, which: str, days: int, field: str
    ) -> None:
        with pytest.raises(Refused) as refused:
            retention.add(alice, None, part, which, days)
        assert refused.value.field == field

    def test_the_same_rule_twice_is_a_conflict(self, alice: User) -> None:
        retention.add(alice, None, "logs", "any", 5)
        with pytest.raises(Refused, match="There is such a rule already"):
            retention.add(alice, None, "logs", "any", 6)
