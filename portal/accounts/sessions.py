"""Sessions, stored under the digest of their key, so that a copy of the database cannot be used to sign in."""

from typing import Any

from django.contrib.auth import SESSION_KEY
from django.contrib.sessions.backends.db import SessionStore as DbSessionStore
from django.contrib.sessions.base_session import AbstractBaseSession
from django.utils import timezone

from portal import callers
from portal.accounts.models import digest

COLUMN_LENGTH = 40
"""The length of Django's column; 160 bits of the digest suffice."""


def stored_key(session_key: str | None) -> str:
    """Return the key of a session in the database; ``session_key`` is the one in the browser's cookie."""
    return digest(session_key or "")[:COLUMN_LENGTH]


class SessionStore(DbSessionStore):
    def load(self) -> dict[str, Any]:
        return self._remember_user(super().load())

    async def aload(self) -> dict[str, Any]:
        return self._remember_user(await super().aload())

    def _remember_user(self, data: dict[str, Any]) -> dict[str, Any]:
        user = str(data.get(SESSION_KEY, ""))
        if self.session_key and user.isdecimal():
            callers.known_callers.remember(self.session_key, int(user))
        return data

    def _get_session_from_db(self) -> AbstractBaseSession | None:
        row = self.model.objects.filter(
            session_key=stored_key(self.session_key), expire_date__gt=timezone.now()
        ).first()
        if row is None:
            self._session_key = None
        return row

    async def _aget_session_from_db(self) -> AbstractBaseSession | None:
        row = await self.model.objects.filter(
            session_key=stored_key(self.session_key), expire_date__gt=timezone.now()
        ).afirst()
        if row is None:
            self._session_key = None
        return row

    def exists(self, session_key: str) -> bool:
        return super().exists(stored_key(session_key))

    async def aexists(self, session_key: str) -> bool:
        return await super().aexists(stored_key(session_key))

    def create_model_instance(self, data: dict[str, Any]) -> AbstractBaseSession:
        row = super().create_model_instance(data)
        row.session_key = stored_key(row.session_key)
        return row

    async def acreate_model_instance(self, data: dict[str, Any]) -> AbstractBaseSession:
        row = await super().acreate_model_instance(data)
        row.session_key = stored_key(row.session_key)
        return row

    def delete(self, session_key: str | None = None) -> None:
        if key := session_key or self.session_key:
            super().delete(stored_key(key))

    async def adelete(self, session_key: str | None = None) -> None:
        if key := session_key or self.session_key:
            await super().adelete(stored_key(key))
