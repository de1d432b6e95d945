"""Tables of earlier releases."""

import pytest
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

from portal.jobs.models import Container
from portal.jobs.resize_timeline.models import RankGroup
from tests.portal.jobs_world import make_job, make_node, make_project, make_user, place


@pytest.mark.django_db(transaction=True)
@pytest.mark.both_databases
def test_rank_groups_of_the_release_before_are_kept() -> None:
    """They were rows of the model Ring, in another app."""
    attempt = place(make_job(make_project(make_user("alice")), elastic=True), list(make_node().gpus.all()), driver=True)
    driver = Container.objects.get(attempt=attempt, role="driver")
    executor = MigrationExecutor(connection)
    before = executor.migrate([("gauges", "0003_ring_at"), ("jobs", "0015_limits_of_progress")])
    ring = before.apps.get_model("gauges", "Ring")
    ring.objects.create(driver_id=driver.pk, number=1, at=driver.assigned_at, hosts=["h0", "h1"], cost_seconds=2.5)
    executor = MigrationExecutor(connection)
    executor.migrate(executor.loader.graph.leaf_nodes())
    row = RankGroup.objects.get()
    assert (row.driver, row.number, row.hosts, row.cost_seconds) == (driver, 1, ["h0", "h1"], 2.5)
    assert list(driver.rank_groups.all()) == [row]
