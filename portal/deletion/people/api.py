"""Exporting and erasing a person over REST."""

from typing import Any

from django.http import HttpResponseBase
from django.shortcuts import get_object_or_404
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework import serializers, status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import GenericViewSet

from portal.accounts.models import User
from portal.accounts.permissions import IsAdmin, signed_in
from portal.accounts.services import people
from portal.deletion.models import Erasure
from portal.deletion.people import erasing
from portal.deletion.people.views import export_of
from portal.rest import KnownParameters, refusals, validated

ZIP = {(200, "application/octet-stream"): OpenApiTypes.BINARY}


class ErasureSerializer(serializers.ModelSerializer[Erasure]):
    """How far an erasure is."""

    pseudonym = serializers.CharField(read_only=True)

    class Meta:
        model = Erasure
        fields = ("pseudonym", "delete_jobs", "started_at", "step", "done", "completed_at")
        read_only_fields = fields


class ErasurePreviewSerializer(serializers.Serializer[Any]):
    """What hinders the erasure of a person, and what it removes."""

    hindrances = serializers.ListField(child=serializers.CharField(), help_text="Empty: the person can be erased.")
    jobs = serializers.IntegerField()
    kept_jobs = serializers.IntegerField(source="kept_count", help_text="They stay in any case.")
    tokens = serializers.IntegerField()
    secrets = serializers.IntegerField()
    schedules = serializers.IntegerField()
    erasure = ErasureSerializer(allow_null=True, help_text="Of a person who is being erased, or was.")


class EraseSerializer(serializers.Serializer[Any]):
    name = serializers.CharField(max_length=150, help_text="The user name, to confirm.")
    delete_jobs = serializers.BooleanField(help_text="Erase their jobs; otherwise these stay in their projects.")


class Erasures(KnownParameters, GenericViewSet[User]):
    """For admins: export and erase people."""

    permission_classes = [IsAdmin]
    queryset = User.objects.none()
    serializer_class = ErasurePreviewSerializer

    def _person(self, pk: int) -> User:
        return get_object_or_404(people(), pk=pk)

    @extend_schema(operation_id="users_erasure", responses={200: ErasurePreviewSerializer, **refusals(404)})
    def what_breaks(self, request: Request, pk: int) -> Response:
        """Return what hinders the erasure of a person, what it removes, and how far it is."""
        person = self._person(pk)
        found = erasing.preview_of(person)
        names = ("hindrances", "jobs", "kept_count", "tokens", "secrets", "schedules")
        about = {name: getattr(found, name) for name in names}
        about["erasure"] = Erasure.objects.filter(user=person).first()
        return Response(ErasurePreviewSerializer(about).data)

    @extend_schema(
        operation_id="users_erase",
        request=EraseSerializer,
        responses={202: ErasureSerializer, **refusals(400, 404, 409)},
    )
    def erase(self, request: Request, pk: int) -> Response:
        """Erase a deactivated person. It cannot be undone, and goes on in the background."""
        person, actor = self._person(pk), signed_in(request)
        erasing.require_may_erase(actor, person)
        sent = validated(EraseSerializer(data=request.data))
        erasure = erasing.start(actor, person, sent["name"], delete_jobs=sent["delete_jobs"])
        return Response(ErasureSerializer(erasure).data, status.HTTP_202_ACCEPTED)

    @extend_schema(operation_id="users_export", request=None, responses={**ZIP, **refusals(404, 429)})
    def export(self, request: Request, pk: int) -> HttpResponseBase:
        """Return a zip with all that the portal stores about a person. The audit log records it."""
        return export_of(request._request, signed_in(request), self._person(pk))


class OwnExport(KnownParameters, GenericViewSet[User]):
    queryset = User.objects.none()
    serializer_class = ErasurePreviewSerializer

    @extend_schema(operation_id="me_export", responses={**ZIP, **refusals(429)})
    def export(self, request: Request) -> HttpResponseBase:
        """Return a zip with all that the portal stores about the user of this token."""
        user = signed_in(request)
        return export_of(request._request, user, user)
