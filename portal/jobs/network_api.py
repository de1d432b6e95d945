"""The network of a job over REST: which hosts it may reach, and what it contacted."""

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from portal.jobs import network_use
from portal.jobs.api import JobSubresource
from portal.jobs.models import NetworkUse
from portal.rest import refusals


class ContactedHostSerializer(serializers.Serializer[Any]):
    host = serializers.CharField(help_text="Empty for hosts beyond the first 200 of a container, counted together.")
    port = serializers.IntegerField()
    connections = serializers.IntegerField(help_text="That were opened.")
    received_bytes = serializers.IntegerField()
    sent_bytes = serializers.IntegerField()
    refused = serializers.IntegerField(help_text="Connections that were not opened, or were cut off.")
    reason = serializers.CharField(
        help_text="Of the last of these: not_allowed, internal (its address is in the local network), unreachable, cut_off."
    )
    advice = serializers.CharField(source="sentence", help_text="The reason as a sentence, with what to do.")
    first_at = serializers.DateTimeField(source="first")
    last_at = serializers.DateTimeField(source="last")


class JobNetworkSerializer(serializers.Serializer[Any]):
    attempt = serializers.IntegerField(allow_null=True, help_text="The newest one; null before the first.")
    allowed = serializers.ListField(
        child=serializers.CharField(),
        help_text="Hosts that this attempt may reach, fixed when it was placed; before the first, those of the next one.",
    )
    contacted = ContactedHostSerializer(many=True)


class JobNetwork(JobSubresource):
    queryset = NetworkUse.objects.none()
    serializer_class = JobNetworkSerializer

    @extend_schema(responses={200: JobNetworkSerializer, **refusals(404)})
    def whole(self, request: Request, job_pk: int) -> Response:
        """Return which hosts the newest attempt of the job may reach, and which it has contacted."""
        job = self.job
        newest = job.attempts.order_by("-number").first()
        about = {
            "attempt": newest.number if newest else None,
            "allowed": network_use.allowed_names(job, newest),
            "contacted": network_use.of_attempt(newest),
        }
        return Response(JobNetworkSerializer(about).data)
