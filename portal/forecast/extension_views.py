"""The pages about more time: a member asks on the page of a job, admins decide on a list."""

from collections.abc import Callable
from functools import partial
from typing import Any

from django import forms
from django.contrib import messages
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST, require_safe
from django.views.decorators.vary import vary_on_headers

from portal.accounts.models import LabSettings, User
from portal.accounts.permissions import admin_required, signed_in
from portal.forecast import delays
from portal.form_fields import LinesField, RefusableForm
from portal.jobs.forms import UNITS
from portal.jobs.models import Job
from portal.jobs.permissions import require_may_act
from portal.jobs.spec import limits_of
from portal.jobs.time_extensions import services
from portal.jobs.time_extensions.models import MAX_TEXT, TimeExtension
from portal.jobs.time_extensions.services import Delays
from portal.lists import return_url, unknown_choice
from portal.refused import Refused
from portal.ui import duration
from portal.user_slots import BusyError

PER_PAGE = 20
OPEN = "open"
BUSY = "Another comparison of this kind is being computed. Try again in a few seconds."
NOT_DECIDED = "The scheduler cannot decide at the moment, so whom it would delay is not known."


class MoreTimeForm(RefusableForm):
    time_amount = forms.IntegerField(
        label="How much longer",
        min_value=1,
        max_value=100_000,
        initial=2,
        help_text="In addition to its time limit. Ask for what it needs: jobs of others plan with it.",
    )
    time_unit = forms.TypedChoiceField(label="Unit", choices=UNITS, coerce=int, initial=services.HOUR)
    reason = LinesField(
        required=False,
        max_length=MAX_TEXT,
        label="Reason",
        widget=forms.Textarea(attrs={"rows": 3}),
        help_text="For the admin who decides. All who may see the job can read it.",
    )

    @property
    def seconds(self) -> int:
        """The time that was typed; the form must be valid."""
        return int(self.cleaned_data["time_amount"] * self.cleaned_data["time_unit"])

    def field_of(self, refusal: Refused) -> str | None:
        return "time_amount" if refusal.field == "seconds" else refusal.field


# --- asking ------------------------------------------------------------------------------------------------------


@require_http_methods(["GET", "HEAD", "POST"])
@vary_on_headers("HX-Request")
def more_time(request: HttpRequest, pk: int) -> HttpResponse:
    """Show the form, whom the typed time would delay (for htmx, that part alone), or ask."""
    user = signed_in(request)
    job = get_object_or_404(Job.objects.visible_to(user).select_related("project"), pk=pk)
    try:
        require_may_act(user, job)
    except Refused as refusal:
        messages.error(request, refusal.message)
        return redirect("jobs:detail", pk)
    if request.method == "POST":
        return _ask(request, user, job)
    if "HX-Request" in request.headers:
        return render(request, "forecast/_delays.html", _comparison(user, job, MoreTimeForm(request.GET)))
    return _show(request, user, job, MoreTimeForm())


def _ask(request: HttpRequest, user: User, job: Job) -> HttpResponse:
    form = MoreTimeForm(request.POST)
    if not form.is_valid():
        return _show(request, user, job, form)
    if "compare" in request.POST:
        return _show(request, user, job, form, **_comparison(user, job, form))
    try:
        services.check(job, form.seconds)
        found, _ = _computed(user, job, form.seconds)
        made = services.ask(user, job, form.seconds, form.cleaned_data["reason"], found)
    except Refused as refusal:
        form.refuse(refusal)
        return _show(request, user, job, form)
    if made.by_rule:
        messages.success(request, f"Granted by the rule of the lab: the job has {duration(made.seconds)} more.")
    else:
        messages.success(request, "The admins have been asked. You will be notified when one has decided.")
    return redirect("jobs:detail", job.pk)


def _computed(user: User, job: Job, seconds: int) -> tuple[Delays | None, str]:
    """Return whom more time would delay, or why that is not known."""
    try:
        found = delays.delays_if_granted(job, seconds, user)
    except BusyError:
        return None, BUSY
    return found, "" if found else NOT_DECIDED


def _comparison(user: User, job: Job, form: MoreTimeForm) -> dict[str, Any]:
    """Return what the part of the page about others shows."""
    if not form.is_valid():
        return {"unknown": "Enter how much longer the job may run."}
    try:
        services.check(job, form.seconds)
    except Refused as refusal:
        return {"unknown": refusal.message}
    found, unknown = _computed(user, job, form.seconds)
    if found is None:
        return {"unknown": unknown}
    return {"delayed": delays.seen_by(user, found), "seconds": form.seconds, "is_compared": True}


