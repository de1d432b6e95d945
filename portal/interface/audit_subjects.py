"""What the entries of the audit log are about: the name to show, and a link where it still exists.

A name may have been given again since. So no link leads to a node that is newer than the entry, nor to a group that was deleted
later, and an entry that records an end has none.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from django.contrib.auth.models import Group
from django.db.models import Max
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.safestring import SafeString

from portal.accounts.models import AuditEntry
from portal.accounts.services import people
from portal.cluster.models import LIVE_NODE, Node, Reservation
from portal.environments.models import Environment
from portal.home.models import WallLink
from portal.jobs.models import Job
from portal.projects.models import Project
from portal.sentences import audit

ENDS = frozenset({"group.delete", "node.removed", "reservation.cancelled", "wall_link.revoked"})
Address = tuple[str, datetime | None]
"""A link, and since when what it leads to exists, if that is known."""


@dataclass(frozen=True, slots=True)
class Subject:
    kind: str
    name: str
    url: str = ""

    @property
    def html(self) -> SafeString:
        shown = f"“{self.name}”" if self.kind in {"policy", "reservation", "wall"} else self.name
        return format_html('<a href="{}">{}</a>', self.url, shown) if self.url else format_html("{}", shown)


def subjects_of(entries: Sequence[AuditEntry]) -> dict[int, Subject]:
    """Return the subjects of entries by their numbers. One query for each kind of subject, two for groups."""
    named = {entry.pk: _named(entry) for entry in entries}
    wanted: dict[str, set[str]] = defaultdict(set)
    for kind, name in named.values():
        wanted["node" if kind == "gpu" else kind].add(_node_of_gpu(name) if kind == "gpu" else name)
    known = {kind: FINDERS[kind](names) for kind, names in wanted.items() if kind in FINDERS}
    ended = _last_deletions(wanted["group"] | wanted["limited-group"])
    return {entry.pk: _subject(entry, *named[entry.pk], known, ended) for entry in entries}


def _named(entry: AuditEntry) -> tuple[str, str]:
    """Return the kind of an entry's subject and its name, without the word that stands before it in the log."""
    kind = audit.ACTIONS[entry.action].subject if entry.action in audit.ACTIONS else "other"
    word, _, name = entry.target.partition(" ")
    if kind == "owner":
        return (f"limited-{word}", name) if word in {"user", "group"} and name else ("other", entry.target)
    if kind in {"user", "group", "project", "environment", "host", "githost", "registry"} and word == kind and name:
        return kind, name
    return kind, entry.target


def _subject(
    entry: AuditEntry, kind: str, name: str, known: dict[str, dict[str, Address]], ended: dict[str, int]
) -> Subject:
    shown = name.partition(" ")[2] or name if kind == "project" else name
    key = _node_of_gpu(name) if kind == "gpu" else name
    url, since = known.get("node" if kind == "gpu" else kind, {}).get(key, ("", None))
    is_newer = since is not None and since > entry.at
    is_gone = kind in {"group", "limited-group"} and ended.get(name, 0) >= entry.pk
    shown = f"the group {shown}" if kind == "limited-group" else shown
    return Subject(kind, shown, "" if is_newer or is_gone or entry.action in ENDS else url)


def _node_of_gpu(name: str) -> str:
    return name.partition(" of ")[2]


def _last_deletions(groups: set[str]) -> dict[str, int]:
    """Return the number of the last entry that records the deletion of each of these groups."""
    if not groups:
        return {}
    targets = [f"group {name}"[:200] for name in groups]
    rows = AuditEntry.objects.filter(action="group.delete", target__in=targets).order_by().values("target")
    return {row["target"].partition(" ")[2]: row["last"] for row in rows.annotate(last=Max("pk"))}


def _users(names: Iterable[str]) -> dict[str, Address]:
    found = people().filter(username__in=names).values_list("username", flat=True)
    return {name: (f"{reverse('accounts:users')}?{urlencode({'q': name})}", None) for name in found}


def _limited_users(names: Iterable[str]) -> dict[str, Address]:
    found = people().filter(username__in=names).values_list("username", "pk")
    return {name: (reverse("jobs:limit-user", args=[pk]), None) for name, pk in found}


def _groups(names: Iterable[str]) -> dict[str, Address]:
    found = Group.objects.filter(name__in=names).values_list("name", "pk")
    return {name: (reverse("accounts:group", args=[pk]), None) for name, pk in found}


def _limited_groups(names: Iterable[str]) -> dict[str, Address]:
    found = Group.objects.filter(name__in=names).values_list("name", "pk")
    return {name: (reverse("jobs:limit-group", args=[pk]), None) for name, pk in found}


def _nodes(names: Iterable[str]) -> dict[str, Address]:
    found = Node.objects.filter(LIVE_NODE, name__in=names).values_list("name", "pk", "created_at")
    return {name: (reverse("monitoring:node", args=[pk]), since) for name, pk, since in found}


def _projects(names: Iterable[str]) -> dict[str, Address]:
    """Targets are "12 Vision": projects are found by their numbers, and may have another name since."""
    numbers = {name: int(word) for name in names if (word := name.partition(" ")[0]).isdecimal() and len(word) < 19}
    found = set(Project.objects.filter(pk__in=numbers.values()).values_list("pk", flat=True))
    return {name: (reverse("projects:detail", args=[pk]), None) for name, pk in numbers.items() if pk in found}


def _reservations(names: Iterable[str]) -> dict[str, Address]:
    found = Reservation.objects.filter(name__in=names, cancelled_at=None, end__gt=timezone.now())
    return {name: (reverse("cluster:reservations"), None) for name in found.values_list("name", flat=True)}


def _jobs(names: Iterable[str]) -> dict[str, Address]:
    numbers = {name: int(word) for name in names if (word := name.rpartition(" ")[2]).isdecimal() and len(word) < 19}
    found = set(Job.objects.filter(pk__in=numbers.values(), deleted_at=None).values_list("pk", flat=True))
    return {name: (reverse("jobs:detail", args=[pk]), None) for name, pk in numbers.items() if pk in found}


def _walls(names: Iterable[str]) -> dict[str, Address]:
    found = WallLink.objects.filter(name__in=names, revoked_at=None).values_list("name", flat=True)
    return {name: (reverse("home:walls"), None) for name in found}


def _environments(names: Iterable[str]) -> dict[str, Address]:
    found = Environment.objects.filter(key__in=names).values_list("key", flat=True)
    return {key: (reverse("jobs:environment", args=[key]), None) for key in found}


FINDERS: dict[str, Callable[[Iterable[str]], dict[str, Address]]] = {
    "user": _users,
    "limited-user": _limited_users,
    "group": _groups,
    "limited-group": _limited_groups,
    "node": _nodes,
    "project": _projects,
    "reservation": _reservations,
    "job": _jobs,
    "wall": _walls,
    "environment": _environments,
    "host": lambda names: {name: (reverse("environments:network"), None) for name in names},
    "githost": lambda names: {name: (reverse("projects:git-hosts"), None) for name in names},
    "packages": lambda names: {name: (reverse("jobs:admin-environments"), None) for name in names},
    "images": lambda names: {name: (reverse("environments:admin-images"), None) for name in names},
    "registry": lambda names: {name: (reverse("environments:admin-images"), None) for name in names},
    "policy": lambda names: {name: (reverse("scheduler:policy"), None) for name in names},
    "lab": lambda names: {name: (reverse("accounts:lab-settings"), None) for name in names},
}
