"""Fixtures every layer shares. Tests keep their files in a folder of their own, never in the user's home."""

import gc
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import django
import hypothesis
import pytest
from django.conf import settings
from django.db.models.signals import post_migrate

from tests.examples import HUNT, examples

os.environ.setdefault("SCHEDULEARN_HOME", tempfile.mkdtemp(prefix="schedulearn-test-"))
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings")
if (worker := os.environ.get("PYTEST_XDIST_WORKER")) == "gw1" and "REDIS_URL_OF_GW1" in os.environ:
    os.environ["REDIS_URL"] = os.environ["REDIS_URL_OF_GW1"]  # bells of one worker's tests must not ring in the other's
# Not in pyproject.toml: from there pytest-django would read the settings before this folder is named.
django.setup()  # test modules import models, and pytest-django waits with this until settings were looked at
# Nor in the environment of workers, for the same reason: they would have the Redis of the first one, and clear its cache.
del os.environ["DJANGO_SETTINGS_MODULE"]
assert os.environ.get("REDIS_URL", "") == settings.REDIS_URL

if (
    worker
):  # has read the settings with the folder of all workers, whose jobs have the same numbers, and so the same files
    settings.HOME = Path(tempfile.mkdtemp(prefix=f"{worker}-", dir=settings.HOME))
    os.environ["SCHEDULEARN_HOME"] = str(settings.HOME)

# No test needs Django's own permissions. Creating them again after each test that commits takes most of its clean-up.
from django.contrib.contenttypes.management import create_contenttypes  # noqa: E402

post_migrate.disconnect(dispatch_uid="django.contrib.auth.management.create_permissions")
post_migrate.disconnect(create_contenttypes)

from portal.cluster import alarms  # noqa: E402
from portal.jobs import lifecycle  # noqa: E402
from portal.jobs.clock import WallClock  # noqa: E402

# Hypothesis offers a patch with an example that fails. It makes it with libcst, which breaks on objects that zope.interface
# has changed: pytest would end without naming the example.
sys.modules["hypothesis.extra._patching"] = None  # type: ignore[assignment]

# Property tests draw the same examples in each run, so that a change fails by what it changed. HUNT=1 (make test-all)
# draws new ones by the seed that --hypothesis-seed names, and keeps those that fail in .hypothesis/.
# How long one example takes, or to draw it, is no law: machines are busy at times.
AT_ANY_SPEED: dict[str, Any] = {"deadline": None, "suppress_health_check": [hypothesis.HealthCheck.too_slow]}
hypothesis.settings.register_profile("steady", derandomize=True, max_examples=examples(100, 30), **AT_ANY_SPEED)
hypothesis.settings.register_profile("hunt", **AT_ANY_SPEED)
hypothesis.settings.load_profile("hunt" if HUNT else "steady")

# A third of a second for each password is right for people and wrong for a thousand tests that make six of them.
settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
settings.WHITENOISE_AUTOREFRESH = True
"""Otherwise each test's client reads the folder of static files again."""


@pytest.fixture(autouse=True)
def trusted_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """For its first seconds, a process doubts its clock: what a test sees must not depend on how soon it runs."""
    monkeypatch.setattr(lifecycle, "wall_clock", WallClock(start_seconds=0.0))


@pytest.fixture(autouse=True)
def disks_with_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test sees must not depend on how full the disk of this machine is."""
    monkeypatch.setattr(alarms, "portal_disks", list)


@pytest.fixture(scope="session")
def migrated_file(django_db_modify_db_settings: None, django_db_blocker: Any) -> Iterator[Path]:
    """Begin with the database that a run before has migrated."""
    from tests import migrated

    file = migrated.folder() / f"{migrated.fingerprint()}.sqlite3"
    with migrated.filled_from(file):
        yield file


@pytest.fixture(scope="session")
def django_db_setup(migrated_file: Path, django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """SQLite empties tables between tests by DELETE, which the triggers of append-only tables refuse. PostgreSQL drops
    no database that still has sessions, as those of socket threads are until they are collected."""
    from django.db import connection
    from django.db.backends.base.operations import BaseDatabaseOperations

    from tests import migrated

    if connection.vendor != "sqlite":
        yield
        with django_db_blocker.unblock(), connection.cursor() as cursor:
            here = "datname = current_database() AND pid <> pg_backend_pid()"
            cursor.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {here}")  # noqa: S608
        return
    with django_db_blocker.unblock():
        # Where no chosen test asks for a database, pytest-django makes none, and this is not it.
        if not migrated_file.exists() and connection.is_in_memory_db():  # type: ignore[attr-defined]
            migrated.keep(migrated_file)
    operations = type(connection.ops)
    plain = operations.sql_flush

    def sql_flush(self: BaseDatabaseOperations, *args: Any, **kwargs: Any) -> list[str]:
        with connection.cursor() as cursor:
            cursor.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'")
            triggers = cursor.fetchall()
        drop = [f"DROP TRIGGER {name}" for name, _ in triggers]
        return [*drop, *plain(self, *args, **kwargs), *(sql for _, sql in triggers)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(operations, "sql_flush", sql_flush)
        yield


def pytest_collection_finish() -> None:
    """What was imported stays: looking through it for garbage again and again takes a fourteenth of the time of tests."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """SQLite, which has one writer, runs no races for it. PostgreSQL runs what depends on the database; with
    ALL_ON_POSTGRES also everything else that asks it anything."""
    asks = {"db", "transactional_db", "client", "admin_client", "live_server", "django_db_reset_sequences"}

    def belongs(item: pytest.Item) -> bool:
        races = item.get_closest_marker("postgres") is not None
        if not os.environ.get("DATABASE_URL"):
            return not races
        asking = item.get_closest_marker("django_db") or asks.intersection(getattr(item, "fixturenames", ()))
        depends = item.get_closest_marker("both_databases") or "ALL_ON_POSTGRES" in os.environ
        return races or bool(asking and depends)

    config.hook.pytest_deselected(items=[item for item in items if not belongs(item)])
    items[:] = [item for item in items if belongs(item)]
