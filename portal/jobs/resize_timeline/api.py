"""The resize timeline of a job over REST."""

from typing import Any

from django.shortcuts import get_object_or_404
from drf_spectacular.utils import extend_schema, extend_schema_field
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import ViewSet

from portal.accounts.permissions import signed_in
from portal.jobs.models import Job
from portal.jobs.resize_timeline.timeline import Segment, timeline_of
from portal.rest import KnownParameters, refusals


class NodeShareSerializer(serializers.Serializer[Any]):
    """GPUs of one node."""

    node = serializers.CharField()
    gpus = serializers.IntegerField()


class SegmentSerializer(serializers.Serializer[Segment]):
    """A time on the same GPUs."""

    since = serializers.DateTimeField()
    until = serializers.DateTimeField(allow_null=True, help_text="Null while it lasts.")
    gpus = serializers.IntegerField()
    attempt = serializers.IntegerField()
    nodes = serializers.SerializerMethodField()

    @extend_schema_field(NodeShareSerializer(many=True))
    def get_nodes(self, segment: Segment) -> list[dict[str, Any]]:
        return [{"node": name, "gpus": gpus} for name, gpus in segment.nodes]


class ResizeSerializer(serializers.Serializer[Any]):
    """A change between two segments."""

    at = serializers.DateTimeField()
    before = serializers.IntegerField()
    after = serializers.IntegerField()
    cause = serializers.CharField()
    cost_seconds = serializers.FloatField(
        allow_null=True, help_text="How long the job did not train because of it; null when not measured (yet)."
    )


class ResizeTimelineSerializer(serializers.Serializer[Any]):
    """All segments of a job and the changes between them."""

    stretches = SegmentSerializer(many=True, source="segments", help_text="Segments.")
    changes = ResizeSerializer(many=True)


class ResizeTimelines(KnownParameters, ViewSet):
    """How the number of GPUs of a job changed."""

    @extend_schema(responses={200: ResizeTimelineSerializer, **refusals(404)})
    def retrieve(self, request: Request, job_pk: int) -> Response:
        """On how many GPUs the job ran when, over all attempts, why that changed, and what each change cost."""
        job = get_object_or_404(Job.objects.visible_to(signed_in(request)), pk=job_pk)
        return Response(ResizeTimelineSerializer(timeline_of(job)).data)
