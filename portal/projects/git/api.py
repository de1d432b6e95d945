"""The repository of a project, its fetches, and the hosts that admins allow, over REST. Services check permissions."""

from typing import Any

from django.db.models import QuerySet
from django.shortcuts import get_object_or_404
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import mixins, status
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import GenericViewSet

from portal import log_files, log_pieces
from portal.accounts.permissions import IsAdmin, signed_in
from portal.projects.api import InProject
from portal.projects.git import fetches, files, hosts, sources, webhooks
from portal.projects.git.models import GitFetch, GitHost, GitSource
from portal.projects.git.serializers import (
    BindSerializer,
    FetchLogSerializer,
    FingerprintSerializer,
    GitFetchSerializer,
    GitHostSerializer,
    GitSourceSerializer,
    GitWebhookSerializer,
    NewGitHostSerializer,
)
from portal.rest import KnownParameters, NewestFirst, refusals, validated

OFFSET = OpenApiParameter("offset", int, description="Bytes of the log that you have. 0 without it.")


class Git(InProject):
    """The repository and branch that a project is bound to."""

    queryset = GitSource.objects.none()
    serializer_class = GitSourceSerializer

    def get_object(self) -> GitSource:
        return get_object_or_404(GitSource.objects.select_related("project", "bound_by"), project=self.project)

    def _answer(self) -> Response:
        return Response(GitSourceSerializer(self.get_object()).data)

    @extend_schema(operation_id="projects_git_retrieve", responses={200: GitSourceSerializer, **refusals(404)})
    def current(self, request: Request, project_pk: int) -> Response:
        """Return what the project is bound to; 404 if it is bound to nothing."""
        return self._answer()

    @extend_schema(
        operation_id="projects_git_bind",
        request=BindSerializer,
        responses={200: GitSourceSerializer, **refusals(400, 403, 404, 409)},
    )
    def bind(self, request: Request, project_pk: int) -> Response:
        """Bind the project to a branch. Owners only. Another repository keeps the token or deploy key only if you stored it
        yourself, another host keeps neither these nor the confirmed key."""
        project = self.project
        sent = validated(BindSerializer(data=request.data))
        wanted = sources.SourceRequest(sent["address"], sent["branch"], sent["user"], sent.get("token"), sent["extras"])
        sources.bind(signed_in(request), project, wanted)
        return self._answer()

    @extend_schema(operation_id="projects_git_unbind", responses={204: None, **refusals(403, 404, 409)})
    def unbind(self, request: Request, project_pk: int) -> Response:
        """Forget the repository, its token, keys and webhook. Owners only. Code versions stay."""
        sources.unbind(signed_in(request), self.project)
        return Response(status=status.HTTP_204_NO_CONTENT)

    @extend_schema(request=None, responses={202: GitFetchSerializer, **refusals(403, 404, 409)})
    def fetch(self, request: Request, project_pk: int) -> Response:
        """Fetch the newest commit of the branch, and make a code version of it if it is new. Follow the fetch until it ends."""
        made = fetches.request(signed_in(request), self.project, GitFetch.Cause.API)
        return Response(GitFetchSerializer(made).data, status.HTTP_202_ACCEPTED)

    @extend_schema(request=FingerprintSerializer, responses={200: GitSourceSerializer, **refusals(400, 403, 404, 409)})
    def confirm_host_key(self, request: Request, project_pk: int) -> Response:
        """Confirm the key that the ssh host had at the last fetch. Owners only. Another key is refused from then on."""
        sent = validated(FingerprintSerializer(data=request.data))
        sources.confirm_host_key(signed_in(request), self.get_object(), sent["fingerprint"])
        return self._answer()

    @extend_schema(request=None, responses={200: GitSourceSerializer, **refusals(403, 404, 409)})
    def new_key(self, request: Request, project_pk: int) -> Response:
        """Make a new deploy key. Owners only. The host has to get its public part."""
        sources.new_deploy_key(signed_in(request), self.get_object())
        return self._answer()

    @extend_schema(
        operation_id="projects_git_webhook_create",
        request=None,
        responses={200: GitWebhookSerializer, **refusals(403, 404, 409)},
    )
    def new_webhook(self, request: Request, project_pk: int) -> Response:
        """Give the webhook a new secret, which is returned this one time. Owners only."""
        row = self.get_object()
        secret = sources.new_webhook_secret(signed_in(request), row)
        return Response(GitWebhookSerializer({"url": webhooks.url_of(row), "secret": secret}).data)

    @extend_schema(operation_id="projects_git_webhook_remove", responses={204: None, **refusals(403, 404, 409)})
    def remove_webhook(self, request: Request, project_pk: int) -> Response:
        """Remove the webhook: pushes make no code versions any more. Owners only."""
        sources.remove_webhook(signed_in(request), self.get_object())
        return Response(status=status.HTTP_204_NO_CONTENT)


class Fetches(mixins.ListModelMixin, mixins.RetrieveModelMixin, InProject):
    """The fetches of a project's repository, newest first."""

    queryset = GitFetch.objects.none()
    serializer_class = GitFetchSerializer
    pagination_class = NewestFirst

    def get_queryset(self) -> QuerySet[GitFetch]:
        return GitFetch.objects.filter(project=self.project).select_related("project", "requested_by", "version")

    @extend_schema(parameters=[OFFSET], responses={200: FetchLogSerializer, **refusals(400, 404)})
    def log(self, request: Request, project_pk: int, pk: int) -> Response:
        """A piece of the log of a fetch. To follow it, repeat with `end` as `offset` until it is `finished`."""
        fetch = self.get_object()
        offset = request.query_params.get("offset", "0")
        if not log_pieces.is_offset(offset):
            raise ValidationError({"offset": ["Send the number of bytes that you have."]})
        path = files.log_path(fetch)
        piece = log_pieces.log_from(path, int(offset))
        over = not fetch.is_open and piece.end >= log_files.size_of(path)
        return Response(FetchLogSerializer({"text": piece.text, "end": piece.end, "finished": over}).data)

    @extend_schema(request=None, responses={200: GitFetchSerializer, **refusals(403, 404, 409)})
    def cancel(self, request: Request, project_pk: int, pk: int) -> Response:
        """Cancel a fetch. Its node stops within seconds. One that has ended stays as it is."""
        fetches.cancel(signed_in(request), self.get_object())
        return Response(self.get_serializer(self.get_object()).data)


class GitHosts(
    KnownParameters,
    mixins.ListModelMixin,
    mixins.RetrieveModelMixin,
    mixins.DestroyModelMixin,
    GenericViewSet[GitHost],
):
    """The hosts that projects may fetch their code from. Admins only."""

    serializer_class = GitHostSerializer
    queryset = GitHost.objects.none()

    def get_permissions(self) -> list[Any]:
        return [IsAdmin()]

    def get_queryset(self) -> QuerySet[GitHost]:
        return GitHost.objects.select_related("created_by").order_by("host")

    @extend_schema(request=NewGitHostSerializer, responses={201: GitHostSerializer, **refusals(400, 403, 404, 409)})
    def create(self, request: Request) -> Response:
        """Allow a host."""
        sent = validated(NewGitHostSerializer(data=request.data))
        row = hosts.allow(signed_in(request), sent.pop("host"), **sent)
        return Response(GitHostSerializer(row).data, status.HTTP_201_CREATED)

    @extend_schema(responses={204: None, **refusals(403, 404)})
    def destroy(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Remove a host: nothing is fetched from it any more."""
        hosts.forbid(signed_in(request), self.get_object())
        return Response(status=status.HTTP_204_NO_CONTENT)
