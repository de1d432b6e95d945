"""The trash over REST: deleted jobs, which can be restored or erased."""

from typing import Any

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import mixins, serializers, status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import GenericViewSet

from portal.accounts.permissions import signed_in
from portal.jobs import trash
from portal.jobs.models import Job
from portal.jobs.serializers import JobSerializer
from portal.rest import KnownParameters, NewestFirst, refusals


class DeletedJobSerializer(JobSerializer):
    deleted_by = serializers.CharField(source="deleted_by.username", allow_null=True, default=None)
    erase_at = serializers.DateTimeField(help_text="When it is erased for good.")

    class Meta(JobSerializer.Meta):
        fields = (*JobSerializer.Meta.fields, "deleted_at", "deleted_by", "erase_at")
        read_only_fields = fields


class Trash(KnownParameters, mixins.ListModelMixin, GenericViewSet[Job]):
    """The deleted jobs that the user may restore, the newest first. They are in no other list."""

    pagination_class = NewestFirst
    queryset = Job.objects.none()
    serializer_class = DeletedJobSerializer

    def get_queryset(self) -> QuerySet[Job]:
        rows = Job.objects.in_trash_of(signed_in(self.request))
        return rows.select_related("project", "code", "environment", "submitted_by", "group", "deleted_by").defer(
            "code__files", "code__guess", "search_text"
        )

    @extend_schema(request=None, responses={200: JobSerializer, **refusals(403, 404, 409)})
    def restore(self, request: Request, pk: int) -> Response:
        """Take a job out of the trash, with all that it had."""
        job = trash.restore(signed_in(request), self.get_object())
        row = Job.objects.select_related("project", "code", "environment", "submitted_by", "group").get(pk=job.pk)
        return Response(JobSerializer(row).data)

    @extend_schema(responses={204: None, **refusals(403, 404, 409)})
    def destroy(self, request: Request, pk: int, **kwargs: Any) -> Response:
        """Erase a job now, instead of when its time in the trash is over. It cannot be restored any more."""
        trash.delete_for_good(signed_in(request), self.get_object())
        return Response(status=status.HTTP_204_NO_CONTENT)
