"""The scheduling policy over REST: every user may read it; admins preview a switch, switch and undo."""

from typing import Any

from django.db.models import Exists, OuterRef
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import mixins, viewsets
from rest_framework.permissions import IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from portal.accounts.permissions import IsAdmin, signed_in
from portal.refused import Refused
from portal.rest import KnownParameters, NewestFirst, Pages, refusals, validated
from portal.scheduler import preview, services
from portal.scheduler.models import Cycle, Recording, SchedulerConfig
from portal.scheduler.serializers import (
    AskedSerializer,
    ConfigSerializer,
    CycleSerializer,
    PlannedChangeSerializer,
    PolicySerializer,
    PreviewAnswerSerializer,
    PreviewSerializer,
    SwitchSerializer,
    UndoSerializer,
)
from scheduling import registry


class Policy(KnownParameters, APIView):
    def get_permissions(self) -> list[Any]:
        return [IsAdmin()] if self.request.method == "PUT" else [IsAuthenticated()]

    @extend_schema(tags=["policy"], responses={200: ConfigSerializer, **refusals()})
    def get(self, request: Request) -> Response:
        """Return the policy in force with its parameters."""
        return Response(ConfigSerializer(services.current_config()).data)

    @extend_schema(
        operation_id="policy_switch",
        tags=["policy"],
        request=SwitchSerializer,
        responses={200: ConfigSerializer, **refusals(400, 404, 409)},
    )
    def put(self, request: Request) -> Response:
        """Switch to another policy from the next scheduling cycle on. The preview shows what changes for running jobs."""
        data, actor = validated(SwitchSerializer(data=request.data)), signed_in(request)
        try:
            if "ticket" in data:
                config = preview.confirm(actor, data["policy"], data.get("params", {}), data["ticket"])
            else:
                config = services.switch_policy(actor, data["policy"], data.get("params", {}))
        except ValueError as error:
            raise Refused(str(error)) from error
        return Response(ConfigSerializer(config).data)


class PolicyPreview(KnownParameters, APIView):
    permission_classes = [IsAdmin]

    @extend_schema(
        tags=["policy"],
        request=AskedSerializer,
        parameters=[OpenApiParameter("page", int), OpenApiParameter("page_size", int)],
        responses={200: PreviewAnswerSerializer, **refusals(400, 404)},
    )
    def post(self, request: Request) -> Response:
        """Return what a switch would change now, job by job, disruptive changes first. Switches nothing."""
        asked = validated(AskedSerializer(data=request.data))
        try:
            found = preview.compute(asked["policy"], asked.get("params", {}))
        except ValueError as error:
            raise Refused(str(error)) from error
        pages = Pages()
        rows = pages.paginate_queryset(found.changes, request, view=self)
        answer = pages.get_paginated_response(PlannedChangeSerializer(rows, many=True, context={"preview": found}).data)
        answer.data["preview"] = PreviewSerializer(found).data
        return answer


class PolicyUndo(KnownParameters, APIView):
    permission_classes = [IsAdmin]

    @extend_schema(
        tags=["policy"],
        request=UndoSerializer,
        responses={200: ConfigSerializer, **refusals(400, 404, 409)},
    )
    def post(self, request: Request) -> Response:
        """Restore the previous configuration as a new one. A second undo reverts the first."""
        asked = validated(UndoSerializer(data=request.data))
        config = services.undo_switch(signed_in(request), asked.get("config"))
        return Response(ConfigSerializer(config).data)


@extend_schema(tags=["policy"])
class PolicyHistory(KnownParameters, mixins.ListModelMixin, viewsets.GenericViewSet[SchedulerConfig]):
    """All configurations, the one in force first."""

    pagination_class = NewestFirst
    permission_classes = [IsAdmin]
    serializer_class = ConfigSerializer
    queryset = SchedulerConfig.objects.select_related("created_by")


@extend_schema(tags=["policy"])
class Cycles(KnownParameters, mixins.ListModelMixin, viewsets.GenericViewSet[Cycle]):
    """Scheduling cycles that changed something or failed, the newest first."""

    pagination_class = NewestFirst
    permission_classes = [IsAdmin]
    serializer_class = CycleSerializer
    queryset = Cycle.objects.select_related("config").annotate(
        recorded=Exists(Recording.objects.filter(cycle=OuterRef("pk")))
    )


class Policies(KnownParameters, APIView):
    @extend_schema(
        operation_id="policies_list", tags=["policy"], responses={200: PolicySerializer(many=True), **refusals()}
    )
    def get(self, request: Request) -> Response:
        """Return the available policies with their parameters explained."""
        return Response(PolicySerializer(list(registry.describe_all()), many=True).data)
