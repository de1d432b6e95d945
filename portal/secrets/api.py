"""Secrets over REST: one's own, and those of projects. Values are never sent. Services check permissions."""

from typing import Any

from django.db.models import QuerySet
from django.shortcuts import get_object_or_404
from django.views.decorators.debug import sensitive_variables
from drf_spectacular.utils import extend_schema
from rest_framework import mixins, status
from rest_framework.exceptions import PermissionDenied
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import GenericViewSet

from portal.accounts.permissions import signed_in
from portal.projects.models import Project
from portal.rest import KnownParameters, refusals, validated
from portal.secrets import services
from portal.secrets.models import Secret
from portal.secrets.serializers import (
    NewSecretSerializer,
    SecretSerializer,
    SecretValueSerializer,
    StoredSecretSerializer,
)


class Secrets(KnownParameters, mixins.ListModelMixin, GenericViewSet[Secret]):
    """The caller's own secrets."""

    queryset = Secret.objects.none()
    serializer_class = SecretSerializer
    lookup_field = "name"

    @property
    def owner(self) -> services.Owner:
        return signed_in(self.request)

    def get_queryset(self) -> QuerySet[Secret]:
        return services.secrets_of(self.owner)

    @extend_schema(responses={200: SecretSerializer(many=True), **refusals(403, 404)})
    def list(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """List the secrets by name, without their values."""
        return super().list(request, *args, **kwargs)

    @extend_schema(
        request=NewSecretSerializer, responses={201: StoredSecretSerializer, **refusals(400, 403, 404, 409, 429)}
    )
    @sensitive_variables("sent")
    def create(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Add a secret. For a project: owners only."""
        owner = self.owner
        sent = validated(NewSecretSerializer(data=request.data))
        stored = services.create(signed_in(request), owner, sent["kind"], sent["name"], sent["value"])
        return Response(StoredSecretSerializer.of(stored), status.HTTP_201_CREATED)

    @extend_schema(
        request=SecretValueSerializer, responses={200: StoredSecretSerializer, **refusals(400, 403, 404, 409)}
    )
    @sensitive_variables("sent")
    def replace(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Replace the value. Jobs that start from then on get the new one. For a project: owners only."""
        secret = self.get_object()
        sent = validated(SecretValueSerializer(data=request.data))
        return Response(StoredSecretSerializer.of(services.replace_value(signed_in(request), secret, sent["value"])))

    @extend_schema(responses={204: None, **refusals(403, 404)})
    def destroy(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Delete a secret. Jobs that start from then on cannot get it. For a project: owners only."""
        services.delete(signed_in(request), self.get_object())
        return Response(status=status.HTTP_204_NO_CONTENT)


class ProjectSecrets(Secrets):
    """The secrets of a project. Its members see their names, viewers do not."""

    @property
    def owner(self) -> services.Owner:
        user = signed_in(self.request)
        project = get_object_or_404(Project.objects.visible_to(user), pk=self.kwargs["project_pk"])
        if not services.may_see_secrets(user, project):
            raise PermissionDenied("Only members of the project see the names of its secrets.")
        return project
