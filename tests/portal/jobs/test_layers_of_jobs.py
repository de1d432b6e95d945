"""A job names the exact packages with which it ran."""

import pytest
from django.test import Client

from portal.cluster.models import Gpu
from portal.jobs.environments import layers_of
from portal.jobs.models import Container
from portal.scheduler import run_specs
from tests.portal import environments_world as made
from tests.portal import jobs_world as world

pytestmark = pytest.mark.django_db


def test_the_lock_of_a_job_is_on_its_page_and_in_the_api() -> None:
    alice = world.make_user("alice")
    project = world.make_project(alice)
    made.make_base()
    environment = made.make_environment(alice, project, ["rich"], "Tools")
    node = world.make_node("alpha")
    lock = made.build(node, environment)
    job = world.make_job(project)
    job.environment = environment
    job.save()
    attempt = world.place(job, [Gpu.objects.filter(node=node).order_by("index")[0]])
    attempt.job = job
    part = run_specs.ContainerPlacement(node, tuple(node.gpus.all()[:1]))
    spec = run_specs.host_spec(attempt, 0, part, 1, 2, 1)
    assert (spec.environment, spec.layer) == (environment.base.key if environment.base else "", lock.digest)
    Container.objects.filter(attempt=attempt).update(spec=spec.to_json())
    assert layers_of(job) == [lock.digest]
    client = Client()
    client.force_login(alice)
    page = client.get(f"/jobs/{job.pk}/details/").content.decode()
    assert f"/environments/{environment.key}/locks/{lock.digest}/" in page
    (found,) = client.get(f"/api/v1/jobs/{job.pk}/attempts/").json()["results"]
    assert found["containers"][0]["layer"] == lock.digest


def test_a_job_in_an_environment_without_a_list_has_no_lock() -> None:
    job = world.make_job(world.make_project(world.make_user("alice")))
    world.place(job, list(world.make_node().gpus.all())[:1])
    assert layers_of(job) == []
