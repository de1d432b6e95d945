"""Every request between supervisors and driver carries an HMAC of the attempt's secret.

The secret lives as long as the attempt, on a network that only the attempt reaches: a worker of an older attempt, or a
stranger who found the port, has another secret or none.
"""

import hashlib
import hmac

HEADER = "Schedulearn-Signature"


def sign(secret: str, method: str, path: str, body: bytes = b"") -> str:
    """Method, path and body are bound together, so that no part can be swapped under a signature."""
    digest = hashlib.sha256(body).hexdigest()
    return hmac.new(secret.encode(), f"{method}\n{path}\n{digest}".encode(), hashlib.sha256).hexdigest()


def verify(secret: str, signature: str | None, method: str, path: str, body: bytes = b"") -> bool:
    if not secret or not signature or not signature.isascii():
        return False
    return hmac.compare_digest(signature, sign(secret, method, path, body))
