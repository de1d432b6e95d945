"""The id of this installation: with a job's uid it marks every folder, container and network on a node."""

from portal.cluster.models import Installation

_known: list[str] = []


def installation_id() -> str:
    """32 hexadecimal digits, the same for as long as the database exists, in every backup of it.

    A process asks the database once: the id does not change under a portal that runs.
    """
    if not _known:
        _known.append(Installation.objects.get_or_create(pk=1)[0].uid.hex)
    return _known[0]
