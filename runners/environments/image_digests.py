"""The content that an image name refers to: digests that an admin pins, and those that a name resolved to.

``python:3.11-slim-bookworm@sha256:...`` refers to exactly one image; a tag alone to whatever the registry has today.
"""

import re
from collections.abc import Sequence

from runners.environments.preparing import PrepareError

DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def pinned_digest(image: str) -> str | None:
    """Return the digest in an image's name, None for a tag. Raises PrepareError for an incomplete one."""
    _, at, digest = image.partition("@")
    if not at:
        return None
    if not DIGEST.fullmatch(digest):
        raise PrepareError(
            f"The image {image} names no complete digest.",
            "Write NAME:TAG@sha256: and 64 hexadecimal digits, or leave out @ and what follows.",
        )
    return digest


def verify(image: str, repo_digests: Sequence[str]) -> None:
    """Raise PrepareError unless an image that is pinned by a digest has that digest.

    ``repo_digests`` are the engine's (``python@sha256:...``); an image that was built or imported here has none.
    """
    digest = pinned_digest(image)
    if digest is not None and digest not in {each.partition("@")[2] for each in repo_digests}:
        raise PrepareError(
            f"The engine's image {image} does not have this digest; it has {', '.join(repo_digests) or 'none'}.",
            f"Pull it from its registry (docker pull {image}), or change SCHEDULEARN_BASE_IMAGE.",
        )


def origin(image: str, repo_digests: Sequence[str], image_id: str) -> str:
    """Return a sentence with what an environment was made from. It is recorded with the environment."""
    name = image.partition("@")[0]
    if repo_digests:
        return f"Made from {name} ({repo_digests[0].partition('@')[2]})."
    return f"Made from {name} (image ID {image_id}; it does not come from a registry)."
