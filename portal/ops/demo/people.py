"""Who works in the demo lab, in which groups, on which projects, and on which nodes."""

import json
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from django.conf import settings
from django.contrib.auth.hashers import make_password
from django.contrib.auth.models import Group

from portal.accounts.models import AuditEntry, Limit, User, digest
from portal.cluster.models import Gpu, Node, new_token
from portal.environments.models import Environment, NodeEnvironment
from portal.ops.demo import git
from portal.ops.demo.workload import JOB_PATTERNS, LabSize, NodePart
from portal.projects import examples
from portal.projects.models import CodeVersion, Membership, Project
from portal.projects.services import create_project, use_example
from portal.usage.models import ShareWeight
from runners.agent.settings import NodeIdentity

ENVIRONMENT = "pytorch-horovod"
GROUPS = {"vision": 2.0, "speech": 1.5, "theory": 1.0, "robotics": 1.5, "course": 0.5}
"""The groups, with the weights by which they share the lab's GPUs."""
PEOPLE = {
    "ada": "vision",
    "bela": "vision",
    "gil": "vision",
    "chen": "speech",
    "dana": "speech",
    "hana": "speech",
    "emre": "theory",
    "ines": "theory",
    "jonas": "robotics",
    "kira": "robotics",
    "fay": "course",
    "luca": "course",
}
"""The people, with their groups; the first is an admin."""
EXAMPLES = {"horovod": "horovod-elastic", "torchrun": "torchrun-ddp", "command": "pytorch-digits"}
"""The gallery's example that serves as a project's code, by the launcher of its jobs."""
NODE_FACTS = {"cpus": 64, "memory_mib": 524_288, "engine": "pretended", "ring_address": "10.77.0.1", "shared": "demo"}
"""The facts of a node until its agent reports them: all keep their checkpoints in one folder."""


@dataclass(frozen=True, slots=True)
class DemoLab:
    """The lab before its first job."""

    users: dict[str, User]
    groups: dict[str, Group]
    projects: dict[str, Project]
    codes: dict[str, list[CodeVersion]]
    """Code versions by the name of the project, the oldest first."""
    nodes: tuple[Node, ...]
    parts: tuple[NodePart, ...]
    gpus: dict[int, list[Gpu]]
    """GPUs in the order of their indexes, by the number of the node's part."""
    environment: Environment

    def node_of(self, part: int) -> Node:
        """Return the node of a part."""
        return self.nodes[self.parts[part].node]

    def gpus_of_node(self, node: int) -> list[Gpu]:
        """Return the GPUs of a node, in the order of their indexes."""
        return [gpu for number, part in enumerate(self.parts) if part.node == node for gpu in self.gpus[number]]


def demo_password() -> str:
    """Return the password of all users of this demo lab: made once and stored beside its database."""
    if read_fact("password") is None:
        store_facts(password=secrets.token_urlsafe(9))
    return str(read_fact("password"))


def read_fact(name: str) -> object:
    """Return a stored fact about this demo lab; None when it was not stored."""
    return _read_facts().get(name)


def store_facts(**facts: object) -> None:
    """Add facts about this demo lab to the file beside its database."""
    path = settings.HOME / "demo.json"
    path.touch(mode=0o600)
    path.write_text(json.dumps({**_read_facts(), **facts}))


def _read_facts() -> dict[str, object]:
    path = settings.HOME / "demo.json"
    text = path.read_text() if path.exists() else ""
    return dict(json.loads(text)) if text else {}


def node_home(name: str) -> Path:
    """Return the folder of a node's agent."""
    return Path(settings.HOME) / "nodes" / name


