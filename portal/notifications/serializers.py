"""Notices and webhooks in the API."""

from typing import Any

from rest_framework import serializers

from portal.notifications import kinds
from portal.notifications.models import Channel, Delivery, Notice
from portal.outbound import MAX_URL
from portal.sentences.notices import notice_text
from portal.strict_fields import TextField

EVENT_NAMES = list(kinds.EVENTS)


class NoticeSerializer(serializers.ModelSerializer[Notice]):
    """A notice in the portal."""

    title = serializers.SerializerMethodField()
    text = serializers.SerializerMethodField()
    job = serializers.IntegerField(source="job_id", read_only=True, allow_null=True)
    project = serializers.IntegerField(source="project_id", read_only=True, allow_null=True)

    class Meta:
        model = Notice
        fields = ("id", "kind", "title", "text", "job", "project", "path", "at", "read_at")
        read_only_fields = fields
        extra_kwargs = {"path": {"help_text": "Of the page that it is about; empty without one."}}

    def get_title(self, notice: Notice) -> str:
        return notice_text(notice.content).title

    def get_text(self, notice: Notice) -> str:
        return notice_text(notice.content).text


class ReadNoticesSerializer(serializers.Serializer[Any]):
    ids = serializers.ListField(
        child=serializers.IntegerField(min_value=1, max_value=2**63 - 1),
        max_length=200,
        required=False,
        help_text="Those to mark as read; left out: all.",
    )


class ReadCountSerializer(serializers.Serializer[Any]):
    marked = serializers.IntegerField(help_text="How many were unread.")


class WebhookSerializer(serializers.ModelSerializer[Channel]):
    """A webhook. Its URL is never sent: it may have a secret."""

    host = serializers.CharField(source="target", read_only=True, help_text="The host of its URL.")
    events = serializers.ListField(child=serializers.CharField(), read_only=True)
    registered_by = serializers.CharField(source="owner.username", read_only=True)

    class Meta:
        model = Channel
        fields = (
            "id",
            "name",
            "host",
            "events",
            "registered_by",
            "created_at",
            "paused_at",
            "last_sent_at",
            "last_error",
        )
        read_only_fields = fields
        extra_kwargs = {
            "paused_at": {"help_text": "It failed again and again, and receives nothing until it is resumed."}
        }


class EventsField(serializers.ListField):
    """Names of events."""

    def __init__(self, **options: Any) -> None:
        super().__init__(
            child=serializers.ChoiceField(choices=EVENT_NAMES),
            allow_empty=False,
            max_length=len(kinds.EVENTS),
            **options,
        )


class NewWebhookSerializer(serializers.Serializer[Any]):
    url = TextField(max_length=MAX_URL, help_text="`https://…`, on a public address or a host that an admin allowed.")
    events = EventsField(help_text="`job.ended` is sent for every end, unless the name of the end is chosen, too.")
    name = TextField(max_length=80, required=False, default="", allow_blank=True)


class NewWebhookAnswerSerializer(serializers.ModelSerializer[Channel]):
    """A webhook that was registered, with its secret."""

    host = serializers.CharField(source="target", read_only=True, help_text="The host of its URL.")
    events = serializers.ListField(child=serializers.CharField(), read_only=True)
    secret = serializers.SerializerMethodField(help_text="Verifies signatures; sent in this answer only.")

    class Meta:
        model = Channel
        fields = ("id", "name", "host", "events", "created_at", "secret")
        read_only_fields = fields

    def get_secret(self, webhook: Channel) -> str:
        return str(self.context["secret"])


class WebhookEventsSerializer(serializers.Serializer[Any]):
    events = EventsField()


class DeliverySerializer(serializers.ModelSerializer[Delivery]):
    """One event that was sent to a webhook, or waits for it."""

    uid = serializers.UUIDField(read_only=True, help_text="The `webhook-id` of the request.")
    at = serializers.DateTimeField(source="notice.at", read_only=True, help_text="When it happened.")
    job = serializers.IntegerField(source="notice.job_id", read_only=True, allow_null=True)

    class Meta:
        model = Delivery
        fields = ("id", "uid", "event", "job", "at", "status", "attempts", "due_at", "closed_at", "error")
        read_only_fields = fields
