"""Environments that are images over REST, and what admins decide about them. Services check permissions."""

from typing import Any

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import mixins, status
from rest_framework.permissions import IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import GenericViewSet

from portal.accounts.permissions import IsAdmin, signed_in
from portal.environments import images
from portal.environments.api import environment_answer
from portal.environments.models import ImageSettings, Registry
from portal.environments.serializers import (
    EnvironmentSerializer,
    ImageSettingsSerializer,
    NewImageSerializer,
    RegistrySerializer,
)
from portal.projects.models import Project
from portal.rest import KnownParameters, refusals, validated


class Images(KnownParameters, GenericViewSet[ImageSettings]):
    """Images of registries as environments."""

    queryset = ImageSettings.objects.none()
    serializer_class = ImageSettingsSerializer

    def get_permissions(self) -> list[Any]:
        return [IsAuthenticated()] if self.action == "create" else [IsAdmin()]

    def get_object(self) -> ImageSettings:
        return ImageSettings.current()

    @extend_schema(request=NewImageSerializer, responses={201: EnvironmentSerializer, **refusals(400, 403, 409)})
    def create(self, request: Request) -> Response:
        """Make an environment of an image; a node pulls and checks it. One of the same place and image is returned instead."""
        user = signed_in(request)
        asked: Any = NewImageSerializer(data=request.data)
        asked.fields["project"].queryset = Project.objects.visible_to(user)
        sent = validated(asked)
        made = images.create(user, sent["project"], images.ImageRequest(sent["image"], sent["title"]))
        return environment_answer(user, made, status.HTTP_201_CREATED)

    @extend_schema(responses={200: ImageSettingsSerializer, **refusals(404)})
    def current(self, request: Request) -> Response:
        """Return which images are allowed. Admins only."""
        return Response(ImageSettingsSerializer(self.get_object()).data)

    @extend_schema(responses={200: ImageSettingsSerializer, **refusals(400, 403, 404)})
    def change(self, request: Request) -> Response:
        """Set which images are allowed. Admins only."""
        sent = validated(ImageSettingsSerializer(data=request.data))
        images.set_image_settings(signed_in(request), sent["allowed"], sent["archives"])
        return Response(ImageSettingsSerializer(self.get_object()).data)


class Registries(KnownParameters, mixins.ListModelMixin, GenericViewSet[Registry]):
    """How nodes sign in at registries. Admins only."""

    queryset = Registry.objects.none()
    serializer_class = RegistrySerializer

    def get_permissions(self) -> list[Any]:
        return [IsAdmin()]

    def get_queryset(self) -> QuerySet[Registry]:
        return Registry.objects.order_by("host")

    @extend_schema(responses={200: RegistrySerializer, **refusals(400, 403, 404, 409)})
    def create(self, request: Request) -> Response:
        """Store how nodes use a registry, in place of what was stored for it."""
        sent = validated(RegistrySerializer(data=request.data))
        wanted = images.RegistryRequest(sent["host"], sent["user"], sent.get("token"), sent["insecure"])
        return Response(RegistrySerializer(images.set_registry(signed_in(request), wanted)).data)

    @extend_schema(responses={204: None, **refusals(403, 404)})
    def destroy(self, request: Request, pk: int) -> Response:
        images.remove_registry(signed_in(request), self.get_object())
        return Response(status=status.HTTP_204_NO_CONTENT)
