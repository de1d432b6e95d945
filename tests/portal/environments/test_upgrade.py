"""Tables of earlier releases."""

import pytest
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

from portal.environments.models import Build, Environment, NodeEnvironment
from portal.environments.summary import summary_of
from tests.portal.jobs_world import make_job, make_node, make_project, make_user


@pytest.mark.django_db(transaction=True)
@pytest.mark.both_databases
@pytest.mark.thorough
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


@pytest.mark.django_db(transaction=True)
@pytest.mark.both_databases
@pytest.mark.thorough
def test_environments_of_before_recipes_stay_what_they_are() -> None:
    """They had neither projects nor recipes; jobs use them, and nodes have them ready."""
    node, job = make_node(), make_job(make_project(make_user("alice")))
    executor = MigrationExecutor(connection)
    before = executor.migrate([("environments", "0001_initial")])
    old = before.apps.get_model("environments", "Environment").objects.create(
        key="lab-own", title="Own", packages=["torch"]
    )
    before.apps.get_model("environments", "NodeEnvironment").objects.create(
        node_id=node.pk, environment=old, state="ready", digest="sha256:abc"
    )
    executor = MigrationExecutor(connection)
    executor.migrate(executor.loader.graph.leaf_nodes())
    environment = Environment.objects.get(key="lab-own")
    type(job).objects.filter(pk=job.pk).update(environment=environment)
    assert (environment.project, environment.base, environment.recipe, environment.lines) == (None, None, "", [])
    assert (environment.created_by, environment.generation, environment.is_full) == (None, 1, False)
    standing = summary_of(environment)
    assert (standing.state, standing.ready_on, standing.lock) == ("ready", [node.name], None)
    assert not Build.objects.exists()
    assert list(Environment.objects.usable_in(job.project).filter(key="lab-own")) == [environment]
