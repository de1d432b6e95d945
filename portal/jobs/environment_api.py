"""Environments over REST, with their removal, which concerns the jobs that use them."""

from drf_spectacular.utils import extend_schema
from rest_framework import status
from rest_framework.request import Request
from rest_framework.response import Response

from portal.accounts.permissions import signed_in
from portal.environments import api, services
from portal.jobs.environment_use import unfinished_jobs_of
from portal.rest import refusals


class Environments(api.Environments):
    @extend_schema(responses={204: None, **refusals(403, 404, 409)})
    def destroy(self, request: Request, key: str) -> Response:
        """Remove an environment: new jobs cannot choose it. 409 while jobs that have not ended use it."""
        environment = self.get_object()
        services.remove(signed_in(request), environment, unfinished_jobs_of(environment))
        return Response(status=status.HTTP_204_NO_CONTENT)
