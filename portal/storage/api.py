"""Datasets and their versions over REST. The pages use the same services."""

from typing import Any

import django_filters
from django.db.models import QuerySet
from django.http import Http404, HttpResponseBase
from django.shortcuts import get_object_or_404
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import mixins, status
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import GenericViewSet

from portal.accounts.permissions import signed_in
from portal.downloads import download
from portal.names import is_unstorable
from portal.projects.models import Project
from portal.rest import KnownParameters, NewestFirst, refusals, validated
from portal.search import any_contains
from portal.storage import contents, services
from portal.storage.blobs import MissingBlobError
from portal.storage.manifests import FileEntry
from portal.storage.models import Dataset, DatasetVersion
from portal.storage.serializers import (
    DatasetSerializer,
    DatasetVersionSerializer,
    EditDatasetSerializer,
    FolderSerializer,
    NewDatasetSerializer,
    NewVersionSerializer,
)

MAX_PARAMETER = 1100
IN_FOLDER = OpenApiParameter(
    "folder", str, description="The path of a folder, such as images/train; by default the top."
)
AFTER = OpenApiParameter("after", str, description="What the page before gave as `after`.")


class DatasetFilter(django_filters.FilterSet):
    name = django_filters.CharFilter(label="The whole name.")
    contains = django_filters.CharFilter(method="with_words", label="Part of the name or title, in any case.")
    owner = django_filters.CharFilter(field_name="owner__username", label="The user name of the owner.")
    archived = django_filters.ChoiceFilter(
        method="of_archive",
        choices=[("true", "archived"), ("false", "not archived")],
        label="true: only archived ones.",
    )

    class Meta:
        model = Dataset
        fields: list[str] = []

    def with_words(self, rows: QuerySet[Dataset], _: str, words: str) -> QuerySet[Dataset]:
        return rows.filter(any_contains(words, "name", "title"))

    def of_archive(self, rows: QuerySet[Dataset], _: str, archived: str) -> QuerySet[Dataset]:
        return rows.exclude(archived_at=None) if archived == "true" else rows.filter(archived_at=None)


