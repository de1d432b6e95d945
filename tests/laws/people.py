"""The people of every test about who may see what, and a small lab of theirs with something in every corner.

Alice owns a project, Bob is a member, Victor may look, Charlie is a stranger to it, Ada is an admin. Each string
of Alice's that other users must not see carries ``CANARY``; Charlie has a project of his own.
"""

import hashlib
import io
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from pathlib import Path

from django.conf import settings
from django.contrib.auth.hashers import make_password
from django.contrib.auth.models import Group
from django.utils import timezone

from portal.accounts.models import ApiToken, User
from portal.cluster.models import Gpu, Node
from portal.cluster.models import new_token as new_node_token
from portal.environments.models import Environment, NodeEnvironment
from portal.jobs import checkpoints, logs, outputs
from portal.jobs.models import (
    Allocation,
    Attempt,
    Container,
    ContainerState,
    Job,
    JobEvent,
    JobState,
    Outcome,
)
from portal.projects import archive
from portal.projects.models import CodeVersion, Membership, Project

CANARY = "kanarienvogel"
SECRET = "geheimvogel"
"""A value in the environment variables of Alice's jobs, which even Victor, who may view them, does not get."""
PASSWORD = "sunflower-cabinet-92"
ROLES = ("anonymous", "charlie", "victor", "bob", "alice", "ada")
SOURCE = f'print("{CANARY} in the code")\n'.encode()
OTHER_SOURCE = b'print("of no interest")\n'
LOG = f"{CANARY} in the log\n".encode()
RESULT = f"{CANARY} in the outputs\n".encode()
METRICS = f"""{{"kind":"step","at":1700000000,"step":1,"epoch":0,"done":0.5,"batch":8,"ranks":1,"seconds":1,"loss":2}}
{{"kind":"metric","at":1700000000,"step":1,"name":"{CANARY} curve","value":1}}
""".encode()


@dataclass
class World:
    """All rows of the lab; ``jobs`` by state. ``node_token`` is the token of the node's agent."""

    alice: User
    bob: User
    victor: User
    charlie: User
    ada: User
    group: Group
    project: Project
    code: CodeVersion
    environment: Environment
    node: Node
    gpu: Gpu
    node_token: str
    jobs: dict[str, Job] = field(default_factory=dict)
    charlies_project: Project | None = None
    charlies_job: Job | None = None
    tokens: dict[str, str] = field(default_factory=dict)

    @property
    def users(self) -> dict[str, User]:
        return {name: getattr(self, name) for name in ROLES if name != "anonymous"}

    @property
    def running(self) -> Job:
        return self.jobs["RUNNING"]


@cache
def password_hash() -> str:
    """Return a hashed password, made once for a run: hashing is slow on purpose."""
    return make_password(PASSWORD)


def make_people() -> dict[str, User]:
    return {
        name: User.objects.create(
            username=name, email=f"{name}@example.org", password=password_hash(), is_staff=name == "ada"
        )
        for name in ROLES
        if name != "anonymous"
    }


def make_world() -> World:
    """Create rows in every table that users see, and their files."""
    people = make_people()
    group = Group.objects.create(name="students")
    group.user_set.add(people["charlie"])
    environment = Environment.objects.filter(key="pytorch-horovod").first() or Environment.objects.create(
        key="pytorch-horovod", title="PyTorch and Horovod"
    )
    token = new_node_token()
    now = timezone.now()
    node = Node.objects.create(
        name="node-one",
        runtime=Node.Runtime.FAKE,
        token_digest=hashlib.sha256(token.encode()).hexdigest(),
        approved_at=now,
        last_seen_at=now,
        ready=True,
    )
    gpus = [
        Gpu.objects.create(node=node, uuid=f"GPU-{index}", index=index, kind=Gpu.Kind.CPU, model="CPU slot")
        for index in range(2)
    ]
    NodeEnvironment.objects.create(node=node, environment=environment, state=NodeEnvironment.State.READY)
    project, code = make_project(people["alice"], f"Vision {CANARY}", SOURCE)
    Membership.objects.create(project=project, user=people["bob"], role=Membership.Role.MEMBER)
    Membership.objects.create(project=project, user=people["victor"], role=Membership.Role.VIEWER)
    world = World(
        alice=people["alice"],
        bob=people["bob"],
        victor=people["victor"],
        charlie=people["charlie"],
        ada=people["ada"],
        group=group,
        project=project,
        code=code,
        environment=environment,
        node=node,
        gpu=gpus[0],
        node_token=token,
    )
    for state in JobState.values:
        world.jobs[state] = make_job(world, project, code, people["alice"], state)
    world.charlies_project, charlies_code = make_project(people["charlie"], "Charlie's own", OTHER_SOURCE)
    world.charlies_job = make_job(world, world.charlies_project, charlies_code, people["charlie"], JobState.QUEUED)
    for name, user in people.items():
        world.tokens[name] = ApiToken.issue(user, f"{name}'s script")[1]
    return world


