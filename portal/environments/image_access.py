"""What nodes get and are asked for with images: whether one is allowed, how to sign in at its registry, and whether to send it."""

import re
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from django.utils import timezone

from portal.environments import credentials
from portal.environments.image_names import is_allowed, registry_of
from portal.environments.models import ImageSettings, Lock, Registry

WANTED_FOR = timedelta(hours=1)
"""How long nodes that have an image are asked to send it after one could not pull it."""
LOCK_TEXT = re.compile(r"[a-z0-9][a-z0-9.:-]*(/[a-z0-9._-]+)+@sha256:[0-9a-f]{64}")


def may_be_pulled(image: str) -> bool:
    """Return whether an admin allows an image now: one may have changed that since the environment was made."""
    return is_allowed(image, ImageSettings.current().allowed)


def access_to(image: str) -> dict[str, Any]:
    """Return how a node signs in at the registry of an image. It has the token: for approved nodes only, and never for a log."""
    row = Registry.objects.filter(host=registry_of(image)).first()
    if row is None:
        return {"user": "", "token": "", "insecure": False}
    token = credentials.unseal(row.sealed_token)
    return {"user": row.user if token else "", "token": token or "", "insecure": row.insecure}


def needs_archive(lock: Lock) -> bool:
    """Return whether a node that has an image is asked to send it."""
    return bool(without_archive([lock]))


def without_archive(locks: Iterable[Lock]) -> list[Lock]:
    """Return the images that nodes which have them are asked to send. One query."""
    archives, since = ImageSettings.current().archives, timezone.now() - WANTED_FOR
    if archives == ImageSettings.Archives.NEVER:
        return []
    always = archives == ImageSettings.Archives.ALWAYS
    return [
        lock
        for lock in locks
        if not lock.archive_sha256
        and (always or (lock.archive_wanted_at is not None and lock.archive_wanted_at > since))
    ]
