"""The files of a folder that programs are writing to."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def contents_below(folder: Path) -> Iterator[tuple[Path, bytes]]:
    """Yield the regular files below a folder with their content. Those that are deleted meanwhile, or whose folder is, are left out."""
    for above, _, names in os.walk(folder):
        for path in sorted(Path(above, name) for name in names):
            if path.is_file() and not path.is_symlink():
                with suppress(FileNotFoundError):
                    yield path, path.read_bytes()
