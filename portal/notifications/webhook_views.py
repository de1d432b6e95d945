"""The pages of a project's and the lab's webhooks, their deliveries, and what of a project's logs leaves the portal."""

from typing import Any

from django.contrib import messages
from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods, require_POST

from portal.accounts.permissions import admin_required, signed_in
from portal.notifications import services
from portal.notifications.delivery import page_of
from portal.notifications.forms import EventsForm, WebhookForm
from portal.notifications.models import Channel, Delivery, MutedProject, PrivateProject
from portal.projects.models import Project
from portal.projects.services import may_manage, role_of
from portal.projects.views import owned_project, visible_project
from portal.refused import Refused
from portal.sentences.notices import notice_text

PAGE_SIZE = 25


@never_cache
@sensitive_post_parameters("url")
@require_http_methods(["GET", "HEAD", "POST"])
def project(request: HttpRequest, pk: int) -> HttpResponse:
    """What a person gets of a project; for its owners also its webhooks. POST registers one."""
    row = visible_project(request, pk)
    manages = may_manage(role_of(signed_in(request), row))
    if request.method == "POST" and not manages:
        raise Http404
    return _webhooks(
        request,
        row,
        "notifications/project.html",
        {
            "project": row,
            "may_manage": manages,
            "muted": MutedProject.objects.filter(user=signed_in(request), project=row).exists(),
            "private": PrivateProject.objects.filter(project=row).exists(),
        },
    )


@admin_required
@never_cache
@sensitive_post_parameters("url")
@require_http_methods(["GET", "HEAD", "POST"])
def lab(request: HttpRequest) -> HttpResponse:
    """The webhooks that get the events of all projects. POST registers one."""
    return _webhooks(request, None, "notifications/lab_webhooks.html", {"may_manage": True})


def _webhooks(request: HttpRequest, row: Project | None, template: str, about: dict[str, Any]) -> HttpResponse:
    form, status, new, secret = WebhookForm(), 200, None, ""
    if request.method == "POST":
        form, status = WebhookForm(request.POST), 400
        if form.is_valid():
            data = form.cleaned_data
            try:
                new, secret = services.add_webhook(signed_in(request), row, data["url"], data["events"], data["name"])
                form, status = WebhookForm(), 200
            except Refused as refusal:
                form.refuse(refusal)
    hooks = services.webhooks_of(row) if about["may_manage"] else Channel.objects.none()
    return render(
        request, template, {**about, "form": form, "webhooks": hooks, "new": new, "secret": secret}, status=status
    )


@require_POST
def set_privacy(request: HttpRequest, pk: int) -> HttpResponse:
    """Keep what a project's jobs print inside the portal, or let messages quote it with ``private`` empty."""
    row = owned_project(request, pk)
    private = bool(request.POST.get("private"))
    services.set_private(signed_in(request), row, private)
    what = "Nothing that its jobs print leaves the portal." if private else "Messages may quote what its jobs print."
    messages.success(request, what)
    return redirect("notifications:project", pk)


def webhook_for(request: HttpRequest, pk: int) -> Channel:
    """Return a webhook that the user manages, or answer 404."""
    rows = Channel.objects.exclude(scope=Channel.Scope.PERSON).select_related("project", "owner")
    found = get_object_or_404(rows, pk=pk)
    if not services.may_change(signed_in(request), found):
        raise Http404
    return found


@require_http_methods(["GET", "HEAD", "POST"])
def webhook(request: HttpRequest, pk: int) -> HttpResponse:
    """Show a webhook with its last deliveries. POST changes its events."""
    row = webhook_for(request, pk)
    form, status = EventsForm.of(row), 200
    if request.method == "POST":
        form, status = EventsForm.of(row, request.POST), 400
        if form.is_valid():
            services.set_webhook_events(signed_in(request), row, form.cleaned_data["events"])
            messages.success(request, "Saved.")
            return redirect("notifications:webhook", pk)
    found = row.deliveries.select_related("notice").order_by("-pk")
    page = Paginator(found, PAGE_SIZE).get_page(request.GET.get("page"))
    rows = [(each, notice_text(each.notice.content).title) for each in page.object_list]
    about = {"webhook": row, "form": form, "page_obj": page, "rows": rows, "readable": services.is_readable(row)}
    return render(request, "notifications/webhook.html", about, status=status)


@require_POST
def change_webhook(request: HttpRequest, pk: int, act: str) -> HttpResponse:
    row = webhook_for(request, pk)
    if act == "remove":
        page = page_of(row)
        services.remove_channel(signed_in(request), row)
        messages.success(request, f"“{row.name}” is removed.")
        return redirect(page)
    try:
        if act == "test":
            services.send_test(signed_in(request), row)
            messages.success(request, "A test is on its way. Reload this page to see what came of it.")
        else:
            services.resume(signed_in(request), row)
            messages.success(request, f"“{row.name}” is on again. What happened in the meantime is not sent.")
    except Refused as refusal:
        messages.error(request, refusal.message)
    return redirect("notifications:webhook", pk)


@require_POST
def deliver_again(request: HttpRequest, pk: int) -> HttpResponse:
    """Send a delivery of a webhook once more, with the same id."""
    row = get_object_or_404(Delivery.objects.select_related("channel", "notice"), pk=pk, channel__isnull=False)
    webhook_for(request, row.channel_id or 0)
    try:
        services.deliver_again(signed_in(request), row)
        messages.success(request, "It is sent again, with the same id.")
    except Refused as refusal:
        messages.error(request, refusal.message)
    return redirect("notifications:webhook", row.channel_id)
