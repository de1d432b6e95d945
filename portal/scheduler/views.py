"""The pages where the scheduling policy is chosen, previewed, switched and undone."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

from django.contrib import messages
from django.core.paginator import Page, Paginator
from django.http import Http404, HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect, render
from django.urls import NoReverseMatch, reverse
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from portal.accounts.permissions import admin_required, signed_in
from portal.jobs.models import Job
from portal.refused import Refused
from portal.scheduler import preview, services
from portal.scheduler.forms import PolicyForm, form_query
from portal.scheduler.models import Cycle, Leader, SchedulerConfig
from portal.scheduler.param_labels import labelled_params
from scheduling import registry
from scheduling.changes import JobChange, Kind
from scheduling.types import Placement

SWITCHES_SHOWN = 10
CYCLES_SHOWN = 15
CHANGES_SHOWN = 50
NOW_SECONDS = 5.0
"""Times within so many seconds are shown as "now"."""
LABELS: dict[Kind, tuple[str, str, str]] = {
    "preempted": ("preempted", "is preempted", "are preempted"),
    "restarts": ("preempted", "restarts elsewhere", "restart elsewhere"),
    "shrinks": ("stopping", "shrinks", "shrink"),
    "moves": ("draining", "moves", "move"),
    "grows": ("running", "grows", "grow"),
    "starts": ("ready", "starts", "start"),
    "waits": ("waiting", "waits", "wait"),
    "goes on": ("busy", "keeps running", "keep running"),
}
"""By kind of change: the look of the badge, the words for one job and for several."""


# --- choosing ----------------------------------------------------------------------------------------------------


@admin_required
@require_safe
def policy(request: HttpRequest) -> HttpResponse:
    """Show the policy in force. ``?policy=key`` shows another one's parameters; sending them leads to the preview."""
    config = services.current_config()
    # a policy that is no longer in the code cannot be shown, but another can be chosen instead
    key = request.GET.get("policy") or (config.policy if config.policy in registry.POLICIES else registry.DEFAULT)
    return _render_policy_page(request, _form(request.GET, key, config), config)


def _render_policy_page(
    request: HttpRequest, form: PolicyForm, config: SchedulerConfig, status: int = 200
) -> HttpResponse:
    switches = Paginator(SchedulerConfig.objects.select_related("created_by", "undoes"), SWITCHES_SHOWN)
    page = switches.get_page(request.GET.get("page"))
    undo_to = services.previous_config()
    cycles = Cycle.objects.select_related("config")[:CYCLES_SHOWN]
    about = {
        "config": config,
        "policies": registry.describe_all(),
        "chosen": form.policy,
        "form": form,
        "page": page,
        "switches": [_switch_entry(row) for row in page],
        "undo_to": undo_to,
        "undo_title": services.title_of(undo_to.policy) if undo_to else "",
        "cycles": [(row, services.title_of(row.config.policy) if row.config else "") for row in cycles],
        "leader": Leader.objects.first(),
        "trouble": services.last_failure(),
        "former_default": services.title_of(config.policy) if services.has_former_default(config) else "",
        "new_default": registry.describe(registry.DEFAULT),
        "whatif": _simulation_link(registry.DEFAULT, registry.complete(registry.DEFAULT, {})),
    }
    return render(request, "scheduler/policy.html", about, status=status)


def _form(data: QueryDict, key: str, config: SchedulerConfig) -> PolicyForm:
    """Return the form with the values in ``data`` if it has any, else with those in force or the defaults."""
    if key not in registry.POLICIES:
        raise Http404
    in_force = config.params if key == config.policy else None
    return PolicyForm(registry.describe(key), data if "set" in data else None, in_force)


# --- looking, switching, undoing ---------------------------------------------------------------------------------


@admin_required
@require_http_methods(["GET", "HEAD", "POST"])
def policy_preview(request: HttpRequest) -> HttpResponse:
    """GET shows what a switch to the policy in the query would change now; POST with the preview's ticket switches."""
    config = services.current_config()
    form = _form(request.GET, request.GET.get("policy", ""), config)
    key, params, again = form.policy.key, {item.name: item.default for item in form.policy.params}, ""
    if form.is_bound and not form.is_valid():
        return _render_policy_page(request, form, config, 400)
    params = form.cleaned_data if form.is_bound else {**params, **(config.params if key == config.policy else {})}
    try:
        if request.method == "POST":
            try:
                preview.confirm(signed_in(request), key, params, request.POST.get("ticket", ""))
            except Refused as refusal:
                again = str(refusal)
            else:
                title = services.title_of(key)
                messages.success(
                    request, f"“{title}” decides from the next scheduling cycle on. You can undo the switch here."
                )
                return redirect("scheduler:policy")
        found = preview.compute(key, params)
    except ValueError as error:
        if not form.is_bound:
            raise Http404 from error  # the parameters in force no longer fit their policy
        form.add_error(None, str(error))
        return _render_policy_page(request, form, config, 400)
    page = Paginator(_without_unchanged(found), CHANGES_SHOWN).get_page(request.GET.get("page"))
    about = {
        "found": found,
        "chosen": form.policy,
        "same_policy": key == config.policy,
        "unchanged": (key, dict(found.params)) == (config.policy, config.params),
        "now_title": services.title_of(config.policy),
        "again": again,
        "params": labelled_params(key, found.params),
        "counts": [(LABELS[kind][1 if count == 1 else 2], count) for kind, count in found.counts.items() if count],
        "as_now": found.present and all(found.present.get(each.job) == each.kind for each in found.changes),
        "disturbed": sum(found.counts[kind] for kind in ("preempted", "restarts", "shrinks", "moves", "grows")),
        "stopped": found.counts["preempted"] + found.counts["restarts"],
        "page": page,
        "rows": _rows(found, page),
        "taken_at": datetime.fromtimestamp(found.snapshot.now, UTC),
        "back": form_query(key, found.params),
        "whatif": _simulation_link(key, found.params),
    }
    return render(request, "scheduler/preview.html", about, status=409 if again else 200)


