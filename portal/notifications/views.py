"""A person's notices, and the pages on which they choose what they get and where."""

from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import login_not_required
from django.core.paginator import Paginator
from django.db import transaction
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from portal import stale_forms
from portal.accounts.models import User
from portal.accounts.permissions import signed_in
from portal.notifications import channel_types, mail, services, unsubscribe
from portal.notifications.forms import ChannelForm, PreferencesForm
from portal.notifications.kinds import BY_KEY
from portal.notifications.models import Channel, MutedProject, Notice, NotificationSettings, Preferences
from portal.notifications.schedule import is_quiet
from portal.projects.models import Project
from portal.projects.views import visible_project
from portal.refused import Refused
from portal.sentences.notices import notice_text

PAGE_SIZE = 25
NEWEST = 5
"""How many unread notices the bell of a page learns of."""


# --- notices -----------------------------------------------------------------------------------------------------


@require_safe
def notices(request: HttpRequest) -> HttpResponse:
    """List a person's notices, the newest first."""
    user = signed_in(request)
    page = Paginator(services.shown_to(user), PAGE_SIZE).get_page(request.GET.get("page"))
    rows = [(row, notice_text(row.content)) for row in page.object_list]
    about = {"page_obj": page, "rows": rows, "unread": services.unread_count(user)}
    return render(request, "notifications/notices.html", about)


@require_safe
def open_notice(request: HttpRequest, pk: int) -> HttpResponse:
    """Mark a notice as read and go to what it is about."""
    user = signed_in(request)
    row = get_object_or_404(services.shown_to(user), pk=pk)
    services.mark_read(user, [row.pk])
    return redirect(row.path or "notifications:list")


@require_POST
def mark_read(request: HttpRequest) -> HttpResponse:
    services.mark_read(signed_in(request))
    return redirect("notifications:list")


@require_safe
@never_cache
def unread(request: HttpRequest) -> HttpResponse:
    """Return what the bell shows: how many notices are unread, the newest of them, and whether the reader wants quiet."""
    user = signed_in(request)
    rows = services.shown_to(user).filter(read_at=None)
    newest = [_for_bell(row) for row in rows[:NEWEST]]
    quiet = is_quiet(Preferences.of(user.pk), timezone.now())
    return JsonResponse({"unread": rows.count(), "newest": newest, "quiet": quiet})


def _for_bell(row: Notice) -> dict[str, Any]:
    words = notice_text(row.content)
    return {"id": row.pk, "title": words.title, "text": words.text, "at": row.at.isoformat()}


# --- what a person gets ------------------------------------------------------------------------------------------


@require_http_methods(["GET", "HEAD", "POST"])
def preferences(request: HttpRequest) -> HttpResponse:
    user = signed_in(request)
    zone = timezone.get_current_timezone_name()
    channels = list(services.channels_of(user))
    form, stale = PreferencesForm(user, channels, zone), False
    if request.method == "POST":
        with transaction.atomic():
            User.objects.select_for_update(no_key=True).get(pk=user.pk)
            form = PreferencesForm(user, channels, zone, request.POST)
            stale = stale_forms.is_stale(form)
            if form.is_valid():
                off = {channel.pk: form.off(f"channel_{channel.pk}") for channel in channels}
                services.save_preferences(user, form.values(), off)
                messages.success(request, "Saved.")
                return redirect("notifications:preferences")
    enabled = NotificationSettings.current().enabled_types
    about = {
        "form": form,
        "channels": [(channel, services.is_readable(channel)) for channel in channels],
        "muted": MutedProject.objects.filter(user=user, project__deleted_at=None)
        .select_related("project")
        .order_by("project__name"),
        "types": _types_for(user, enabled),
        "mail_works": mail.is_delivered(),
    }
    return render(request, "notifications/preferences.html", about, status=stale_forms.status_of(form, stale))


def _types_for(user: User, enabled: list[str]) -> list[channel_types.ChannelType]:
    return [
        each
        for key, each in channel_types.TYPES.items()
        if key in enabled and (key != Channel.Type.APPRISE or user.is_admin)
    ]


