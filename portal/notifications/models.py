"""The outbox: notices, and their deliveries to mail addresses and channels; and what people and admins chose.

A ``Notice`` is written in the transaction of what it is about. The worker turns it into deliveries (``expansion``) and
sends them (``delivery``). Only ``outbox``, ``expansion`` and ``delivery`` write notices and deliveries.
"""

import uuid
from datetime import time
from typing import Self
from zoneinfo import ZoneInfo

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils import timezone

from portal.jobs.models import Job
from portal.projects.models import Project
from portal.zones import zone_or_lab


class Preferences(models.Model):
    """What a person chose; without a row, the defaults: every kind in the portal and by mail, at once."""

    class Digest(models.TextChoices):
        SOON = "soon", "at once; what follows within five minutes comes together"
        HOUR = "hour", "at most once an hour"
        DAY = "day", "once a day"

    user = models.OneToOneField(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="notification_preferences"
    )
    portal_off = models.JSONField(default=list)
    """The kinds that do not appear in the portal."""
    mail_off = models.JSONField(default=list)
    """The kinds that are not mailed."""
    digest = models.CharField(max_length=4, choices=Digest.choices, default=Digest.SOON)
    digest_at = models.TimeField(default=time(8))
    """When the message of a day is sent, in ``zone``."""
    quiet_from = models.TimeField(null=True, blank=True)
    quiet_until = models.TimeField(null=True, blank=True)
    zone = models.CharField(max_length=80, blank=True)
    """A name of the zone database; empty: that of the lab."""

    class Meta:
        verbose_name_plural = "preferences"
        constraints = [
            models.CheckConstraint(
                condition=Q(quiet_from__isnull=True, quiet_until__isnull=True)
                | Q(quiet_from__isnull=False, quiet_until__isnull=False),
                name="quiet_hours_have_both_ends",
            )
        ]

    @classmethod
    def of(cls, user_id: int) -> Self:
        """Return a person's preferences, unsaved if nothing was ever chosen."""
        return cls.objects.filter(user=user_id).first() or cls(user_id=user_id)

    @property
    def clock(self) -> ZoneInfo:
        """The zone of digests and quiet hours."""
        return zone_or_lab(self.zone)


class MutedProject(models.Model):
    """A person hears nothing of a project."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="muted_projects")
    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="muted_by")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["user", "project"], name="project_muted_once")]


class PrivateProject(models.Model):
    """A project of whose logs nothing leaves the portal: messages about its jobs have neither lines nor causes."""

    project = models.OneToOneField(Project, on_delete=models.CASCADE, related_name="log_privacy")


class Channel(models.Model):
    """Where messages go beside the portal and mail: of a person, or a webhook of the API, of a project or the lab."""

    class Scope(models.TextChoices):
        PERSON = "person", "person"
        PROJECT = "project", "project"
        LAB = "lab", "lab"

    class Type(models.TextChoices):
        WEBHOOK = "webhook", "Webhook"
        SLACK = "slack", "Slack"
        TEAMS = "teams", "Microsoft Teams"
        DISCORD = "discord", "Discord"
        MATTERMOST = "mattermost", "Mattermost"
        TELEGRAM = "telegram", "Telegram"
        MATRIX = "matrix", "Matrix"
        NTFY = "ntfy", "ntfy"
        APPRISE = "apprise", "Apprise URL"

    scope = models.CharField(max_length=7, choices=Scope.choices, default=Scope.PERSON)
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="channels")
    """Whose it is; of a webhook of the API, who registered it and hears when it fails."""
    project = models.ForeignKey(Project, null=True, blank=True, on_delete=models.CASCADE, related_name="webhooks")
    type = models.CharField(max_length=10, choices=Type.choices)
    name = models.CharField(max_length=80)
    target = models.CharField(max_length=255)
    """The host, for display: never a secret."""
    sealed_config = models.TextField()
    """The fields of the type as encrypted JSON; of a webhook also its secret."""
    off = models.JSONField(default=list)
    """The kinds that a person does not want here."""
    events = models.JSONField(default=list)
    """The events that a webhook of the API receives."""
    created_at = models.DateTimeField(default=timezone.now)
    paused_at = models.DateTimeField(null=True, blank=True)
    last_sent_at = models.DateTimeField(null=True, blank=True)
    last_error = models.CharField(max_length=300, blank=True)
    """Of the last failure; empty once something was sent."""

    class Meta:
        ordering = ["created_at", "id"]
        constraints = [
            models.CheckConstraint(
                condition=Q(scope="project", project__isnull=False) | (~Q(scope="project") & Q(project__isnull=True)),
                name="channel_of_a_project_names_it",
            )
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def is_program(self) -> bool:
        """Whether a program reads it: nothing is summarised for it, and it has no quiet hours."""
        return self.type == self.Type.WEBHOOK


class Notice(models.Model):
    """Something that happened, for a person or for programs; its content is data (``portal/sentences/notices.py``)."""

    uid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    kind = models.CharField(max_length=10)
    """One of ``kinds``."""
    event = models.CharField(max_length=20, blank=True)
    """The event of the API, if it is one."""
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.CASCADE, related_name="notices"
    )
    project = models.ForeignKey(Project, null=True, blank=True, on_delete=models.CASCADE, related_name="+")
    job = models.ForeignKey(Job, null=True, blank=True, on_delete=models.CASCADE, related_name="+")
    content = models.JSONField()
    """A message. Until it is expanded, that of the job's history."""
    sealed_mail = models.TextField(blank=True)
    """A mail of an account, encrypted as long as it is not sent: its link opens the account."""
    path = models.CharField(max_length=200, blank=True)
    """Of the page that it is about."""
    at = models.DateTimeField(default=timezone.now)
    expanded_at = models.DateTimeField(null=True, blank=True)
    shown = models.BooleanField(default=False)
    """It appears in the portal."""
    read_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-id"]
        indexes = [
            models.Index(fields=["id"], condition=Q(expanded_at__isnull=True), name="notice_to_expand"),
            models.Index(fields=["user", "-id"], condition=Q(shown=True), name="notice_shown"),
            models.Index(fields=["user"], condition=Q(shown=True, read_at__isnull=True), name="notice_unread"),
        ]


