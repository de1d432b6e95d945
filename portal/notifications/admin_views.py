"""The admin pages: whether mail works, what was given up, what is permitted, and the texts of mails."""

from django.contrib import messages
from django.core.paginator import Paginator
from django.db import transaction
from django.db.models import Count, Q
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from portal import stale_forms
from portal.accounts.audit import last_actor
from portal.accounts.permissions import admin_required, signed_in
from portal.notifications import mail, services, templates
from portal.notifications.checks import problem_of_site
from portal.notifications.forms import SettingsForm, TemplateForm
from portal.notifications.models import Channel, Delivery, MailStatus, MailTemplate, NotificationSettings
from portal.notifications.rendering import words_outside
from portal.refused import Refused

PAGE_SIZE = 25


@admin_required
@require_safe
def overview(request: HttpRequest) -> HttpResponse:
    """Whether mail works, what waits, and what was given up."""
    counts = Delivery.objects.aggregate(
        waiting=Count("pk", filter=Q(status=Delivery.Status.WAITING, lead=None)),
        failing=Count("pk", filter=Q(status=Delivery.Status.WAITING, lead=None) & ~Q(error="")),
    )
    given_up = Delivery.objects.filter(status=Delivery.Status.GAVE_UP, lead=None)
    given_up = given_up.select_related("notice__user", "channel__owner", "channel__project").order_by("-pk")
    page = Paginator(given_up, PAGE_SIZE).get_page(request.GET.get("page"))
    about = {
        **counts,
        "mail_works": mail.is_delivered(),
        "status": MailStatus.objects.first() or MailStatus(),
        "site_problem": problem_of_site(),
        "paused": Channel.objects.exclude(paused_at=None).exclude(last_error="").select_related("owner", "project"),
        "page_obj": page,
        "rows": [
            (row, words_outside(row.notice).title if row.notice.user else row.notice.kind) for row in page.object_list
        ],
    }
    return render(request, "notifications/admin.html", about)


@admin_required
@require_POST
def retry(request: HttpRequest, pk: int) -> HttpResponse:
    row = get_object_or_404(Delivery.objects.select_related("channel", "notice"), pk=pk, status=Delivery.Status.GAVE_UP)
    try:
        services.deliver_again(signed_in(request), row)
        messages.success(request, "It is sent again.")
    except Refused as refusal:
        messages.error(request, refusal.message)
    return redirect("notifications:admin")


@admin_required
@require_http_methods(["GET", "HEAD", "POST"])
def change_settings(request: HttpRequest) -> HttpResponse:
    form, stale = SettingsForm.of(NotificationSettings.current()), False
    if request.method == "POST":
        with transaction.atomic():
            NotificationSettings.objects.select_for_update().filter(pk=NotificationSettings.ONLY).first()
            row = NotificationSettings.current()
            form = SettingsForm.of(row, request.POST)
            stored = {name: getattr(row, name) for name in form.fields}
            stale = stale_forms.is_stale(form, lambda: last_actor("notifications.settings", "the lab", stored))
            if form.is_valid():
                try:
                    services.set_settings(signed_in(request), form.values())
                    messages.success(request, "Saved.")
                    return redirect("notifications:settings")
                except Refused as refusal:
                    form.refuse(refusal)
    status = stale_forms.status_of(form, stale)
    return render(request, "notifications/admin_settings.html", {"form": form}, status=status)


@admin_required
@require_safe
def mail_templates(request: HttpRequest) -> HttpResponse:
    """List what has a template."""
    written = {row.kind: row for row in MailTemplate.objects.all()}
    rows = [(key, title, written.get(key)) for key, title in templates.TITLES.items()]
    return render(request, "notifications/admin_templates.html", {"rows": rows})


@admin_required
@require_http_methods(["GET", "HEAD", "POST"])
def mail_template(request: HttpRequest, kind: str) -> HttpResponse:
    if kind not in templates.TITLES:
        raise Http404
    form, stale = TemplateForm.of(templates.template_of(kind)), False
    if request.method == "POST":
        with transaction.atomic():
            MailTemplate.objects.select_for_update().filter(kind=kind).first()
            form = TemplateForm.of(templates.template_of(kind), request.POST)
            stale = stale_forms.is_stale(form)
            if form.is_valid():
                try:
                    services.set_template(
                        signed_in(request), kind, form.cleaned_data["subject"], form.cleaned_data["intro"]
                    )
                    messages.success(request, "Saved.")
                    return redirect("notifications:templates")
                except Refused as refusal:
                    form.refuse(refusal)
    about = {
        "form": form,
        "kind": kind,
        "title": templates.TITLES[kind],
        "placeholders": templates.PLACEHOLDERS.items(),
    }
    return render(request, "notifications/admin_template.html", about, status=stale_forms.status_of(form, stale))
