"""The agent as new machines fetch it from this portal: an archive, the script that installs it, and the line to paste.

The line names the SHA-256 of the script, and the script that of the archive, so neither has to be believed on its way.
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

PACKAGES = ("docker", "httpx", "nvidia-ml-py", "uv")
"""What the agent needs of requirements.txt."""
LOCK = "deploy/agent/requirements.lock"
"""These packages and all that they need, with hashes (``make lock``)."""
LEFT_OUT = frozenset({"__pycache__"})
LOOK_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Package:
    content: bytes
    sha256: str


@cache
def package() -> Package:
    """Made once per process; the same files give the same bytes."""
    content = pack(settings.BASE_DIR)
    return Package(content, hashlib.sha256(content).hexdigest())


def pack(root: Path) -> bytes:
    out = io.BytesIO()
    # No file names or times of this machine, so that all processes of a portal announce one SHA-256.
    with gzip.GzipFile(fileobj=out, mode="wb", mtime=0) as packed, tarfile.open(fileobj=packed, mode="w") as archive:
        _add(archive, "requirements.lock", (root / LOCK).read_bytes())
        for path in sorted((root / "runners").rglob("*")):
            if path.is_file() and not LEFT_OUT.intersection(path.parts):
                _add(archive, path.relative_to(root).as_posix(), path.read_bytes())
    return out.getvalue()


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(content), 0o644
    archive.addfile(info, io.BytesIO(content))


def requirements(root: Path) -> str:
    """The pinned lines of the packages that the agent needs."""
    lines = (root / "requirements.txt").read_text().splitlines()
    return "".join(f"{line}\n" for line in lines if line.partition("==")[0] in PACKAGES)


@cache
def install_script() -> str:
    text = (settings.BASE_DIR / "deploy" / "agent" / "install.sh").read_text()
    return text.replace("@URL@", settings.SITE_URL.rstrip("/")).replace("@SHA256@", package().sha256)


def script_sha256() -> str:
    """As the shell sees it: ``$(...)`` drops the line ends at the end."""
    return hashlib.sha256(install_script().rstrip("\n").encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Certificate:
    """What a new machine will think of this portal's TLS."""

    trusted: bool
    pin: str = ""
    """SHA-256 of a certificate that no authority vouches for."""
    problem: str = ""
    """Why nothing could be learnt."""


def own_certificate(url: str) -> Certificate:
    """Looks at the portal as a new machine would, from outside."""
    parts = urlsplit(url)
    if parts.scheme != "https":
        return Certificate(True)
    place = (parts.hostname or "", parts.port or 443)
    try:
        pem = ssl.get_server_certificate(place, timeout=LOOK_SECONDS)
    except OSError as error:
        return Certificate(True, problem=f"This portal could not look at its own certificate at {url} ({error}).")
    if _is_trusted(place):
        return Certificate(True)
    return Certificate(False, hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem)).hexdigest())


def _is_trusted(place: tuple[str, int]) -> bool:
    try:
        with (
            socket.create_connection(place, timeout=LOOK_SECONDS) as plain,
            ssl.create_default_context().wrap_socket(plain, server_hostname=place[0]),
        ):
            return True
    except OSError:  # ssl's errors are among them
        return False


def is_only_here(url: str) -> bool:
    """Whether other machines cannot reach the portal by this address, or would not by themselves trust it."""
    return urlsplit(url).scheme != "https" or (urlsplit(url).hostname or "") in ("localhost", "127.0.0.1", "::1")


def install_line(url: str, token: str, certificate: Certificate) -> str:
    """For a shell of a new machine. What came is compared with its SHA-256 before any of it runs."""
    url = url.rstrip("/")
    fetch = "curl -fsSL" if certificate.trusted else "curl -fsSLk"
    pin = f" --pin {certificate.pin}" if certificate.pin else ""
    return (
        f'S="$({fetch} {shlex.quote(f"{url}/agent/install.sh")})" && '
        f'[ "$(printf %s "$S" | sha256sum)" = "{script_sha256()}  -" ] && '
        f'SCHEDULEARN_JOIN_TOKEN={token} sh -c "$S" install --url {shlex.quote(url)}{pin}'
    )
