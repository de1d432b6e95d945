"""Which nodes have the datasets of waiting jobs: read for the scheduler, used between equal nodes, shown afterwards."""

from pathlib import Path

import pytest
from django.conf import LazySettings

from portal.cluster.models import Node
from portal.jobs.models import Job, JobDataset
from portal.scheduler import snapshot
from portal.scheduler.dataset_places import DatasetReads
from portal.storage.models import DatasetVersion
from portal.storage.node_caches import nodes_with
from tests.portal.control_world import queue, ready_node, turn
from tests.portal.storage_world import make_dataset, uploaded

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def home(settings: LazySettings, tmp_path: Path) -> None:
    settings.HOME = tmp_path


def reads(job: Job, name: str = "digits", content: bytes = b"12345") -> DatasetVersion:
    version = uploaded(job.submitted_by, make_dataset(job.submitted_by, name), {"a": content})
    JobDataset.objects.create(job=job, version=version, name=name)
    return version


def have(node: Node, *versions: DatasetVersion) -> None:
    node.facts = {**node.facts, "cached_datasets": [version.sha256 for version in versions]}
    node.save(update_fields=["facts"])


def test_a_job_starts_on_the_node_that_has_its_data_and_its_history_names_it() -> None:
    facts = {"job_datasets": True}
    _, second, third = (ready_node(name, 2, facts=facts) for name in ("a", "b", "c"))
    job = queue(1)
    digits, faces = reads(job), reads(job, "faces", b"1234567")
    have(second, digits)
    have(third, faces)
    (seen,) = snapshot.take().jobs
    assert seen.cached_bytes == {str(second.pk): 5, str(third.pk): 7}
    turn()
    assert job.attempts.get().containers.get(role="host").node == third
    assert not job.events.filter(data__code="attempt_data_is_there").exists(), "it has only a part"
    assert nodes_with(digits) == [second] and nodes_with(faces) == [third]


def test_the_history_names_nodes_with_all_of_it() -> None:
    ready_node("a", 2, facts={"job_datasets": True})
    other = ready_node("b", 2, facts={"job_datasets": True})
    job = queue(1)
    have(other, reads(job))
    turn()
    assert job.attempts.get().containers.get(role="host").node == other
    page = [event.sentence for event in job.events.all()]
    assert "b has its datasets already, which counts between nodes that are equal otherwise." in page


def test_what_a_node_reports_is_not_trusted() -> None:
    node = ready_node("a", 2, facts={"job_datasets": True, "cached_datasets": {"x": 1}})
    job = queue(1)
    version = reads(job)
    assert snapshot.take().jobs[0].cached_bytes == {}
    Node.objects.filter(pk=node.pk).update(facts={"job_datasets": True, "cached_datasets": [1, None, version.sha256]})
    assert snapshot.take().jobs[0].cached_bytes == {str(node.pk): 5}


def test_without_such_jobs_no_node_is_asked(django_assert_num_queries: pytest.FixtureRequest) -> None:
    ready_node("a", 2, facts={"cached_datasets": ["0" * 64]})
    queue(1)
    with django_assert_num_queries(1):  # type: ignore[operator]
        assert DatasetReads.read() == DatasetReads()
