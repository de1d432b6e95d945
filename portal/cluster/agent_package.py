"""The agent as new machines download it from this portal: an archive, its install script, and the join command.

The join command has the SHA-256 of the script, and the script that of the archive, so that neither can be altered on its
way.
"""

import gzip
import hashlib
import io
import shlex
import socket
import ssl
import tarfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

from django.conf import settings

PACKAGES = ("docker", "httpx", "nvidia-ml-py", "packaging", "uv")
"""The packages of requirements.txt that the agent needs."""
LOCK = "deploy/agent/requirements.lock"
"""These packages and all their dependencies, with hashes (``make lock``)."""
EXCLUDED = frozenset({"__pycache__"})
CONNECT_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Package:
    content: bytes
    sha256: str


@cache
def package() -> Package:
    """Return the archive, built once per process; the same files give the same bytes."""
    content = pack(settings.BASE_DIR)
    return Package(content, hashlib.sha256(content).hexdigest())


def pack(root: Path) -> bytes:
    out = io.BytesIO()
    # Without file names or times of this machine, so that all processes of a portal announce the same SHA-256.
    with gzip.GzipFile(fileobj=out, mode="wb", mtime=0) as packed, tarfile.open(fileobj=packed, mode="w") as archive:
        _add(archive, "requirements.lock", (root / LOCK).read_bytes())
        for path in sorted((root / "runners").rglob("*")):
            if path.is_file() and not EXCLUDED.intersection(path.parts):
                _add(archive, path.relative_to(root).as_posix(), path.read_bytes())
    return out.getvalue()


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(content), 0o644
    archive.addfile(info, io.BytesIO(content))


def requirements(root: Path) -> str:
    """Return the lines of requirements.txt that pin the packages of the agent."""
    lines = (root / "requirements.txt").read_text().splitlines()
    return "".join(f"{line}\n" for line in lines if line.partition("==")[0] in PACKAGES)


@cache
def install_script() -> str:
    text = (settings.BASE_DIR / "deploy" / "agent" / "install.sh").read_text()
    return text.replace("@URL@", settings.SITE_URL.rstrip("/")).replace("@SHA256@", package().sha256)


def script_sha256() -> str:
    """Return the SHA-256 of the script as the shell gets it: ``$(...)`` drops trailing line ends."""
    return hashlib.sha256(install_script().rstrip("\n").encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Certificate:
    """Whether a new machine will trust the TLS certificate of this portal."""

    trusted: bool
    pin: str = ""
    """SHA-256 of a certificate that no known authority signed."""
    problem: str = ""
    """Why the certificate could not be checked."""


def check_certificate(url: str) -> Certificate:
    """Check the portal's certificate as a new machine would, from outside."""
    parts = urlsplit(url)
    if parts.scheme != "https":
        return Certificate(True)
    address = (parts.hostname or "", parts.port or 443)
    try:
        pem = ssl.get_server_certificate(address, timeout=CONNECT_SECONDS)
    except OSError as error:
        return Certificate(True, problem=f"This portal could not check its own certificate at {url} ({error}).")
    if _is_trusted(address):
        return Certificate(True)
    return Certificate(False, hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem)).hexdigest())


def _is_trusted(address: tuple[str, int]) -> bool:
    try:
        with (
            socket.create_connection(address, timeout=CONNECT_SECONDS) as plain,
            ssl.create_default_context().wrap_socket(plain, server_hostname=address[0]),
        ):
            return True
    except OSError:  # includes the errors of ssl
        return False


def is_local_or_insecure(url: str) -> bool:
    """Return whether the address works on this machine only, or without the security of HTTPS."""
    return urlsplit(url).scheme != "https" or (urlsplit(url).hostname or "") in ("localhost", "127.0.0.1", "::1")


def join_command(url: str, token: str, certificate: Certificate) -> str:
    """Return the join command, for a shell. It checks the SHA-256 of the downloaded script before it runs any of it."""
    url = url.rstrip("/")
    fetch = "curl -fsSL" if certificate.trusted else "curl -fsSLk"
    pin = f" --pin {certificate.pin}" if certificate.pin else ""
    return (
        f'S="$({fetch} {shlex.quote(f"{url}/agent/install.sh")})" && '
        f'[ "$(printf %s "$S" | sha256sum)" = "{script_sha256()}  -" ] && '
        f'SCHEDULEARN_JOIN_TOKEN={token} sh -c "$S" install --url {shlex.quote(url)}{pin}'
    )
