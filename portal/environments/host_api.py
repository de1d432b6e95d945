"""The hosts that jobs may reach, over REST: admins change them, members read those of their projects and environments."""

from typing import Any

from django.db.models import Q, QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import mixins, serializers, status
from rest_framework.permissions import IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import GenericViewSet

from portal.accounts.permissions import IsAdmin, signed_in
from portal.environments import hosts
from portal.environments.models import AllowedHost, Environment
from portal.host_names import MAX_TYPED
from portal.projects.models import Project
from portal.rest import KnownParameters, refusals, validated
from portal.strict_fields import IdField, TextField


class AllowedHostSerializer(serializers.ModelSerializer[AllowedHost]):
    project = serializers.IntegerField(source="project_id", read_only=True, allow_null=True)
    environment = serializers.CharField(
        source="environment.key",
        read_only=True,
        allow_null=True,
        default=None,
        help_text="Jobs with it, or with an environment based on it. Null, as `project`: all jobs of the lab.",
    )
    created_by = serializers.SlugRelatedField[Any](slug_field="username", read_only=True, allow_null=True)

    class Meta:
        model = AllowedHost
        fields = ("id", "host", "internal", "project", "environment", "note", "created_by", "created_at")
        read_only_fields = fields
        extra_kwargs = {"internal": {"help_text": "It may have an address of the local network."}}


class NewAllowedHostSerializer(serializers.Serializer[Any]):
    host = TextField(
        max_length=MAX_TYPED,
        help_text="A name, `*.` and a name for all names below it, or an IPv4 address; with `:PORT` for other ports than 80 "
        "and 443.",
    )
    internal = serializers.BooleanField(
        default=False, help_text="Confirms that it is in the local network, whose addresses are refused otherwise."
    )
    project = IdField(queryset=Project.objects.all(), allow_null=True, default=None)
    environment = serializers.SlugRelatedField[Environment](
        slug_field="key", queryset=Environment.objects.all(), allow_null=True, default=None
    )
    note = TextField(max_length=hosts.MAX_NOTE, allow_blank=True, default="")


class AllowedHosts(
    KnownParameters,
    mixins.ListModelMixin,
    mixins.RetrieveModelMixin,
    mixins.DestroyModelMixin,
    GenericViewSet[AllowedHost],
):
    """Hosts that jobs may reach. Without any, jobs have no network."""

    serializer_class = AllowedHostSerializer
    queryset = AllowedHost.objects.none()

    def get_permissions(self) -> list[Any]:
        return [IsAuthenticated()] if self.request.method in ("GET", "HEAD", "OPTIONS") else [IsAdmin()]

    def get_queryset(self) -> QuerySet[AllowedHost]:
        user = signed_in(self.request)
        rows = AllowedHost.objects.select_related("environment", "project", "created_by")
        if user.is_admin:
            return rows
        own = Q(project__in=Project.objects.visible_to(user)) | Q(environment__in=Environment.objects.visible_to(user))
        return rows.filter(own | Q(project=None, environment=None))

    @extend_schema(
        request=NewAllowedHostSerializer, responses={201: AllowedHostSerializer, **refusals(400, 403, 404, 409)}
    )
    def create(self, request: Request) -> Response:
        """Allow a host for a project, an environment, or all jobs. It applies to attempts that start afterwards."""
        asked = validated(NewAllowedHostSerializer(data=request.data))
        row = hosts.allow(signed_in(request), asked.pop("host"), **asked)
        return Response(AllowedHostSerializer(row).data, status.HTTP_201_CREATED)

    @extend_schema(responses={204: None, **refusals(403, 404)})
    def destroy(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Remove a host. Attempts that run now keep it until they end."""
        hosts.forbid(signed_in(request), self.get_object())
        return Response(status=status.HTTP_204_NO_CONTENT)