class Delivery(models.Model):
    """One notice to one place. Several may be sent as one message: then the others name the first as their ``lead``."""

    class Status(models.TextChoices):
        WAITING = "waiting", "waiting"
        SENT = "sent", "sent"
        GAVE_UP = "gave_up", "gave up"
        DROPPED = "dropped", "not needed"

    uid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    """What a receiver sees as the id of the message: a repetition has the same."""
    notice = models.ForeignKey(Notice, on_delete=models.CASCADE, related_name="deliveries")
    channel = models.ForeignKey(Channel, null=True, blank=True, on_delete=models.CASCADE, related_name="deliveries")
    """None: by mail, to the notice's user or to ``address``."""
    address = models.EmailField(blank=True)
    event = models.CharField(max_length=20, blank=True)
    """The name under which a webhook of the API receives it."""
    status = models.CharField(max_length=7, choices=Status.choices, default=Status.WAITING)
    due_at = models.DateTimeField()
    lead = models.ForeignKey("self", null=True, blank=True, on_delete=models.CASCADE, related_name="members")
    attempts = models.PositiveIntegerField(default=0)
    """Counted when one begins, so that a message that kills the worker is given up, too."""
    claimed_until = models.DateTimeField(null=True, blank=True)
    claim = models.UUIDField(null=True, blank=True, editable=False)
    closed_at = models.DateTimeField(null=True, blank=True)
    error = models.CharField(max_length=300, blank=True)

    class Meta:
        ordering = ["-id"]
        verbose_name_plural = "deliveries"
        indexes = [
            models.Index(fields=["due_at"], condition=Q(status="waiting", lead__isnull=True), name="delivery_due"),
            models.Index(fields=["status", "-id"], name="delivery_by_status"),
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["notice", "channel"], condition=Q(channel__isnull=False), name="notice_once_per_channel"
            ),
            models.UniqueConstraint(
                fields=["notice", "address"], condition=Q(channel__isnull=True), name="notice_mailed_once"
            ),
        ]


class NotificationSettings(models.Model):
    """What admins decided for the lab: at most one row; without it, the defaults."""

    ONLY = 1

    channel_types = models.JSONField(default=list)
    """The types of channels that people may add."""
    allowed_hosts = models.JSONField(default=list)
    """Hosts that may have addresses of the local network, any port, and no encryption."""
    apprise_schemes = models.JSONField(default=list)
    """The schemes of the URLs that admins may enter."""
    long_wait_minutes = models.PositiveIntegerField(default=30)
    log_lines_leave = models.BooleanField(default=True)
    """Messages outside the portal may quote logs, unless the project is private."""
    chosen = models.BooleanField(default=False)
    """An admin has saved it: before, every type of channel but raw URLs is enabled."""

    class Meta:
        verbose_name_plural = "notification settings"
        constraints = [models.CheckConstraint(condition=Q(pk=1), name="one_row_of_notification_settings")]

    @classmethod
    def current(cls) -> Self:
        return cls.objects.filter(pk=cls.ONLY).first() or cls(pk=cls.ONLY)

    @property
    def enabled_types(self) -> list[str]:
        return list(self.channel_types) if self.chosen else [each for each in Channel.Type.values if each != "apprise"]


class MailTemplate(models.Model):
    """The subject and the first lines of the mails of a kind, as an admin wrote them."""

    kind = models.CharField(max_length=10, unique=True)
    subject = models.CharField(max_length=150)
    intro = models.TextField(max_length=2000, blank=True)


class MailStatus(models.Model):
    """What the mail server answered last: at most one row."""

    ONLY = 1

    last_sent_at = models.DateTimeField(null=True)
    last_error_at = models.DateTimeField(null=True)
    last_error = models.CharField(max_length=300, blank=True)

    class Meta:
        constraints = [models.CheckConstraint(condition=Q(pk=1), name="one_row_of_mail_status")]
