"""Environments over REST, with their removal, which concerns jobs and schedules."""

from drf_spectacular.utils import extend_schema
from rest_framework import serializers, status
from rest_framework.request import Request
from rest_framework.response import Response

from portal.accounts.permissions import signed_in
from portal.deletion import environments
from portal.environments import api
from portal.rest import refusals


class EnvironmentUseSerializer(serializers.Serializer[environments.Use]):
    """What needs an environment, and what could not be repeated without it."""

    hindrances = serializers.ListField(child=serializers.CharField(), help_text="Empty: it can be removed.")
    ended_jobs = serializers.IntegerField(source="ended", help_text="Jobs that ran in it and could not be run again.")
    stored_bytes = serializers.IntegerField(help_text="What its packages take on the portal's disk.")


class Environments(api.Environments):
    @extend_schema(responses={200: EnvironmentUseSerializer, **refusals(404)})
    def what_breaks(self, request: Request, key: str) -> Response:
        """Return what needs an environment, and what could not be repeated without it."""
        return Response(EnvironmentUseSerializer(environments.use_of(self.get_object())).data)

    @extend_schema(responses={204: None, **refusals(403, 404, 409)})
    def destroy(self, request: Request, key: str) -> Response:
        """Remove an environment: new jobs cannot choose it. 409 while a job that has not ended, a kept job or a schedule needs it."""
        environments.remove(signed_in(request), self.get_object())
        return Response(status=status.HTTP_204_NO_CONTENT)
