"""What is deleted of environments, and what never is."""

import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from portal.accounts.models import User
from portal.environments import archives, builds, collecting, services
from portal.environments.models import Build, Environment, Lock
from portal.jobs import environment_use
from portal.jobs.models import Container, Job
from portal.projects.models import Project
from portal.scheduler import tasks
from tests.portal import environments_world as made
from tests.portal import jobs_world as world

pytestmark = [pytest.mark.django_db, pytest.mark.both_databases]
LONG_AGO = timedelta(days=61)


@pytest.fixture(autouse=True)
def home(settings: Any, tmp_path: Path) -> Path:
    settings.HOME = tmp_path
    return tmp_path


@pytest.fixture
def alice() -> User:
    return world.make_user("alice")


@pytest.fixture
def project(alice: User) -> Project:
    return world.make_project(alice)


@pytest.fixture
def row(alice: User, project: Project) -> Environment:
    return made.make_environment(alice, project)


def age(environment: Environment, by: timedelta = LONG_AGO) -> None:
    """Let everything about an environment have happened so long ago."""
    then = timezone.now() - by
    Environment.objects.filter(pk=environment.pk).update(created_at=then, requested_at=then)
    Lock.objects.filter(builds__recipe=environment.recipe).update(used_at=then)
    Job.objects.filter(environment=environment, finished_at=None).update(submitted_at=then)


def collect() -> int:
    use = environment_use.current_use()
    return collecting.delete_unused_layers(use.last, use.busy, use.layers)


def is_kept(lock: Lock) -> bool:
    lock.refresh_from_db()
    assert bool(lock.archive_sha256) == bool(lock.archive_bytes) == archives.path_of(lock.digest).exists()
    return bool(lock.archive_sha256)


def test_a_layer_that_no_job_used_for_long_is_deleted_and_its_row_stays(row: Environment) -> None:
    lock = made.build(world.make_node(), row)
    assert collect() == 0
    age(row, LONG_AGO - timedelta(days=2))
    assert collect() == 0
    assert is_kept(lock)
    age(row)
    assert collect() == 1
    assert not is_kept(lock)
    assert lock.text == made.LOCK
    assert Build.objects.get().lock == lock
    assert collect() == 0


def test_the_number_of_days_is_a_setting(row: Environment, settings: Any) -> None:
    settings.KEEP_LAYERS_DAYS = 5
    lock = made.build(world.make_node(), row)
    age(row, timedelta(days=4))
    collect()
    assert is_kept(lock)
    age(row, timedelta(days=6))
    collect()
    assert not is_kept(lock)


def test_jobs_that_have_not_ended_keep_the_layer_of_their_environment(row: Environment, project: Project) -> None:
    lock = made.build(world.make_node(), row)
    for state in ("QUEUED", "HELD", "RUNNING"):
        started = timezone.now() if state == "RUNNING" else None
        intent = "HOLD" if state == "HELD" else "RUN"
        job = world.make_job(project, environment=row, state=state, started_at=started, intent=intent)
        age(row)
        collect()
        assert is_kept(lock), state
        job.delete()
    before = timezone.now() - LONG_AGO
    world.make_job(project, environment=row, state="SUCCEEDED", submitted_at=before, finished_at=before)
    last = world.make_job(project, environment=row, state="FAILED", submitted_at=before, finished_at=timezone.now())
    collect()
    assert is_kept(lock), "it was used until now"
    last.delete()
    collect()
    assert not is_kept(lock)


def test_a_live_container_keeps_the_layer_that_it_names(alice: User, row: Environment, project: Project) -> None:
    node = world.make_node()
    old = made.build(node, row)
    job = world.make_job(project, environment=row)
    part = world.place(job, list(node.gpus.all())).containers.get()
    Container.objects.filter(pk=part.pk).update(spec={**part.spec, "layer": old.digest})
    services.build_again(alice, row)
    row.refresh_from_db()
    new = made.build(node, row)
    age(row)
    collect()
    assert is_kept(old)
    assert is_kept(new)
    world.exit(part)
    collect()
    assert not is_kept(old)
    assert is_kept(new)


def test_a_removed_environment_loses_its_layer_unless_another_has_the_same(
    alice: User, row: Environment, project: Project
) -> None:
    twin = made.make_environment(alice, world.make_project(alice, "other"))
    lock = made.build(world.make_node(), row)
    services.remove(alice, row, 0)
    Lock.objects.update(used_at=timezone.now() - timedelta(days=2))
    collect()
    assert is_kept(lock)
    services.remove(alice, twin, 0)
    collect()
    assert not is_kept(lock)
    assert Build.objects.filter(environment=row).exists()


def test_a_layer_that_a_node_has_just_fetched_stays(alice: User, row: Environment) -> None:
    lock = made.build(world.make_node(), row)
    services.remove(alice, row, 0)
    collect()
    assert is_kept(lock)


def test_the_newest_layer_of_each_kind_stays(alice: User, row: Environment) -> None:
    node = world.make_node()
    first, other_kind = made.build(node, row), made.build(node, row, "cp312-linux_aarch64-glibc2.39-cpu-0")
    services.build_again(alice, row)
    row.refresh_from_db()
    second = made.build(node, row)
    Lock.objects.update(used_at=timezone.now() - timedelta(days=2))
    collect()
    assert [is_kept(lock) for lock in (first, other_kind, second)] == [False, True, True]


def test_files_without_rows_and_stale_pieces_are_deleted_by_the_hourly_task(row: Environment, home: Path) -> None:
    lock = made.build(world.make_node(), row)
    yesterday = time.time() - 25 * 3600
    fresh, stale = archives.path_of("a" * 64), archives.path_of("b" * 64)
    piece, new_piece = archives.folder() / ".incoming-7", archives.folder() / ".incoming-8"
    for path in (fresh, stale, piece, new_piece):
        path.write_bytes(b"x")
    for path in (stale, piece, archives.path_of(lock.digest)):
        os.utime(path, (yesterday, yesterday))
    tasks.tidy()
    assert (fresh.exists(), stale.exists(), piece.exists(), new_piece.exists()) == (True, False, False, True)
    assert is_kept(lock)


def test_logs_of_old_builds_and_of_rows_that_are_gone_are_deleted(row: Environment, home: Path) -> None:
    node = world.make_node()
    old, new = made.start(node, row), made.start(node, row, "cp312-linux_aarch64-glibc2.39-cpu-0")
    for build in (old, new):
        builds.record_progress(build, 1, "", 0, b"log\n")
        builds.fail(build, made.failure())
    (home / "builds" / "99999.log").write_text("gone")
    (home / "builds" / "notes.txt").write_text("an admin's")
    Build.objects.filter(pk=old.pk).update(started_at=timezone.now() - timedelta(days=366))
    assert collecting.delete_old_logs() == 2
    assert sorted(path.name for path in (home / "builds").iterdir()) == sorted([f"{new.pk}.log", "notes.txt"])
