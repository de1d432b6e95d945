"""The id of this installation. With the uid of a job it marks each folder, container and network on a node."""

from functools import cache

from portal.cluster.models import Installation


@cache
def installation_id() -> str:
    """Return 32 hexadecimal digits, which stay the same for the life of the database and in all its backups.

    A process reads the id once: it does not change while the portal runs.
    """
    return Installation.objects.get_or_create(pk=1)[0].uid.hex
