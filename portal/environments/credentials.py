"""Tokens of registries, encrypted with a key that is kept outside the database."""

from portal import sealing

KEY_FILE = "registry_key"
"""In the portal's folder, beside the key that signs sessions."""


def seal(token: str) -> str:
    """Encrypt a token; an empty one stays empty."""
    return sealing.seal(token, KEY_FILE)


def unseal(sealed: str) -> str | None:
    """Return the token; None if it was sealed with a key that is lost, as after a restore of the database alone."""
    return sealing.unseal(sealed, KEY_FILE)
