"""The hosts that jobs may reach: which apply to a job, and what admins do with them.

Changes apply to attempts that start afterwards: the hosts of an attempt are fixed when it is placed.
"""

from dataclasses import dataclass
from typing import Self

from django.db import IntegrityError, transaction
from django.db.models import Q, QuerySet

from portal.accounts.audit import audit
from portal.accounts.models import User
from portal.environments.models import AllowedHost, Environment
from portal.host_names import HostError, InternalHostError, read_host
from portal.names import has_invisible_characters
from portal.projects.models import Project
from portal.refused import Refused

MAX_OF_A_JOB = 200
"""How many hosts are allowed in one place; the specification of each container has all of a job."""
MAX_NOTE = 200


def hosts_of(project: int | None, environment: Environment | None) -> QuerySet[AllowedHost]:
    """Return the hosts that jobs of a project with an environment may reach, those of the lab included."""
    mine = Q(project=None, environment=None)
    if project is not None:
        mine |= Q(project=project)
    if environment is not None:
        mine |= Q(environment__in=[key for key in (environment.pk, environment.base_id) if key])
    return AllowedHost.objects.filter(mine).select_related("project", "environment", "created_by")


def rules_for(project: int, environment: Environment) -> list[str]:
    """Return what the agent of a job reads: each host once, as one of the local network if any row has it so."""
    internal: dict[str, bool] = {}
    for row in hosts_of(project, environment):
        internal[row.host] = internal.get(row.host, False) or row.internal
    return [AllowedHost(host=host, internal=internal[host]).rule for host in sorted(internal)]


@dataclass(frozen=True)
class PlacesWithHosts:
    """Where hosts are allowed, to know of many jobs whether they have any."""

    lab: bool
    projects: frozenset[int]
    environments: frozenset[int]
    """Those based on others included."""

    @classmethod
    def read(cls) -> Self:
        rows = AllowedHost.objects.order_by().values_list("project", "environment").distinct()
        places: set[tuple[int | None, int | None]] = set(rows)
        environments = {environment for _, environment in places if environment}
        if environments:
            environments |= set(Environment.objects.filter(base__in=environments).values_list("pk", flat=True))
        return cls(
            lab=(None, None) in places,
            projects=frozenset(project for project, _ in places if project),
            environments=frozenset(environments),
        )

    def include(self, project: int, environment: int) -> bool:
        return self.lab or project in self.projects or environment in self.environments


# --- changes -----------------------------------------------------------------------------------------------------


def allow(
    user: User,
    typed: str,
    project: Project | None = None,
    environment: Environment | None = None,
    note: str = "",
    *,
    internal: bool = False,
) -> AllowedHost:
    """Allow a host for a project, an environment, or all jobs. Raises Refused."""
    _require_admin(user)
    if project is not None and environment is not None:
        raise Refused("Choose a project or an environment, not both.", field="environment")
    if environment is not None and environment.retired:
        raise Refused("This environment was removed.", "conflict", field="environment")
    try:
        host = str(read_host(typed, internal=internal))
    except InternalHostError as error:
        raise Refused(str(error), field="internal") from error
    except HostError as error:
        raise Refused(str(error), field="host") from error
    note = note.strip()
    if len(note) > MAX_NOTE or has_invisible_characters(note):
        raise Refused(f"A note is one line of at most {MAX_NOTE} characters.", field="note")
    if AllowedHost.objects.filter(project=project, environment=environment).count() >= MAX_OF_A_JOB:
        raise Refused(f"{MAX_OF_A_JOB} hosts are allowed here, the maximum. Remove one first.", "conflict")
    row = AllowedHost(
        host=host, internal=internal, project=project, environment=environment, note=note, created_by=user
    )
    try:
        with transaction.atomic():
            row.save()
            audit(user, "host.allow", _target(row), after=_audited(row))
    except IntegrityError as error:
        raise Refused(f"{host} is allowed there already.", "conflict", field="host") from error
    return row


def forbid(user: User, row: AllowedHost) -> None:
    """Remove a host. Running attempts keep it. Raises Refused."""
    _require_admin(user)
    with transaction.atomic():
        audit(user, "host.forbid", _target(row), before=_audited(row))
        row.delete()


def _require_admin(user: User) -> None:
    if not user.is_admin:
        raise Refused("Only admins decide which hosts jobs may reach.", "forbidden")


def _target(row: AllowedHost) -> str:
    return f"host {row.host}"[:200]


def _audited(row: AllowedHost) -> dict[str, object]:
    return {
        "project": f"{row.project_id} {row.project.name}" if row.project else None,
        "environment": row.environment.key if row.environment else None,
        "internal": row.internal,
        "note": row.note,
    }
