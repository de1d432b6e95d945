"""More time for jobs over REST: ask, withdraw and see whom it would delay; admins list, grant and refuse."""

from typing import Any

import django_filters
from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema, extend_schema_field
from rest_framework import mixins, serializers, status
from rest_framework.generics import get_object_or_404
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import GenericViewSet

from portal.accounts.models import User
from portal.accounts.permissions import IsAdmin, signed_in
from portal.forecast import delays
from portal.forecast.delays import DelayedJob
from portal.jobs import permissions
from portal.jobs.api import JobSubresource
from portal.jobs.models import Job
from portal.jobs.spec import limits_of
from portal.jobs.time_extensions import services
from portal.jobs.time_extensions.models import MAX_TEXT, TimeExtension
from portal.jobs.time_extensions.services import Delays
from portal.rest import KnownParameters, NewestFirst, refusals, validated
from portal.strict_fields import TextField
from portal.user_slots import BusyError


class DelayedJobSerializer(serializers.Serializer[DelayedJob]):
    """A waiting job that would start later. ``job`` and ``name`` are null where you may not see its project."""

    job = serializers.SerializerMethodField()
    name = serializers.SerializerMethodField()
    submitted_by = serializers.SerializerMethodField(help_text="Null where you may not see the queue of the lab.")
    seconds = serializers.IntegerField(
        allow_null=True, help_text="How much later it starts. Null: no longer within a day."
    )

    def get_job(self, row: DelayedJob) -> int | None:
        return row.job.pk if row.job and row.visible else None

    def get_name(self, row: DelayedJob) -> str | None:
        return row.job.name if row.job and row.visible else None

    def get_submitted_by(self, row: DelayedJob) -> str | None:
        return row.person or None


class DelaysSerializer(serializers.Serializer[Any]):
    seconds = serializers.IntegerField(help_text="The additional time that was compared.")
    delays = DelayedJobSerializer(many=True, allow_null=True, help_text="Null when it cannot be computed now.")
    delays_at = serializers.DateTimeField(allow_null=True, help_text="The time of the snapshot that was compared.")
    granted_by_rule = serializers.BooleanField(help_text="The rule of the lab would grant it at once.")
    max_seconds = serializers.IntegerField(help_text="The most that can be asked for: time limits have a maximum.")


class TimeExtensionSerializer(serializers.ModelSerializer[TimeExtension]):
    """A request for more time."""

    job = serializers.IntegerField(source="job_id", read_only=True)
    asked_by = serializers.SlugRelatedField[Any](slug_field="username", read_only=True)
    decided_by = serializers.SlugRelatedField[Any](slug_field="username", read_only=True, allow_null=True)
    is_open = serializers.BooleanField(read_only=True, help_text="An admin can decide it: the job has not ended.")
    delays = serializers.SerializerMethodField(help_text="Whom it would delay at most. Null: not known.")

    class Meta:
        model = TimeExtension
        fields = (
            "id", "job", "asked_by", "asked_at", "seconds", "reason", "status", "is_open", "by_rule", "decided_by",
            "decided_at", "answer", "delays", "delays_at",
        )  # fmt: skip
        read_only_fields = fields
        extra_kwargs = {
            "seconds": {"help_text": "How much longer the job may run than its time limit allows."},
            "by_rule": {"help_text": "The rule of the lab granted it."},
            "delays_at": {"help_text": "The time of the snapshot from which `delays` was computed."},
        }

    @extend_schema_field(DelayedJobSerializer(many=True, allow_null=True))
    def get_delays(self, row: TimeExtension) -> Any:
        found = self.context["delays"].get(row.pk)
        return None if found is None else DelayedJobSerializer(found, many=True).data


class NewTimeExtensionSerializer(serializers.Serializer[Any]):
    seconds = serializers.IntegerField(
        min_value=services.MIN_SECONDS,
        max_value=limits_of("time_limit_seconds")[1],
        help_text="How much longer than its time limit.",
    )
    reason = TextField(max_length=MAX_TEXT, allow_blank=True, default="", help_text="For the admin who decides.")


class AskedSecondsSerializer(serializers.Serializer[Any]):
    seconds = serializers.IntegerField(min_value=services.MIN_SECONDS, max_value=limits_of("time_limit_seconds")[1])


class AnswerSerializer(serializers.Serializer[Any]):
    answer = TextField(max_length=MAX_TEXT, allow_blank=True, default="", help_text="For the user who asked.")


def described(user: User, *rows: TimeExtension) -> list[dict[str, Any]]:
    """Return requests as a user may see them."""
    context = {"delays": delays.as_seen_by(user, rows)}
    return list(TimeExtensionSerializer(rows, many=True, context=context).data)


