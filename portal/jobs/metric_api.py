"""The reports of trainings over REST: curves and progress."""

from django.db.models import QuerySet
from django.shortcuts import get_object_or_404
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import mixins, serializers
from rest_framework.request import Request
from rest_framework.response import Response

from portal.jobs import curves
from portal.jobs.api import JobSubresource
from portal.jobs.models import MetricPoint, Progress
from portal.rest import refusals


class MetricPointSerializer(serializers.ModelSerializer[MetricPoint]):
    attempt = serializers.IntegerField(source="attempt.number", read_only=True)

    class Meta:
        model = MetricPoint
        fields = ("attempt", "name", "step", "at", "value")
        read_only_fields = fields


class RankSerializer(serializers.Serializer[curves.Rank]):
    number = serializers.IntegerField()
    samples = serializers.FloatField(help_text="In a step, the mean of the last steps.")
    computing = serializers.FloatField(help_text="Seconds of a step.")
    waiting = serializers.FloatField(help_text="Seconds of a step, for others and for the update.")
    expected = serializers.FloatField(allow_null=True, help_text="Seconds of computing that were expected.")
    error = serializers.FloatField(allow_null=True, help_text="Error of such expectations, as a fraction of them.")


class ProgressSerializer(serializers.ModelSerializer[Progress]):
    attempt = serializers.IntegerField(source="attempt.number", read_only=True)
    remaining_seconds = serializers.SerializerMethodField(help_text="At the speed of the last steps.")
    ranks_detail = serializers.SerializerMethodField(help_text="Rank by rank, the slowest first.")

    class Meta:
        model = Progress
        fields = (
            "attempt", "at", "step", "epoch", "done", "total", "remaining_seconds", "batch", "ranks", "step_seconds", "loss",
            "ranks_detail",
        )  # fmt: skip
        read_only_fields = fields

    def get_remaining_seconds(self, progress: Progress) -> float | None:
        return curves.remaining_seconds(progress)

    @extend_schema(responses=RankSerializer(many=True))
    def get_ranks_detail(self, progress: Progress) -> list[dict[str, float | None]]:
        return [dict(RankSerializer(rank).data) for rank in curves.ranks_of(progress)]


class Metrics(mixins.ListModelMixin, JobSubresource):
    """The points of the curves of a job, in the order in which they were stored."""

    queryset = MetricPoint.objects.none()
    serializer_class = MetricPointSerializer

    def get_queryset(self) -> QuerySet[MetricPoint]:
        points = MetricPoint.objects.filter(attempt__job=self.job).select_related("attempt").order_by("pk")
        name = self.request.query_params.get("name", "")
        return points.filter(name=name) if name else points

    @extend_schema(parameters=[OpenApiParameter("name", str, description="Only the points of this curve.")])
    def list(self, request: Request, *args: object, **kwargs: object) -> Response:
        return super().list(request, *args, **kwargs)


class TrainingProgress(JobSubresource):
    queryset = Progress.objects.none()
    serializer_class = ProgressSerializer

    @extend_schema(responses={200: ProgressSerializer, **refusals(404)})
    def last(self, request: Request, job_pk: int) -> Response:
        """Return the progress of the last attempt of the job that reported any."""
        rows = Progress.objects.filter(attempt__job=self.job).select_related("attempt").order_by("-attempt__number")
        return Response(ProgressSerializer(get_object_or_404(rows[:1])).data)
