"""Environments, their locks and builds over REST. Services check permissions."""

from collections.abc import Sequence
from typing import Any

from django.db.models import QuerySet
from django.http import HttpResponseBase
from django.shortcuts import get_object_or_404
from django.utils.functional import cached_property
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import mixins, status
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import GenericViewSet

from portal import log_pieces
from portal.accounts.models import User
from portal.accounts.permissions import signed_in
from portal.downloads import download
from portal.environments import build_log, services
from portal.environments.models import Build, Environment, Lock, PackageSettings
from portal.environments.serializers import (
    BuildLogSerializer,
    BuildSerializer,
    EnvironmentSerializer,
    NewEnvironmentSerializer,
)
from portal.environments.summary import builds_in_use, builds_of, summaries
from portal.projects.models import Project
from portal.rest import KnownParameters, NewestFirst, refusals, validated

OFFSET = OpenApiParameter("offset", int, description="Bytes of the log that you have. 0 without it.")


class Environments(KnownParameters, mixins.ListModelMixin, mixins.RetrieveModelMixin, GenericViewSet[Environment]):
    """Sets of packages that jobs run in: those of the lab, and those of the projects that the user may see."""

    serializer_class = EnvironmentSerializer
    lookup_field = "key"
    queryset = Environment.objects.none()

    def get_queryset(self) -> QuerySet[Environment]:
        rows = Environment.objects.visible_to(signed_in(self.request)).select_related("base", "created_by")
        return rows.filter(retired=False) if self.action == "list" else rows

    def paginate_queryset(self, queryset: Any) -> Any:
        page = super().paginate_queryset(queryset)
        self._page: Sequence[Environment] = page or ()
        return page

    def get_serializer_context(self) -> dict[str, Any]:
        return {**super().get_serializer_context(), **_context(getattr(self, "_page", ()))}

    def retrieve(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        return environment_answer(signed_in(request), self.get_object())

    @extend_schema(request=NewEnvironmentSerializer, responses={201: EnvironmentSerializer, **refusals(400, 403, 409)})
    def create(self, request: Request) -> Response:
        """Make an environment and request its build. One of the same place with the same packages is returned instead."""
        user = signed_in(request)
        context = {"allowed_sources": PackageSettings.current().allowed_sources}
        asked: Any = NewEnvironmentSerializer(data=request.data, context=context)
        asked.fields["project"].queryset = Project.objects.visible_to(user)
        asked.fields["base"].queryset = Environment.objects.filter(pk__in=[base.pk for base in services.bases()])
        sent = validated(asked)
        understood = sent["packages"]
        wanted = services.PackageRequest(
            lines=understood.lines,
            constraints=understood.constraints,
            indexes=understood.indexes,
            base=sent["base"],
            python=sent["python"],
            horovod=sent["horovod"],
            source_builds=sent["source_builds"],
        )
        made = services.create(user, sent["project"], wanted, sent["title"])
        return environment_answer(user, made, status.HTTP_201_CREATED)

    @extend_schema(request=None, responses={200: EnvironmentSerializer, **refusals(403, 404, 409)})
    def build(self, request: Request, key: str) -> Response:
        """Build it again: after a failure, or for the newest releases that its list allows."""
        environment = self.get_object()
        services.build_again(signed_in(request), environment)
        return environment_answer(signed_in(request), environment)


def environment_answer(user: User, environment: Environment, code: int = status.HTTP_200_OK) -> Response:
    """Return the answer with one environment."""
    row = Environment.objects.visible_to(user).select_related("base", "created_by").get(pk=environment.pk)
    return Response(EnvironmentSerializer(row, context=_context([row])).data, code)


def _context(page: Sequence[Environment]) -> dict[str, Any]:
    return {"standings": summaries(page), "locks": builds_in_use(page)}


class InEnvironment(KnownParameters, GenericViewSet[Any]):
    """The base of endpoints below /environments/{key}/. An environment that the user may not see answers 404."""

    @cached_property
    def environment(self) -> Environment:
        return get_object_or_404(
            Environment.objects.visible_to(signed_in(self.request)), key=self.kwargs["environment_key"]
        )


class Locks(InEnvironment):
    queryset = Lock.objects.none()

    @extend_schema(responses={(200, "text/plain"): OpenApiTypes.STR, **refusals(404)})
    def file(self, request: Request, environment_key: str, digest: str) -> HttpResponseBase:
        """The exact packages that were built for a kind of node, in the format of a requirements.txt with hashes."""
        mine = Lock.objects.filter(builds__in=builds_of(self.environment)).distinct()
        row = get_object_or_404(mine, digest=digest)
        content = row.text.encode()
        name = f"{environment_key}.lock.txt"
        return download(request._request, name, iter([content]), len(content), "text/plain; charset=utf-8")


class Builds(mixins.ListModelMixin, mixins.RetrieveModelMixin, InEnvironment):
    """The builds of an environment, newest first. Environments with the same packages share them."""

    queryset = Build.objects.none()
    serializer_class = BuildSerializer
    pagination_class = NewestFirst

    def get_queryset(self) -> QuerySet[Build]:
        rows = builds_of(self.environment)
        return rows.select_related("lock", "environment__project").defer("lock__text", "lock__modules")

    @extend_schema(parameters=[OFFSET], responses={200: BuildLogSerializer, **refusals(400, 404)})
    def log(self, request: Request, environment_key: str, pk: int) -> Response:
        """A piece of the log of a build. To follow it, repeat with `end` as `offset` until it is `finished`."""
        build = self.get_object()
        offset = request.query_params.get("offset", "0")
        if not log_pieces.is_offset(offset):
            raise ValidationError({"offset": ["Send the number of bytes that you have."]})
        piece = build_log.log_from(build, int(offset))
        over = build.state != Build.State.RUNNING and piece.end >= build_log.size_of(build)
        return Response(BuildLogSerializer({"text": piece.text, "end": piece.end, "finished": over}).data)

    @extend_schema(request=None, responses={200: BuildSerializer, **refusals(403, 404, 409)})
    def cancel(self, request: Request, environment_key: str, pk: int) -> Response:
        """Cancel a running build. Its node stops within seconds."""
        services.cancel_build(signed_in(request), self.get_object())
        return Response(self.get_serializer(self.get_object()).data)
