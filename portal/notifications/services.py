"""What people, owners of projects and admins change: preferences, channels, webhooks, settings. Views and the API call these."""

import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

from django.core.cache import cache
from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from portal.accounts.audit import audit
from portal.accounts.models import User
from portal.environments.credentials import seal
from portal.notifications import channel_types, kinds, outbox, templates
from portal.notifications.delivery import config_of, has_rights
from portal.notifications.mail import is_delivered
from portal.notifications.messages import TestMessage
from portal.notifications.models import (
    Channel,
    Delivery,
    MailTemplate,
    MutedProject,
    Notice,
    NotificationSettings,
    Preferences,
    PrivateProject,
)
from portal.notifications.rendering import NotPossibleError
from portal.notifications.sending import new_secret
from portal.outbound import OutboundError, check_host
from portal.projects.models import Project
from portal.projects.services import may_manage, require_owner, role_of
from portal.refused import Refused

MAX_CHANNELS = 10
"""Of a person, and of a project; each event is sent to all."""
MAX_TESTS = 5
TEST_SECONDS = 600
MAX_AGAIN, AGAIN_SECONDS = 20, 600
"""How often messages are sent again to one channel, or one mail is: a receiver is not hammered in the portal's name."""

# --- notices -----------------------------------------------------------------------------------------------------


def shown_to(user: User) -> QuerySet[Notice]:
    """Return a person's notices in the portal, the newest first."""
    return Notice.objects.filter(user=user, shown=True).order_by("-pk")


def unread_count(user: User) -> int:
    return shown_to(user).filter(read_at=None).count()


def mark_read(user: User, pks: Collection[int] | None = None) -> int:
    """Mark notices as read, all of them without numbers; return how many were not."""
    unread = shown_to(user).filter(read_at=None)
    with transaction.atomic():
        done = (unread if pks is None else unread.filter(pk__in=pks)).order_by().update(read_at=timezone.now())
        outbox.wake_readers([user.pk] if done else [])
    return int(done)


# --- a person's own ----------------------------------------------------------------------------------------------


def save_preferences(user: User, values: Mapping[str, Any], channels_off: Mapping[int, Sequence[str]]) -> None:
    """Store what a person chose; ``channels_off`` has the kinds that they do not want, by channel."""
    with transaction.atomic():
        Preferences.objects.update_or_create(user=user, defaults=dict(values))
        for pk, off in channels_off.items():
            Channel.objects.filter(pk=pk, owner=user, scope=Channel.Scope.PERSON).update(off=list(off))


def mute(user: User, project: Project, muted: bool) -> None:
    if muted:
        MutedProject.objects.get_or_create(user=user, project=project)
    else:
        MutedProject.objects.filter(user=user, project=project).delete()


def set_private(user: User, project: Project, private: bool) -> None:
    """Keep all that a project's jobs print inside the portal, or let messages quote it."""
    require_owner(user, project)
    with transaction.atomic():
        if private:
            PrivateProject.objects.get_or_create(project=project)
        else:
            PrivateProject.objects.filter(project=project).delete()
        audit(user, "project.log_privacy", f"project {project.pk} {project.name}", after={"private": private})


# --- channels ----------------------------------------------------------------------------------------------------


def checked_target(user: User, type: str, config: Mapping[str, Any]) -> channel_types.Target:
    """Return where a channel leads. Raises Refused for a type that is not enabled, and what its fields may not be."""
    settings = NotificationSettings.current()
    known = channel_types.TYPES.get(type)
    if known is None or type not in settings.enabled_types or (type == Channel.Type.APPRISE and not user.is_admin):
        raise Refused("Channels of this type are not enabled. Ask an admin.", "forbidden")
    for field in known.fields:
        if field.required and not str(config.get(field.name, "")).strip():
            raise Refused("Fill this in.", field=field.name)
    target = known.target({field.name: config.get(field.name, "") for field in known.fields}, settings.allowed_hosts)
    if type == Channel.Type.APPRISE and not set(target.schemes) <= set(settings.apprise_schemes):
        raise Refused(f"The scheme {target.place} is not enabled.", field="url")
    return target


def add_channel(user: User, type: str, name: str, config: Mapping[str, Any]) -> tuple[Channel, str]:
    """Add a channel of a person. Return it, and the secret of a webhook, which is never shown again."""
    target = checked_target(user, type, config)
    with transaction.atomic():
        User.objects.select_for_update(no_key=True).get(pk=user.pk)
        if Channel.objects.filter(owner=user, scope=Channel.Scope.PERSON).count() >= MAX_CHANNELS:
            raise Refused(f"You have {MAX_CHANNELS} channels. Remove one first.", "limit")
        return _create(type, name, config, target, owner=user)


