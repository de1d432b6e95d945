"""Names of images as people write them, in full: ``ubuntu`` is ``docker.io/library/ubuntu:latest``. And what admins allow.

What is accepted here is what a registry and an engine understand in one way only: no address, user, option, or name that looks
like another one.
"""

import re
from collections.abc import Iterable

HUB = "docker.io"
HUB_NAMES = frozenset({"docker.io", "index.docker.io", "registry-1.docker.io", "registry.hub.docker.com"})
LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
HOST = re.compile(rf"{LABEL}(?:\.{LABEL})*(?::(?P<port>[0-9]{{1,5}}))?")
PART = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*")
TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
MAX_CHARACTERS = 255
MAX_PORT = 65_535
IMAGE_ID = re.compile(r"sha256:[0-9a-f]+|[0-9a-f]{64}", re.IGNORECASE)
"""As an engine shows the images that it has."""
EXAMPLE = "ghcr.io/lab/train:1.2"


class ImageNameError(ValueError):
    """Why a name is not accepted: a sentence."""


def full_name(text: str) -> str:
    """Return the full name of an image, with its tag or digest. Raises ImageNameError."""
    text = text.strip()
    if not text:
        raise ImageNameError(f"Name an image, such as {EXAMPLE}.")
    _refuse_strange(text)
    if IMAGE_ID.fullmatch(text):
        raise ImageNameError(
            f"That is the id of an image on one machine. Give its name in a registry, such as {EXAMPLE}."
        )
    rest, at, digest = text.partition("@")
    if at and not DIGEST.fullmatch(digest):
        raise ImageNameError("After @ comes a digest: sha256: and 64 hexadecimal digits.")
    head, slash, last = rest.rpartition("/")
    last, colon, tag = last.partition(":")
    if colon and not TAG.fullmatch(tag):
        raise ImageNameError(f"“{tag[:60]}” is not a tag. Write REGISTRY/NAME:TAG, such as {EXAMPLE}.")
    host, path = _split(f"{head}{slash}{last}")
    if not path:
        raise ImageNameError(f"Name an image of the registry {host}, such as {EXAMPLE}.")
    name = f"{host}/{path}"
    if at:
        return f"{name}@{digest}"  # a tag beside a digest means nothing
    return f"{name}:{tag or 'latest'}"


def full_prefix(text: str) -> str:
    """Return what an admin allows in full: a registry (``ghcr.io``), or a beginning of names (``ghcr.io/lab``), without a slash
    at the end. Raises ImageNameError."""
    text = text.strip()
    if "://" in text:
        raise ImageNameError("Leave out https://: write a registry, such as ghcr.io, or a beginning of names.")
    _refuse_strange(text)
    if "@" in text or ":" in text.rpartition("/")[2] and "/" in text:
        raise ImageNameError("Name it without a tag or digest: all versions are allowed.")
    trimmed = text.rstrip("/")
    if not trimmed:
        raise ImageNameError("Name a registry, such as ghcr.io, or a beginning of names, such as ghcr.io/lab.")
    if "/" not in trimmed and (_is_host(trimmed) or (text.endswith("/") and ":" in trimmed)):
        return _host(trimmed)
    if text.endswith("/") and "/" not in trimmed:  # pytorch/: what that user has at Docker Hub
        return f"{HUB}/{_path(trimmed)}"
    first, slash, rest = trimmed.partition("/")
    if slash and _is_host(first):  # docker.io/pytorch is a user of Docker Hub here, not an image
        return f"{_host(first)}/{_path(rest)}"
    return f"{HUB}/{_path(trimmed if slash else f'library/{trimmed}')}"


def is_allowed(image: str, prefixes: Iterable[str]) -> bool:
    """Return whether a full name begins with one of these prefixes, by whole parts: ``ghcr.io/lab`` does not allow
    ``ghcr.io/lab-of-others``."""
    name = repository_of(image)
    return any(name == prefix or name.startswith(f"{prefix}/") for prefix in prefixes)


def repository_of(image: str) -> str:
    """Return a full name without its tag or digest."""
    head, _, last = image.partition("@")[0].rpartition("/")
    return f"{head}/{last.partition(':')[0]}"


def registry_of(image: str) -> str:
    return image.partition("/")[0]


def registry_host(text: str) -> str:
    """Return a registry's host, with its port if it has one. Raises ImageNameError."""
    text = text.strip()
    if "://" in text:
        bare = text.partition("://")[2].partition("/")[0]
        example = f": {bare}" if HOST.fullmatch(bare.lower()) else ", such as ghcr.io"
        raise ImageNameError(f"Write the registry without https://{example}.")
    _refuse_strange(text := text.rstrip("/"))
    if "/" in text:
        raise ImageNameError("Name only the registry: HOST or HOST:PORT, without a path.")
    return _host(text)


def _refuse_strange(text: str) -> None:
    if "://" in text:
        raise ImageNameError("Leave out https://: write REGISTRY/NAME:TAG.")
    if len(text) > MAX_CHARACTERS:
        raise ImageNameError(f"A name has at most {MAX_CHARACTERS} characters.")
    if not text.isascii() or not text.isprintable() or " " in text:
        raise ImageNameError("A name has only letters without accents, digits, and . _ - / : @.")


def _split(name: str) -> tuple[str, str]:
    """Return the registry and the path of a name without a tag, as Docker understands it."""
    first, slash, rest = name.partition("/")
    if not slash and "." in name:
        raise ImageNameError(f"Name an image of the registry {name[:60]}, such as {EXAMPLE}.")
    if not slash or not _is_host(first):
        return HUB, _path(name if slash else f"library/{name}")
    host = _host(first)
    if host == HUB and rest and "/" not in rest:
        rest = f"library/{rest}"
    return host, _path(rest) if rest else ""


def _is_host(part: str) -> bool:
    """Whether the first part of a name is a registry, by Docker's rule."""
    return "." in part or ":" in part or part.lower() == "localhost"


def _host(text: str) -> str:
    if "@" in text:
        raise ImageNameError("A registry is named without a user.")
    lower = text.lower()
    found = HOST.fullmatch(lower)
    if found is None or int(found["port"] or 1) not in range(1, MAX_PORT + 1):
        raise ImageNameError(f"“{text[:60]}” is not a registry: write HOST or HOST:PORT.")
    if "xn--" in lower:
        raise ImageNameError("Registries with international names are not accepted: they can look like others.")
    return HUB if lower in HUB_NAMES else lower


def _path(text: str) -> str:
    for part in text.split("/"):
        if not PART.fullmatch(part):
            why = (
                "Names have lower-case letters only."
                if part != part.lower()
                else f"Write REGISTRY/NAME:TAG, such as {EXAMPLE}."
            )
            raise ImageNameError(f"“{part[:60]}” is not part of a name. {why}")
    return text