class Datasets(KnownParameters, mixins.ListModelMixin, mixins.RetrieveModelMixin, GenericViewSet[Dataset]):
    """The datasets that the user may see, the newest first."""

    queryset = Dataset.objects.none()
    serializer_class = DatasetSerializer
    pagination_class = NewestFirst
    filterset_class = DatasetFilter

    def get_queryset(self) -> QuerySet[Dataset]:
        rows = Dataset.objects.visible_to(signed_in(self.request)).with_newest()
        return rows.select_related("owner", "project").order_by("-pk")

    def _answer(self, row: Dataset, code: int = status.HTTP_200_OK) -> Response:
        return Response(DatasetSerializer(self.get_queryset().get(pk=row.pk)).data, code)

    def _values(self, request: Request, sent: dict[str, Any]) -> dict[str, Any]:
        if sent.get("project") is not None:
            visible = Project.objects.visible_to(signed_in(request))
            sent["project"] = get_object_or_404(visible, pk=sent["project"])
        return sent

    @extend_schema(
        request=NewDatasetSerializer, responses={201: DatasetSerializer, **refusals(400, 403, 404, 409, 429)}
    )
    def create(self, request: Request) -> Response:
        """Create a dataset, which the user then owns. Its files come with a version."""
        sent = self._values(request, validated(NewDatasetSerializer(data=request.data)))
        return self._answer(services.create(signed_in(request), sent), status.HTTP_201_CREATED)

    @extend_schema(request=EditDatasetSerializer, responses={200: DatasetSerializer, **refusals(400, 403, 404, 409)})
    def partial_update(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Change what is sent: for the owner, owners of its project, and admins."""
        row, sent = self.get_object(), validated(EditDatasetSerializer(data=request.data))
        return self._answer(services.edit(signed_in(request), row, self._values(request, sent)))

    @extend_schema(responses={204: None, **refusals(403, 404, 409)})
    def destroy(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Archive a dataset: what it has stays, and it gets no new versions. ``restore`` undoes this."""
        services.archive(signed_in(request), self.get_object())
        return Response(status=status.HTTP_204_NO_CONTENT)

    @extend_schema(request=None, responses={200: DatasetSerializer, **refusals(403, 404, 409)})
    def restore(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Restore an archived dataset."""
        return self._answer(services.restore(signed_in(request), self.get_object()))


class DatasetVersions(
    KnownParameters, mixins.ListModelMixin, mixins.RetrieveModelMixin, GenericViewSet[DatasetVersion]
):
    """The versions of a dataset, the newest first. Those that are not ready are seen by who makes them."""

    queryset = DatasetVersion.objects.none()
    serializer_class = DatasetVersionSerializer
    lookup_field = "number"

    @property
    def dataset(self) -> Dataset:
        visible = Dataset.objects.visible_to(signed_in(self.request)).select_related("project", "owner")
        return get_object_or_404(visible, pk=self.kwargs["dataset_pk"])

    def get_queryset(self) -> QuerySet[DatasetVersion]:
        rows = DatasetVersion.objects.visible_to(signed_in(self.request)).filter(dataset=self.dataset)
        return rows.select_related("created_by", "dataset__project", "dataset__owner").order_by("-number")

    def _ready(self) -> DatasetVersion:
        version = self.get_object()
        if version.state != DatasetVersion.State.READY:
            raise Http404
        return version

    def _answer(self, row: DatasetVersion, code: int = status.HTTP_200_OK) -> Response:
        return Response(DatasetVersionSerializer(self.get_queryset().get(pk=row.pk)).data, code)

    @extend_schema(
        request=NewVersionSerializer, responses={201: DatasetVersionSerializer, **refusals(400, 403, 404, 409, 429)}
    )
    def create(self, request: Request, dataset_pk: int) -> Response:
        """Begin a version. Send its files to ``uploads/``, then finish it."""
        dataset = self.dataset
        sent = validated(NewVersionSerializer(data=request.data))
        row = services.begin_version(signed_in(request), dataset, sent["note"])
        return self._answer(row, status.HTTP_201_CREATED)

    @extend_schema(request=None, responses={200: DatasetVersionSerializer, **refusals(403, 404, 409)})
    def finish(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """State that all files are sent. They are checked and unpacked next; read the version again to see how far."""
        return self._answer(services.finish(signed_in(request), self.get_object()))

    @extend_schema(responses={204: None, **refusals(403, 404, 409)})
    def destroy(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Discard a version that is not ready, with what was sent of it."""
        services.discard(signed_in(request), self.get_object())
        return Response(status=status.HTTP_204_NO_CONTENT)

    @extend_schema(parameters=[IN_FOLDER, AFTER], responses={200: FolderSerializer, **refusals(400, 404)})
    def files(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """List the files and folders of a folder of a version, page by page."""
        version = self._ready()
        asked = [request.query_params.get(name, "") for name in ("folder", "after")]
        if any(len(text) > MAX_PARAMETER or is_unstorable(text) for text in asked):
            raise ValidationError({"folder": ["Send the path of a folder."]})
        try:
            items, after = contents.folder(version, asked[0].strip("/"), asked[1])
        except MissingBlobError as error:
            raise Http404 from error
        return Response(FolderSerializer({"items": items, "after": after}).data)

    @extend_schema(responses={(200, "application/octet-stream"): OpenApiTypes.BINARY, **refusals(404)})
    def file(self, request: Request, dataset_pk: int, number: int, path: str) -> HttpResponseBase:
        """Return the content of one file of a version."""
        version = self._ready()
        try:
            entry = contents.find(version, path)
            if entry is None:
                raise Http404
            return _download(request, entry)
        except MissingBlobError as error:
            raise Http404 from error

    @extend_schema(responses={(200, "application/octet-stream"): OpenApiTypes.BINARY, **refusals(404)})
    def manifest(self, request: Request, *args: Any, **kwargs: Any) -> HttpResponseBase:
        """Return the list of all files: SHA-256, bytes, x for executable files (else -), and path, a line for each."""
        version = self._ready()
        name = f"{version.dataset.name}-{version.number}.manifest"
        try:
            return _download(request, FileEntry(name, version.manifest_bytes, version.sha256))
        except MissingBlobError as error:
            raise Http404 from error


def _download(request: Request, entry: FileEntry) -> HttpResponseBase:
    return download(request._request, entry.path, contents.stored_file(entry).pieces(), entry.size)