def _create(
    type: str, name: str, config: Mapping[str, Any], target: channel_types.Target, **fields: Any
) -> tuple[Channel, str]:
    secret = new_secret() if type == Channel.Type.WEBHOOK else ""
    kept = {field.name: str(config.get(field.name, "")).strip() for field in channel_types.TYPES[type].fields}
    sealed = seal(json.dumps({**kept, **({"secret": secret} if secret else {})}))
    row = Channel.objects.create(
        type=type, name=name.strip() or target.place, target=target.place, sealed_config=sealed, **fields
    )
    return row, secret


def may_change(user: User, channel: Channel) -> bool:
    """Return whether a channel is a person's own, of a project that they manage, or of the lab and they are an admin."""
    if channel.scope == Channel.Scope.PERSON:
        return channel.owner_id == user.pk
    if channel.project is None:
        return user.is_admin
    return may_manage(role_of(user, channel.project))


def channels_of(user: User) -> QuerySet[Channel]:
    return Channel.objects.filter(owner=user, scope=Channel.Scope.PERSON)


def remove_channel(user: User, channel: Channel) -> None:
    with transaction.atomic():
        if channel.scope != Channel.Scope.PERSON:
            audit(user, "webhook.remove", _subject(channel), before=_shown(channel))
        channel.delete()


def resume(user: User, channel: Channel) -> None:
    """Switch a channel on again. What was dropped in the meantime does not come back.

    A webhook whose owner may no longer manage it becomes the user's.
    """
    with transaction.atomic():
        if not has_rights(channel):
            before = channel.owner.get_username()
            channel.owner = user
            channel.save(update_fields=["owner"])
            audit(user, "webhook.change", _subject(channel), {"owner": before}, {"owner": user.get_username()})
        Channel.objects.filter(pk=channel.pk).update(paused_at=None, last_error="")


def pause(channel: Channel) -> None:
    Channel.objects.filter(pk=channel.pk, paused_at=None).update(paused_at=timezone.now())


def send_test(user: User, channel: Channel | None) -> Delivery:
    """Send a message by a channel, or by mail to oneself without one. Raises Refused for too many."""
    now = timezone.now()
    recent = Notice.objects.filter(kind=kinds.TEST, user=user, at__gt=now - timedelta(seconds=TEST_SECONDS))
    if recent.count() >= MAX_TESTS:
        raise Refused("You have sent several tests in the last ten minutes. Wait a little.", "limit")
    if channel is None and not user.email:
        raise Refused("Your account has no mail address.")
    if channel is None and not is_delivered():
        raise Refused("Mail is not set up. An admin sets EMAIL_BACKEND and EMAIL_HOST, and restarts the portal.")
    content = TestMessage(user.get_username()).data()
    with transaction.atomic():
        if channel is not None:
            resume(user, channel)
        notice = Notice.objects.create(kind=kinds.TEST, user=user, content=content, expanded_at=now)
        row = Delivery.objects.create(
            notice=notice, channel=channel, address="" if channel else user.email, due_at=now, event="test"
        )
        outbox.wake_worker()
    return row


# --- webhooks of the API -----------------------------------------------------------------------------------------


def webhooks_of(project: Project | None) -> QuerySet[Channel]:
    """Return the webhooks of a project, or of the lab."""
    scope = Channel.Scope.LAB if project is None else Channel.Scope.PROJECT
    return Channel.objects.filter(scope=scope, project=project).select_related("owner")


def require_webhook_rights(user: User, project: Project | None) -> None:
    if project is not None:
        require_owner(user, project)
    elif not user.is_admin:
        raise Refused("Only admins manage the webhooks of the lab.", "forbidden")


def add_webhook(
    user: User, project: Project | None, url: str, events: Sequence[str], name: str = ""
) -> tuple[Channel, str]:
    """Register a URL for events of a project's jobs, or of all. Return it, and its secret, which is never shown again."""
    require_webhook_rights(user, project)
    chosen = checked_events(events)
    target = checked_target(user, Channel.Type.WEBHOOK, {"url": url})
    with transaction.atomic():
        if project is not None:
            Project.objects.select_for_update(no_key=True).get(pk=project.pk)
        if webhooks_of(project).count() >= MAX_CHANNELS:
            raise Refused(f"There are {MAX_CHANNELS} webhooks. Remove one first.", "limit")
        scope = Channel.Scope.LAB if project is None else Channel.Scope.PROJECT
        place: dict[str, Any] = {"owner": user, "project": project, "scope": scope, "events": chosen}
        row, secret = _create(Channel.Type.WEBHOOK, name, {"url": url}, target, **place)
        audit(user, "webhook.add", _subject(row), after=_shown(row))
    return row, secret


