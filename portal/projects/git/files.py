"""The files of fetches in ``HOME/git``: their logs, and the archives that nodes send."""

import re
from pathlib import Path

from django.conf import settings

from portal.projects.git.models import GitFetch

_ARCHIVE = re.compile(r"\.incoming-([0-9]{1,18})-([0-9]{1,9})")


def folder() -> Path:
    path: Path = settings.HOME / "git"
    path.mkdir(mode=0o750, exist_ok=True)
    return path


def log_path(fetch: GitFetch) -> Path:
    return folder() / f"{fetch.pk}.log"


def archive_path(fetch: GitFetch) -> Path:
    """Return where the archive of a fetch arrives. Each node that is given the fetch has its own, so that the last piece of one
    never becomes part of what the next one sends."""
    return folder() / f".incoming-{fetch.pk}-{fetch.tries}"


def archives() -> dict[Path, tuple[int, int] | None]:
    """Return the archives that have arrived or do, with the fetch and the try of each; None for those of an earlier release."""
    found = {path: _ARCHIVE.fullmatch(path.name) for path in folder().glob(".incoming-*")}
    return {path: (int(match[1]), int(match[2])) if match else None for path, match in found.items()}
