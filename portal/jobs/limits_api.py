"""Limits of users and groups over REST: admins set them, members read those that apply to them."""

from typing import Any

from django.contrib.auth.models import Group
from drf_spectacular.utils import OpenApiParameter, extend_schema, extend_schema_serializer
from rest_framework import serializers
from rest_framework.permissions import IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import ViewSet

from portal.accounts.limits import MAX_SPACE_GIB, set_limit, visible_limits
from portal.accounts.models import PeopleQuerySet, User
from portal.accounts.people import groups_called, only_one
from portal.accounts.permissions import IsAdmin, signed_in
from portal.jobs.limits import LimitWithUsage, limit_with_usage, with_usage
from portal.rest import KnownParameters, Pages, refusals, validated


class OwnerLimitSerializer(serializers.Serializer[Any]):
    kind = serializers.SerializerMethodField(help_text="user or group.")
    name = serializers.SerializerMethodField()
    max_gpus = serializers.IntegerField(source="limit.max_gpus", allow_null=True, help_text="Null: no limit.")
    max_queued = serializers.IntegerField(
        source="limit.max_queued", allow_null=True, help_text="Waiting jobs. Null: the default of the lab."
    )
    max_space_gib = serializers.IntegerField(
        source="limit.max_space_gib",
        allow_null=True,
        help_text="How much the portal may store of them, in GiB. Null: the default of the lab for a user, no limit for a group.",
    )
    soft = serializers.BooleanField(source="limit.soft")
    weight = serializers.FloatField(source="limit.weight")
    premium = serializers.BooleanField(source="limit.premium")
    gpus = serializers.IntegerField(source="usage.gpus", help_text="GPUs that these users hold together now.")
    waiting = serializers.IntegerField(source="usage.waiting", help_text="Their jobs that wait or are on hold.")

    def get_kind(self, row: LimitWithUsage) -> str:
        return "group" if row.limit.group else "user"

    def get_name(self, row: LimitWithUsage) -> str:
        return row.limit.group.name if row.limit.group else str(row.limit.user)


class NewLimitSerializer(serializers.Serializer[Any]):
    """The whole limit: a field that is left out has no limit. The bounds are those of the page."""

    max_gpus = serializers.IntegerField(min_value=0, max_value=100_000, allow_null=True, default=None)
    max_queued = serializers.IntegerField(min_value=0, max_value=1_000_000, allow_null=True, default=None)
    max_space_gib = serializers.IntegerField(min_value=1, max_value=MAX_SPACE_GIB, allow_null=True, default=None)
    soft = serializers.BooleanField(
        default=False, help_text="Jobs that can be stopped may go beyond max_gpus on GPUs that are idle otherwise."
    )
    weight = serializers.FloatField(
        min_value=0.01, max_value=1000, default=1.0, help_text="Under policies that share fairly."
    )
    premium = serializers.BooleanField(default=False, help_text="May submit premium jobs.")


@extend_schema_serializer(many=False)
class OwnerLimitsSerializer(serializers.Serializer[Any]):
    """A page of limits."""

    count = serializers.IntegerField()
    next = serializers.CharField(allow_null=True)
    previous = serializers.CharField(allow_null=True)
    results = OwnerLimitSerializer(many=True)


class Limits(KnownParameters, ViewSet):
    def get_permissions(self) -> list[Any]:
        return [IsAdmin()] if self.request.method == "PUT" else [IsAuthenticated()]

    @extend_schema(
        parameters=[OpenApiParameter("page", int), OpenApiParameter("page_size", int)],
        responses={200: OwnerLimitsSerializer, **refusals()},
    )
    def list(self, request: Request) -> Response:
        """List the limits that were set. Members get their own and those of their groups."""
        pages = Pages()
        rows = pages.paginate_queryset(visible_limits(signed_in(request)), request, view=self)
        return pages.get_paginated_response(OwnerLimitSerializer(with_usage(rows or []), many=True).data)

    @extend_schema(responses={200: OwnerLimitSerializer, **refusals(404)})
    def of_user(self, request: Request, username: str) -> Response:
        """Return the limit of a user. Members may read their own."""
        return self._answer(self._user(username))

    @extend_schema(
        request=NewLimitSerializer,
        responses={200: OwnerLimitSerializer, **refusals(400, 404)},
    )
    def set_user(self, request: Request, username: str) -> Response:
        """Replace the limit of a user. Running jobs keep their GPUs."""
        return self._set(self._user(username))

    @extend_schema(responses={200: OwnerLimitSerializer, **refusals(404)})
    def of_group(self, request: Request, name: str) -> Response:
        """Return the limit that the members of a group share. Members may read those of their groups."""
        return self._answer(self._group(name))

    @extend_schema(
        request=NewLimitSerializer,
        responses={200: OwnerLimitSerializer, **refusals(400, 404)},
    )
    def set_group(self, request: Request, name: str) -> Response:
        """Replace the limit that the members of a group share. Running jobs keep their GPUs."""
        return self._set(self._group(name))

    def _user(self, username: str) -> User:
        user = signed_in(self.request)
        rows: PeopleQuerySet = User.objects.all() if user.is_admin else User.objects.filter(pk=user.pk)
        return only_one(rows.called(username))

    def _group(self, name: str) -> Group:
        user = signed_in(self.request)
        return only_one(groups_called(name, Group.objects.all() if user.is_admin else user.groups.all()))

    def _set(self, owner: User | Group) -> Response:
        asked = validated(NewLimitSerializer(data=self.request.data))
        set_limit(signed_in(self.request), owner, **asked)
        return self._answer(owner)

    def _answer(self, owner: User | Group) -> Response:
        return Response(OwnerLimitSerializer(limit_with_usage(owner)).data)
