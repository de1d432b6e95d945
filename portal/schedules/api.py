"""Schedules over REST. The pages use the same services."""

from typing import Any

import django_filters
from django.db.models import QuerySet
from django.shortcuts import get_object_or_404
from drf_spectacular.utils import extend_schema
from rest_framework import mixins, status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import GenericViewSet

from portal.accounts.permissions import signed_in
from portal.jobs.api import IdFilter
from portal.jobs.models import Job
from portal.rest import KnownParameters, NewestFirst, refusals, validated
from portal.schedules import services
from portal.schedules.models import Schedule, ScheduleRun
from portal.schedules.serializers import (
    EditScheduleSerializer,
    NewScheduleSerializer,
    ScheduleRunSerializer,
    ScheduleSerializer,
    SubmittedSerializer,
)


class ScheduleFilter(django_filters.FilterSet):
    project = IdFilter(field_name="project_id", max_value=2**62, min_value=1, label="The id of a project.")
    mine = django_filters.ChoiceFilter(
        method="of_reader", choices=[("true", "yours"), ("false", "those of others")], label="true: only your own."
    )

    class Meta:
        model = Schedule
        fields: list[str] = []

    def of_reader(self, rows: QuerySet[Schedule], _: str, mine: str) -> QuerySet[Schedule]:
        reader = signed_in(self.request)
        return rows.filter(owner=reader) if mine == "true" else rows.exclude(owner=reader)


class Schedules(KnownParameters, mixins.ListModelMixin, mixins.RetrieveModelMixin, GenericViewSet[Schedule]):
    """Schedules of the projects that the user may see, the newest first."""

    queryset = Schedule.objects.none()
    serializer_class = ScheduleSerializer
    pagination_class = NewestFirst
    filterset_class = ScheduleFilter

    def get_queryset(self) -> QuerySet[Schedule]:
        rows = Schedule.objects.visible_to(signed_in(self.request))
        return rows.select_related("project", "owner", "code", "environment").order_by("-pk")

    def _job(self, number: int) -> Job:
        rows = Job.objects.visible_to(signed_in(self.request)).select_related("project", "code", "environment")
        return get_object_or_404(rows, pk=number)

    def _answer(self, row: Schedule, code: int = status.HTTP_200_OK) -> Response:
        return Response(ScheduleSerializer(self.get_queryset().get(pk=row.pk)).data, code)

    @extend_schema(
        request=NewScheduleSerializer, responses={201: ScheduleSerializer, **refusals(400, 403, 404, 409, 429)}
    )
    def create(self, request: Request) -> Response:
        """Make a schedule that submits the fields of a job, as yours."""
        sent = validated(NewScheduleSerializer(data=request.data))
        row = services.create(signed_in(request), self._job(sent.pop("job")), sent)
        return self._answer(row, status.HTTP_201_CREATED)

    @extend_schema(request=EditScheduleSerializer, responses={200: ScheduleSerializer, **refusals(400, 403, 404, 409)})
    def partial_update(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Change a schedule of yours."""
        row, sent = self.get_object(), validated(EditScheduleSerializer(data=request.data))
        job = self._job(sent.pop("job")) if "job" in sent else None
        return self._answer(services.edit(signed_in(request), row, sent, job))

    @extend_schema(responses={204: None, **refusals(403, 404, 409)})
    def destroy(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Delete a schedule. Its jobs stay."""
        services.delete(signed_in(request), self.get_object())
        return Response(status=status.HTTP_204_NO_CONTENT)

    @extend_schema(request=None, responses={200: ScheduleSerializer, **refusals(403, 404, 409)})
    def pause(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Pause a schedule: its owner, owners of the project, and admins."""
        return self._answer(services.pause(signed_in(request), self.get_object()))

    @extend_schema(request=None, responses={200: ScheduleSerializer, **refusals(403, 404, 409)})
    def resume(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Let a schedule of yours run again, from its next moment on."""
        return self._answer(services.resume(signed_in(request), self.get_object()))

    @extend_schema(request=None, responses={201: SubmittedSerializer, **refusals(400, 403, 404, 409, 429)})
    def submit(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Submit the job of a schedule of yours now, in addition to its runs."""
        job = services.submit_now(signed_in(request), self.get_object())
        return Response(SubmittedSerializer({"job": job.pk}).data, status.HTTP_201_CREATED)


class ScheduleRuns(KnownParameters, mixins.ListModelMixin, GenericViewSet[ScheduleRun]):
    """What became of each day of a schedule, the newest first."""

    queryset = ScheduleRun.objects.none()
    serializer_class = ScheduleRunSerializer
    pagination_class = NewestFirst

    def get_queryset(self) -> QuerySet[ScheduleRun]:
        visible = Schedule.objects.visible_to(signed_in(self.request))
        schedule = get_object_or_404(visible, pk=self.kwargs["schedule_pk"])
        return schedule.runs.order_by("-pk")

    @extend_schema(responses={200: ScheduleRunSerializer(many=True), **refusals(404)})
    def list(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """List the runs of a schedule."""
        return super().list(request, *args, **kwargs)