def create_lab(since: datetime, size: LabSize, url: str) -> DemoLab:
    """Make people, projects and nodes that have been here since then, in a migrated, empty database."""
    groups = {name: Group.objects.get_or_create(name=name)[0] for name in GROUPS}
    users = _users(since - timedelta(days=40), groups)
    projects, codes = _projects(since - timedelta(days=20), users)
    admin = next(iter(users.values()))
    nodes = tuple(_create_node(f"demo-{number + 1}", since, url) for number in range(size.nodes))
    bound = projects[git.PROJECT]
    codes[git.PROJECT] += git.bind_to_repository(admin, bound.created_by, bound, EXAMPLES["horovod"], nodes[0], since)
    environment, _ = Environment.objects.get_or_create(key=ENVIRONMENT, defaults={"title": "PyTorch with Horovod"})
    NodeEnvironment.objects.bulk_create(
        NodeEnvironment(node=node, environment=environment, state=NodeEnvironment.State.READY, progress_percent=100)
        for node in nodes
    )
    gpus = {number: _create_gpus(nodes[part.node], part) for number, part in enumerate(size.parts)}
    return DemoLab(users, groups, projects, codes, nodes, size.parts, gpus, environment)


def _users(since: datetime, groups: dict[str, Group]) -> dict[str, User]:
    password = make_password(demo_password())  # hashing is slow: all users have the same
    users = User.objects.bulk_create(
        User(
            username=name, email=f"{name}@demo.invalid", password=password, is_staff=number == 0, date_joined=since,
            first_name=name.title(),
        )
        for number, name in enumerate(PEOPLE)
    )  # fmt: skip
    for user in users:
        user.groups.add(groups[PEOPLE[user.username]])
    Limit.objects.bulk_create(Limit(group=groups[name], weight=weight) for name, weight in GROUPS.items())
    ShareWeight.objects.bulk_create(
        ShareWeight(group=groups[name], weight=weight, since=since) for name, weight in GROUPS.items()
    )
    return {user.username: user for user in users}


def _projects(since: datetime, users: dict[str, User]) -> tuple[dict[str, Project], dict[str, list[CodeVersion]]]:
    projects: dict[str, Project] = {}
    codes: dict[str, list[CodeVersion]] = {}
    copies: dict[str, CodeVersion] = {}
    """By example, its code version: to import an example again would take as long as the first time."""
    for pattern in JOB_PATTERNS:
        if pattern.project in projects:
            continue
        owner, *others = pattern.people
        project = create_project(users[owner], pattern.project, pattern.about)
        Membership.objects.bulk_create(
            Membership(project=project, user=users[name], role=Membership.Role.MEMBER, since=since) for name in others
        )
        example = examples.find(EXAMPLES[pattern.launcher])
        assert example is not None  # noqa: S101  # it ships with the portal
        if example.key in copies:
            code = copies[example.key]
            code.pk, code.project, code.created_by, code._state.adding = None, project, users[owner], True
            code.save(force_insert=True)
        else:
            code = use_example(users[owner], example, project)
        copies[example.key] = CodeVersion.objects.get(pk=code.pk)
        projects[pattern.project], codes[pattern.project] = project, [code]
    Project.objects.update(created_at=since)
    CodeVersion.objects.update(created_at=since)
    for (code,) in codes.values():
        code.created_at = since
    return projects, codes


def _create_node(name: str, since: datetime, url: str) -> Node:
    """Make a node that has been here since then. Its agent finds its identity in its folder."""
    token = new_token()
    node = Node.objects.create(
        name=name, runtime=Node.Runtime.FAKE, token_digest=digest(token), created_at=since, approved_at=since,
        facts=NODE_FACTS,
    )  # fmt: skip
    after = {"runtime": node.runtime, "approved": True}
    AuditEntry.objects.create(at=since, action="node.joined", target=name, after=after)
    home = node_home(name)
    home.mkdir(parents=True, exist_ok=True)
    NodeIdentity(node.pk, token, url, name, "fake", secrets.token_hex(16)).write(home / "node.json")
    return node


def _create_gpus(node: Node, part: NodePart) -> list[Gpu]:
    """Make the GPUs of a part of a node, after those of its earlier parts."""
    first = node.gpus.count()
    return Gpu.objects.bulk_create(
        Gpu(
            node=node, uuid=f"demo-{node.name}-{index}", index=index, kind="cuda", model=part.model.name,
            memory_mib=part.model.memory_mib,
        )
        for index in range(first, first + part.gpus)
    )  # fmt: skip


def mark_nodes_seen(lab: DemoLab, now: datetime) -> None:
    """Mark the nodes as if they had just reported, so that nothing is declared lost before their agents start."""
    Node.objects.filter(pk__in=[node.pk for node in lab.nodes]).update(last_seen_at=now, ready=True)
