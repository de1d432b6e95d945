"""The board over REST: every node with its GPUs, and who holds them, as far as the reader may know."""

from typing import Any

from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import ViewSet

from portal.accounts.permissions import signed_in
from portal.monitoring.board import CONDITIONS, Viewer, board_for
from portal.rest import KnownParameters, refusals


class SquareSerializer(serializers.Serializer[Any]):
    """A GPU or CPU slot now."""

    id = serializers.IntegerField(source="pk")
    index = serializers.IntegerField()
    name = serializers.CharField(source="label", help_text="`GPU 3` or `CPU slot 0`.")
    model = serializers.CharField()
    condition = serializers.ChoiceField(choices=list(CONDITIONS))
    utilisation_percent = serializers.IntegerField(source="percent", allow_null=True)
    held_since = serializers.DateTimeField(source="holding.since", default=None, allow_null=True)
    job = serializers.IntegerField(
        source="holding.job", default=None, allow_null=True, help_text="The job that holds it, if you may see it."
    )
    user = serializers.CharField(
        source="holding.person.name",
        default=None,
        allow_null=True,
        help_text="Who submitted it, if you may see the job or the queue.",
    )
    project = serializers.IntegerField(
        source="holding.project.pk", default=None, allow_null=True, help_text="Its project, if you may see it."
    )


class BoardNodeSerializer(serializers.Serializer[Any]):
    """A node with its GPUs."""

    id = serializers.IntegerField(source="pk")
    name = serializers.CharField()
    state = serializers.CharField(source="state_text", help_text="`up`, `cordoned`, `draining`, `not reporting`, ...")
    is_up = serializers.BooleanField(help_text="It accepts new jobs.")
    gpus = SquareSerializer(source="squares", many=True)


class OccupancySerializer(serializers.Serializer[Any]):
    at = serializers.DateTimeField(source="now")
    busy = serializers.IntegerField()
    total = serializers.IntegerField()
    nodes = BoardNodeSerializer(source="machines", many=True)


class Occupancy(KnownParameters, ViewSet):
    """Who holds which GPU now. ``timeline/`` has the past."""

    @extend_schema(responses={200: OccupancySerializer, **refusals()})
    def now(self, request: Request) -> Response:
        """Show all nodes and their GPUs now, as the home page does."""
        board = board_for(Viewer.of(signed_in(request)), timezone.now())
        return Response(OccupancySerializer(board).data)