def checked_events(events: Sequence[str]) -> list[str]:
    unknown = [each for each in events if each not in kinds.EVENTS]
    if unknown or not events:
        raise Refused(f"Choose one or more of: {', '.join(kinds.EVENTS)}.", field="events")
    return [each for each in kinds.EVENTS if each in events]


def set_webhook_events(user: User, webhook: Channel, events: Sequence[str]) -> None:
    chosen = checked_events(events)
    with transaction.atomic():
        before = _shown(webhook)
        webhook.events = chosen
        webhook.save(update_fields=["events"])
        audit(user, "webhook.change", _subject(webhook), before=before, after=_shown(webhook))


def _subject(channel: Channel) -> str:
    return f"project {channel.project_id} {channel.project.name}" if channel.project else "the lab"


def _shown(channel: Channel) -> dict[str, Any]:
    return {"name": channel.name, "host": channel.target, "events": list(channel.events)}


@transaction.atomic
def deliver_again(user: User, delivery: Delivery) -> None:
    """Send a delivery once more, with the same id. One that waits stays as it is. Raises Refused for too many."""
    now = timezone.now()
    key = f"again-channel-{delivery.channel_id}" if delivery.channel_id else f"again-{delivery.pk}"
    if not cache.add(key, 0, AGAIN_SECONDS) and cache.get(key, 0) >= MAX_AGAIN:
        raise Refused("This was sent again many times in the last ten minutes. Wait a little.", "limit")
    with suppress(ValueError):  # it has expired meanwhile
        cache.incr(key)
    if delivery.notice.kind == kinds.ACCOUNT and not delivery.notice.sealed_mail:
        raise Refused("Its content is no longer stored.", "conflict")
    Delivery.objects.exclude(status=Delivery.Status.WAITING).filter(pk=delivery.pk).update(
        status=Delivery.Status.WAITING, attempts=0, due_at=now, closed_at=None, error="", lead=None
    )
    Delivery.objects.filter(lead=delivery).update(status=Delivery.Status.WAITING, closed_at=None, error="")
    if delivery.channel is not None:
        resume(user, delivery.channel)
    outbox.wake_worker()


# --- the lab -----------------------------------------------------------------------------------------------------


def set_settings(actor: User, values: Mapping[str, Any]) -> None:
    """Store what an admin decided. Raises Refused for a host or a scheme that cannot be allowed."""
    hosts = sorted({_checked_host(host) for host in values["allowed_hosts"]})
    schemes = sorted({_checked_scheme(scheme) for scheme in values["apprise_schemes"]})
    stored = {**values, "allowed_hosts": hosts, "apprise_schemes": schemes}
    with transaction.atomic():
        row, _ = NotificationSettings.objects.select_for_update().get_or_create(pk=NotificationSettings.ONLY)
        before = {name: getattr(row, name) for name in stored}
        NotificationSettings.objects.filter(pk=row.pk).update(**stored, chosen=True)
        audit(actor, "notifications.settings", "the lab", before=before, after=stored)


def _checked_host(host: str) -> str:
    host = host.strip().lower().rstrip(".")
    try:
        check_host(host, {host})
    except OutboundError as error:
        raise Refused(str(error), field="allowed_hosts") from None
    if not host or len(host) > 255 or any(letter in host for letter in "/:@ *?#") and host.count(":") < 2:
        raise Refused(f"“{host}” is not a host: write its name or address only.", field="allowed_hosts")
    return host


def _checked_scheme(scheme: str) -> str:
    scheme = scheme.strip().lower().removesuffix("://")
    if scheme in channel_types.NEVER:
        raise Refused(f"{scheme}:// acts on the portal's own machine, and cannot be enabled.", field="apprise_schemes")
    if not channel_types.SCHEME.fullmatch(scheme):
        raise Refused(f"“{scheme}” is not a scheme of apprise.", field="apprise_schemes")
    return scheme


def set_template(actor: User, kind: str, subject: str, intro: str) -> None:
    """Store the subject and the first lines of the mails of a kind; both empty: the default again."""
    templates.check(subject, "subject")
    templates.check(intro, "intro")
    with transaction.atomic():
        before = templates.template_of(kind)
        if (subject, intro) in (("", ""), (templates.DEFAULT_SUBJECT, templates.DEFAULT_INTRO)):
            MailTemplate.objects.filter(kind=kind).delete()
        else:
            values = {"subject": subject or templates.DEFAULT_SUBJECT, "intro": intro}
            MailTemplate.objects.update_or_create(kind=kind, defaults=values)
        after = {"subject": subject, "intro": intro}
        audit(actor, "notifications.template", kind, {"subject": before.subject, "intro": before.intro}, after)


def is_readable(channel: Channel) -> bool:
    """Return whether the settings of a channel can be decrypted: not after a restore of the database alone."""
    try:
        config_of(channel)
    except NotPossibleError:
        return False
    return True
