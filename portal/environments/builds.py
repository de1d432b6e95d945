"""Builds of layers: which node builds what, how far it is, and how it ends.

Nodes ask (``claim``). For each recipe and kind of node, one of them is given the build, the others wait, and all get the
layer once it is here. A node that stops sending progress loses its build to the next one that asks.
"""

import hashlib
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import IntegrityError, transaction
from django.db.models import Q
from django.utils import timezone

from portal import log_files
from portal.accounts.audit import audit
from portal.accounts.models import User
from portal.cluster.models import Node
from portal.environments import archives, image_access
from portal.environments.image_names import repository_of
from portal.environments.models import Build, Environment, ImageSettings, Lock
from portal.environments.recipe_rules import check_recipe
from portal.environments.recipes import recipe_of
from portal.refused import Refused
from portal.sentences import agents
from portal.wake import wake_scheduler

LEASE = timedelta(seconds=120)
"""A build is lost when its node has sent no progress for this time."""
MAX_LOST = 3
"""A build that so many nodes have lost is not given to another: it may be what ends them."""
MAX_FAILED = 20
"""A generation of an image that failed so often is not tried again."""
RETRY_AFTER = timedelta(minutes=10)
"""How long a node does not try an image again that it could not get or send."""
IMAGE_FORMAT = "schedulearn image 1"
WAIT_SECONDS = 3
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
            fresh = self.build.generation > 1
            return {"state": "build", "build": self.build.pk, "recipe": _recipe(self.build), "fresh": fresh}
        if self.wait is not None:
            return {"state": "wait", "message": self.wait.data(), "seconds": WAIT_SECONDS}
        return {"state": "failed", "message": self.failure}


def claim(node: Node, environment: Environment, kind: str, has: str = "") -> Claim:
    """Return what a node of this kind does to get an environment with a recipe: fetch, build or wait. ``has``: the digest of the
    image that it has of it, which it may be asked to send."""
    if environment.image and not image_access.may_be_pulled(environment.image):
        return Claim(failure=agents.image_failures.ImageNotAllowed(environment.image).data())
    same = Build.objects.filter(recipe=environment.recipe, kind=kind)
    done = same.filter(state=Build.State.DONE).select_related("lock")
    built = (done if environment.image else done.exclude(lock__archive_sha256="")).first()
    if built is not None and (sending := _sending(node, environment, built, has)) is not None:
        return Claim(build=sending)
    if built is not None and built.generation >= environment.generation:
        return _ready(built)
    end_lost(environment.recipe)
    running = same.filter(state=Build.State.RUNNING).first()
    if running is not None:
        if running.node_id == node.pk:  # its agent was restarted, and begins again
            restart(running)
            return Claim(build=running)
        return Claim(lock=built.lock, final=False) if built is not None else Claim(wait=_elsewhere(running))
    attempts = same.filter(generation__gte=environment.generation)
    last = attempts.first()
    if (
        last is not None
        and last.state in (Build.State.FAILED, Build.State.CANCELLED)
        and not _may_try(node, last, attempts)
    ):
        return _ready(built) if built is not None else Claim(failure=message_in(last, environment))
    if last is not None and attempts.filter(state=Build.State.LOST).count() >= MAX_LOST:
        lost = agents.builds.BuildLost(last.node_name, MAX_LOST).data()
        return _ready(built) if built is not None else Claim(failure=lost)
    try:
        check_recipe(environment)
    except Refused as refusal:
        return Claim(failure=agents.layer_failures.BadRecipe(refusal.message).data())
    build = _start(node, environment, kind)
    if build is None:  # another node was given it at the same moment
        running = same.filter(state=Build.State.RUNNING).first()
        return Claim(wait=_elsewhere(running) if running else agents.builds.BuildStarting())
    return Claim(build=build)


def _start(node: Node, environment: Environment, kind: str, sent: Build | None = None) -> Build | None:
    """Give a build to a node; None if one of the same runs. ``sent``: that of an image that it has and sends."""
    try:
        with transaction.atomic():
            return Build.objects.create(
                environment=environment,
                recipe=environment.recipe,
                kind=kind,
                generation=sent.generation if sent else environment.generation,
                node=node,
                node_name=node.name,
                lock=sent.lock if sent else None,
                message=agents.builds.BuildStarting().data(),
            )
    except IntegrityError:
        return None


def _sending(node: Node, environment: Environment, built: Build, has: str) -> Build | None:
    """Return the build with which a node sends an image that it has, if another node needs that."""
    lock = built.lock
    if not environment.image or lock is None or has != lock.digest or not image_access.needs_archive(lock):
        return None
    latest = Build.objects.filter(recipe=built.recipe, kind=built.kind).first()
    if latest is not None and latest.state == Build.State.RUNNING:
        if latest.node_id == node.pk and latest.lock_id is not None:  # its agent was restarted, and begins again
            restart(latest)
            return latest
        if latest.renewed_at > timezone.now() - LEASE:
            return None
        end_lost(built.recipe)
    elif latest is not None and _has_just_failed_to_send(latest):
        return None
    return _start(node, environment, built.kind, built)


def _has_just_failed_to_send(build: Build) -> bool:
    failed = build.lock_id is not None and build.state != Build.State.DONE
    return failed and build.started_at > timezone.now() - RETRY_AFTER


def _may_try(node: Node, last: Build, attempts: Any) -> bool:
    """Return whether a node may try an image that another one could not get: registries are not within reach of all nodes."""
    if not last.environment.image or last.state != Build.State.FAILED or not _is_transient(last.message):
        return False
    failed = attempts.filter(state=Build.State.FAILED)
    recently = failed.filter(node=node, ended_at__gt=timezone.now() - RETRY_AFTER)
    return failed.count() < MAX_FAILED and not recently.exists()


