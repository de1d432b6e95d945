"""Simulations over REST, for admins."""

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import mixins, status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import GenericViewSet

from portal.accounts.permissions import IsAdmin, signed_in
from portal.rest import KnownParameters, NewestFirst, refusals, validated
from portal.whatif import services
from portal.whatif.models import Simulation
from portal.whatif.serializers import NewSimulationSerializer, SimulationDetailSerializer, SimulationSerializer


@extend_schema(tags=["policy"])
class Simulations(KnownParameters, mixins.ListModelMixin, mixins.RetrieveModelMixin, GenericViewSet[Simulation]):
    """Simulations of the lab's recent history under other policies, the newest first."""

    pagination_class = NewestFirst
    permission_classes = [IsAdmin]
    queryset = Simulation.objects.select_related("created_by")
    serializer_class = SimulationDetailSerializer
    filterset_fields = ["status"]

    def get_queryset(self) -> QuerySet[Simulation]:
        rows = super().get_queryset()
        return rows.defer("result") if self.action == "list" else rows

    def get_serializer_class(self) -> type[SimulationSerializer]:
        return SimulationSerializer if self.action == "list" else SimulationDetailSerializer

    @extend_schema(
        request=NewSimulationSerializer, responses={201: SimulationDetailSerializer, **refusals(400, 404, 409, 429)}
    )
    def create(self, request: Request) -> Response:
        """Queue a simulation; they run one at a time. Request it again until its status is final."""
        asked = validated(NewSimulationSerializer(data=request.data))
        wanted = [(each["policy"], each.get("params", {})) for each in asked["policies"]]
        row = services.queue_simulation(signed_in(request), asked["days"], wanted)
        return Response(SimulationDetailSerializer(row).data, status.HTTP_201_CREATED)

    @extend_schema(request=None, responses={200: SimulationDetailSerializer, **refusals(404, 409)})
    def cancel(self, request: Request, pk: int) -> Response:
        """Cancel a simulation that waits or runs."""
        row = self.get_object()
        services.cancel(row)
        return Response(SimulationDetailSerializer(row).data)
