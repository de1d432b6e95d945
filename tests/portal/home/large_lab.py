"""A lab of any size, written in bulk: machines whose GPUs are held, jobs that wait, and many that are over."""

from datetime import timedelta
from typing import Any

from django.utils import timezone

from portal.accounts.models import User
from portal.cluster.models import Gpu, Node
from portal.jobs.models import Allocation, Attempt, Container, Job, JobState, Progress
from portal.projects.models import Project
from tests.portal import jobs_world as world

GPUS_OF_A_JOB = 2
PEOPLE = 12


def fill(nodes: int, gpus: int, finished: int, waiting: int) -> dict[str, User]:
    """Fill the lab: three of four GPUs are held, a seventh of all jobs failed recently."""
    now = timezone.now()
    people = [world.make_user(f"person{number}") for number in range(PEOPLE)]
    ada = world.make_user("ada", is_staff=True)
    projects = [world.make_project(person, f"Project of {person.username}") for person in people]
    for project in projects:
        world.make_code(project)
    world.make_environment()
    machines = Node.objects.bulk_create(
        Node(
            name=f"node-{number:03}", runtime="docker", token_digest=f"{10**6 + number:064}", approved_at=now, last_seen_at=now,
            ready=True, cordoned=number % 10 == 9,
        )
        for number in range(nodes)
    )  # fmt: skip
    devices = Gpu.objects.bulk_create(
        Gpu(
            node=node, uuid=f"{node.name}-{index}", index=index, kind="cuda", model="NVIDIA H100", memory_mib=81_559,
            utilisation_percent=(37 * index) % 100,
        )
        for node in machines
        for index in range(gpus)
    )  # fmt: skip
    held = [gpu for number, gpu in enumerate(devices) if number % 4 != 3]
    groups = [held[start : start + GPUS_OF_A_JOB] for start in range(0, len(held), GPUS_OF_A_JOB)]
    running = _jobs(projects, len(groups), state=JobState.RUNNING, started_at=now - timedelta(hours=2))
    attempts = _attempts(running, now - timedelta(hours=2))
    parts = Container.objects.bulk_create(
        Container(
            attempt=attempt, node=group[0].node, index=0, role="host", name=f"sl-{attempt.job_id}-a1-0", spec={},
            state="RUNNING", running_at=now - timedelta(hours=2),
        )
        for attempt, group in zip(attempts, groups, strict=True)
    )  # fmt: skip
    Allocation.objects.bulk_create(
        Allocation(gpu=gpu, attempt=part.attempt, container=part, allocated_at=now - timedelta(hours=2))
        for part, group in zip(parts, groups, strict=True)
        for gpu in group
    )
    Progress.objects.bulk_create(
        Progress(attempt=each, at=now, step=100, epoch=1, batch=8, ranks=2, done=0.4, step_seconds=1, points=0)
        for each in attempts
    )
    _jobs(projects, waiting, state=JobState.QUEUED)
    _jobs(projects, finished - finished // 7, state=JobState.SUCCEEDED, finished_at=now - timedelta(days=20))
    failed = _jobs(projects, finished // 7, state=JobState.FAILED, finished_at=now - timedelta(hours=3))
    _attempts(failed, now - timedelta(hours=4), ended_at=now - timedelta(hours=3), outcome="failed")
    return {person.username: person for person in (*people, ada)}


def _jobs(projects: list[Project], count: int, **fields: Any) -> list[Job]:
    codes = {project.pk: project.code_versions.get() for project in projects}
    environment = world.make_environment()
    rows = []
    for number in range(count):
        project = projects[number % len(projects)]
        rows.append(
            Job(
                project=project,
                code=codes[project.pk],
                environment=environment,
                submitted_by=project.created_by,
                name=f"job {number}",
                launcher="horovod",
                entry="train.py",
                time_limit_seconds=86_400,
                **fields,
            )  # fmt: skip
        )
    return Job.objects.bulk_create(rows, batch_size=1_000)


def _attempts(jobs: list[Job], started_at: Any, **fields: Any) -> list[Attempt]:
    return Attempt.objects.bulk_create(
        Attempt(job=job, number=1, secret="x", started_at=started_at, created_at=started_at, **fields) for job in jobs
    )
