"""The lab's queue over REST, with when each waiting job is expected to start."""

from datetime import datetime
from typing import Any

from django.http import Http404
from drf_spectacular.utils import extend_schema, extend_schema_serializer
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import ViewSet

from portal.accounts.permissions import signed_in
from portal.forecast.models import Forecast
from portal.forecast.services import is_stale
from portal.jobs.models import JobState
from portal.jobs.queue import QueueRow, may_see_queue, whole_queue
from portal.rest import KnownParameters, refusals


class QueueRowSerializer(serializers.Serializer[QueueRow]):
    """A job of the lab. ``job``, ``name``, ``project`` are null where you may not see its project."""

    job = serializers.SerializerMethodField()
    name = serializers.SerializerMethodField()
    project = serializers.SerializerMethodField()
    mine = serializers.BooleanField()
    submitted_by = serializers.CharField(source="person")
    state = serializers.ChoiceField(source="job.state", choices=[JobState.RUNNING, JobState.QUEUED])
    queue_position = serializers.IntegerField(
        source="job.queue_position", allow_null=True, help_text="Null while it runs, and before the next cycle."
    )
    held_gpus = serializers.IntegerField(help_text="GPUs that it holds now.")
    min_gpus = serializers.IntegerField(source="job.min_gpus")
    max_gpus = serializers.IntegerField(source="job.max_gpus")
    submitted_at = serializers.DateTimeField(source="job.submitted_at")
    started_at = serializers.DateTimeField(source="job.started_at", allow_null=True)
    waiting_reason = serializers.CharField(source="why", allow_blank=True)
    start_low = serializers.SerializerMethodField(help_text="When it is expected to start, at the earliest.")
    start_high = serializers.SerializerMethodField(help_text="And at the latest; null when that is not known.")

    def get_job(self, row: QueueRow) -> int | None:
        return row.job.pk if row.visible else None

    def get_name(self, row: QueueRow) -> str | None:
        return row.job.name if row.visible else None

    def get_project(self, row: QueueRow) -> int | None:
        return row.job.project_id if row.visible else None

    def get_start_low(self, row: QueueRow) -> datetime | None:
        return getattr(self.context["forecasts"].get(row.job.pk), "low", None)

    def get_start_high(self, row: QueueRow) -> datetime | None:
        return getattr(self.context["forecasts"].get(row.job.pk), "high", None)


@extend_schema_serializer(many=False)
class QueueSerializer(serializers.Serializer[Any]):
    running = serializers.IntegerField()
    waiting = serializers.IntegerField()
    left_out = serializers.IntegerField(help_text="Jobs that are counted, and not among the rows.")
    rows = QueueRowSerializer(many=True)


class Queue(KnownParameters, ViewSet):
    @extend_schema(responses={200: QueueSerializer, **refusals(404)})
    def whole(self, request: Request) -> Response:
        """Return all jobs of the lab that run or wait, in the order in which the scheduler considers them.

        Titles and numbers only of jobs that you may see. It is 404 for members when an admin has restricted the queue.
        """
        user = signed_in(request)
        if not may_see_queue(user):
            raise Http404
        queue = whole_queue(user)
        waiting = [row.job.pk for row in queue.rows if not row.running]
        found = Forecast.objects.defer("trail").in_bulk(waiting)
        forecasts = {pk: row for pk, row in found.items() if not is_stale(row)}
        return Response(QueueSerializer(queue, context={"forecasts": forecasts}).data)
