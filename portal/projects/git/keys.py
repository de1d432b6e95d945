"""Deploy keys, host keys and secrets of repositories."""

import base64
import binascii
import hashlib
import re
import secrets

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519

from portal import sealing

KEY_FILE = "git_key"
"""In the portal's folder, beside the key that signs sessions."""
HOST_KEY = re.compile(r"(ssh-ed25519|ssh-rsa|ecdsa-sha2-nistp(?:256|384|521)) [A-Za-z0-9+/]{40,2000}={0,2}")


def seal(text: str) -> str:
    """Encrypt a text; an empty one stays empty."""
    return sealing.seal(text, KEY_FILE)


def unseal(sealed: str) -> str | None:
    """Return the text; None if it was sealed with a key that is lost, as after a restore of the database alone."""
    return sealing.unseal(sealed, KEY_FILE)


def make_deploy_key(comment: str) -> tuple[str, str]:
    """Return the private and the public part of a new key, in the formats of OpenSSH."""
    key = ed25519.Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return private.decode(), f"{public.decode()} {comment}"


def fingerprint(key: str) -> str:
    """Return the fingerprint of a key as ssh shows it; empty if it is no key."""
    try:
        blob = base64.b64decode(key.split(" ")[1], validate=True)
    except (IndexError, binascii.Error):
        return ""
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def new_secret() -> str:
    return secrets.token_urlsafe(32)


def new_hook() -> str:
    return secrets.token_hex(16)
