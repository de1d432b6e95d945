"""Machines and environments over REST. Everybody signed in may look; admins act."""

from collections.abc import Callable, Sequence
from typing import Any

from django.db.models import Prefetch, QuerySet
from django.http import Http404
from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import mixins, serializers, status
from rest_framework.permissions import IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import GenericViewSet, ViewSet

from portal.accounts.models import User
from portal.accounts.permissions import IsAdmin, signed_in
from portal.cluster import quarantine, reservations, services
from portal.cluster.models import LIVE_NODE, Environment, Gpu, Node, NodeEnvironment, Reservation
from portal.cluster.serializers import (
    EnvironmentSerializer,
    NewReservationSerializer,
    NodeSerializer,
    ReservationSerializer,
)
from portal.rest import refusals

Act = Callable[[User | None, Node], Node]


class JoinTokenSerializer(serializers.Serializer[Any]):
    token = serializers.CharField(help_text="For one new machine, for an hour. Shown in this answer only.")


class Nodes(ViewSet):
    """The machines of the lab. A lab has few, so the list has no pages."""

    LOOKING = ("list", "retrieve")

    def get_permissions(self) -> list[Any]:
        return [IsAuthenticated()] if self.action in self.LOOKING else [IsAdmin()]

    def _context(self, nodes: Sequence[Node]) -> dict[str, Any]:
        return {"known_jobs": services.known_jobs(signed_in(self.request), nodes)}

    def _shown(self, user: User) -> list[Node]:
        """Machines that wait for approval are the admins' business."""
        return [node for node in services.nodes_with_gpus() if node.approved_at is not None or user.is_admin]

    @extend_schema(operation_id="nodes_list", responses={200: NodeSerializer(many=True), **refusals()})
    def list(self, request: Request) -> Response:
        rows = self._shown(signed_in(request))
        return Response(NodeSerializer(rows, many=True, context=self._context(rows)).data)

    @extend_schema(operation_id="nodes_retrieve", responses={200: NodeSerializer, **refusals(404)})
    def retrieve(self, request: Request, pk: int) -> Response:
        return self._detail(pk)

    def _detail(self, pk: int) -> Response:
        node = next((node for node in self._shown(signed_in(self.request)) if node.pk == pk), None)
        if node is None:
            raise Http404
        return Response(NodeSerializer(node, context=self._context([node])).data)

    def _act(self, act: Act, pk: int) -> Response:
        act(signed_in(self.request), _live(pk))
        return self._detail(pk)

    @extend_schema(request=None, responses={200: NodeSerializer, **refusals(404, 409)})
    def approve(self, request: Request, pk: int) -> Response:
        """Lets a machine that joined take work."""
        return self._act(services.approve, pk)

    @extend_schema(request=None, responses={200: NodeSerializer, **refusals(404, 409)})
    def cordon(self, request: Request, pk: int) -> Response:
        """No new work; what runs goes on."""
        return self._act(services.cordon, pk)

    @extend_schema(request=None, responses={200: NodeSerializer, **refusals(404, 409)})
    def drain(self, request: Request, pk: int) -> Response:
        """No new work, and what runs is stopped and placed elsewhere."""
        return self._act(services.drain, pk)

    @extend_schema(request=None, responses={200: NodeSerializer, **refusals(404, 409)})
    def resume(self, request: Request, pk: int) -> Response:
        """Takes work again."""
        return self._act(services.resume, pk)

    @extend_schema(request=None, responses={200: NodeSerializer, **refusals(404, 409)})
    def rotate_token(self, request: Request, pk: int) -> Response:
        """Its agent takes a new token; the old one works until the new one is first used."""
        return self._act(services.rotate_token, pk)

    @extend_schema(request=None, responses={200: NodeSerializer, **refusals(404, 409)})
    def revoke_token(self, request: Request, pk: int) -> Response:
        """Its token stops working at once, and its jobs are run elsewhere."""
        return self._act(services.revoke_token, pk)

    @extend_schema(request=None, responses={201: JoinTokenSerializer, **refusals(404, 409)})
    def rejoin_token(self, request: Request, pk: int) -> Response:
        """A one-time token with which this machine comes back as the same node."""
        token = services.issue_rejoin_token(signed_in(request), _live(pk))
        return Response({"token": token}, status.HTTP_201_CREATED, headers={"Cache-Control": "no-store"})

    @extend_schema(request=None, responses={200: NodeSerializer, **refusals(404, 409)})
    def quarantine_gpu(self, request: Request, pk: int, index: int) -> Response:
        """Takes a GPU out of use; what runs there goes on."""
        quarantine.take_out(signed_in(request), _gpu(_live(pk), index))
        return self._detail(pk)

    @extend_schema(request=None, responses={200: NodeSerializer, **refusals(404, 409)})
    def release_gpu(self, request: Request, pk: int, index: int) -> Response:
        """Ends the quarantine of a GPU."""
        quarantine.release(signed_in(request), _gpu(_live(pk), index))
        return self._detail(pk)

    @extend_schema(responses={204: None, **refusals(404, 409)})
    def destroy(self, request: Request, pk: int) -> Response:
        """Takes an empty machine out of the lab."""
        services.remove(signed_in(request), _live(pk))
        return Response(status=status.HTTP_204_NO_CONTENT)

    @extend_schema(request=None, responses={201: JoinTokenSerializer, **refusals(404)})
    def join_token(self, request: Request) -> Response:
        """A one-time token with which a new machine joins."""
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


class Reservations(ViewSet):
    """The calendar. Everybody signed in may look; admins reserve and cancel. What is over is not shown."""

    def get_permissions(self) -> list[Any]:
        return [IsAuthenticated()] if self.action == "list" else [IsAdmin()]

    @extend_schema(responses={200: ReservationSerializer(many=True), **refusals()})
    def list(self, request: Request) -> Response:
        rows = reservations.in_force(timezone.now())
        return Response(ReservationSerializer(rows, many=True, context={"user": signed_in(request)}).data)

    @extend_schema(request=NewReservationSerializer, responses={201: ReservationSerializer, **refusals(400, 404)})
    def create(self, request: Request) -> Response:
        """GPUs of a node for some people from a time until another."""
        asked = NewReservationSerializer(data=request.data)
        asked.is_valid(raise_exception=True)
        row = reservations.reserve(signed_in(request), **asked.validated_data)
        shown = ReservationSerializer(row, context={"user": signed_in(request)})
        return Response(shown.data, status.HTTP_201_CREATED)

    @extend_schema(responses={204: None, **refusals(404)})
    def destroy(self, request: Request, pk: int) -> Response:
        """Ends a reservation now."""
        row = Reservation.objects.filter(pk=pk).first()
        if row is None:
            raise Http404
        reservations.cancel(signed_in(request), row)
        return Response(status=status.HTTP_204_NO_CONTENT)


class Environments(mixins.ListModelMixin, mixins.RetrieveModelMixin, GenericViewSet[Environment]):
    """Curated sets of packages that jobs run in."""

    serializer_class = EnvironmentSerializer
    lookup_field = "key"
    queryset = Environment.objects.none()

    def get_queryset(self) -> QuerySet[Environment]:
        ready = NodeEnvironment.objects.filter(
            state=NodeEnvironment.State.READY, node__removed_at=None, node__approved_at__isnull=False
        ).select_related("node")
        return Environment.objects.filter(retired=False).prefetch_related(Prefetch("on_nodes", ready))
