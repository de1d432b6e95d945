"""Encrypts what the portal must know and its database must not: with a key that is kept outside, a dump of it opens nothing.

A key file has one key a line. The first seals, and each unseals: while ``manage.py rotate-keys`` replaces a key, both are there.
The file is read each time, so that processes that run use another key as soon as it is there.
"""

import base64
import hashlib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from django.conf import settings
from django.views.decorators.debug import sensitive_variables

from portal.key_files import stored_secret_key


class NoKeyError(RuntimeError):
    """A key file is empty, so that nothing can be encrypted with it."""


def keys_in(path: Path) -> list[str]:
    """Return the keys of a file, which is created with one if it does not exist."""
    return [key for line in stored_secret_key(path).splitlines() if (key := line.strip())]


@lru_cache(maxsize=32)
def cipher_of(keys: Sequence[str]) -> MultiFernet:
    """Return what encrypts with the first key, and decrypts with each."""
    return MultiFernet([Fernet(base64.urlsafe_b64encode(hashlib.sha256(key.encode()).digest())) for key in keys])


@sensitive_variables("text", "keys")
def seal(text: str, key_file: str) -> str:
    """Encrypt a text with the first key in a file of the portal's folder; an empty text stays empty. Raises NoKeyError."""
    if not text:
        return ""
    path = settings.HOME / key_file
    if not (keys := keys_in(path)):
        raise NoKeyError(f"{path} is empty. Restore it from a backup, or delete it, and what it encrypted is lost.")
    return cipher_of(tuple(keys)).encrypt(text.encode()).decode()


@sensitive_variables("keys")
def unseal(sealed: str, key_file: str) -> str | None:
    """Return the text; None if it was sealed with a key that is lost, as after a restore of the database alone."""
    if not sealed:
        return ""
    keys = keys_in(settings.HOME / key_file)
    try:
        return cipher_of(tuple(keys)).decrypt(sealed.encode()).decode() if keys else None
    except InvalidToken:
        return None
