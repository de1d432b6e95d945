"""A portal of the bench's own in this process, on PostgreSQL and Redis, as a lab has it."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from tests import servers
from tests.run.packages import MissingError, Need, provide


@contextmanager
def portal_here() -> Iterator[dict[str, str]]:
    """Sets Django up, once in a process, on an empty, migrated database. The environment for more processes of it."""
    try:
        provide({Need.SERVERS})
    except MissingError as problem:
        raise SystemExit(f"The bench needs PostgreSQL and Redis: {problem}") from None
    with servers.postgres() as database, servers.redis() as redis, tempfile.TemporaryDirectory("-bench", "sl-") as home:
        os.environ |= {
            "DATABASE_URL": database,
            "REDIS_URL": redis,
            "SECRET_KEY": "only-for-tests-and-longer-than-thirty-two-characters",
            "SCHEDULEARN_HOME": home,
            "DJANGO_SETTINGS_MODULE": "portal.settings",
            "LOG_LEVEL": "WARNING",
        }
        import django
        from django.core.management import call_command

        django.setup()
        call_command("migrate", verbosity=0)
        yield dict(os.environ)
