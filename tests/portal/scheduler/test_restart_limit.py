"""After how many restarts without a commit a driver gives up: the job's limit, else its variable's, else the lab's."""

from dataclasses import fields
from typing import Any

import pytest

from portal.jobs import lifecycle
from portal.jobs.models import Job
from portal.jobs.spec import FIELDS
from portal.jobs.variables import SETTABLE
from portal.scheduler import run_specs
from runners.launch.group_log import MAX_GROUPS
from runners.spec import COLLECTIVE_KEY, RunSpec
from tests.portal import jobs_world as world

VARIABLE = "SCHEDULEARN_RING_RETRIES"


def spec_of(job: Job, role: str) -> RunSpec:
    """As its agent reads it."""
    attempt = lifecycle.start_attempt(job, "fifo v1")
    node = world.make_node(gpus=1)
    spec = (
        run_specs.driver_spec(attempt, 0, node, 1)
        if role == "driver"
        else run_specs.host_spec(attempt, 1, run_specs.ContainerPlacement(node, (node.gpus.get(),)), 1, 1, 1)
    )
    return RunSpec.from_json(spec.to_json())


def elastic(**given: Any) -> Job:
    return world.make_job(world.make_project(world.make_user("alice")), elastic=True, **given)


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("own", "variables", "limit"),
    [
        (None, {}, 7),
        (2, {}, 2),
        (None, {VARIABLE: "12"}, 12),
        (3, {VARIABLE: "12"}, 3),
    ],
)
def test_the_driver_has_the_limit(settings: Any, own: int | None, variables: dict[str, str], limit: int) -> None:
    settings.RESTARTS_WITHOUT_PROGRESS = 7
    spec = spec_of(elastic(restarts_without_progress=own, env_vars=variables), "driver")
    assert dict(spec.env)[VARIABLE] == str(limit)


@pytest.mark.django_db
def test_ranks_see_no_variable_that_their_job_did_not_set() -> None:
    assert VARIABLE not in dict(spec_of(elastic(restarts_without_progress=2), "host").env)


@pytest.mark.django_db
def test_the_spec_has_no_field_that_an_agent_of_the_release_before_would_refuse() -> None:
    known = {COLLECTIVE_KEY if field.name == "collective" else field.name for field in fields(RunSpec)} - {
        "identity",
        "layer",
        "allowed_hosts",
        "cache",
        "inputs",
        "secrets",
        "datasets",
    }
    assert set(spec_of(elastic(restarts_without_progress=2), "driver").to_json()) == known
    assert known == {
        "name", "job", "attempt", "number", "role", "hostname", "environment", "code_sha256", "launcher", "command",
        "slots", "gpus", "gpu_kind", "elastic", "env", "ring", "resources", "grace_seconds",
    }  # fmt: skip


def test_the_driver_can_count_to_every_limit_that_a_job_may_have() -> None:
    least, most = FIELDS["restarts_without_progress"].limits or (0, 0)
    assert (least, most) == (1, MAX_GROUPS - 2)
    assert SETTABLE[VARIABLE][0].fullmatch(str(most)), "the variable has the same range"
    assert not SETTABLE[VARIABLE][0].fullmatch(str(most + 1))
