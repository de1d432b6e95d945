"""Reservations over REST. All users may read; admins reserve and cancel."""

from typing import Any

from django.http import Http404
from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import status
from rest_framework.permissions import IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import ViewSet

from portal.accounts.permissions import IsAdmin, signed_in
from portal.cluster import reservations
from portal.cluster.models import Reservation
from portal.cluster.serializers import NewReservationSerializer, ReservationSerializer
from portal.rest import KnownParameters, refusals, validated


class Reservations(KnownParameters, ViewSet):
    """The reservations that are active or to come. All users may read them; admins create and cancel."""

    def get_permissions(self) -> list[Any]:
        return [IsAuthenticated()] if self.action == "list" else [IsAdmin()]

    @extend_schema(responses={200: ReservationSerializer(many=True), **refusals()})
    def list(self, request: Request) -> Response:
        rows = reservations.active_or_upcoming(timezone.now())
        return Response(ReservationSerializer(rows, many=True, context={"user": signed_in(request)}).data)

    @extend_schema(request=NewReservationSerializer, responses={201: ReservationSerializer, **refusals(400, 404)})
    def create(self, request: Request) -> Response:
        """Reserve GPUs of a node for users and groups, from one time until another."""
        asked = validated(NewReservationSerializer(data=request.data))
        row = reservations.reserve(signed_in(request), **asked)
        shown = ReservationSerializer(row, context={"user": signed_in(request)})
        return Response(shown.data, status.HTTP_201_CREATED)

    @extend_schema(responses={204: None, **refusals(404)})
    def destroy(self, request: Request, pk: int) -> Response:
        """End a reservation now."""
        row = Reservation.objects.filter(pk=pk).first()
        if row is None:
            raise Http404
        reservations.cancel(signed_in(request), row)
        return Response(status=status.HTTP_204_NO_CONTENT)