def _computed(user: User, job: Job, seconds: int) -> Delays | None:
    try:
        return delays.delays_if_granted(job, seconds, user)
    except BusyError:
        return None


class TimeExtensions(JobSubresource):
    """Requests for more time for one job, the newest first."""

    queryset = TimeExtension.objects.none()
    serializer_class = TimeExtensionSerializer

    def get_queryset(self) -> QuerySet[TimeExtension]:
        return services.requests_seen_by(signed_in(self.request)).filter(job=self.job)

    @extend_schema(responses={200: TimeExtensionSerializer(many=True), **refusals(404)})
    def list(self, request: Request, job_pk: int) -> Response:
        """List the requests for more time for a job."""
        rows = self.paginate_queryset(self.get_queryset()) or []
        return self.get_paginated_response(described(signed_in(request), *rows))

    @extend_schema(
        request=NewTimeExtensionSerializer, responses={201: TimeExtensionSerializer, **refusals(400, 403, 404, 409)}
    )
    def create(self, request: Request, job_pk: int) -> Response:
        """Ask for more time. The rule of the lab may grant it at once; otherwise an admin decides.

        It takes a few seconds: whom it would delay is computed and stored with it.
        """
        user, job = signed_in(request), self.job
        asked = validated(NewTimeExtensionSerializer(data=request.data))
        permissions.require_may_act(user, job)
        services.check(job, asked["seconds"])
        found = _computed(user, job, asked["seconds"])
        row = services.ask(user, job, asked["seconds"], asked["reason"], found)
        return Response(described(user, row)[0], status.HTTP_201_CREATED)

    @extend_schema(request=AskedSecondsSerializer, responses={200: DelaysSerializer, **refusals(400, 403, 404, 409)})
    def compare(self, request: Request, job_pk: int) -> Response:
        """Return which waiting jobs would start later if a job got more time and used all of it. Nothing is stored."""
        user, job = signed_in(request), self.job
        seconds = validated(AskedSecondsSerializer(data=request.data))["seconds"]
        permissions.require_may_act(user, job)
        services.check(job, seconds)
        found = _computed(user, job, seconds)
        about = {
            "seconds": seconds,
            "delays": None if found is None else delays.seen_by(user, found),
            "delays_at": found.at if found else None,
            "granted_by_rule": seconds <= services.seconds_left_of_rule(job),
            "max_seconds": services.max_more_seconds(job),
        }
        return Response(DelaysSerializer(about).data)

    @extend_schema(request=None, responses={200: TimeExtensionSerializer, **refusals(403, 404, 409)})
    def withdraw(self, request: Request, job_pk: int, pk: int) -> Response:
        """Withdraw a request that no admin has decided."""
        user = signed_in(request)
        row = services.withdraw(user, get_object_or_404(self.get_queryset(), pk=pk))
        return Response(described(user, row)[0])


class TimeExtensionFilter(django_filters.FilterSet):
    status = django_filters.ChoiceFilter(choices=TimeExtension.Status.choices, label="Such as `asked`.")

    class Meta:
        model = TimeExtension
        fields: list[str] = []


class AllTimeExtensions(KnownParameters, mixins.ListModelMixin, GenericViewSet[TimeExtension]):
    """The requests for more time of the whole lab, for admins."""

    permission_classes = [IsAdmin]
    pagination_class = NewestFirst
    queryset = TimeExtension.objects.none()
    serializer_class = TimeExtensionSerializer
    filterset_class = TimeExtensionFilter

    def get_queryset(self) -> QuerySet[TimeExtension]:
        return services.requests_seen_by(signed_in(self.request))

    @extend_schema(responses={200: TimeExtensionSerializer(many=True), **refusals(404)})
    def list(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """List the requests for more time, the newest first."""
        rows = self.paginate_queryset(self.filter_queryset(self.get_queryset())) or []
        return self.get_paginated_response(described(signed_in(request), *rows))

    @extend_schema(request=AnswerSerializer, responses={200: TimeExtensionSerializer, **refusals(400, 404, 409)})
    def grant(self, request: Request, pk: int) -> Response:
        """Raise the time limit of the job. A request that is granted already stays as it is."""
        admin = signed_in(request)
        answer = validated(AnswerSerializer(data=request.data))["answer"]
        return Response(described(admin, services.grant(admin, self.get_object(), answer))[0])

    @extend_schema(request=AnswerSerializer, responses={200: TimeExtensionSerializer, **refusals(400, 404, 409)})
    def refuse(self, request: Request, pk: int) -> Response:
        """Refuse a request. The job keeps its time limit."""
        admin = signed_in(request)
        answer = validated(AnswerSerializer(data=request.data))["answer"]
        return Response(described(admin, services.refuse(admin, self.get_object(), answer))[0])