def _show(request: HttpRequest, user: User, job: Job, form: MoreTimeForm, **about: Any) -> HttpResponse:
    context = {
        "job": job,
        "form": form,
        "open_request": services.requests_seen_by(user).filter(job=job).open().first(),
        "why_not": services.why_not_askable(job),
        "left_of_rule": services.seconds_left_of_rule(job),
        "most": services.max_more_seconds(job),
        "longest": limits_of("time_limit_seconds")[1],
        **about,
    }
    return render(request, "forecast/more_time.html", context, status=400 if form.errors else 200)


@require_POST
def withdraw(request: HttpRequest, pk: int) -> HttpResponse:
    """Withdraw the open request of a job."""
    user = signed_in(request)
    job = get_object_or_404(Job.objects.visible_to(user), pk=pk)
    asked = services.requests_seen_by(user).filter(job=job, status=TimeExtension.Status.ASKED)
    if not asked:
        messages.error(request, "This job has no request that can be withdrawn.")
    for row in asked:
        _do(request, partial(services.withdraw, user, row), "The request is withdrawn.")
    return redirect("jobs:detail", pk)


# --- deciding ----------------------------------------------------------------------------------------------------


@admin_required
@require_safe
def time_requests(request: HttpRequest) -> HttpResponse:
    """Show the requests, those that wait for an admin first of all."""
    admin = signed_in(request)
    statuses = [(OPEN, "That wait for an admin"), *TimeExtension.Status.choices[1:], ("all", "All")]
    asked = request.GET.get("status", "")
    problems = unknown_choice(asked, [OPEN, *(key for key, _ in statuses)], "those that wait for an admin are shown")
    status = asked if asked in dict(statuses) else OPEN
    person = request.GET.get("user", "").replace("\0", "").strip()
    rows = services.requests_seen_by(admin)
    if person:
        rows = rows.filter(asked_by__in=User.objects.matching(person))
    if status == OPEN:
        rows = rows.open().order_by("pk")
    elif status != "all":
        rows = rows.filter(status=status)
    page = Paginator(rows, PER_PAGE).get_page(request.GET.get("page"))
    requests = list(page.object_list)
    shown = delays.as_seen_by(admin, requests)
    about = {
        "page": page,
        "rows": [(each, shown.get(each.pk)) for each in requests],
        "statuses": statuses,
        "status": status,
        "person": person,
        "problems": problems,
        "rule_hours": LabSettings.current().hours_granted_by_rule,
        "max_text": MAX_TEXT,
    }
    return render(request, "forecast/time_requests.html", about)


@admin_required
@require_POST
def decide(request: HttpRequest, pk: int) -> HttpResponse:
    """Grant or refuse a request, with an answer."""
    admin = signed_in(request)
    row = get_object_or_404(services.requests_seen_by(admin), pk=pk)
    answer = request.POST.get("answer", "").replace("\r\n", "\n")
    decision = request.POST.get("decision")
    if decision == "grant":
        done = f"Granted: job {row.job_id} has {duration(row.seconds)} more."
        _do(request, partial(services.grant, admin, row, answer), done)
    elif decision == "refuse":
        done = f"Refused: job {row.job_id} keeps its time limit."
        _do(request, partial(services.refuse, admin, row, answer), done)
    else:
        messages.error(request, "Choose to grant or to refuse the request.")
    return redirect(return_url(request, reverse("forecast:time-requests")))


@admin_required
@require_POST
def forecast_again(request: HttpRequest, pk: int) -> HttpResponse:
    """Compute again whom a request would delay."""
    admin = signed_in(request)
    row = get_object_or_404(services.requests_seen_by(admin).open(), pk=pk)
    try:
        if not delays.renew(row, admin):
            messages.error(request, NOT_DECIDED)
    except BusyError:
        messages.error(request, BUSY)
    return redirect(return_url(request, reverse("forecast:time-requests")))


def _do(request: HttpRequest, act: Callable[[], object], done: str) -> None:
    try:
        act()
    except Refused as refusal:
        messages.error(request, refusal.message)
    else:
        messages.success(request, done)
