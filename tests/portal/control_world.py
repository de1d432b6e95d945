"""A lab with a scheduler: nodes with environments, waiting jobs, and agents that carry out the desired state at once."""

from typing import Any

from django.utils import timezone

from portal.accounts.models import User
from portal.cluster.models import Node
from portal.environments.models import NodeEnvironment
from portal.jobs import lifecycle
from portal.jobs.models import Allocation, Container, ContainerState, Job
from portal.projects.models import Project
from portal.scheduler import cycle
from portal.scheduler.leader_election import Leadership
from portal.scheduler.models import Leader
from tests.portal.jobs_world import make_environment, make_job, make_node, make_project, make_user


def ready_node(name: str, gpus: int = 2, environments: tuple[str, ...] = ("pytorch",), **fields: Any) -> Node:
    node = make_node(name, gpus, **fields)
    for key in environments:
        NodeEnvironment.objects.create(node=node, environment=make_environment(key), state="ready")
    return node


def project_of(name: str = "alice") -> Project:
    user = User.objects.filter(username=name).first() or make_user(name, email=f"{name}@example.org")
    return Project.objects.filter(created_by=user).first() or make_project(user)


def queue(least: int = 1, most: int | None = None, owner: str = "alice", **fields: Any) -> Job:
    most = most or least
    fields.setdefault("elastic", most > least)
    return make_job(
        project_of(owner), min_gpus=least, max_gpus=most, submitted_by=project_of(owner).created_by, **fields
    )


def lead() -> int:
    """A fresh epoch, as a scheduler that takes over gets it."""
    return Leadership()._next_epoch()


def turn(epoch: int | None = None, **options: Any) -> cycle.CycleResult:
    if epoch is None:
        leader = Leader.objects.filter(pk=1).first()
        epoch = leader.epoch if leader else lead()
    return cycle.run(epoch, **options)


def gpus_of(job: Job) -> int:
    """GPUs it holds and keeps."""
    return Allocation.objects.filter(attempt__job=job, released_at=None, requested_back_at=None).count()


def run_agents(*, finish: bool = False, hasty: bool = False) -> None:
    """Start and stop containers as every agent would; with ``finish`` all running work succeeds, too.

    In a ``hasty`` world work may start and end between two reports.
    """
    live = Container.objects.exclude(state=ContainerState.EXITED).select_related("attempt__job").order_by("pk")
    for part in live:
        if part.wanted == Container.Wanted.STOP:
            lifecycle.advance(part, "EXITED", exit_code=0, exit_reason="stopped")
        elif part.state == ContainerState.ASSIGNED and not (hasty and part.attempt.job.launcher == "command"):
            lifecycle.advance(part, "RUNNING")
        elif finish:
            lifecycle.advance(part, "EXITED", exit_code=0, exit_reason="exited")


def heartbeat() -> None:
    Node.objects.update(last_seen_at=timezone.now())
