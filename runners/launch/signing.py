"""Signatures: every request between supervisors and driver has an HMAC made with the attempt's secret.

The secret is valid as long as the attempt, on a network that only the attempt reaches: a process of an older attempt, or
an attacker who found the port, has another secret or none.
"""

import hashlib
import hmac

HEADER = "Schedulearn-Signature"


def sign(secret: str, method: str, path: str, body: bytes = b"") -> str:
    """Return the signature of method, path and body together, so that none of them can be exchanged."""
    digest = hashlib.sha256(body).hexdigest()
    return hmac.new(secret.encode(), f"{method}\n{path}\n{digest}".encode(), hashlib.sha256).hexdigest()


def verify(secret: str, signature: str | None, method: str, path: str, body: bytes = b"") -> bool:
    if not secret or not signature or not signature.isascii():
        return False
    return hmac.compare_digest(signature, sign(secret, method, path, body))
