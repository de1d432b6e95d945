"""Nodes that run jobs as plain processes do not isolate them enough: they are for a lab with one person.

When there is a second person, no new job starts on such a node and no such node can join; while there is such a node, no
one can be invited. A job there could read the portal's keys and everyone's files and, even if bubblewrap confines it, use
services that listen on the machine. ``SCHEDULEARN_UNSAFE_PROCESSES`` allows it. Running jobs continue.
"""

from typing import Any

from django.conf import settings

from portal.accounts.services import active_people, open_invites
from portal.cluster.models import LIVE_NODE, Node
from portal.refused import Refused
from portal.sentences.reasons import UNCONFINED

PROCESS = Node.Runtime.PROCESS


def is_refused(runtime: str) -> bool:
    """Return whether nodes of that runtime get no new jobs because several people use the lab."""
    return _lacks_isolation(runtime) and is_lab_shared()


def is_lab_shared() -> bool:
    """Return whether several people use the lab."""
    return active_people().count() > 1


def check_node_can_join(runtime: str) -> None:
    """Raise Refused when several people use the lab or are invited."""
    invited = open_invites().filter(created_by__isnull=False)
    if _lacks_isolation(runtime) and active_people().count() + invited.count() > 1:
        raise Refused(f"This machine {UNCONFINED}", "forbidden")


def no_one_can_join() -> bool:
    """Return whether no one can be invited because a node runs jobs as plain processes."""
    try:
        check_person_can_be_added()
    except Refused:
        return True
    return False


def check_person_can_be_added(**_: Any) -> None:
    """Raise Refused while a node runs jobs as plain processes. Called before a person is invited, joins or is reactivated."""
    if not _lacks_isolation(PROCESS) or not active_people().exists():
        return
    if (node := Node.objects.filter(LIVE_NODE, runtime=PROCESS).order_by("name").first()) is not None:
        raise Refused(f"No one else can join while node {node.name} {UNCONFINED}", "forbidden")


def _lacks_isolation(runtime: str) -> bool:
    return runtime == PROCESS and not settings.UNSAFE_PROCESSES
