"""Tables of earlier releases."""

import pytest
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

from portal.environments.models import Environment, NodeEnvironment
from tests.portal.jobs_world import make_job, make_node, make_project, make_user


@pytest.mark.django_db(transaction=True)
@pytest.mark.both_databases
def test_environments_keep_their_rows_in_their_own_app() -> None:
    """Their models belonged to the app ``cluster``."""
    node, job = make_node(), make_job(make_project(make_user("alice")))
    executor = MigrationExecutor(connection)
    before = executor.migrate(
        [("cluster", "0010_messages"), ("environments", None), ("jobs", "0028_order_of_metric_points")]
    )
    old = before.apps.get_model("cluster", "Environment").objects.create(key="lab-own", title="Own")
    before.apps.get_model("cluster", "NodeEnvironment").objects.create(
        node_id=node.pk, environment=old, state="ready", digest="abc"
    )
    before.apps.get_model("jobs", "Job").objects.filter(pk=job.pk).update(environment_id=old.pk)
    executor = MigrationExecutor(connection)
    executor.migrate(executor.loader.graph.leaf_nodes())
    environment = Environment.objects.get(key="lab-own")
    assert environment.pk == old.pk
    assert list(NodeEnvironment.objects.filter(environment=environment).values_list("node", "state", "digest")) == [
        (node.pk, "ready", "abc")
    ]
    job.refresh_from_db()
    assert job.environment == environment