def _is_transient(message: Any) -> bool:
    try:
        failure = agents.message_from(message)
    except TypeError:
        return False
    return isinstance(failure, Failure) and failure.transient


def _recipe(build: Build) -> dict[str, Any]:
    """Return what a node builds. Of an image with how to sign in, and exactly the image that nodes of another kind found."""
    environment = build.environment
    if not environment.image:
        return recipe_of(environment)
    image = environment.image
    if build.lock is not None:
        image = build.lock.text
    else:
        others = Build.objects.filter(recipe=build.recipe, state=Build.State.DONE, generation=build.generation)
        found = others.exclude(kind=build.kind).select_related("lock").first()
        if found is not None and found.lock is not None:
            image = found.lock.text
    always = ImageSettings.current().archives == ImageSettings.Archives.ALWAYS
    return {"image": image, "access": image_access.access_to(image), "send": always or build.lock is not None}


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


def renew(build: Build) -> None:
    """Note that the node of a build is still at work."""
    Build.objects.filter(pk=build.pk).update(renewed_at=timezone.now())


def append_archive(build: Build, offset: int, pieces: Iterable[bytes]) -> int:
    """Append to the archive of a build. Raises BuildEndedError, and what ``archives.append`` does."""
    try:
        return archives.append(build.pk, offset, pieces)
    finally:
        if not Build.objects.filter(pk=build.pk, state=Build.State.RUNNING).update(renewed_at=timezone.now()):
            archives.drop_incoming(build.pk)  # it ended while the piece arrived
            raise BuildEndedError


def in_progress() -> Q:
    """Return the condition for builds that run and whose nodes report."""
    return Q(state=Build.State.RUNNING, renewed_at__gte=timezone.now() - LEASE)


def end_lost(recipe: str) -> None:
    """End the builds of a recipe whose nodes do not report any more."""
    for build in Build.objects.filter(recipe=recipe, state=Build.State.RUNNING).exclude(in_progress()):
        with suppress(BuildEndedError):  # another request noticed it, too
            _end(build, Build.State.LOST, agents.builds.BuildLost(build.node_name).data())


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
    return log_files.append(log_path(build), offset, log)


def log_path(build: Build) -> Path:
    home: Path = settings.HOME
    return home / "builds" / f"{build.pk}.log"


@dataclass(frozen=True)
class BuiltLayer:
    """What a node built, as it reports."""

    digest: str
    lock: str
    sha256: str
    """Of the archive; empty for an image that was not sent."""
    unpacked_bytes: int
    modules: tuple[str, ...]
    facts: dict[str, str] = field(default_factory=dict)


def image_digest(kind: str, exact: str) -> str:
    """Return the digest of an image for nodes of a kind. Agents compute the same."""
    return hashlib.sha256(f"{IMAGE_FORMAT}\n{kind}\n{exact}".encode()).hexdigest()


def _check_image(build: Build, layer: BuiltLayer) -> None:
    """Raise Refused unless what a node reports is the image that it was asked for."""
    wanted = build.lock.text if build.lock is not None else build.environment.image
    name, _, digest = layer.lock.partition("@")
    same = name == repository_of(wanted) and wanted.partition("@")[2] in ("", digest)
    if (
        not same
        or not image_access.LOCK_TEXT.fullmatch(layer.lock)
        or layer.digest != image_digest(build.kind, layer.lock)
    ):
        raise Refused("This is another image than the one that was asked for.", "conflict")


def finish(build: Build, layer: BuiltLayer) -> Lock:
    """Keep the layer or image of a build, whose archive has arrived. Raises BuildEndedError, or Refused for a damaged archive."""
    kept: dict[str, Any] = {}
    if build.environment.image:
        _check_image(build, layer)
    if layer.sha256 or not build.environment.image:
        kept = _keep_archive(build, layer)
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
                "facts": layer.facts,
                "used_at": timezone.now(),
                **kept,
            },
        )
        row.lock, row.progress_percent, row.message = lock, 100, ""
        row.state, row.ended_at = Build.State.DONE, timezone.now()
        row.save(update_fields=["lock", "progress_percent", "message", "state", "ended_at"])
        _record_modules(build.recipe, layer.modules)
        wake_scheduler()
    return lock


def _keep_archive(build: Build, layer: BuiltLayer) -> dict[str, Any]:
    """Keep the archive of a build, and return what its lock has of it.

    Packages built from source may differ from build to build. The first archive of a lock stays: nodes may be fetching it.
    """
    others = Lock.objects.filter(digest=layer.digest).exclude(archive_sha256__in=("", layer.sha256))
    if others.exists() and archives.path_of(layer.digest).exists():
        archives.drop_incoming(build.pk)
        return {}
    size = archives.keep(build.pk, layer.digest, layer.sha256, lambda: renew(build))
    return {"archive_sha256": layer.sha256, "archive_bytes": size, "archive_wanted_at": None}


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


def message_in(build: Build, environment: Environment) -> Any:
    """Return the message of a build for those who see one of the environments that share it: users of another project are not
    named."""
    if build.state != Build.State.CANCELLED or build.environment.project_id in (None, environment.project_id):
        return build.message
    return agents.builds.BuildCancelled("").data()


def _end(build: Build, state: Build.State, message: Any) -> None:
    changed = Build.objects.filter(pk=build.pk, state=Build.State.RUNNING).update(
        state=state, message=message, ended_at=timezone.now()
    )
    archives.drop_incoming(build.pk)
    if not changed:
        raise BuildEndedError