@cache
def unpacked(source: bytes, home: Path) -> archive.StoredUpload:
    """The store in ``home`` keeps code by its hash, across the tests of a run. Some tests have a home of their own."""
    return archive.store_upload([("train.py", io.BytesIO(source))])


def make_project(owner: User, name: str, source: bytes) -> tuple[Project, CodeVersion]:
    project = Project.objects.create(name=name, description=f"About {name}", created_by=owner)
    Membership.objects.create(project=project, user=owner, role=Membership.Role.OWNER)
    taken = unpacked(source, settings.HOME)
    code = CodeVersion.objects.create(
        project=project,
        number=1,
        sha256=taken.sha256,
        size=taken.size,
        files=taken.files,
        guess={"entry": "train.py", "launcher": "command", "elastic": False, "warnings": []},
        upload_name=f"{name}.zip",
        created_by=owner,
    )
    return project, code


def make_job(world: World, project: Project, code: CodeVersion, owner: User, state: str) -> Job:
    """A job as the lifecycle would have left it in this state."""
    now = timezone.now()
    began = now - timedelta(minutes=5)
    finished = state in (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)
    started = state in (JobState.RUNNING, JobState.SUCCEEDED, JobState.FAILED)
    job = Job.objects.create(
        project=project,
        code=code,
        environment=world.environment,
        submitted_by=owner,
        submitted_at=now - timedelta(minutes=10),
        name=f"{state.lower()} of {project.name}",
        launcher=Job.Launcher.COMMAND,
        entry="python train.py",
        env_vars={"SECRET_OF_JOB": SECRET} if CANARY in project.name else {},
        time_limit_seconds=3600,
        intent={"HELD": Job.Intent.HOLD, "CANCELLED": Job.Intent.CANCEL}.get(state, Job.Intent.RUN),
        state=state,
        started_at=began if started else None,
        finished_at=now if finished else None,
        waiting_reason=f"{project.name} waits" if state == "QUEUED" else "",
    )
    JobEvent.objects.create(job=job, seq=1, kind="submitted", text=f"Submitted to {project.name}", actor=owner)
    if started:
        outcome = {"SUCCEEDED": Outcome.SUCCEEDED, "FAILED": Outcome.FAILED}.get(state, "")
        attempt = Attempt.objects.create(
            job=job,
            number=1,
            started_at=job.started_at,
            ended_at=job.finished_at,
            outcome=outcome,
            cause={"code": "exit", "title": f"{project.name} ended with 1", "detail": "", "advice": "Look at the log."}
            if outcome == Outcome.FAILED
            else {},
            secret="s" * 64,
            policy="fifo v1",
        )
        container = Container.objects.create(
            attempt=attempt,
            node=world.node,
            index=0,
            role=Container.Role.HOST,
            name=f"sl-{job.pk}-1-h0",
            spec={},
            state=ContainerState.EXITED if finished else ContainerState.RUNNING,
            running_at=job.started_at,
            exited_at=job.finished_at,
            exit_code={"SUCCEEDED": 0, "FAILED": 1}.get(state),
            exit_reason="exited" if finished else "",
            collected_at=job.finished_at,
        )
        Allocation.objects.create(
            gpu=world.gpu,
            attempt=attempt,
            container=container,
            allocated_at=began,
            released_at=job.finished_at,
        )
        if CANARY in project.name:
            for name in ("setup", "0"):
                logs.append(logs.open_stream(container, name), 0, LOG, [(0, 1_700_000_000_000)], final=finished)
            logs.append(logs.open_stream(container, "metrics"), 0, METRICS, final=finished)
            outputs.store(attempt, "results/metrics.txt", [RESULT])
            piece = hashlib.sha256(RESULT).hexdigest()
            checkpoints.store_piece(job, piece, [RESULT])
            checkpoints.keep(attempt, {"last/step.pt": [len(RESULT), 1, [piece]]}, {})
    return job
