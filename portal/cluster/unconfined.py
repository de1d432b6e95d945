"""Nodes that run jobs as plain processes do not isolate them enough: they are for a lab with one person.

When there is a second person, no new job starts on such a node and no such node can join; while there is such a node, no
one can be invited. A job there could read the portal's keys and everyone's files and, even if bubblewrap confines it, use
services that listen on the machine. ``SCHEDULEARN_UNSAFE_PROCESSES`` allows it. Running jobs continue.
"""

from typing import Any

from django.conf import settings

from portal.accounts.services import open_invites, people
from portal.cluster.models import LIVE_NODE, Node
from portal.refused import Refused
from portal.sentences.reasons import UNCONFINED

PROCESS = Node.Runtime.PROCESS


def is_refused(runtime: str) -> bool:
    """Return whether nodes of that runtime get no new jobs because several people use the lab."""
    return _isolates_no_one(runtime) and is_shared()


def is_shared() -> bool:
    """Return whether several people use the lab."""
    return people().count() > 1


def check_joining(runtime: str) -> None:
    """Raise Refused when several people use the lab or are invited."""
    invited = open_invites().filter(created_by__isnull=False)
    if _isolates_no_one(runtime) and people().count() + invited.count() > 1:
        raise Refused(f"This machine {UNCONFINED}", "forbidden")


def check_another_person(**_: Any) -> None:
    """Raise Refused while a node runs jobs as plain processes. Called before a person is invited, joins or is reactivated."""
    if not _isolates_no_one(PROCESS) or not people().exists():
        return
    if (node := Node.objects.filter(LIVE_NODE, runtime=PROCESS).order_by("name").first()) is not None:
        raise Refused(f"No one else can join while node {node.name} {UNCONFINED}", "forbidden")


def _isolates_no_one(runtime: str) -> bool:
    return runtime == PROCESS and not settings.UNSAFE_PROCESSES
