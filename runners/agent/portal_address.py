"""The address of the portal, and whom the agent trusts there."""

import hashlib
import ipaddress
import ssl
from pathlib import Path
from urllib.parse import urlsplit


def tls_context(ca_file: Path | None, pin: str) -> ssl.SSLContext:
    """Return the TLS context that trusts the machine's authorities, one authority, or one certificate alone.

    A pinned certificate may have any name: an admin has pasted its fingerprint. Raises ValueError.
    """
    # A context of our own: with trust_env httpx would let SSL_CERT_FILE override the CA given to us.
    if not pin:
        return ssl.create_default_context(cafile=str(ca_file)) if ca_file else ssl.create_default_context()
    if ca_file is None:
        raise ValueError("SCHEDULEARN_PIN needs SCHEDULEARN_CA, the file of the certificate.")
    pem = ca_file.read_text()
    if hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem)).hexdigest() != pin.lower():
        raise ValueError(f"The certificate in {ca_file} is not the one that SCHEDULEARN_PIN names.")
    context = ssl.create_default_context(cadata=pem)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def checked_url(url: str, allow_http: bool) -> str:
    """Return the portal's address. Raises ValueError for an invalid one, or when the token would be sent unencrypted."""
    example = f"{url!r} is not the address of a portal. Give it like https://schedulearn.example.org"
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises ValueError for an invalid port
    except ValueError as error:
        raise ValueError(example) from error
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query or parts.fragment:
        raise ValueError(example)
    if parts.scheme == "http" and not allow_http and not _is_loopback(parts.hostname):
        raise ValueError(
            f"{url} would send this node's token unencrypted. Use https://, or set SCHEDULEARN_ALLOW_HTTP=true "
            "on a network that no one can listen to."
        )
    return url.rstrip("/")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
