"""What the containers of a job contacted through the proxies of their nodes, as the agents count it."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from django.db import models
from django.utils import timezone

from portal.cluster.models import Node
from portal.environments.hosts import rules_for
from portal.sentences.agents import confinement
from portal.sentences.network import refusal

if TYPE_CHECKING:
    from portal.jobs.models import Attempt, Container, Job

MAX_SHOWN = 200
MAX_CONTAINERS = 200
"""How many containers of an attempt are added up; an elastic one may have had more."""
SPAN = ("first_at", "last_at")


class NetworkUse(models.Model):
    """The hosts that a container has contacted: its agent sends the whole list whenever it changes."""

    container = models.OneToOneField("jobs.Container", on_delete=models.CASCADE, related_name="network_use")
    hosts = models.JSONField(default=list)
    """Each a ``HostUse`` as JSON."""
    updated_at = models.DateTimeField(default=timezone.now)


@dataclass(slots=True)
class HostUse:
    """The connections to one host and port."""

    host: str
    """Empty for hosts that are not counted one by one."""
    port: int = 0
    connections: int = 0
    received_bytes: int = 0
    sent_bytes: int = 0
    refused: int = 0
    """Connections that were not opened, or were cut off."""
    reason: str = ""
    """Of the last of these: not_allowed, internal, unreachable, cut_off."""
    detail: str = ""
    first_at: float = field(default=0.0)
    """In seconds since the epoch."""
    last_at: float = field(default=0.0)

    @property
    def place(self) -> str:
        return f"{self.host}:{self.port}" if self.port and self.port != 443 else self.host

    @property
    def sentence(self) -> str:
        """Why connections were refused, for a reader; empty if none was."""
        return refusal(self.reason, self.host, self.detail) if self.refused else ""

    @property
    def first(self) -> datetime:
        return datetime.fromtimestamp(self.first_at, UTC)

    @property
    def last(self) -> datetime:
        return datetime.fromtimestamp(self.last_at, UTC)

    def add(self, other: "HostUse") -> None:
        for name in ("connections", "received_bytes", "sent_bytes", "refused"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        if other.reason and other.last_at >= self.last_at:
            self.reason, self.detail = other.reason, other.detail
        self.first_at, self.last_at = min(self.first_at, other.first_at), max(self.last_at, other.last_at)


def store(container: "Container", hosts: Iterable[HostUse]) -> None:
    """Replace what is known of a container."""
    values = {"hosts": [asdict(each) for each in hosts], "updated_at": timezone.now()}
    NetworkUse.objects.update_or_create(container=container, defaults=values)


def of_attempt(attempt: "Attempt | None") -> list[HostUse]:
    """Return what all containers of an attempt contacted together, the last contact first."""
    found: dict[tuple[str, int], HostUse] = {}
    if attempt is not None:
        rows = NetworkUse.objects.filter(container__attempt=attempt).order_by("-updated_at")
        lists: Iterable[list[dict[str, Any]]] = rows.values_list("hosts", flat=True)[:MAX_CONTAINERS]
        for use in (HostUse(**each) for hosts in lists for each in hosts):
            if (known := found.get((use.host, use.port))) is not None:
                known.add(use)
            else:
                found[use.host, use.port] = use
    return sorted(found.values(), key=lambda use: (not use.host, -use.last_at))[:MAX_SHOWN]


def has_machines_network(containers: Iterable["Container"]) -> bool:
    """Return whether the containers of an attempt share the network of their machine, as plain processes do.

    Where bubblewrap takes it away, only ranks that need each other share it.
    """
    parts = list(containers)
    confinements = [part.node.facts.get("confinement_message") or {} for part in parts]
    isolated = all(each.get("code") == confinement.Isolated.code for each in confinements)
    return any(part.node.runtime == Node.Runtime.PROCESS for part in parts) and not (isolated and len(parts) == 1)


def allowed_names(job: "Job", attempt: "Attempt | None") -> list[str]:
    """Return the names of the hosts that an attempt of a job may reach; without one, those of its next attempt."""
    rules = rules_for(job.project_id, job.environment) if attempt is None else attempt.allowed_hosts
    return [rule.partition(" ")[0] for rule in rules]


def last_refused(uses: Iterable[HostUse]) -> HostUse | None:
    """Return the host that was refused, or not reached, last."""
    refused = [use for use in uses if use.host and use.reason in ("not_allowed", "internal", "unreachable")]
    return max(refused, key=lambda use: use.last_at, default=None)
