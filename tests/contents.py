"""The files of a folder that programs are writing to."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def contents_below(folder: Path) -> Iterator[tuple[Path, bytes]]:
    """Yield the regular files below a folder with their content. One that is deleted meanwhile is left out."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink():
            with suppress(FileNotFoundError):
                yield path, path.read_bytes()
