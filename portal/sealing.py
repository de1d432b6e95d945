"""Encrypts what the portal must know and its database must not: with a key that is kept outside, a dump of it opens nothing."""

import base64
import hashlib
from functools import cache

from cryptography.fernet import Fernet, InvalidToken
from django.conf import settings

from portal.key_files import stored_secret_key


@cache
def _cipher(key: str) -> Fernet:
    return Fernet(base64.urlsafe_b64encode(hashlib.sha256(key.encode()).digest()))


def seal(text: str, key_file: str) -> str:
    """Encrypt a text with the key in a file of the portal's folder; an empty one stays empty."""
    return _cipher(stored_secret_key(settings.HOME / key_file)).encrypt(text.encode()).decode() if text else ""


def unseal(sealed: str, key_file: str) -> str | None:
    """Return the text; None if it was sealed with a key that is lost, as after a restore of the database alone."""
    if not sealed:
        return ""
    try:
        return _cipher(stored_secret_key(settings.HOME / key_file)).decrypt(sealed.encode()).decode()
    except InvalidToken:
        return None
