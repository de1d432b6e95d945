"""A portal for the bench in this process, on PostgreSQL and Redis, as in a lab."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from tests import servers
from tests.run.packages import MissingError, Need, provide


@contextmanager
def portal_here() -> Iterator[dict[str, str]]:
    """Set up Django, once in a process, on an empty, migrated database; yield the environment for more processes."""
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
