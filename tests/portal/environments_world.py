"""Environments with recipes, their builds and layers, for tests: as a lab with one kind of node has them."""

import hashlib
from collections.abc import Sequence
from typing import Any

from portal.accounts.models import User
from portal.cluster.models import Node
from portal.environments import archives, builds, services
from portal.environments.builds import BuiltLayer
from portal.environments.models import Build, Environment, Lock, NodeEnvironment
from portal.projects.models import Project
from portal.sentences import agents

KIND = "cp311-linux_x86_64-glibc2.36-cpu-3f0c6b1d9a52"
LOCK = "rich==13.9.4 \\\n    --hash=sha256:aa\nmarkdown-it-py==3.0.0 \\\n    --hash=sha256:bb\n"
CONTENT = b"the packages of a layer"


def make_base(key: str = "pytorch", title: str = "PyTorch") -> Environment:
    return Environment.objects.update_or_create(
        key=key, defaults={"title": title, "packages": ["torch", "numpy"], "retired": False}
    )[0]


def make_environment(
    user: User, project: Project | None = None, lines: Sequence[str] = ("rich",), title: str = "", **fields: Any
) -> Environment:
    request = services.PackageRequest(lines=lines, **({"base": make_base()} | fields))
    return services.create(user, project, request, title)


def start(node: Node, environment: Environment, kind: str = KIND) -> Build:
    """Return the build that a node is given."""
    build = builds.claim(node, environment, kind).build
    assert build is not None
    return build


def send(build: Build, content: bytes = CONTENT) -> BuiltLayer:
    """Send the archive of a build, and return what its node reports then."""
    archives.append(build.pk, 0, [content])
    digest = hashlib.sha256(f"{build.kind} {build.pk}".encode()).hexdigest()
    return BuiltLayer(digest, LOCK, hashlib.sha256(content).hexdigest(), 5_000_000, ("rich", "markdown_it"))


def finish(build: Build, content: bytes = CONTENT) -> Lock:
    return builds.finish(build, send(build, content))


def build(node: Node, environment: Environment, kind: str = KIND) -> Lock:
    """Build an environment on a node, which then has it ready."""
    lock = finish(start(node, environment, kind))
    place(node, environment, NodeEnvironment.State.READY, digest=lock.digest)
    return lock


def failure(package: str = "rich") -> dict[str, Any]:
    return agents.builds.BuildLost(f"the node of {package}").data()


def place(node: Node, environment: Environment, state: str, **fields: Any) -> NodeEnvironment:
    return NodeEnvironment.objects.update_or_create(
        node=node, environment=environment, defaults={"state": state, **fields}
    )[0]
