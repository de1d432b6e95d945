"""Environments that are images of registries: making one, what admins allow, and how nodes sign in."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from django.db import transaction
from django.utils import timezone

from portal.accounts.audit import audit
from portal.accounts.models import User
from portal.environments import credentials
from portal.environments.image_names import (
    ImageNameError,
    full_name,
    full_prefix,
    is_allowed,
    registry_host,
)
from portal.environments.models import Environment, ImageSettings, Registry
from portal.environments.services import clean_title, keep_environment, require_admin, require_place
from portal.projects.models import Project
from portal.refused import Refused

MAX_ALLOWED = 100
MAX_REGISTRIES = 100
MAX_TOKEN_CHARACTERS = 10_000
POSITION = 300
DIGEST_DIGITS = 12


@dataclass(frozen=True)
class ImageRequest:
    """What a user wants: an image, as written."""

    image: str
    title: str = ""


def create(user: User, project: Project | None, request: ImageRequest) -> Environment:
    """Make an environment of an image, for a project or the whole lab, and request that a node pulls and checks it. One of the
    same place with the same image is returned instead of a second one."""
    require_place(user, project)
    image = checked_image(request.image)
    chosen = clean_title(request.title)
    title = chosen or default_title(image)
    row = Environment(
        title=title,
        project=project,
        created_by=user,
        image=image,
        on_demand=True,
        position=POSITION,
        requested_at=timezone.now(),
    )
    return keep_environment(user, row, {"title": title, "image": image}, chosen)


def checked_image(written: str) -> str:
    """Return the full name of an image that an admin allowed. Raises Refused."""
    try:
        image = full_name(written)
    except ImageNameError as error:
        raise Refused(str(error), field="image") from None
    allowed = ImageSettings.current().allowed
    if not allowed:
        raise Refused(
            "No admin has allowed images of registries yet. Ask one, or install packages instead.", "forbidden", "image"
        )
    if not is_allowed(image, allowed):
        raise Refused(
            f"{image} is not allowed. Allowed are {', '.join(allowed[:10])}; an admin can add to that.",
            "forbidden",
            "image",
        )
    return image


def default_title(image: str) -> str:
    """Return the last part of an image's name with its tag, or the beginning of its digest: ``train:1.2``."""
    name, at, digest = image.rpartition("/")[2].partition("@sha256:")
    return f"{name}{at and '@'}{digest[:DIGEST_DIGITS]}"


# --- what admins decide ------------------------------------------------------------------------------------------------


def set_image_settings(user: User, allowed: Sequence[str], archives: str) -> None:
    """Set which images are allowed, and when the portal keeps them. Raises Refused."""
    require_admin(user)
    if archives not in ImageSettings.Archives.values:
        raise Refused(f"Choose one of {', '.join(ImageSettings.Archives.values)}.", field="archives")
    prefixes = checked_prefixes(allowed)
    with transaction.atomic():
        row, _ = ImageSettings.objects.select_for_update().get_or_create(pk=ImageSettings.ONLY)
        before = {"allowed": row.allowed, "archives": row.archives}
        row.allowed, row.archives = prefixes, archives
        row.save()
        after = {"allowed": row.allowed, "archives": row.archives}
        if before != after:
            audit(user, "images.settings", "images", before, after)


def checked_prefixes(lines: Sequence[str]) -> list[str]:
    """Return prefixes in full, each once. Raises Refused with the number of a line that is not one."""
    found: dict[str, None] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            found[full_prefix(line)] = None
        except ImageNameError as error:
            raise Refused(f"Line {number}: {error}", field="allowed") from None
    if len(found) > MAX_ALLOWED:
        raise Refused(f"At most {MAX_ALLOWED} lines.", field="allowed")
    return list(found)


@dataclass(frozen=True)
class RegistryRequest:
    """How nodes use a registry. ``token`` None keeps the one that is stored; empty: without signing in."""

    host: str
    user: str = ""
    token: str | None = field(default=None, repr=False)
    insecure: bool = False


def set_registry(user: User, request: RegistryRequest) -> Registry:
    """Store how nodes use a registry, new or in place of what was stored for it. Raises Refused."""
    require_admin(user)
    try:
        host = registry_host(request.host)
    except ImageNameError as error:
        raise Refused(str(error), field="host") from None
    name, token = request.user.strip(), request.token
    if len(name) > 200 or not name.isprintable() or ":" in name:
        raise Refused("A user name has at most 200 characters, and no colon.", field="user")
    if token is not None and (len(token) > MAX_TOKEN_CHARACTERS or not token.isprintable()):
        raise Refused("That is not a token: it has line breaks or more than 10,000 characters.", field="token")
    sealed_token = "" if token is None else credentials.seal(token)  # may write the key's file
    with transaction.atomic():
        row = Registry.objects.select_for_update().filter(host=host).first() or Registry(host=host)
        if row.pk is None and Registry.objects.count() >= MAX_REGISTRIES:
            raise Refused(f"At most {MAX_REGISTRIES} registries. Remove one that is no longer used.", "conflict")
        before = _for_audit(row) if row.pk else {}
        sealed = row.sealed_token if token is None else sealed_token
        if bool(name) != bool(sealed):
            raise Refused("Enter a user and a token, or neither.", field="token" if name else "user")
        is_new_token = token is not None and credentials.unseal(row.sealed_token) != token
        row.user, row.sealed_token, row.insecure = name, sealed, request.insecure
        row.changed_at, row.changed_by = timezone.now(), user
        row.save()
        after = _for_audit(row) | ({"new_token": True} if is_new_token else {})
        if before != after:
            audit(user, "images.registry", f"registry {host}", before, after)
    return row


def remove_registry(user: User, registry: Registry) -> None:
    require_admin(user)
    with transaction.atomic():
        before = _for_audit(registry)
        if Registry.objects.filter(pk=registry.pk).delete()[0]:
            audit(user, "images.remove_registry", f"registry {registry.host}", before)


def _for_audit(row: Registry) -> dict[str, Any]:
    return {"user": row.user, "signs_in": bool(row.sealed_token), "insecure": row.insecure}
