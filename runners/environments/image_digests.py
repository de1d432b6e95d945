"""The content that an image name refers to: digests that an admin pins, and those that a name resolved to.

``python:3.11-slim-bookworm@sha256:...`` refers to exactly one image; a tag alone to whatever the registry has today.
"""

import re
from collections.abc import Sequence

from runners.environments.preparing import PrepareError
from runners.messages import Message
from runners.messages.environment_failures import IncompleteDigest, OtherDigest
from runners.messages.environments import MadeFrom, MadeFromLocal

DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def pinned_digest(image: str) -> str | None:
    """Return the digest in an image's name, None for a tag. Raises PrepareError for an incomplete one."""
    _, at, digest = image.partition("@")
    if not at:
        return None
    if not DIGEST.fullmatch(digest):
        raise PrepareError(IncompleteDigest(image))
    return digest


def verify(image: str, repo_digests: Sequence[str]) -> None:
    """Raise PrepareError unless an image that is pinned by a digest has that digest.

    ``repo_digests`` are the engine's (``python@sha256:...``); an image that was built or imported here has none.
    """
    digest = pinned_digest(image)
    if digest is not None and digest not in {each.partition("@")[2] for each in repo_digests}:
        raise PrepareError(OtherDigest(image, tuple(repo_digests)))


def origin(image: str, repo_digests: Sequence[str], image_id: str) -> Message:
    """Return what an environment was made from. It is recorded with the environment."""
    name = image.partition("@")[0]
    if repo_digests:
        return MadeFrom(name, repo_digests[0].partition("@")[2])
    return MadeFromLocal(name, image_id)
