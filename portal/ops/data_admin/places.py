"""The portal's own page about a row, where there is one."""

from collections.abc import Callable
from typing import Any

from django.contrib.auth.models import Group
from django.db import models
from django.urls import reverse
from django.utils.http import urlencode

from portal.accounts.models import AuditEntry, Invite, LabSettings, Limit, User
from portal.cluster.models import Gpu, JoinToken, Node, Reservation
from portal.environments.models import NodeEnvironment
from portal.forecast.models import Forecast
from portal.home.models import WallLink
from portal.jobs.models import Attempt, CheckpointSet, Container, Job, JobEvent, Output, TimeExtension
from portal.projects.models import CodeVersion, Membership, Project
from portal.scheduler.models import Cycle, Leader, SchedulerConfig
from portal.whatif.models import Simulation


def _limit(row: Limit) -> str:
    return (
        reverse("jobs:limit-user", args=[row.user_id])
        if row.user_id
        else reverse("jobs:limit-group", args=[row.group_id])
    )


PLACES: dict[type[models.Model], Callable[[Any], str]] = {
    User: lambda row: f"{reverse('accounts:users')}?{urlencode({'q': row.username})}",
    Group: lambda row: reverse("accounts:group", args=[row.pk]),
    Invite: lambda row: reverse("accounts:invites"),
    Limit: _limit,
    LabSettings: lambda row: reverse("accounts:lab-settings"),
    AuditEntry: lambda row: reverse("interface:audit"),
    Node: lambda row: reverse("monitoring:admin-node", args=[row.pk]),
    Gpu: lambda row: reverse("monitoring:node", args=[row.node_id]),
    NodeEnvironment: lambda row: reverse("monitoring:admin-node", args=[row.node_id]),
    JoinToken: lambda row: reverse("cluster:added-node", args=[row.pk]),
    Reservation: lambda row: (
        reverse("cluster:reservation", args=[row.pk]) if row.cancelled_at is None else reverse("cluster:reservations")
    ),
    Project: lambda row: reverse("projects:detail", args=[row.pk]),
    Membership: lambda row: reverse("projects:detail", args=[row.project_id]),
    CodeVersion: lambda row: reverse("projects:code", args=[row.project_id, row.number]),
    Job: lambda row: reverse("jobs:detail", args=[row.pk]),
    Attempt: lambda row: reverse("jobs:detail", args=[row.job_id]),
    JobEvent: lambda row: reverse("jobs:detail", args=[row.job_id]),
    Forecast: lambda row: reverse("jobs:detail", args=[row.job_id]),
    TimeExtension: lambda row: reverse("jobs:detail", args=[row.job_id]),
    Container: lambda row: reverse("jobs:tab", args=[row.attempt.job_id, "log"]),
    Output: lambda row: reverse("jobs:tab", args=[row.job_id, "files"]),
    CheckpointSet: lambda row: reverse("jobs:tab", args=[row.job_id, "files"]),
    SchedulerConfig: lambda row: reverse("scheduler:policy"),
    Cycle: lambda row: reverse("scheduler:policy"),
    Leader: lambda row: reverse("scheduler:policy"),
    Simulation: lambda row: reverse("whatif:detail", args=[row.pk]),
    WallLink: lambda row: reverse("home:walls"),
}


def place_of(row: models.Model) -> str | None:
    """Return the address of the portal's page about a row, None where no page shows it."""
    find = PLACES.get(type(row))
    return find(row) if find else None
