"""The page that changes a job after it was submitted. ``editing`` has the rules."""

from typing import Any

from django.contrib import messages
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_http_methods

from portal import stale_forms
from portal.accounts.permissions import signed_in
from portal.jobs import editing, lifecycle, permissions
from portal.jobs.form_fields import form_field
from portal.jobs.forms import TimeLimitForm, time_limit_in_units
from portal.jobs.models import Job
from portal.jobs.names import typed_name
from portal.jobs.spec import field_value
from portal.refused import Refused

TIME_FIELDS = ("time_amount", "time_unit")


class EditForm(TimeLimitForm):
    """The fields of a job that may change: while it waits all, later only those that nothing but readers use."""

    field_order = (*editing.LABELS, "priority", *TIME_FIELDS, "deadline")

    def __init__(self, job: Job, data: Any = None) -> None:
        plain = [name for name in editing.EDITABLE if name != "time_limit_seconds"]
        initial = {name: field_value(job, name) for name in plain}
        initial |= {"name": typed_name(job), **time_limit_in_units(job.time_limit_seconds)}
        super().__init__(data, initial=initial)
        self.fields |= {name: form_field(name) for name in plain}
        self.order_fields(self.field_order)
        # A form that was opened while the job waited still has the goals: a change to them is refused, not ignored.
        if not editing.may_change_goals(job) and (data is None or "time_amount" not in data):
            for name in ("priority", *TIME_FIELDS, "deadline"):
                del self.fields[name]

    def changes(self) -> dict[str, Any]:
        """Return the fields that the person changed; the form must be valid."""
        changed = {name: self.cleaned_data[name] for name in self.changed_data if name not in TIME_FIELDS}
        if set(self.changed_data) & set(TIME_FIELDS):
            changed["time_limit_seconds"] = self.time_limit_seconds
        return changed


@require_http_methods(["GET", "HEAD", "POST"])
def edit(request: HttpRequest, pk: int) -> HttpResponse:
    """Show the form that changes a job, or change it."""
    user = signed_in(request)
    job = get_object_or_404(Job.objects.visible_to(user).select_related("project"), pk=pk)
    try:
        permissions.require_may_act(user, job)
    except Refused as refusal:
        messages.error(request, refusal.message)
        return redirect("jobs:detail", pk)
    form, stale = EditForm(job), False
    if request.method == "POST":
        with transaction.atomic():
            row = lifecycle.get_locked(pk)
            form = EditForm(row, request.POST)
            stale = stale_forms.is_stale(form)
            if form.is_valid():
                try:
                    editing.edit(user, row, form.changes())
                except Refused as refusal:
                    form.refuse(refusal)
                else:
                    messages.success(request, "The changes are saved.")
                    return redirect("jobs:detail", pk)
    context = {"form": form, "job": job, "may_change_goals": editing.may_change_goals(job)}
    return render(request, "jobs/edit.html", context, status=stale_forms.status_of(form, stale))
