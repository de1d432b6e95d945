"""API tokens: ``Authorization: Bearer sl_...``."""

from datetime import timedelta

from django.utils import timezone
from rest_framework.authentication import BaseAuthentication, get_authorization_header
from rest_framework.exceptions import AuthenticationFailed, PermissionDenied
from rest_framework.request import Request

from portal import callers
from portal.accounts.models import ApiToken, User, digest

USED_RESOLUTION = timedelta(minutes=1)
"""``last_used_at`` is written at most this often, so that most reads of the API write no row."""


class TokenAuthentication(BaseAuthentication):
    def authenticate(self, request: Request) -> tuple[User, ApiToken] | None:
        scheme, _, token = get_authorization_header(request).decode("latin-1").partition(" ")
        if scheme.lower() != "bearer":
            return None
        row = ApiToken.objects.select_related("user").filter(token_digest=digest(token.strip())).first()
        if row is None or not row.is_live or not row.user.is_active:
            raise AuthenticationFailed(
                "This API token is unknown, expired or revoked. Create a new one under Account, API tokens."
            )
        if row.scope == ApiToken.Scope.READ and request.method not in ("GET", "HEAD", "OPTIONS"):
            raise PermissionDenied("This API token may only read.")
        callers.known_callers.remember(token.strip(), row.user_id)
        now = timezone.now()
        if row.last_used_at is None or now - row.last_used_at > USED_RESOLUTION:
            ApiToken.objects.filter(pk=row.pk).update(last_used_at=now)
        return row.user, row

    def authenticate_header(self, request: Request) -> str:
        return "Bearer"
