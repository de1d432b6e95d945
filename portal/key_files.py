"""Keys that are created once and kept in the portal's folder, outside the database."""

import os
import secrets
import tempfile
from contextlib import suppress
from pathlib import Path


def stored_secret_key(path: Path) -> str:
    """Return the key in a file, which is created once. Simultaneous starts agree on one."""
    if not path.exists():
        with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=".secret_key-") as file:  # mode 0600
            file.write(secrets.token_urlsafe(50))
            file.flush()
            with suppress(FileExistsError):
                os.link(file.name, path)
    return path.read_text().strip()
