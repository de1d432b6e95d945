"""Admin pages about limits, with their usage."""

from collections.abc import Callable
from typing import Any

from django.conf import settings
from django.contrib import messages
from django.contrib.auth.models import Group
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render

from portal import stale_forms
from portal.accounts.audit import last_actor
from portal.accounts.forms import LimitForm
from portal.accounts.limits import audited_name, limit_of, set_limit
from portal.accounts.models import LabSettings, User
from portal.accounts.people import groups_called
from portal.accounts.permissions import admin_required, signed_in
from portal.accounts.services import active_people
from portal.cluster.slots import lab_noun
from portal.jobs.limits import LimitWithUsage, all_limits_with_usage, usage_together
from portal.lists import Column, Listing, read_table
from portal.names import search_key

MAX_SUGGESTED = 200
"""The most users that the field suggests; any other name may be typed."""
LIMITS = Listing(
    "limits",
    (
        Column("owner", "User or group", ("owner",), fixed=True),
        Column("gpus", "GPUs at once", ("gpus",), falls=True, fixed=True),
        Column("waiting", "Waiting jobs", ("waiting",), falls=True, fixed=True),
        Column("space", "Space", ("space",), falls=True, fixed=True),
        Column("weight", "Weight", ("weight",), falls=True, fixed=True),
    ),
    "owner",
)
LIMIT_VALUES: dict[str, Callable[[LimitWithUsage], Any]] = {
    "owner": lambda row: (row.limit.group is None, search_key(str(row.limit.user or row.limit.group))),
    "gpus": lambda row: row.usage.gpus,
    "waiting": lambda row: row.usage.waiting,
    "space": lambda row: row.limit.max_space_gib or 0,
    "weight": lambda row: row.limit.weight,
}
"""What limits are sorted by; all are in memory with their usage."""


@admin_required
def limits(request: HttpRequest) -> HttpResponse:
    """Show all limits with their usage; ``?who=`` leads to the form of a user or a group."""
    if who := request.GET.get("who", "").strip():
        people, groups = User.objects.matching(who), groups_called(who)
        if len(people) + len(groups) > 1:
            return render(request, "jobs/which_limit.html", {"who": who, "people": people, "groups": groups})
        if people:
            return redirect("jobs:limit-user", people[0].pk)
        if groups:
            return redirect("jobs:limit-group", groups[0].pk)
        messages.error(request, f"There is no user or group called “{who}”.")
        return redirect("jobs:limits")
    table = read_table(request, LIMITS, signed_in(request), titles={"gpus": f"{lab_noun()}s at once"})
    rows = sorted(all_limits_with_usage(), key=LIMIT_VALUES[table.sorted_by], reverse=table.falls)
    return render(
        request,
        "jobs/admin_limits.html",
        {
            "table": table,
            "limits": rows,
            "people": active_people().order_by("username").values_list("username", flat=True)[:MAX_SUGGESTED],
            "groups": Group.objects.order_by("name"),
            "usual_waiting": settings.MAX_WAITING_JOBS,
            "usual_space": LabSettings.current().max_space_gib,
        },
    )


@admin_required
def limit_user(request: HttpRequest, pk: int) -> HttpResponse:
    person = get_object_or_404(User, pk=pk)
    return _edit_limit(request, person, person.username, [person.pk])


@admin_required
def limit_group(request: HttpRequest, pk: int) -> HttpResponse:
    group = get_object_or_404(Group, pk=pk)
    return _edit_limit(request, group, f"the group {group.name}", list(group.user_set.values_list("pk", flat=True)))


def _edit_limit(request: HttpRequest, owner: User | Group, name: str, user_ids: list[int]) -> HttpResponse:
    unit = lab_noun()
    form, stale = LimitForm.of(limit_of(owner), unit=unit), False
    if request.method == "POST":
        with transaction.atomic():
            form = LimitForm.of(limit_of(owner, lock=True), request.POST, unit)
            stale = stale_forms.is_stale(form, lambda: last_actor("limit.set", audited_name(owner), form.initial))
            if form.is_valid():
                set_limit(signed_in(request), owner, **form.cleaned_data)
                messages.success(
                    request, f"The limit of {name} is saved. It applies from now on; running jobs keep their {unit}s."
                )
                return redirect("jobs:limits")
    context = {
        "form": form,
        "name": name,
        "usage": usage_together(user_ids),
        "members": None if isinstance(owner, User) else len(user_ids),
    }
    return render(request, "jobs/admin_limit.html", context, status=stale_forms.status_of(form, stale))
