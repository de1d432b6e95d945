"""Deleting code versions over REST, and their trash."""

from typing import Any

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import mixins, serializers, status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import GenericViewSet

from portal.accounts.permissions import signed_in
from portal.deletion import code_versions
from portal.projects import api
from portal.projects.models import CodeVersion
from portal.projects.serializers import CodeVersionSerializer
from portal.projects.services import may_submit, role_of
from portal.refused import Refused
from portal.rest import KnownParameters, NewestFirst, refusals, validated


class CodeUseSerializer(serializers.Serializer[code_versions.Use]):
    """What needs a code version, and what could not be repeated without it."""

    number = serializers.IntegerField(source="version.number")
    unused = serializers.BooleanField(source="is_unused", help_text="No job and no schedule uses it.")
    ended_jobs = serializers.IntegerField(source="ended", help_text="Jobs that ran it and could not be run again.")
    unfinished_jobs = serializers.ListField(
        source="unfinished", child=serializers.IntegerField(), help_text="The first of the jobs that need it."
    )
    kept_jobs = serializers.ListField(source="kept", child=serializers.IntegerField(), help_text="The first of them.")
    schedules = serializers.ListField(child=serializers.CharField(), help_text="Names of schedules that submit it.")
    hindrance = serializers.CharField(help_text="Why it cannot be deleted; empty if it can be.")


class CodeToDeleteSerializer(serializers.Serializer[Any]):
    numbers = serializers.ListField(
        child=serializers.IntegerField(min_value=1, max_value=2**31 - 1),
        max_length=code_versions.MAX_AT_ONCE,
        required=False,
        help_text="Numbers of versions.",
    )
    unused = serializers.BooleanField(
        default=False, help_text="Instead: all that no job and no schedule uses, except the newest."
    )


class DeletedCodeSerializer(serializers.Serializer[Any]):
    deleted = serializers.ListField(child=serializers.IntegerField(), help_text="The numbers of deleted versions.")
    refused = CodeUseSerializer(many=True)


class VersionInTrashSerializer(CodeVersionSerializer):
    project = serializers.IntegerField(source="project_id")
    deleted_by = serializers.CharField(source="deleted_by.username", allow_null=True, default=None)
    erase_at = serializers.DateTimeField(help_text="When it is erased for good.")

    class Meta(CodeVersionSerializer.Meta):
        fields = (*CodeVersionSerializer.Meta.fields, "project", "deleted_at", "deleted_by", "erase_at")
        read_only_fields = fields


class Code(api.Code):
    @extend_schema(responses={200: CodeUseSerializer, **refusals(404)})
    def what_breaks(self, request: Request, project_pk: int, number: int) -> Response:
        """Return what needs a version, and what could not be repeated without it."""
        version = self.get_object()
        [use] = code_versions.uses_of(signed_in(request), version.project, [version])
        return Response(CodeUseSerializer(use).data)

    @extend_schema(responses={204: None, **refusals(403, 404, 409)})
    def destroy(self, request: Request, project_pk: int, number: int) -> Response:
        """Move a version to the trash. 409 while a job that has not ended, a kept job or a schedule needs it."""
        version = self.get_object()
        result = code_versions.delete(signed_in(request), version.project, [version.number])
        for use in result.refused:
            raise Refused(use.hindrance, "forbidden" if use.forbidden else "conflict")
        return Response(status=status.HTTP_204_NO_CONTENT)

    @extend_schema(
        operation_id="projects_code_delete_some",
        request=CodeToDeleteSerializer,
        responses={200: DeletedCodeSerializer, **refusals(400, 403, 404, 409)},
    )
    def delete_some(self, request: Request, project_pk: int) -> Response:
        """Move versions to the trash, as far as nothing needs them."""
        user, project = signed_in(request), self.project
        if not may_submit(role_of(user, project)):
            raise Refused(f"Only members of “{project.name}” may delete its code.", "forbidden")
        sent = validated(CodeToDeleteSerializer(data=request.data))
        numbers = sent.get("numbers", [])
        if bool(numbers) == sent["unused"]:
            raise Refused("Send either the numbers of versions, or unused.", field="numbers")
        if sent["unused"]:
            numbers = [row.number for row in code_versions.unused(user, project)]
        result = code_versions.delete(user, project, numbers)
        about = {"deleted": [row.number for row in result.deleted], "refused": result.refused}
        return Response(DeletedCodeSerializer(about).data)


class CodeTrash(KnownParameters, mixins.ListModelMixin, GenericViewSet[CodeVersion]):
    """The deleted code versions that the user may restore. They are in no other list."""

    pagination_class = NewestFirst
    queryset = CodeVersion.objects.none()
    serializer_class = VersionInTrashSerializer

    def get_queryset(self) -> QuerySet[CodeVersion]:
        return code_versions.in_trash_of(signed_in(self.request)).select_related("origin").order_by("-pk")

    @extend_schema(request=None, responses={200: CodeVersionSerializer, **refusals(403, 404, 409)})
    def restore(self, request: Request, pk: int) -> Response:
        """Take a version out of the trash."""
        row = code_versions.restore(signed_in(request), self.get_object())
        return Response(CodeVersionSerializer(row).data)

    @extend_schema(responses={204: None, **refusals(403, 404, 409)})
    def destroy(self, request: Request, pk: int, **kwargs: Any) -> Response:
        """Erase a version now, instead of when its time in the trash is over. It cannot be restored any more."""
        code_versions.delete_for_good(signed_in(request), self.get_object())
        return Response(status=status.HTTP_204_NO_CONTENT)
