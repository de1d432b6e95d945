"""Builds of layers: which node builds what, how far it is, and how it ends.

Nodes ask (``claim``). For each recipe and kind of node, one of them is given the build, the others wait, and all get the
layer once it is here. A node that stops sending progress loses its build to the next one that asks.
"""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.db import IntegrityError, transaction
from django.utils import timezone

from portal.accounts.audit import audit
from portal.accounts.models import User
from portal.cluster.models import Node
from portal.environments import archives
from portal.environments.models import Build, Environment, Lock
from portal.environments.recipes import recipe_of
from portal.sentences import agents
from portal.wake import wake_scheduler

LEASE = timedelta(seconds=120)
"""A build is lost when its node has sent no progress for this time."""
MAX_LOST = 3
"""A build that so many nodes have lost is not given to another: it may be what ends them."""
WAIT_SECONDS = 3
MAX_LOG_BYTES = 4 * 1024 * 1024
MAX_LOCK_CHARACTERS = 2_000_000
MAX_MODULES = 5000

Failure = agents.environment_failures.Failure


class BuildEndedError(Exception):
    """The build runs no longer: it was cancelled, or given to another node."""


@dataclass(frozen=True)
class Claim:
    """The answer to a node that asks for an environment."""

    lock: Lock | None = None
    build: Build | None = None
    wait: agents.Message | None = None
    failure: Any = None
    """A message as data."""
    final: bool = True
    """False for the lock of an earlier generation while a later one is being built."""

    def to_json(self) -> dict[str, Any]:
        if self.lock is not None:
            lock = self.lock
            return {
                "state": "ready",
                "final": self.final,
                "digest": lock.digest,
                "sha256": lock.archive_sha256,
                "bytes": lock.archive_bytes,
                "unpacked_bytes": lock.unpacked_bytes,
            }
        if self.build is not None:
            environment = self.build.environment
            fresh = self.build.generation > 1
            return {"state": "build", "build": self.build.pk, "recipe": recipe_of(environment), "fresh": fresh}
        if self.wait is not None:
            return {"state": "wait", "message": self.wait.data(), "seconds": WAIT_SECONDS}
        return {"state": "failed", "message": self.failure}


def claim(node: Node, environment: Environment, kind: str) -> Claim:
    """Return what a node of this kind does to get an environment with a recipe: fetch, build or wait."""
    same = Build.objects.filter(recipe=environment.recipe, kind=kind)
    built = same.filter(state=Build.State.DONE).exclude(lock__archive_sha256="").select_related("lock").first()
    if built is not None and built.generation >= environment.generation:
        return _ready(built)
    running = same.filter(state=Build.State.RUNNING).first()
    if running is not None and running.renewed_at < timezone.now() - LEASE:
        with suppress(BuildEndedError):  # another node noticed it, too
            _end(running, Build.State.LOST, agents.builds.BuildLost(running.node_name).data())
        running = None
    if running is not None:
        if running.node_id == node.pk:  # its agent was restarted, and begins again
            restart(running)
            return Claim(build=running)
        return Claim(lock=built.lock, final=False) if built is not None else Claim(wait=_elsewhere(running))
    attempts = same.filter(generation__gte=environment.generation)
    last = attempts.first()
    if last is not None and last.state in (Build.State.FAILED, Build.State.CANCELLED):
        return _ready(built) if built is not None else Claim(failure=last.message)
    if last is not None and attempts.filter(state=Build.State.LOST).count() >= MAX_LOST:
        lost = agents.builds.BuildLost(last.node_name, MAX_LOST).data()
        return _ready(built) if built is not None else Claim(failure=lost)
    try:
        with transaction.atomic():
            build = Build.objects.create(
                environment=environment,
                recipe=environment.recipe,
                kind=kind,
                generation=environment.generation,
                node=node,
                node_name=node.name,
                message=agents.builds.BuildStarting().data(),
            )
    except IntegrityError:  # another node was given it at the same moment
        running = same.filter(state=Build.State.RUNNING).first()
        return Claim(wait=_elsewhere(running) if running else agents.builds.BuildStarting())
    return Claim(build=build)


def _ready(build: Build) -> Claim:
    return Claim(lock=build.lock)


def _elsewhere(build: Build) -> agents.Message:
    try:
        step = agents.message_from(build.message) if build.message else None
    except TypeError:
        step = None
    return agents.builds.BuiltElsewhere(build.node_name, build.progress_percent, step)


