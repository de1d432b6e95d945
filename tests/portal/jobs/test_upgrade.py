"""Tables of earlier releases."""

import pytest
from django.db import IntegrityError, connection, transaction
from django.db.migrations.executor import MigrationExecutor

from portal.jobs.models import Attempt, Container
from portal.jobs.resize_timeline.models import RankGroup
from tests.portal.jobs_world import make_job, make_node, make_project, make_user, place


@pytest.mark.django_db(transaction=True)
@pytest.mark.both_databases
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
