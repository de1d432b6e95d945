"""Who works in the demo lab, and on what."""

import json
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from django.conf import settings
from django.contrib.auth.models import Group

from portal.accounts.models import User
from portal.cluster import services as cluster
from portal.cluster.models import Gpu, Node
from portal.projects import examples
from portal.projects.models import CodeVersion, Membership, Project
from portal.projects.services import create_project, use_example
from runners.agent_settings import Identity
from runners.demo import MEMORY_MIB, MODEL

PAST = timedelta(days=7)
EXAMPLE = "horovod-elastic"
PEOPLE = {"ada": "vision", "bela": "vision", "chen": "speech", "dana": "speech", "emre": "theory"}
"""And their groups; the first is an admin."""
PROJECTS = {
    "Digits from pictures": ("ada", "bela"),
    "Street scenes": ("bela",),
    "Speech commands": ("chen", "dana"),
    "Sparse optimisers": ("emre", "ada"),
}
"""And their members; the first is the owner."""


@dataclass(frozen=True, slots=True)
class Made:
    password: str
    nodes: tuple[Node, ...]
    codes: tuple[CodeVersion, ...]


def kept_password() -> str:
    """Of everybody in this demo lab: made once, kept beside its database."""
    path = settings.HOME / "demo.json"
    if not path.exists():
        path.touch(mode=0o600)
        path.write_text(json.dumps({"password": secrets.token_urlsafe(9)}))
    return str(json.loads(path.read_text())["password"])


def node_home(name: str) -> Path:
    return Path(settings.HOME) / "nodes" / name


def fill(now: datetime, nodes: int, gpus: int, url: str) -> Made:
    """On a migrated, empty database."""
    password = kept_password()
    since = now - PAST
    groups = {name: Group.objects.get_or_create(name=name)[0] for name in sorted(set(PEOPLE.values()))}
    users: dict[str, User] = {}
    for number, (name, group) in enumerate(PEOPLE.items()):
        users[name] = User.objects.create_user(name, f"{name}@demo.invalid", password, is_staff=number == 0)
        users[name].groups.add(groups[group])
    example = examples.find(EXAMPLE)
    assert example is not None  # noqa: S101  # it ships with the portal
    codes = []
    for title, members in PROJECTS.items():
        project = create_project(users[members[0]], title, "Of the demo lab.")
        Project.objects.filter(pk=project.pk).update(created_at=since)
        for name in members[1:]:
            Membership.objects.create(project=project, user=users[name], role=Membership.Role.MEMBER)
        codes.append(use_example(users[members[0]], example, project))
    return Made(password, tuple(_join(f"demo-{number + 1}", gpus, since, url) for number in range(nodes)), tuple(codes))


def _join(name: str, gpus: int, since: datetime, url: str) -> Node:
    """A node that has been here since then. Its agent finds its identity in its folder."""
    token = cluster.issue_join_token(None, approves=True)
    joined = cluster.join(token, name, Node.Runtime.FAKE, {"cpus": 32, "memory_mib": 262_144})
    Identity(joined.node.pk, joined.token, url, name, "fake", secrets.token_hex(16)).write(_made(node_home(name)))
    Node.objects.filter(pk=joined.node.pk).update(created_at=since, approved_at=since)
    Gpu.objects.bulk_create(
        Gpu(node=joined.node, uuid=f"demo-{name}-{index}", index=index, kind="cuda", model=MODEL, memory_mib=MEMORY_MIB)
        for index in range(gpus)
    )
    return joined.node


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder / "node.json"
