from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def path_of(digest: str) -> Path | None:
    return None


def mark_used(digest: str) -> None: ...


def unpack(archive: Path, digest: str, sha256: str) -> None: ...


@contextmanager
def packed(digest: str) -> Iterator[tuple[Path, str]]:
    yield Path(), ""
