"""The tests' migrated SQLite database, kept between runs: to apply all migrations takes ten seconds and more.

The file is named by a hash of all migrations, of the modules of the portal that they import, and of the versions of Django
and SQLite. When one of them changes, the next run applies all migrations again.
"""

import hashlib
import importlib.util
import os
import re
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import django
import pytest
from django.apps import apps
from django.db import connection
from django.db.backends.sqlite3.creation import DatabaseCreation

KEPT = 8
"""Files, for so many checkouts or branches."""
IMPORTED = re.compile(r"^(?:from|import) (portal[.\w]*)", re.MULTILINE)


def folder() -> Path:
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("SCHEDULEARN_CACHE") or caches / "schedulearn") / "test-databases"


def fingerprint() -> str:
    """Return a hash of everything that decides which tables and rows the migrations make."""
    named = [
        (f"{app.label}.{path.stem}", path)
        for app in apps.get_app_configs()
        for path in sorted(Path(app.path, "migrations").glob("*.py"))
    ]
    modules = {name for _, path in named for name in IMPORTED.findall(path.read_text())}
    specs = ((name, importlib.util.find_spec(name)) for name in sorted(modules))
    named += [(name, Path(spec.origin)) for name, spec in specs if spec and spec.origin]
    found = hashlib.sha256(f"{django.VERSION} {sqlite3.sqlite_version}".encode())
    for name, path in named:  # by names, not by places: all checkouts share the files
        content = path.read_bytes()
        found.update(f"{name} {len(content)}\n".encode() + content)
    return found.hexdigest()[:32]


@contextmanager
def filled_from(file: Path) -> Iterator[None]:
    """Let the test database, which SQLite has in memory, begin with the content of a file, if it exists."""
    plain = DatabaseCreation._create_test_db  # type: ignore[attr-defined]
    opened: list[sqlite3.Connection] = []

    def create(self: DatabaseCreation, *args: object, **kwargs: object) -> str:
        name: str = plain(self, *args, **kwargs)
        if file.exists():
            opened.append(sqlite3.connect(name, uri=True))  # without a connection, SQLite forgets the database
            with closing(sqlite3.connect(file)) as kept:
                kept.backup(opened[-1])
        return name

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DatabaseCreation, "_create_test_db", create)
        try:
            yield
        finally:
            for each in opened:
                each.close()


def keep(file: Path) -> None:
    """Keep the test database in a file for later runs, and remove the oldest ones."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=file.parent) as making, connection.cursor() as cursor:
        cursor.execute("VACUUM INTO %s", [f"{making}/new"])
        os.replace(f"{making}/new", file)
    by_age = sorted(file.parent.glob("*.sqlite3"), key=lambda path: path.stat().st_mtime, reverse=True)
    for old in by_age[KEPT:]:
        old.unlink(missing_ok=True)
