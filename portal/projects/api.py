"""Projects, members, code versions and the gallery over REST. Services check permissions."""

from typing import Any

import django_filters
from django.db.models import CharField, OuterRef, QuerySet, Subquery, Value
from django.http import Http404, HttpResponseBase
from django.shortcuts import get_object_or_404
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import mixins, status
from rest_framework.exceptions import ValidationError
from rest_framework.parsers import BaseParser, MultiPartParser
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import BaseSerializer
from rest_framework.viewsets import GenericViewSet, ViewSet

from portal.accounts.models import User
from portal.accounts.people import only_one
from portal.accounts.permissions import signed_in
from portal.downloads import download
from portal.projects import comparison, examples, services, store
from portal.projects.models import CodeVersion, Membership, Project
from portal.projects.serializers import (
    CodeVersionDetailSerializer,
    CodeVersionSerializer,
    ExampleSerializer,
    FileChangeSerializer,
    FileSerializer,
    MemberSerializer,
    NewMemberSerializer,
    ProjectSerializer,
    RoleSerializer,
    UploadedVersionSerializer,
    UploadSerializer,
    UsedExampleSerializer,
    UseExampleSerializer,
)
from portal.refused import Refused
from portal.rest import Json, KnownParameters, refusals, validated
from portal.search import any_contains


class RawFile(BaseParser):
    """Accepts a file as the body: ``curl --data-binary @code.zip``. The view reads it piece by piece."""

    media_type = "application/octet-stream"

    def parse(self, stream: Any, media_type: str | None = None, parser_context: Any = None) -> Any:
        return stream


def with_role(projects: QuerySet[Project], request: Request) -> QuerySet[Project]:
    """Annotate projects with ``role``, that of the caller. Admins count as owners."""
    user = signed_in(request)
    if user.is_admin:
        return projects.annotate(role=Value(Membership.Role.OWNER.value, output_field=CharField()))
    mine = Membership.objects.filter(project=OuterRef("pk"), user=user).values("role")
    return projects.annotate(role=Subquery(mine[:1]))


class ProjectFilter(django_filters.FilterSet):
    name = django_filters.CharFilter(label="The whole name.")
    name__icontains = django_filters.CharFilter(method="named", label="Part of the name, in any case.")

    class Meta:
        model = Project
        fields: list[str] = []

    def named(self, rows: QuerySet[Project], _: str, words: str) -> QuerySet[Project]:
        return rows.filter(any_contains(words, "name"))


