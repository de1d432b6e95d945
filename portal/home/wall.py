"""Links of screens on the wall: an admin creates and revokes them; whoever has the secret sees the lab, and no jobs."""

import secrets
from datetime import datetime, timedelta

from django.core.cache import cache
from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from portal.accounts.audit import audit
from portal.accounts.models import User, digest
from portal.home.models import WallLink
from portal.refused import Refused

MAX_LINKS = 50
"""Valid links of the lab; more would be the fault of a script."""
USE_RECORDED_EVERY = timedelta(minutes=1)
WINDOW_SECONDS = 60
MAX_VIEWS = 120
"""Views of one link in ``WINDOW_SECONDS``: some ten screens, each of which asks every ten seconds, and people who look."""
MAX_WRONG = 20
"""Wrong secrets from one address in ``WINDOW_SECONDS``. A secret has 256 bits; this only spares the database."""


class TooManyRequestsError(Exception):
    """A link is asked for too often, or an address tries wrong ones."""


def live_links() -> list[WallLink]:
    return list(WallLink.objects.filter(revoked_at=None).select_related("created_by"))


@transaction.atomic
def create_link(actor: User, name: str, *, names_people: bool) -> tuple[WallLink, str]:
    """Create a link. Return its row and its secret, which cannot be retrieved later."""
    if WallLink.objects.filter(revoked_at=None).count() >= MAX_LINKS:
        raise Refused(f"There are {MAX_LINKS} links already. Revoke those that are not used.", "conflict")
    secret = secrets.token_urlsafe(32)
    link = WallLink.objects.create(name=name, token_digest=digest(secret), names_people=names_people, created_by=actor)
    audit(actor, "wall_link.created", name, after={"names_people": names_people})
    return link, secret


@transaction.atomic
def revoke_link(actor: User, link: WallLink) -> None:
    """End a link at once. Revoking it twice changes nothing."""
    if WallLink.objects.filter(pk=link.pk, revoked_at=None).update(revoked_at=timezone.now()):
        audit(actor, "wall_link.revoked", link.name)


def find_link(secret: str, address: str, now: datetime) -> WallLink | None:
    """Return the valid link of a secret, and record its use. Raises TooManyRequestsError."""
    wrong = f"wrong-wall-links-from-{address}"
    if int(cache.get(wrong, 0)) >= MAX_WRONG:
        raise TooManyRequestsError
    link = WallLink.objects.filter(token_digest=digest(secret), revoked_at=None).first()
    if link is None:
        _count(wrong)
        return None
    if _count(f"views-of-wall-link-{link.pk}") > MAX_VIEWS:
        raise TooManyRequestsError
    old = Q(last_used_at=None) | Q(last_used_at__lte=now - USE_RECORDED_EVERY)
    WallLink.objects.filter(old, pk=link.pk).update(last_used_at=now)
    return link


def _count(key: str) -> int:
    """Count a request of the present window; return how many there were. Zero while the cache is away."""
    cache.add(key, 0, WINDOW_SECONDS)
    try:
        return int(cache.incr(key))
    except ValueError:  # it has just expired
        cache.set(key, 1, WINDOW_SECONDS)
        return 1
