"""Tables of earlier releases."""

import shlex

import pytest
from django.db import IntegrityError, connection, transaction
from django.db.migrations.executor import MigrationExecutor

from portal.jobs.models import Attempt, Container, Job
from portal.jobs.resize_timeline.models import RankGroup
from portal.jobs.time_extensions.models import TimeExtension
from tests.portal.jobs_world import make_job, make_node, make_project, make_user, place
from tests.portal.upgrades import upgrade_from


@pytest.mark.django_db(transaction=True)
@pytest.mark.both_databases
@pytest.mark.thorough
def test_rank_groups_of_the_release_before_are_kept() -> None:
    """Rank groups were rows of the model Ring, in another app."""
    attempt = place(make_job(make_project(make_user("alice")), elastic=True), list(make_node().gpus.all()), driver=True)
    driver = Container.objects.get(attempt=attempt, role="driver")
    executor = MigrationExecutor(connection)
    before = executor.migrate([("gauges", "0003_ring_at"), ("jobs", "0015_limits_of_progress")])
    old_model = before.apps.get_model("gauges", "Ring")
    old_model.objects.create(driver_id=driver.pk, number=1, at=driver.assigned_at, hosts=["h0", "h1"], cost_seconds=2.5)
    executor = MigrationExecutor(connection)
    executor.migrate(executor.loader.graph.leaf_nodes())
    row = RankGroup.objects.get()
    assert (row.driver, row.number, row.hosts, row.cost_seconds) == (driver, 1, ["h0", "h1"], 2.5)
    assert list(driver.rank_groups.all()) == [row]


@pytest.mark.django_db(transaction=True)
@pytest.mark.both_databases
@pytest.mark.thorough
def test_overlay_networks_of_the_release_before_are_kept() -> None:
    """The field was called ring, and its column still is; no other live attempt may have the same number."""
    project = make_project(make_user("alice"))
    attempt, other = (place(make_job(project, elastic=True), [gpu]) for gpu in make_node().gpus.all())
    executor = MigrationExecutor(connection)
    before = executor.migrate([("jobs", "0017_tags")])
    before.apps.get_model("jobs", "Attempt").objects.filter(pk=attempt.pk).update(ring=5)
    executor = MigrationExecutor(connection)
    executor.migrate(executor.loader.graph.leaf_nodes())
    attempt.refresh_from_db()
    assert attempt.overlay_network == 5
    assert Attempt._meta.get_field("overlay_network").column == "ring"
    with pytest.raises(IntegrityError), transaction.atomic():
        Attempt.objects.filter(pk=other.pk).update(overlay_network=5)


@pytest.mark.django_db(transaction=True)
def test_the_new_name_of_overlay_networks_changes_no_table() -> None:
    executor = MigrationExecutor(connection)
    plan = [(executor.loader.get_migration("jobs", "0018_overlay_network"), False)]
    assert [line for line in executor.loader.collect_sql(plan) if not line.startswith("--")] == []


@pytest.mark.django_db(transaction=True)
@pytest.mark.both_databases
@pytest.mark.thorough
def test_commands_of_the_release_before_keep_their_words() -> None:
    """They were not read by a shell."""
    project = make_project(make_user("alice"))
    lines = {
        "python train.py --lr 0.1": "python train.py --lr 0.1",
        "python 'my train.py' --name \"it's\"": "python 'my train.py' --name \"it's\"",
        "python train.py --glob *.csv": "python train.py --glob '*.csv'",
        "python train.py --note 'a; b' > log": "python train.py --note 'a; b' '>' log",
    }
    jobs = [(make_job(project, launcher="command"), make_job(project, launcher="torchrun")) for _ in lines]
    for former, pair in zip(lines, jobs, strict=True):
        Job.objects.filter(pk__in=[job.pk for job in pair]).update(entry=former)
    upgrade_from("jobs", "0021_messages")
    for (former, line), (job, script) in zip(lines.items(), jobs, strict=True):
        job.refresh_from_db()
        script.refresh_from_db()
        assert (job.entry, script.entry) == (line, former)
        assert shlex.split(job.entry) == shlex.split(former)


@pytest.mark.django_db(transaction=True)
@pytest.mark.both_databases
@pytest.mark.thorough
def test_a_command_may_be_longer_than_in_the_release_before() -> None:
    job = make_job(make_project(make_user("alice")), launcher="command", entry="python train.py")
    upgrade_from("jobs", "0022_shell_commands")
    job.refresh_from_db()
    assert job.entry == "python train.py"
    job.entry += " --lr 0.1" * 400
    job.save()
    assert Job.objects.get(pk=job.pk).entry == job.entry


@pytest.mark.django_db(transaction=True)
@pytest.mark.both_databases
def test_jobs_of_the_release_before_start_after_none_and_their_gpus_count_once() -> None:
    job = make_job(make_project(make_user("alice")), priority=5)
    attempt = place(job, list(make_node().gpus.all())[:1])
    Attempt.objects.filter(pk=attempt.pk).update(share_factor=6)
    Job.objects.filter(pk=job.pk).update(use_outputs=True, ready_at=job.submitted_at)
    upgrade_from("jobs", "0032_gpu_choice")
    attempt.refresh_from_db()
    job.refresh_from_db()
    assert attempt.share_factor == 1
    assert (job.after, job.use_outputs, job.ready_at, job.queued_at) == (None, False, None, job.submitted_at)
    assert not TimeExtension.objects.exists()
