"""Tokens of registries, encrypted with a key that is kept outside the database: a dump of it opens nothing."""

import base64
import hashlib
import logging
from functools import cache

from cryptography.fernet import Fernet, InvalidToken
from django.conf import settings

from portal.key_files import stored_secret_key

KEY_FILE = "registry_key"
"""In the portal's folder, beside the key that signs sessions."""

logger = logging.getLogger(__name__)


@cache
def _cipher(key: str) -> Fernet:
    return Fernet(base64.urlsafe_b64encode(hashlib.sha256(key.encode()).digest()))


def seal(token: str) -> str:
    """Encrypt a token; an empty one stays empty."""
    return _cipher(stored_secret_key(settings.HOME / KEY_FILE)).encrypt(token.encode()).decode() if token else ""


def unseal(sealed: str) -> str | None:
    """Return the token; None if it was sealed with a key that is lost, as after a restore of the database alone."""
    if not sealed:
        return ""
    try:
        return _cipher(stored_secret_key(settings.HOME / KEY_FILE)).decrypt(sealed.encode()).decode()
    except InvalidToken:
        return None
