"""Deleting projects over REST, and their trash."""

from typing import Any

from django.db.models import QuerySet
from django.shortcuts import get_object_or_404
from drf_spectacular.utils import extend_schema
from rest_framework import mixins, serializers, status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import GenericViewSet

from portal.accounts.permissions import signed_in
from portal.deletion import projects
from portal.projects.models import Project
from portal.projects.services import require_owner
from portal.rest import KnownParameters, NewestFirst, refusals, validated


class HindranceSerializer(serializers.Serializer[projects.Hindrance]):
    why = serializers.CharField()
    jobs = serializers.ListField(source="numbers", child=serializers.IntegerField(), help_text="The first of them.")


class ProjectDeletionSerializer(serializers.Serializer[Any]):
    """What hinders the deletion of a project, and what goes with it."""

    hindrances = HindranceSerializer(many=True, help_text="Empty: it can be deleted.")
    jobs = serializers.IntegerField(source="belongings.jobs")
    code_versions = serializers.IntegerField(source="belongings.versions")
    schedules = serializers.IntegerField(source="belongings.schedules")
    secrets = serializers.IntegerField(source="belongings.secrets")
    channels = serializers.IntegerField(source="belongings.channels", help_text="Webhooks and other channels.")
    environments = serializers.IntegerField(source="belongings.environments")
    members = serializers.IntegerField(source="belongings.members")
    repository = serializers.CharField(source="belongings.git", help_text="Empty without one.")
    jobs_elsewhere = serializers.IntegerField(
        source="belongings.followers", help_text="Jobs of other projects that had outputs of its jobs as input."
    )
    bytes = serializers.IntegerField(source="belongings.space.total", help_text="Of outputs, checkpoints and logs.")


class DeleteProjectSerializer(serializers.Serializer[Any]):
    name = serializers.CharField(max_length=80, help_text="The name of the project, to confirm.")


class ProjectInTrashSerializer(serializers.ModelSerializer[Project]):
    deleted_by = serializers.CharField(source="deleted_by.username", allow_null=True, default=None)

    class Meta:
        model = Project
        fields = ("id", "name", "deleted_at", "deleted_by", "erase_at")
        read_only_fields = fields


class ProjectDeletion(KnownParameters, GenericViewSet[Project]):
    queryset = Project.objects.none()
    serializer_class = ProjectDeletionSerializer

    def _project(self, pk: int) -> Project:
        user = signed_in(self.request)
        project = get_object_or_404(Project.objects.visible_to(user), pk=pk)
        require_owner(user, project)
        return project

    @extend_schema(operation_id="projects_deletion", responses={200: ProjectDeletionSerializer, **refusals(403, 404)})
    def what_breaks(self, request: Request, pk: int) -> Response:
        """Return what hinders the deletion of a project, and what goes with it."""
        project = self._project(pk)
        about = {"hindrances": projects.hindrances(project), "belongings": projects.belongings_of(project)}
        return Response(ProjectDeletionSerializer(about).data)

    @extend_schema(
        operation_id="projects_move_to_trash",
        request=DeleteProjectSerializer,
        responses={204: None, **refusals(400, 403, 404, 409)},
    )
    def delete_project(self, request: Request, pk: int) -> Response:
        """Move a project to the trash, with its code and jobs. ``DELETE`` of the project itself archives it, as ever."""
        project = self._project(pk)
        sent = validated(DeleteProjectSerializer(data=request.data))
        projects.delete(signed_in(request), project, sent["name"])
        return Response(status=status.HTTP_204_NO_CONTENT)


class ProjectTrash(KnownParameters, mixins.ListModelMixin, GenericViewSet[Project]):
    """The deleted projects that the user may restore. They are in no other list."""

    pagination_class = NewestFirst
    queryset = Project.objects.none()
    serializer_class = ProjectInTrashSerializer

    def get_queryset(self) -> QuerySet[Project]:
        return projects.in_trash_of(signed_in(self.request)).order_by("-pk")

    @extend_schema(request=None, responses={204: None, **refusals(403, 404, 409)})
    def restore(self, request: Request, pk: int) -> Response:
        """Take a project out of the trash, with its code and the jobs that went with it."""
        projects.restore(signed_in(request), self.get_object())
        return Response(status=status.HTTP_204_NO_CONTENT)

    @extend_schema(responses={204: None, **refusals(403, 404, 409)})
    def destroy(self, request: Request, pk: int, **kwargs: Any) -> Response:
        """Erase a project now, instead of when its time in the trash is over. It cannot be restored any more."""
        projects.delete_for_good(signed_in(request), self.get_object())
        return Response(status=status.HTTP_204_NO_CONTENT)
