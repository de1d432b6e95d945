"""A small lab for tests: people, a project with code, nodes with GPUs, and attempts placed on them by hand."""

from collections.abc import Sequence
from typing import Any

from django.utils import timezone

from portal.accounts.models import User
from portal.cluster.models import Gpu, Node
from portal.environments.models import Environment
from portal.jobs import lifecycle
from portal.jobs.models import Allocation, Attempt, Container, Job
from portal.projects.models import CodeVersion, Membership, Project


def make_user(name: str, **fields: Any) -> User:
    return User.objects.create(username=name, password="!", **fields)


def make_project(owner: User, name: str = "digits") -> Project:
    project = Project.objects.create(name=name, created_by=owner)
    Membership.objects.create(project=project, user=owner, role=Membership.Role.OWNER)
    return project


def make_code(project: Project, files: Sequence[str] = ("train.py",), sha256: str = "c" * 64) -> CodeVersion:
    return CodeVersion.objects.create(
        project=project,
        number=project.code_versions.count() + 1,
        sha256=sha256,
        size=10,
        files=[{"path": path, "size": 10, "sha256": "f" * 64} for path in files],
        upload_name="train.zip",
        created_by=project.created_by,
    )


def make_environment(key: str = "pytorch", packages: Sequence[str] = ("torch", "numpy")) -> Environment:
    return Environment.objects.get_or_create(key=key, defaults={"title": key, "packages": list(packages)})[0]


def make_node(name: str = "", gpus: int = 2, **fields: Any) -> Node:
    number = Node.objects.count() + 1  # other processes may have made nodes in this database
    now = timezone.now()
    usual = {"approved_at": now, "last_seen_at": now, "ready": True, "runtime": "fake", "token_digest": f"{number:064}"}
    node = Node.objects.create(name=name or f"node{number}", **{**usual, **fields})
    for index in range(gpus):
        Gpu.objects.create(node=node, uuid=f"{node.name}-gpu{index}", index=index, kind="cpu", model="CPU slot")
    return node


def make_job(project: Project, **fields: Any) -> Job:
    fields = {
        "code": project.code_versions.first() or make_code(project),
        "environment": make_environment(),
        "submitted_by": project.created_by,
        "name": "train",
        "launcher": "horovod",
        "entry": "train.py",
        "time_limit_seconds": 3600,
        **fields,
    }
    return Job.objects.create(project=project, **fields)


def place(job: Job, gpus: Sequence[Gpu], driver: bool = False, policy: str = "fifo v1") -> Attempt:
    """An attempt with one host for each node of ``gpus`` (and a driver on the first), as the loop would place it."""
    attempt = lifecycle.start_attempt(job, policy)
    nodes = list(dict.fromkeys(gpu.node for gpu in gpus))
    for index, node in enumerate(nodes):
        held = [gpu for gpu in gpus if gpu.node == node]
        add_host(attempt, index, node, held)
    if driver:
        add_driver(attempt, len(nodes), nodes[0])
    return attempt


def add_driver(attempt: Attempt, index: int, node: Node) -> Container:
    named = _named(attempt, index, "driver", ())
    return Container.objects.create(attempt=attempt, node=node, index=index, role="driver", **named)


def add_host(attempt: Attempt, index: int, node: Node, gpus: Sequence[Gpu]) -> Container:
    host = Container.objects.create(
        attempt=attempt, node=node, index=index, role="host", **_named(attempt, index, "host", gpus)
    )
    for gpu in gpus:
        Allocation.objects.create(gpu=gpu, attempt=attempt, container=host)
    return host


def _named(attempt: Attempt, index: int, role: str, gpus: Sequence[Gpu]) -> dict[str, Any]:
    job = attempt.job
    name = f"sl-{job.pk}-a{attempt.number}-{index}"
    spec = {
        "name": name,
        "job": job.pk,
        "attempt": attempt.pk,
        "number": attempt.number,
        "role": role,
        "hostname": "driver" if role == "driver" else f"h{index}",
        "environment": job.environment.key,
        "code_sha256": job.code.sha256,
        "launcher": job.launcher,
        "command": ["python", job.entry],
        "slots": len(gpus),
        "gpus": [gpu.uuid for gpu in gpus],
        "grace_seconds": 10,
    }
    return {"name": name, "spec": spec}


def run(part: Container) -> None:
    lifecycle.advance(part, "RUNNING")


def exit(part: Container, code: int | None = 0, reason: str = "exited", detail: Any = "") -> None:
    lifecycle.advance(part, "EXITED", exit_code=code, exit_reason=reason, detail=detail)