def restart(build: Build) -> None:
    """Prepare a build for its node that begins again."""
    log_path(build).unlink(missing_ok=True)
    archives.drop_incoming(build.pk)
    Build.objects.filter(pk=build.pk).update(renewed_at=timezone.now(), progress_percent=0)


def running_build(node: Node, pk: int) -> Build:
    """Return a build that this node makes. Raises BuildEndedError when it has ended."""
    build = Build.objects.filter(pk=pk, node=node, state=Build.State.RUNNING).select_related("environment").first()
    if build is None:
        raise BuildEndedError
    return build


def record_progress(build: Build, percent: int, message: Any, offset: int, log: bytes) -> int:
    """Store how far a build is and the next piece of its log; return how many bytes of the log there are."""
    changed = Build.objects.filter(pk=build.pk, state=Build.State.RUNNING).update(
        progress_percent=percent, message=message, renewed_at=timezone.now()
    )
    if not changed:
        raise BuildEndedError
    return _append_log(build, offset, log)


def _append_log(build: Build, offset: int, log: bytes) -> int:
    """Append to the log if the piece follows what is there; one that is too long is cut."""
    path = log_path(build)
    size = path.stat().st_size if path.exists() else 0
    if offset != size or not log:
        return size
    path.parent.mkdir(mode=0o750, exist_ok=True)
    with path.open("ab") as file:
        file.write(log[: max(0, MAX_LOG_BYTES - size)])
    return size + len(log) if size + len(log) <= MAX_LOG_BYTES else max(size, MAX_LOG_BYTES)


def log_path(build: Build) -> Any:
    return settings.HOME / "builds" / f"{build.pk}.log"


@dataclass(frozen=True)
class BuiltLayer:
    """What a node built, as it reports."""

    digest: str
    lock: str
    sha256: str
    unpacked_bytes: int
    modules: tuple[str, ...]


def finish(build: Build, layer: BuiltLayer) -> Lock:
    """Keep the layer of a build, whose archive has arrived. Raises BuildEndedError, or Refused for a damaged archive."""
    size = archives.keep(build.pk, layer.digest, layer.sha256)
    with transaction.atomic():
        row = Build.objects.select_for_update().get(pk=build.pk)
        if row.state != Build.State.RUNNING:
            raise BuildEndedError
        lock, _ = Lock.objects.update_or_create(
            digest=layer.digest,
            defaults={
                "kind": build.kind,
                "text": layer.lock,
                "modules": list(layer.modules),
                "unpacked_bytes": layer.unpacked_bytes,
                "archive_sha256": layer.sha256,
                "archive_bytes": size,
                "used_at": timezone.now(),
            },
        )
        row.lock, row.progress_percent, row.message = lock, 100, ""
        row.state, row.ended_at = Build.State.DONE, timezone.now()
        row.save(update_fields=["lock", "progress_percent", "message", "state", "ended_at"])
        _record_modules(build.recipe, layer.modules)
        wake_scheduler()
    return lock


def _record_modules(recipe: str, modules: Iterable[str]) -> None:
    """Store the modules of environments with this recipe: what it added, and what their base has."""
    for environment in Environment.objects.filter(recipe=recipe).select_related("base"):
        base = environment.base.packages if environment.base else []
        packages = [*base, *sorted(set(modules).difference(base))]
        Environment.objects.filter(pk=environment.pk).update(packages=packages)


def fail(build: Build, message: Any) -> None:
    """Record why a build failed. Raises BuildEndedError."""
    _end(build, Build.State.FAILED, message)


def cancel(actor: User, build: Build) -> bool:
    """Cancel a running build; its node stops within seconds. Returns whether it still ran. The caller checks permission."""
    with transaction.atomic():
        message = agents.builds.BuildCancelled(actor.username).data()
        changed = Build.objects.filter(pk=build.pk, state=Build.State.RUNNING).update(
            state=Build.State.CANCELLED, message=message, cancelled_by=actor, ended_at=timezone.now()
        )
        if changed:
            audit(actor, "environment.cancel_build", f"environment {build.environment.key}", after={"build": build.pk})
    if changed:
        archives.drop_incoming(build.pk)
    return bool(changed)


def _end(build: Build, state: Build.State, message: Any) -> None:
    changed = Build.objects.filter(pk=build.pk, state=Build.State.RUNNING).update(
        state=state, message=message, ended_at=timezone.now()
    )
    archives.drop_incoming(build.pk)
    if not changed:
        raise BuildEndedError