class Projects(
    KnownParameters, mixins.ListModelMixin, mixins.RetrieveModelMixin, mixins.CreateModelMixin, GenericViewSet[Project]
):
    """The projects that the user may see: for members their own, for admins all."""

    queryset = Project.objects.none()
    serializer_class = ProjectSerializer
    filterset_class = ProjectFilter

    def get_queryset(self) -> QuerySet[Project]:
        rows = with_role(Project.objects.visible_to(signed_in(self.request)), self.request)
        return rows.select_related("created_by")

    @extend_schema(responses={201: ProjectSerializer, **refusals(400, 403)})
    def create(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Create a project, which the user then owns."""
        sent = validated(ProjectSerializer(data=request.data))
        project = services.create_project(signed_in(request), **sent)
        return Response(self.get_serializer(self.get_queryset().get(pk=project.pk)).data, status.HTTP_201_CREATED)

    @extend_schema(responses={200: ProjectSerializer, **refusals(400, 403, 404)})
    def partial_update(self, request: Request, pk: int) -> Response:
        """Change name or description."""
        project = self.get_object()
        sent = validated(ProjectSerializer(project, data=request.data, partial=True))
        services.edit_project(signed_in(request), project, **sent)
        return Response(self.get_serializer(self.get_object()).data)

    @extend_schema(responses={204: None, **refusals(403, 404)})
    def destroy(self, request: Request, pk: int) -> Response:
        """Archive a project: its content stays, nothing new can be added. ``restore`` undoes this."""
        services.archive_project(signed_in(request), self.get_object())
        return Response(status=status.HTTP_204_NO_CONTENT)

    @extend_schema(request=None, responses={200: ProjectSerializer, **refusals(403, 404)})
    def restore(self, request: Request, pk: int) -> Response:
        """Restore an archived project."""
        project = self.get_object()
        services.unarchive_project(signed_in(request), project)
        return Response(self.get_serializer(project).data)

    @extend_schema(request=None, responses={204: None, **refusals(403, 404)})
    def empty_caches(self, request: Request, pk: int) -> Response:
        """Let the next jobs begin with empty caches. Nodes delete the present ones when no job uses them."""
        services.empty_caches(signed_in(request), self.get_object())
        return Response(status=status.HTTP_204_NO_CONTENT)


class InProject(KnownParameters, GenericViewSet[Any]):
    """The base of endpoints below /projects/{project}/. A project that the user may not see answers 404."""

    @property
    def project(self) -> Project:
        visible = Project.objects.visible_to(signed_in(self.request))
        return get_object_or_404(visible, pk=self.kwargs["project_pk"])


class Members(mixins.ListModelMixin, InProject):
    """The members of a project with their roles, by name."""

    queryset = Membership.objects.none()
    serializer_class = MemberSerializer
    lookup_field = "username"

    def get_queryset(self) -> QuerySet[Membership]:
        return self.project.memberships.select_related("user").order_by("user__username")

    def _membership(self, username: str) -> Membership:
        user = only_one(User.objects.filter(memberships__project=self.project).called(username))
        return get_object_or_404(self.get_queryset().select_related("project"), user=user)

    @extend_schema(request=NewMemberSerializer, responses={201: MemberSerializer, **refusals(400, 403, 404, 409)})
    def create(self, request: Request, project_pk: int) -> Response:
        """Add a user, or change the role of a member."""
        project = self.project
        data = validated(NewMemberSerializer(data=request.data))
        membership = services.share(signed_in(request), project, data["username"], data["role"])
        return Response(MemberSerializer(membership).data, status.HTTP_201_CREATED)

    @extend_schema(request=RoleSerializer, responses={200: MemberSerializer, **refusals(400, 403, 404, 409)})
    def partial_update(self, request: Request, project_pk: int, username: str) -> Response:
        """Change the role of a member."""
        membership = self._membership(username)
        sent = validated(RoleSerializer(data=request.data))
        changed = services.change_role(signed_in(request), membership, sent["role"])
        return Response(MemberSerializer(changed).data)

    @extend_schema(responses={204: None, **refusals(403, 404, 409)})
    def destroy(self, request: Request, project_pk: int, username: str) -> Response:
        """Remove a member. All members may remove themselves, except the last owner."""
        services.unshare(signed_in(request), self._membership(username))
        return Response(status=status.HTTP_204_NO_CONTENT)


NAME = OpenApiParameter("name", str, description="File name of a raw body, for example code.zip.")
NOTE = OpenApiParameter("note", str, description="A note for a raw body.")
KEEP_OTHERS = OpenApiParameter(
    "keep_others",
    bool,
    description="For a raw body that is a single file: put it into the newest version and keep its other files.",
)
GITIGNORE = OpenApiParameter(
    "gitignore", bool, description="For a raw body that is an archive: leave out what its .gitignore names."
)


class Code(mixins.ListModelMixin, mixins.RetrieveModelMixin, InProject):
    """Immutable versions of a project's code, numbered from 1."""

    queryset = CodeVersion.objects.none()
    serializer_class = CodeVersionDetailSerializer
    lookup_field = "number"
    parser_classes = [MultiPartParser, RawFile, Json]

    def get_queryset(self) -> QuerySet[CodeVersion]:
        rows = CodeVersion.objects.light() if self.action == "list" else CodeVersion.objects.all()
        return rows.filter(project=self.project).select_related("created_by", "origin")

    def get_serializer_class(self) -> type[BaseSerializer[CodeVersion]]:
        return CodeVersionSerializer if self.action == "list" else CodeVersionDetailSerializer

    @extend_schema(
        operation_id="projects_code_upload",
        parameters=[NAME, NOTE, KEEP_OTHERS, GITIGNORE],
        request={"multipart/form-data": UploadSerializer, "application/octet-stream": OpenApiTypes.BINARY},
        responses={
            200: UploadedVersionSerializer,
            201: UploadedVersionSerializer,
            **refusals(400, 403, 404, 409, 415),
        },
    )
    def create(self, request: Request, project_pk: int) -> Response:
        """Upload a .zip, .tar.gz, .py or .ipynb file (multipart or as the raw body), or the files of a folder.

        If the files equal the newest version, the answer is that version with status 200 and ``is_new`` false.
        """
        project = self.project
        services.require_member(signed_in(request), project)  # before a large body is read
        uploads, note = self._read_raw_body(request) if _is_raw(request) else self._read_form(request)
        asked = request.query_params if _is_raw(request) else request.POST
        keep_others = _read_flag(asked.get("keep_others", "false"), "keep_others")
        gitignore = _read_flag(asked.get("gitignore", "false"), "gitignore")
        version = services.store_code(
            signed_in(request), project, uploads, note, keep_others=keep_others, gitignore=gitignore
        )
        code = status.HTTP_201_CREATED if version.is_new else status.HTTP_200_OK
        return Response(UploadedVersionSerializer(version).data, code)

    def _read_raw_body(self, request: Request) -> tuple[list[Any], str]:
        name = request.query_params.get("name", "").strip()
        if not name:
            raise ValidationError({"name": ["Give the name of the file: ?name=code.zip"]})
        if not hasattr(request.data, "read"):
            raise Refused("The body is empty: send the file itself.", field="file")
        return [(name.rpartition("/")[2], request.data)], request.query_params.get("note", "")

    def _read_form(self, request: Request) -> tuple[list[Any], str]:
        if not request.content_type.startswith("multipart/"):
            raise Refused("Send the code as multipart/form-data or as application/octet-stream.", field="file")
        fields = request.POST
        files, paths = request.FILES.getlist("file"), fields.getlist("paths")
        if not files:
            raise Refused("Choose a file or a folder first.", field="file")
        if paths and len(paths) != len(files):
            raise Refused("Each file needs its path: send as many paths as files.", field="paths")
        names = paths or [file.name for file in files]
        return list(zip(names, files, strict=True)), fields.get("note", "")

    @extend_schema(responses={200: FileSerializer(many=True), **refusals(404)})
    def files(self, request: Request, project_pk: int, number: int) -> Response:
        """Return the files of the version: path and size."""
        return Response(FileSerializer(self.get_object().files, many=True).data)

    @extend_schema(
        responses={(200, "application/octet-stream"): OpenApiTypes.BINARY, **refusals(404)},
    )
    def file(self, request: Request, project_pk: int, number: int, path: str) -> HttpResponseBase:
        """Return the content of one file of the version."""
        version = self.get_object()
        try:
            size = store.entry_of(version, path)["size"]
            return download(request._request, path, store.open_file(version, path), size)
        except store.MissingError as error:
            raise Http404 from error

    @extend_schema(
        responses={(200, "application/octet-stream"): OpenApiTypes.BINARY, **refusals(404)},
    )
    def download(self, request: Request, project_pk: int, number: int) -> HttpResponseBase:
        """Download all files of the version as a tar."""
        version = self.get_object()
        try:
            tar = store.open_tar(version)
        except store.MissingError as error:
            raise Http404 from error
        name = f"project-{version.project_id}-code-{version.number}.tar"
        return download(request._request, name, tar)

    @extend_schema(
        parameters=[
            OpenApiParameter("to", int, description="Number of the other version; by default the previous one.")
        ],
        responses={200: FileChangeSerializer(many=True), **refusals(400, 404)},
    )
    def diff(self, request: Request, project_pk: int, number: int) -> Response:
        """Return the changes from another version to this one."""
        version = self.get_object()
        to = request.query_params.get("to", "")
        if to and not (to.isascii() and to.isdecimal() and len(to) < 10):
            raise ValidationError({"to": ["The number of a code version, for example 1."]})
        rows = CodeVersion.objects.filter(project=version.project_id)
        other = get_object_or_404(rows, number=int(to)) if to else rows.filter(number__lt=version.number).first()
        if other is None:
            return Response([])
        try:
            return Response(FileChangeSerializer(comparison.compare(other, version), many=True).data)
        except store.MissingError as error:
            raise Http404 from error


def _read_flag(text: str, name: str) -> bool:
    """Return a parameter that is true or false. Raises ValidationError."""
    try:
        return {"true": True, "1": True, "false": False, "0": False}[text.lower()]
    except KeyError:
        raise ValidationError({name: ["Send true or false."]}) from None


def _is_raw(request: Request) -> bool:
    return request.content_type.partition(";")[0].strip() == RawFile.media_type


class Gallery(KnownParameters, ViewSet):
    """The examples of the gallery."""

    @extend_schema(responses={200: ExampleSerializer(many=True), **refusals()})
    def list(self, request: Request) -> Response:
        return Response(ExampleSerializer(list(examples.all_examples()), many=True).data)

    @extend_schema(request=UseExampleSerializer, responses={201: UsedExampleSerializer, **refusals(400, 403, 404, 409)})
    def use(self, request: Request, key: str) -> Response:
        """Copy the code of an example to a project, by default to your own for examples. A second time adds nothing."""
        example = examples.find(key)
        if example is None:
            raise Http404
        sent = validated(UseExampleSerializer(data=request.data))
        project = None
        if pk := sent.get("project"):
            project = get_object_or_404(Project.objects.visible_to(signed_in(request)), pk=pk)
        version = services.use_example(signed_in(request), example, project)
        return Response(UsedExampleSerializer(version).data, status.HTTP_201_CREATED)
