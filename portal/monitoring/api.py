"""GPUs over REST: their state, their readings, and who held them."""

from typing import Any

from django.http import Http404
from django.shortcuts import get_object_or_404
from django.utils import timezone
from drf_spectacular.utils import OpenApiParameter, extend_schema, extend_schema_serializer
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import ViewSet

from portal.accounts.permissions import signed_in
from portal.cluster.models import Gpu
from portal.jobs.models import Job
from portal.jobs.occupancy import visible_holders, with_holders
from portal.monitoring import forms, series, visibility
from portal.monitoring.node_serializers import GpuSerializer
from portal.monitoring.series import Trace
from portal.monitoring.visibility import Span
from portal.rest import KnownParameters, Pages, refusals


class GaugeSerializer(GpuSerializer):
    """A GPU with the name of its node."""

    node = serializers.CharField(source="node.name")

    class Meta:
        model = Gpu
        fields = ("id", "node", *GpuSerializer.Meta.fields)
        read_only_fields = fields


@extend_schema_serializer(many=False)
class GaugesSerializer(serializers.Serializer[Any]):
    """A page of GPUs."""

    count = serializers.IntegerField()
    next = serializers.CharField(allow_null=True)
    previous = serializers.CharField(allow_null=True)
    results = GaugeSerializer(many=True)


class ReadingsSerializer(serializers.Serializer[Any]):
    """The readings of a GPU: a value for each of ``times``, null where nothing was reported."""

    gpu = serializers.IntegerField()
    node = serializers.CharField()
    index = serializers.IntegerField()
    utilisation_percent = serializers.ListField(child=serializers.FloatField(allow_null=True))
    memory_used_mib = serializers.ListField(child=serializers.FloatField(allow_null=True))
    temperature_celsius = serializers.ListField(child=serializers.FloatField(allow_null=True))


class TraceSerializer(serializers.Serializer[Any]):
    step_seconds = serializers.IntegerField()
    times = serializers.ListField(child=serializers.DateTimeField(), help_text="Beginnings of the steps.")
    gpus = ReadingsSerializer(many=True)


class SpanSerializer(serializers.Serializer[Any]):
    """One GPU held by one attempt of a job."""

    gpu = serializers.IntegerField()
    node = serializers.SerializerMethodField(help_text="Name of its node, which may have left the lab.")
    index = serializers.SerializerMethodField(help_text="Index of the GPU on its node.")
    since = serializers.DateTimeField()
    until = serializers.DateTimeField(allow_null=True, help_text="Null while it is held.")
    job = serializers.IntegerField(source="job.pk", default=None, allow_null=True, help_text="If you may see it.")
    attempt = serializers.IntegerField(source="attempt.number", default=None, allow_null=True)
    mine = serializers.BooleanField()

    def get_node(self, span: Span) -> str:
        return str(self.context["gpus"][span.gpu].node.name)

    def get_index(self, span: Span) -> int:
        return int(self.context["gpus"][span.gpu].index)


class TimelineSerializer(serializers.Serializer[Any]):
    since = serializers.DateTimeField()
    until = serializers.DateTimeField()
    cut = serializers.BooleanField(help_text="There are more spans: ask for a shorter window or one node.")
    results = SpanSerializer(many=True)


WINDOW = OpenApiParameter("window", str, enum=list(series.WINDOWS), description="How far back from now.")
NODE = OpenApiParameter("node", int)


def _readings(trace: Trace, gpus: "list[Gpu] | tuple[Gpu, ...]") -> dict[str, Any]:
    def rounded(gpu: Gpu, metric: str) -> list[float | None]:
        return [None if value is None else round(value, 1) for value in trace.values[gpu.pk][metric]]

    return {
        "step_seconds": int(trace.step.total_seconds()),
        "times": trace.times,
        "gpus": [
            {
                "gpu": gpu.pk,
                "node": gpu.node.name,
                "index": gpu.index,
                "utilisation_percent": rounded(gpu, "utilisation"),
                "memory_used_mib": rounded(gpu, "memory"),
                "temperature_celsius": rounded(gpu, "temperature"),
            }
            for gpu in gpus
        ],
    }


class Gauges(KnownParameters, ViewSet):
    """All users may see GPUs; the job that holds a GPU is shown to users who may see the job."""

    @extend_schema(
        parameters=[
            NODE,
            OpenApiParameter("q", str, description="In the names of nodes and models."),
            OpenApiParameter("state", str, enum=list(visibility.STATES)),
            OpenApiParameter("page", int),
            OpenApiParameter("page_size", int),
        ],
        responses={200: GaugesSerializer, **refusals()},
    )
    def list(self, request: Request) -> Response:
        user, asked = signed_in(request), forms.parse_query(request.query_params)
        rows = visibility.filter_gpus(
            visibility.gpus_in_lab(), user, words=asked.words, state=asked.state, node=asked.node
        )
        pages = Pages()
        page = pages.paginate_queryset(with_holders(rows), request, view=self) or []
        known = visible_holders(user, page)
        return pages.get_paginated_response(GaugeSerializer(page, many=True, context={"known_jobs": known}).data)

    @extend_schema(parameters=[WINDOW], responses={200: TraceSerializer, **refusals(404)})
    def readings(self, request: Request, pk: int) -> Response:
        """Return the readings of one GPU until now."""
        now, asked = timezone.now(), forms.parse_query(request.query_params)
        gpu = get_object_or_404(visibility.gpus_in_lab(), pk=pk)
        trace = series.trace([gpu], now - asked.window.length, now, now)
        return Response(TraceSerializer(_readings(trace, [gpu])).data)

    @extend_schema(
        parameters=[OpenApiParameter("attempt", int, description="Its number; without it the last one.")],
        responses={200: TraceSerializer, **refusals(404)},
    )
    def job_readings(self, request: Request, job_pk: int) -> Response:
        """Return the readings of the GPUs of an attempt while it held them. 404 if it held none."""
        job = get_object_or_404(Job.objects.visible_to(signed_in(request)), pk=job_pk)
        attempts = job.attempts.filter(allocations__isnull=False)
        number = request.query_params.get("attempt", "")
        if number:
            known = number.isascii() and number.isdecimal() and len(number) < 10
            attempts = attempts.filter(number=int(number)) if known else attempts.none()
        attempt = attempts.order_by("-number").first()
        found = visibility.attempt_readings(attempt, timezone.now()) if attempt else None
        if found is None:
            raise Http404
        return Response(TraceSerializer(_readings(found.trace, found.gpus)).data)

    @extend_schema(parameters=[WINDOW, NODE], responses={200: TimelineSerializer, **refusals()})
    def timeline(self, request: Request) -> Response:
        """Return who held which GPU, the latest first; at most 600. GPUs that have left the lab since are included."""
        user, now, asked = signed_in(request), timezone.now(), forms.parse_query(request.query_params, "day")
        since = now - asked.window.length
        gpus = visibility.filter_gpus(visibility.gpus_with_history(since), user, node=asked.node)
        line = visibility.timeline(user, gpus, since, now)
        rows = Gpu.objects.filter(pk__in={span.gpu for span in line.spans}).select_related("node")
        answer = {"since": since, "until": now, "cut": line.cut, "results": line.spans}
        return Response(TimelineSerializer(answer, context={"gpus": {gpu.pk: gpu for gpu in rows}}).data)
