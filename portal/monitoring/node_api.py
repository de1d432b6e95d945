"""Nodes over REST, with the jobs on their GPUs. All users may read; admins act."""

from collections.abc import Callable, Sequence
from typing import Any

from django.http import Http404
from drf_spectacular.utils import extend_schema
from rest_framework import serializers, status
from rest_framework.permissions import IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import ViewSet

from portal.accounts.models import User
from portal.accounts.permissions import IsAdmin, signed_in
from portal.cluster import quarantine, services
from portal.cluster.models import LIVE_NODE, Gpu, Node
from portal.jobs.occupancy import gpus_of, nodes_with_gpus, visible_holders
from portal.monitoring.node_serializers import NodeSerializer
from portal.rest import KnownParameters, refusals

NodeAction = Callable[[User | None, Node], Node]


class JoinTokenSerializer(serializers.Serializer[Any]):
    token = serializers.CharField(help_text="For one new machine, for an hour. In this response only.")


class Nodes(KnownParameters, ViewSet):
    """The nodes of the lab. There are few, so the list has no pages."""

    READING = ("list", "retrieve")

    def get_permissions(self) -> list[Any]:
        return [IsAuthenticated()] if self.action in self.READING else [IsAdmin()]

    def _context(self, nodes: Sequence[Node]) -> dict[str, Any]:
        return {"known_jobs": visible_holders(signed_in(self.request), gpus_of(nodes))}

    def _visible_nodes(self, user: User) -> list[Node]:
        """Return the nodes that a user sees: those that wait for approval are visible to admins only."""
        return [node for node in nodes_with_gpus(user) if node.approved_at is not None or user.is_admin]

    @extend_schema(responses={200: NodeSerializer(many=True), **refusals()})
    def list(self, request: Request) -> Response:
        rows = self._visible_nodes(signed_in(request))
        return Response(NodeSerializer(rows, many=True, context=self._context(rows)).data)

    @extend_schema(responses={200: NodeSerializer, **refusals(404)})
    def retrieve(self, request: Request, pk: int) -> Response:
        return self._detail(pk)

    def _detail(self, pk: int) -> Response:
        node = next((node for node in self._visible_nodes(signed_in(self.request)) if node.pk == pk), None)
        if node is None:
            raise Http404
        return Response(NodeSerializer(node, context=self._context([node])).data)

    def _act(self, action: NodeAction, pk: int) -> Response:
        action(signed_in(self.request), _live(pk))
        return self._detail(pk)

    @extend_schema(request=None, responses={200: NodeSerializer, **refusals(404, 409)})
    def approve(self, request: Request, pk: int) -> Response:
        """Approve a machine that has joined, so that it accepts jobs."""
        return self._act(services.approve, pk)

    @extend_schema(request=None, responses={200: NodeSerializer, **refusals(404, 409)})
    def cordon(self, request: Request, pk: int) -> Response:
        """Accept no new jobs; running jobs continue."""
        return self._act(services.cordon, pk)

    @extend_schema(request=None, responses={200: NodeSerializer, **refusals(404, 409)})
    def drain(self, request: Request, pk: int) -> Response:
        """Accept no new jobs; running jobs are stopped and restarted elsewhere."""
        return self._act(services.drain, pk)

    @extend_schema(request=None, responses={200: NodeSerializer, **refusals(404, 409)})
    def resume(self, request: Request, pk: int) -> Response:
        """Accept jobs again."""
        return self._act(services.resume, pk)

    @extend_schema(request=None, responses={200: NodeSerializer, **refusals(404, 409)})
    def rotate_token(self, request: Request, pk: int) -> Response:
        """Give the agent a new token; the old one works until the new one is first used."""
        return self._act(services.rotate_token, pk)

    @extend_schema(request=None, responses={200: NodeSerializer, **refusals(404, 409)})
    def revoke_token(self, request: Request, pk: int) -> Response:
        """Invalidate the token at once; the jobs of the node restart elsewhere."""
        return self._act(services.revoke_token, pk)

    @extend_schema(request=None, responses={201: JoinTokenSerializer, **refusals(404, 409)})
    def rejoin_token(self, request: Request, pk: int) -> Response:
        """Create a one-time token with which this machine joins again as the same node."""
        token = services.issue_rejoin_token(signed_in(request), _live(pk))
        return Response({"token": token}, status.HTTP_201_CREATED, headers={"Cache-Control": "no-store"})

    @extend_schema(request=None, responses={200: NodeSerializer, **refusals(404, 409)})
    def quarantine_gpu(self, request: Request, pk: int, index: int) -> Response:
        """Quarantine a GPU: no new job gets it; a running job continues."""
        quarantine.quarantine_by_admin(signed_in(request), _gpu(_live(pk), index))
        return self._detail(pk)

    @extend_schema(request=None, responses={200: NodeSerializer, **refusals(404, 409)})
    def release_gpu(self, request: Request, pk: int, index: int) -> Response:
        """End the quarantine of a GPU."""
        quarantine.release(signed_in(request), _gpu(_live(pk), index))
        return self._detail(pk)

    @extend_schema(responses={204: None, **refusals(404, 409)})
    def destroy(self, request: Request, pk: int) -> Response:
        """Remove a node without jobs from the lab."""
        services.remove(signed_in(request), _live(pk))
        return Response(status=status.HTTP_204_NO_CONTENT)

    @extend_schema(request=None, responses={201: JoinTokenSerializer, **refusals(404)})
    def join_token(self, request: Request) -> Response:
        """Create a one-time token with which a new machine joins."""
        token = services.issue_join_token(signed_in(request))
        return Response({"token": token}, status.HTTP_201_CREATED, headers={"Cache-Control": "no-store"})


def _gpu(node: Node, index: int) -> Gpu:
    gpu = Gpu.objects.filter(node=node, index=index, present=True).first()
    if gpu is None:
        raise Http404
    return gpu


def _live(pk: int) -> Node:
    node = Node.objects.filter(LIVE_NODE, pk=pk).first()
    if node is None:
        raise Http404
    return node