@never_cache
@sensitive_post_parameters()
@require_http_methods(["GET", "HEAD", "POST"])
def new_channel(request: HttpRequest, type: str) -> HttpResponse:
    """Add a channel. The secret of a webhook is in this one response only."""
    user = signed_in(request)
    known = {each.key: each for each in _types_for(user, NotificationSettings.current().enabled_types)}
    if type not in known:
        messages.error(request, "Channels of this type are not enabled. Choose another, or ask an admin.")
        return redirect("notifications:preferences")
    form, status = ChannelForm(known[type]), 200
    if request.method == "POST":
        form, status = ChannelForm(known[type], request.POST), 400
        if form.is_valid():
            data = dict(form.cleaned_data)
            try:
                row, secret = services.add_channel(user, type, data.pop("name"), data)
            except Refused as refusal:
                form.refuse(refusal)
            else:
                if secret:
                    about = {"channel": row, "secret": secret, "type": known[type]}
                    return render(request, "notifications/channel_added.html", about)
                messages.success(request, f"“{row.name}” is added. Test it, to see whether messages arrive.")
                return redirect("notifications:preferences")
    return render(request, "notifications/new_channel.html", {"form": form, "type": known[type]}, status=status)


@require_POST
def change_channel(request: HttpRequest, pk: int, act: str) -> HttpResponse:
    user = signed_in(request)
    channel = get_object_or_404(services.channels_of(user), pk=pk)
    try:
        messages.success(request, _change(user, channel, act))
    except Refused as refusal:
        messages.error(request, refusal.message)
    return redirect("notifications:preferences")


def _change(user: User, channel: Channel, act: str) -> str:
    """Carry out an act on a channel; return what was done, as a sentence."""
    if act == "test":
        services.send_test(user, channel)
        return f"A test is on its way to “{channel.name}”. Reload this page to see whether it failed."
    if act == "remove":
        services.remove_channel(user, channel)
        return f"“{channel.name}” is removed."
    if act == "pause":
        services.pause(channel)
        return f"“{channel.name}” is paused."
    services.resume(user, channel)
    return f"“{channel.name}” is on again. What happened in the meantime is not sent."


@require_POST
def test_mail(request: HttpRequest) -> HttpResponse:
    """Send a mail to oneself."""
    user = signed_in(request)
    try:
        services.send_test(user, None)
        messages.success(request, f"A mail to {user.email} is on its way.")
    except Refused as refusal:
        messages.error(request, refusal.message)
    return redirect("notifications:admin" if "admin" in request.POST and user.is_admin else "notifications:preferences")


@require_POST
def mute(request: HttpRequest, pk: int) -> HttpResponse:
    """Mute a project, or hear of it again with ``muted`` empty."""
    user, project = signed_in(request), visible_project(request, pk)
    muted = bool(request.POST.get("muted"))
    services.mute(user, project, muted)
    messages.success(
        request, f"You get no notices of {project.name}." if muted else f"You get notices of {project.name}."
    )
    return redirect("notifications:project", pk)


@require_POST
def unmute(request: HttpRequest, pk: int) -> HttpResponse:
    """Hear of a project again, also of one that one may not see any more."""
    user = signed_in(request)
    project = get_object_or_404(Project, pk=pk)
    row = get_object_or_404(MutedProject, user=user, project=project)
    services.mute(user, project, False)
    messages.success(request, f"{row.project.name} is no longer muted.")
    return redirect("notifications:preferences")


# --- links in mails ----------------------------------------------------------------------------------------------


@login_not_required
@csrf_exempt
@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def unsubscribe_by_link(request: HttpRequest, token: str) -> HttpResponse:
    """Ask whether to stop mails of a kind; POST stops them, as mail programs do by one click (RFC 8058).

    The signed link is what permits it: there is no session, and so nothing that a forged request could use.
    """
    found = unsubscribe.read(token)
    if found is None:
        return render(request, "notifications/unsubscribe.html", {"known": False}, status=404)
    user, kind = found
    everything = request.POST.get("scope") == unsubscribe.ALL or kind == unsubscribe.ALL
    if request.method == "POST":
        unsubscribe.unsubscribe(user, unsubscribe.ALL if everything else kind)
    about = {"known": True, "person": user, "title": BY_KEY[kind].title if kind in BY_KEY else ""}
    about |= {"done": request.method == "POST", "everything": everything}
    return render(request, "notifications/unsubscribe.html", about)
