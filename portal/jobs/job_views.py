"""The pages of one job: a page for each tab below one head. The actions are in ``services``."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from django.contrib import messages
from django.db.models import Count, Prefetch, Sum
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.safestring import SafeString
from django.views.decorators.http import require_POST, require_safe

from portal.accounts.models import User
from portal.accounts.permissions import signed_in
from portal.cluster.slots import lab_noun
from portal.editions import sent_if_changed
from portal.highlight import highlight_block
from portal.jobs import (
    checkpoints,
    code_history,
    job_datasets,
    network_use,
    permissions,
    resources,
    services,
    silence,
    trash,
)
from portal.jobs.chains import chain_of
from portal.jobs.curve_views import curves_context, training_context
from portal.jobs.environments import layers_of
from portal.jobs.models import FINISHED_STATES, Allocation, Attempt, Container, Job, JobState
from portal.jobs.progress import progress_of
from portal.jobs.retention.services import removed_parts
from portal.jobs.states import Outcome
from portal.jobs.stop_costs import stop_costs
from portal.jobs.whereabouts import held_by_node, held_now
from portal.projects.services import may_submit, role_of
from portal.refused import Refused
from portal.sentences.stops import hold_question

MAX_OUTPUTS = 200
MAX_EVENTS = 200
NEWEST_OUTPUTS = 4
RECENT_EVENTS = 8
REPEATED_OUTCOMES = {Outcome.FAILED, Outcome.TIMED_OUT}
"""Outcomes that the same code and settings would have again."""


def _job_with_details(request: HttpRequest, pk: int) -> Job:
    parts = (
        Container.objects.select_related("node")
        .defer("spec")
        .prefetch_related(Prefetch("allocations", Allocation.objects.select_related("gpu")))
    )
    rows = Job.objects.visible_to(signed_in(request)).select_related(
        "project", "code__project", "code__origin", "environment", "submitted_by", "copied_from", "group"
    )
    return get_object_or_404(
        rows.prefetch_related(Prefetch("attempts", Attempt.objects.prefetch_related(Prefetch("containers", parts)))),
        pk=pk,
    )


def _context(request: HttpRequest, job: Job, tab: "Tab") -> dict[str, Any]:
    """Return what the head shows, and the changing part of the tab."""
    user = signed_in(request)
    attempts = list(job.attempts.all())
    last = attempts[-1] if attempts else None
    live = last if last and last.ended_at is None else None
    finished = job.state in FINISHED_STATES
    uncollected = [part for attempt in attempts for part in attempt.containers.all() if not part.collected_at]
    quiet = silence.job_silence(job) if live else None
    context = {
        "job": job,
        "tab": tab,
        "tab_title": _title(tab),
        "tabs": [(each, _title(each), _address(job, each)) for each in TABS.values()],
        "attempts": attempts[::-1],
        "last": last,
        "silence": quiet,
        "clues": silence.clues(quiet) if quiet else None,
        "live_containers": [each for each in live.containers.all() if each.state != "EXITED"] if live else [],
        "held": held_now(live) if live else "",
        "progress": progress_of(live) if live else None,
        "cause": last.explanation
        if last and last.cause and job.state not in (JobState.SUCCEEDED, JobState.CANCELLED)
        else None,
        "hint": last.explanation if last and job.state == JobState.SUCCEEDED else None,
        "finished": finished,
        "repeats": job.state == JobState.FAILED and last is not None and last.outcome in REPEATED_OUTCOMES,
        "cancelling": job.intent == Job.Intent.CANCEL and not finished,
        "holding": job.intent == Job.Intent.HOLD and job.state == JobState.RUNNING,
        "may_act": permissions.may_act_on(user, job),
        "hold_question": hold_question(job.pk, stop_costs([job.pk], timezone.now()).get(job.pk))
        if job.state == JobState.RUNNING
        else "",
        "may_submit": may_submit(role_of(user, job.project)),
        "polls": not finished or bool(uncollected),
        "collecting": finished and any(_will_be_collected(part) for part in uncollected),
        "files_count": job.outputs.count(),
        "removed": removed_parts(job) if finished else set(),
        "chain": chain_of(user, job),
    }
    return context | tab.context(job, context)


def _will_be_collected(part: Container) -> bool:
    """Return whether the node of a container is still expected to send what is left there."""
    return part.exit_reason != "lost" and part.node.removed_at is None


def _title(tab: "Tab") -> str:
    return f"{lab_noun()}s" if tab.key == "gpus" else tab.title


def _address(job: Job, tab: "Tab") -> str:
    return reverse("jobs:tab", args=[job.pk, tab.key]) if tab.key else reverse("jobs:detail", args=[job.pk])


def _activity(job: Job, context: dict[str, Any]) -> dict[str, Any]:
    events = list(job.events.select_related("actor").order_by("-seq")[: RECENT_EVENTS + 1])
    return {
        "events": events[:RECENT_EVENTS],
        "has_more_events": len(events) > RECENT_EVENTS,
        "newest_outputs": list(job.outputs.select_related("attempt").order_by("-pk")[:NEWEST_OUTPUTS]),
    }


def _files(job: Job, context: dict[str, Any]) -> dict[str, Any]:
    outputs = job.outputs.select_related("attempt").order_by("path")
    totals = job.outputs.aggregate(count=Count("pk"), size=Sum("size"))
    checkpoint_set = checkpoints.newest_set(job.pk)
    return {
        "outputs": list(outputs[:MAX_OUTPUTS]),
        "outputs_count": totals["count"],
        "outputs_size": totals["size"] or 0,
        "checkpoint_set": checkpoint_set,
        "checkpoints": checkpoints.files_of(checkpoint_set)[:MAX_OUTPUTS] if checkpoint_set else [],
    }


def _attempts(job: Job, context: dict[str, Any]) -> dict[str, Any]:
    return {
        "where_attempts_ran": [(attempt, held_by_node(attempt)) for attempt in context["attempts"]],
        "events": list(job.events.select_related("actor").order_by("-seq")[:MAX_EVENTS]),
        **_network(job, context["attempts"]),
    }


def _network(job: Job, attempts: Sequence[Attempt]) -> dict[str, Any]:
    """Return which hosts the newest attempt may reach, or the next one, and which it has contacted."""
    newest = max(attempts, key=lambda attempt: attempt.number, default=None)
    return {
        "allowed_hosts": network_use.allowed_names(job, newest),
        "contacted": network_use.of_attempt(newest),
        "is_open_network": newest is not None and network_use.has_machines_network(newest.containers.all()),
    }


@dataclass(frozen=True, slots=True)
class Tab:
    """A page of a job."""

    key: str
    title: str
    part: str = ""
    """The template of what changes on it below the head, if anything; ``context`` gives it what that needs."""
    context: Callable[[Job, dict[str, Any]], dict[str, Any]] = lambda job, head: {}


TABS = {
    tab.key: tab
    for tab in (
        Tab("", "Overview", "jobs/_activity.html", _activity),
        Tab("log", "Log"),
        Tab("files", "Files", "jobs/_files.html", _files),
        Tab("gpus", "GPUs"),
        Tab("details", "Details", "jobs/_attempts.html", _attempts),
    )
}


def _page(request: HttpRequest, pk: int, tab: Tab) -> HttpResponse:
    job = _job_with_details(request, pk)
    context = _context(request, job, tab)
    if tab.key == "":
        context["training"] = training_context(job)
        context["curves"] = curves_context(job)
    if tab.key == "details":
        spec = json.dumps(services.specification(job, signed_in(request)), indent=2, ensure_ascii=False)
        context["spec"] = SafeString(highlight_block(spec, language="json"))
        context["layers"] = layers_of(job)
        context["datasets"] = job_datasets.shown(job, signed_in(request))
        context["code_before"] = code_history.job_with_other_code(job)
        context["commit_before"] = code_history.commit_before(job)
        context["asked_for"] = resources.asked_in_words(job)
        context["grants"] = resources.grants(context["last"])
        context["silent_after"] = silence.limit_of(job.silent_rank_minutes).total_seconds()
    return render(request, f"jobs/job_{tab.key or 'overview'}.html", context)


@require_safe
def overview(request: HttpRequest, pk: int) -> HttpResponse:
    return _page(request, pk, TABS[""])


@require_safe
def other_tab(request: HttpRequest, pk: int, key: str) -> HttpResponse:
    return _page(request, pk, TABS[key])


@require_safe
@sent_if_changed
def live(request: HttpRequest, pk: int) -> HttpResponse:
    """Show the parts of a tab that change."""
    tab = TABS.get(request.GET.get("tab", ""))
    if tab is None:
        raise Http404
    job = _job_with_details(request, pk)
    return render(request, "jobs/_live.html", {**_context(request, job, tab), "oob": True})


ACTIONS: dict[str, tuple[Callable[[User, Job], Job], str]] = {
    "cancel": (services.cancel, "Job {job.pk} is cancelled."),
    "hold": (services.hold, "Job {job.pk} is on hold. Release it to let it run."),
    "release": (services.release, "Job {job.pk} is queued again."),
    "retry": (services.retry, "Job {job.pk} was submitted as a copy."),
    "keep": (trash.keep, "Job {job.pk} is kept: it cannot be deleted, and no rule cleans it up."),
    "stop-keeping": (trash.stop_keeping, "Job {job.pk} is no longer kept."),
}


@require_POST
def act(request: HttpRequest, pk: int, what: str) -> HttpResponse:
    user = signed_in(request)
    job = get_object_or_404(Job.objects.visible_to(user).select_related("project", "code", "environment"), pk=pk)
    do, message = ACTIONS[what]
    try:
        job = do(user, job)
        messages.success(request, message.format(job=job))
    except Refused as refusal:
        messages.error(request, refusal.message)
    return redirect("jobs:detail", job.pk)
