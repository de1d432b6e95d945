"""Who holds which GPU, and what users hold of their limits."""

from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.utils import timezone

from portal.accounts.limits import set_limit
from portal.cluster.models import Gpu
from portal.jobs.limits import Usage, all_limits_with_usage, usage_by_user, usage_together
from portal.jobs.models import Allocation, Job, JobState
from portal.jobs.occupancy import holder, nodes_with_gpus, visible_holders, visible_job_ids
from tests.portal.jobs_world import make_job, make_node, make_project, make_user, place

pytestmark = pytest.mark.django_db


def placed(name: str, gpus: int = 2) -> Job:
    node = make_node(gpus=gpus + 1)
    job = make_job(make_project(make_user(name)))
    place(job, list(Gpu.objects.filter(node=node).select_related("node").order_by("index"))[:gpus])
    return job


def test_nodes_their_gpus_and_holders_take_four_queries_however_many(django_assert_num_queries: Any) -> None:
    jobs = [placed(f"user{number}") for number in range(5)]
    with django_assert_num_queries(4):
        holders = [holder(gpu) for node in nodes_with_gpus(jobs[0].submitted_by) for gpu in node.gpus.all()]
        names = sorted(job.submitted_by.username for job in holders if job)
        assert all(job.project.name for job in holders if job)
    assert names == sorted(job.submitted_by.username for job in jobs for _ in range(2))
    assert holders.count(None) == 5


def test_a_user_learns_of_holders_only_what_they_may_see(django_assert_num_queries: Any) -> None:
    mine, other = placed("alice"), placed("bob")
    gpus = [gpu for node in nodes_with_gpus(mine.submitted_by) for gpu in node.gpus.all()]
    assert visible_holders(mine.submitted_by, gpus) == {mine.pk}
    admin = make_user("ada", is_staff=True)
    with django_assert_num_queries(1):
        assert visible_job_ids(admin, [mine.pk, other.pk, other.pk]) == {mine.pk, other.pk}


def test_gpus_count_until_they_are_released() -> None:
    job = placed("bob")
    first = Allocation.objects.order_by("id").first()
    assert first and usage_by_user([job.submitted_by_id]) == {job.submitted_by_id: Usage(gpus=2)}
    Allocation.objects.filter(pk=first.pk).update(released_at=timezone.now())
    assert usage_by_user([job.submitted_by_id]) == {job.submitted_by_id: Usage(gpus=1)}


def test_the_members_of_a_group_are_counted_together(django_assert_num_queries: Any) -> None:
    holding, project = placed("bob"), make_project(make_user("carol"))
    for state in (JobState.QUEUED, JobState.HELD):
        Job.objects.filter(pk=make_job(project).pk).update(state=state)
    group = Group.objects.create(name="students")
    group.user_set.set([holding.submitted_by, project.created_by])
    everyone = [holding.submitted_by_id, project.created_by_id]
    assert usage_together(everyone) == Usage(gpus=2, waiting=2)
    admin = make_user("ada", is_staff=True)
    set_limit(admin, holding.submitted_by, max_gpus=3, max_queued=None)
    set_limit(admin, group, max_gpus=4, max_queued=5)
    with django_assert_num_queries(4):
        rows = all_limits_with_usage()
    assert [(str(row.limit.group or row.limit.user), row.usage) for row in rows] == [
        ("students", Usage(gpus=2, waiting=2)),
        ("bob", Usage(gpus=2)),
    ]
