"""Nodes that run jobs as plain processes keep nobody's files from anybody: they are for a lab of one person.

With a second person no new work goes to such a node, no new one joins, and while there is one nobody is invited: a job
there could read the portal's keys, everybody's files, and what others' jobs were given. ``SCHEDULEARN_UNSAFE_PROCESSES``
lets a lab do it all the same. What runs already goes on.
"""

from typing import Any

from django.conf import settings
from django.utils import timezone

from portal.accounts.models import User
from portal.accounts.services import open_invites
from portal.cluster.models import LIVE_NODE, Node
from portal.refused import Refused

PROCESS = Node.Runtime.PROCESS
MEND = (
    "Install Docker Engine there and start it again (docs/nodes.md), or set SCHEDULEARN_UNSAFE_PROCESSES=yes for the portal "
    "if everybody may see everything."
)
CLAUSE = f"runs jobs as plain processes, which could read everybody's files: that is for one person alone. {MEND}"
"""After a node's name."""


def refused(runtime: str) -> bool:
    """Whether no new work may go to nodes of that runtime, since several people share the lab."""
    return runtime == PROCESS and not settings.UNSAFE_PROCESSES and _people() > 1


def check_joining(runtime: str) -> None:
    """Raises Refused where somebody else is there or was invited."""
    if refused(runtime) or (runtime == PROCESS and not settings.UNSAFE_PROCESSES and _people() + _invited() > 1):
        raise Refused(f"This machine {CLAUSE}", "forbidden")


def check_another_person(**_: Any) -> None:
    """Raises Refused while a node runs jobs as plain processes. Called before somebody is invited, joins or comes back."""
    if settings.UNSAFE_PROCESSES or settings.DEMO or not _people():
        return
    if (node := Node.objects.filter(LIVE_NODE, runtime=PROCESS).order_by("name").first()) is not None:
        raise Refused(f"Nobody else can join while node {node.name} {CLAUSE}", "forbidden")


def _people() -> int:
    return User.objects.filter(is_active=True).count()


def _invited() -> int:
    return open_invites().filter(created_by__isnull=False, expires_at__gt=timezone.now()).count()
