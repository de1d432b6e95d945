"""What of the lab's machines needs an admin, each with the action to take: for the home page and the admin overview."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Q
from django.urls import reverse

from portal.cluster.alarms import current_alarms
from portal.cluster.models import LIVE_NODE, Node
from portal.sentences.problems import DISK_PROBLEMS
from portal.ui import counted

MAX_OF_A_KIND = 5


@dataclass(frozen=True, slots=True)
class Item:
    """Something to look at, and what to do about it."""

    kind: str
    icon: str
    tone: str
    text: str
    detail: str
    action: str
    path: str
    posts: bool = False
    """Whether the action is a button that changes something; otherwise it is a link."""
    at: datetime | None = None
    """When it happened."""


def lab_attention(now: datetime) -> Iterator[Item]:
    """Yield what needs an admin, in three queries."""
    yield from first_items(
        Item("alarm", "alert", "red", alarm.text, "", alarm.action, alarm.path) for alarm in current_alarms(now)
    )
    nodes = list(Node.objects.filter(LIVE_NODE).filter(Q(approved_at=None) | ~Q(problems=[])).order_by("name"))
    waiting = [node for node in nodes if node.approved_at is None]
    yield from first_items(
        Item("pending", "node", "amber", f"{node.name} waits for approval", "", "Review it", node_path(node.pk))
        for node in waiting
    )
    yield from first_items(
        Item(
            "unfit", "alert", "red", f"{node.name} accepts no jobs", problem.text, "See what to do", node_path(node.pk)
        )
        for node in nodes
        if node.approved_at is not None
        for problem in node.shown_problems
        if problem.blocking and problem.code not in DISK_PROBLEMS  # these are alarms
    )


def first_items(items: Iterable[Item]) -> list[Item]:
    """Return the first items of a kind, and one for the others."""
    found = list(items)
    if len(found) <= MAX_OF_A_KIND:
        return found
    more = counted(len(found) - MAX_OF_A_KIND, "more thing needs,more things need")
    path = reverse("monitoring:admin-nodes")
    return [*found[:MAX_OF_A_KIND], Item("more", "alert", "red", f"{more} an admin", "", "See all nodes", path)]


def node_path(pk: int) -> str:
    return reverse("monitoring:admin-node", args=[pk])
