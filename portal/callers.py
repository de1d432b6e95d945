"""The users of tokens and sessions that this process has seen, for limits that apply before a request is examined.

Only a hint: each request checks in the database whether its token or session is still valid.
"""

from collections import OrderedDict
from hashlib import blake2b
from threading import Lock

MAX_KNOWN = 10_000


class Callers:
    """Maps secrets to users. Thread-safe. Keeps digests, and only the ``MAX_KNOWN`` that were learned last."""

    def __init__(self) -> None:
        self._users: OrderedDict[bytes, int] = OrderedDict()
        self._lock = Lock()

    def remember(self, secret: str, user_id: int) -> None:
        key = _key(secret)
        if self._users.get(key) == user_id:
            return
        with self._lock:
            self._users[key] = user_id
            if len(self._users) > MAX_KNOWN:
                self._users.popitem(last=False)

    def user_of(self, secret: str) -> int | None:
        return self._users.get(_key(secret))


def _key(secret: str) -> bytes:
    return blake2b(secret.encode(errors="replace"), digest_size=16).digest()


known_callers = Callers()