@admin_required
@require_POST
def policy_undo(request: HttpRequest) -> HttpResponse:
    """Undo the switch that the page showed as the last one."""
    last = request.POST.get("config", "")
    try:
        if not (last.isascii() and last.isdecimal() and len(last) < 19):
            raise Refused("The request does not name the switch to undo. Reload the page.", "conflict")
        config = services.undo_switch(signed_in(request), int(last))
        title = services.title_of(config.policy)
        messages.success(request, f"Undone: “{title}” decides again from the next scheduling cycle on.")
    except Refused as refusal:
        messages.error(request, str(refusal))
    return redirect("scheduler:policy")


@admin_required
@require_POST
def policy_keep(request: HttpRequest) -> HttpResponse:
    """Keep the former default that is in force, which ends the notice about it."""
    try:
        config = services.keep_policy(signed_in(request))
        messages.success(request, f"“{services.title_of(config.policy)}” stays in force.")
    except Refused as refusal:
        messages.error(request, str(refusal))
    return redirect("scheduler:policy")


# --- words -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PreviewRow:
    """A row of the preview's table."""

    number: str
    name: str
    owner: str
    look: str
    words: str
    anyway: bool
    """Whether the policy in force would do the same to the job now."""
    before: str
    after: str
    reason: Any
    """Why a waiting job waits, as data."""
    starts: list[tuple[datetime | None, bool]]
    """Under the policy in force and under the new one: the time, and whether it is now. One entry if both are equal."""
    ends: list[tuple[datetime | None, bool]]


def _without_unchanged(found: preview.Preview) -> list[JobChange]:
    """Return all changes but those of jobs that keep running as they are."""
    return [change for change in found.changes if change.kind != "goes on"]


def _rows(found: preview.Preview, page: "Page[JobChange]") -> list[PreviewRow]:
    names = {node.id: node.name for node in found.snapshot.nodes}
    shown = Job.objects.filter(pk__in=[int(change.job) for change in page]).select_related("submitted_by")
    jobs = {str(job.pk): job for job in shown.only("name", "submitted_by__username")}
    return [_row(change, jobs[change.job], found, names) for change in page if change.job in jobs]


def _row(change: JobChange, job: Job, found: preview.Preview, names: dict[str, str]) -> PreviewRow:
    before, after = (each.get(change.job, preview.Eta()) for each in (found.before, found.after))
    look, words, _ = LABELS[change.kind]
    now = found.snapshot.now
    return PreviewRow(
        number=change.job,
        name=job.name,
        owner=job.submitted_by.username,
        look=look,
        words=words,
        anyway=found.present.get(change.job) == change.kind,
        before=_placement(change.before, names),
        after=_placement(change.after, names),
        reason=change.reason.data() if change.reason else "",
        starts=[] if change.before else _times(now, before.starts, after.starts),
        ends=_times(now, before.ends, after.ends),
    )


def _placement(where: Placement, names: dict[str, str]) -> str:
    return ", ".join(f"{gpus} on {names.get(node, node)}" for node, gpus in sorted(where.items())) or "none"


def _times(now: float, *seconds: float | None) -> list[tuple[datetime | None, bool]]:
    found: list[tuple[datetime | None, bool]] = [
        (None, False) if each is None else (datetime.fromtimestamp(each, UTC), each < now + NOW_SECONDS)
        for each in seconds
    ]
    return found[:1] if found[0] == found[1] else found


def _simulation_link(key: str, params: Mapping[str, Any]) -> str:
    """Return the address for simulating the lab's recent history under this policy; empty if there is no such page."""
    try:
        return f"{reverse('whatif:new')}?{urlencode({'policy': key, 'params': json.dumps(dict(params))})}"
    except NoReverseMatch:
        return ""


def _switch_entry(row: SchedulerConfig) -> dict[str, Any]:
    """Describe a switch for the list of switches."""
    known = row.policy in registry.POLICIES
    return {
        "row": row,
        "title": services.title_of(row.policy),
        "params": labelled_params(row.policy, row.params),
        "query": form_query(row.policy, row.params) if known else "",
    }
