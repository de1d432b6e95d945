"""What is stored of projects and people, over REST."""

from collections.abc import Sequence
from typing import Any

from drf_spectacular.utils import OpenApiParameter, extend_schema, extend_schema_serializer
from rest_framework import serializers
from rest_framework.generics import get_object_or_404
from rest_framework.permissions import IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import ViewSet

from portal.accounts.limits import MAX_SPACE_GIB
from portal.accounts.models import User
from portal.accounts.permissions import IsAdmin, signed_in
from portal.jobs import space_use
from portal.jobs.space_use import SpaceUse
from portal.projects.models import Project
from portal.rest import KnownParameters, Pages, refusals, validated

PAGES = [OpenApiParameter("page", int), OpenApiParameter("page_size", int)]


class SpaceSerializer(serializers.Serializer[Any]):
    """What is stored of a project or a person, in bytes."""

    id = serializers.IntegerField(source="number")
    name = serializers.CharField()
    code = serializers.IntegerField(source="parts.code", help_text="Code that several versions share counts once.")
    datasets = serializers.IntegerField(
        source="parts.datasets", help_text="All versions. Files that versions share count in each."
    )
    outputs = serializers.IntegerField(source="parts.outputs")
    checkpoints = serializers.IntegerField(source="parts.checkpoints")
    logs = serializers.IntegerField(source="parts.logs")
    total = serializers.IntegerField()
    max_space_gib = serializers.IntegerField(
        source="limit_gib", allow_null=True, help_text="At so many GiB new jobs are refused. Null: no limit."
    )


@extend_schema_serializer(many=False)
class SpacePageSerializer(serializers.Serializer[Any]):
    count = serializers.IntegerField()
    next = serializers.CharField(allow_null=True)
    previous = serializers.CharField(allow_null=True)
    results = SpaceSerializer(many=True)


class SpaceLimitSerializer(serializers.Serializer[Any]):
    max_space_gib = serializers.IntegerField(min_value=1, max_value=MAX_SPACE_GIB, allow_null=True)


class Space(KnownParameters, ViewSet):
    def get_permissions(self) -> list[Any]:
        return [IsAdmin()] if self.request.method == "PUT" else [IsAuthenticated()]

    @extend_schema(parameters=PAGES, responses={200: SpacePageSerializer, **refusals()})
    def list(self, request: Request) -> Response:
        """List what is stored of each project that you may see, the largest first."""
        return self._page(request, space_use.space_of_projects(Project.objects.visible_to(signed_in(request))))

    @extend_schema(parameters=PAGES, responses={200: SpacePageSerializer, **refusals()})
    def list_people(self, request: Request) -> Response:
        """List what is stored of the jobs and code of each person, the largest first: of all for admins, else your own."""
        user = signed_in(request)
        return self._page(
            request, space_use.space_of_people(User.objects.all() if user.is_admin else User.objects.filter(pk=user.pk))
        )

    @extend_schema(responses={200: SpaceSerializer, **refusals(404)})
    def retrieve(self, request: Request, pk: int) -> Response:
        """Return what is stored of a project."""
        return self._answer(get_object_or_404(Project.objects.visible_to(signed_in(request)), pk=pk))

    @extend_schema(request=SpaceLimitSerializer, responses={200: SpaceSerializer, **refusals(400, 403, 404)})
    def set_project(self, request: Request, pk: int) -> Response:
        """Set how much may be stored of a project. Jobs that run or wait go on."""
        project = get_object_or_404(Project, pk=pk)
        sent = validated(SpaceLimitSerializer(data=request.data))
        space_use.set_project_limit(signed_in(request), project, sent["max_space_gib"])
        return self._answer(project)

    def _page(self, request: Request, rows: Sequence[SpaceUse]) -> Response:
        pages = Pages()
        found = sorted(rows, key=lambda row: (-row.total, row.name.lower(), row.number))
        shown = pages.paginate_queryset(found, request, view=self)
        return pages.get_paginated_response(SpaceSerializer(shown or [], many=True).data)

    def _answer(self, project: Project) -> Response:
        [use] = space_use.space_of_projects(Project.objects.filter(pk=project.pk))
        return Response(SpaceSerializer(use).data)
