"""The users of the lab over REST, with the end of their access, which concerns their jobs, projects and reservations."""

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from portal.accounts import admin_api
from portal.accounts.permissions import signed_in
from portal.accounts.serializers import PersonField
from portal.accounts.services import active_people
from portal.jobs import departures
from portal.projects.services import owned_alone
from portal.refused import Refused
from portal.rest import refusals, validated


class NewOwnerSerializer(serializers.Serializer[Any]):
    project = serializers.IntegerField(min_value=1)
    owner = PersonField(queryset=active_people())


class DeactivationSerializer(serializers.Serializer[Any]):
    """What becomes of that which the user has. The defaults are those of the page."""

    cancel_waiting = serializers.BooleanField(default=True, help_text="Cancel the user's waiting jobs.")
    cancel_running = serializers.BooleanField(default=False, help_text="Cancel the user's running jobs.")
    owners = NewOwnerSerializer(
        many=True, required=False, help_text="New owners of projects that have no other; the rest stays without one."
    )
    end_reservations = serializers.BooleanField(default=True)
    reservations_to = PersonField(
        queryset=active_people(),
        required=False,
        allow_null=True,
        help_text="Who gets the user's reservations; they do not end then.",
    )


class DepartureSerializer(serializers.Serializer[departures.Departure]):
    """What was done: numbers of API tokens, jobs, projects and reservations."""

    tokens = serializers.IntegerField(help_text="Revoked API tokens.")
    waiting = serializers.IntegerField(help_text="Waiting jobs that were cancelled.")
    running = serializers.IntegerField(help_text="Running jobs that are being stopped.")
    projects = serializers.IntegerField(help_text="Projects that were handed over.")
    reservations = serializers.IntegerField(help_text="Reservations that were handed over or ended.")


class Users(admin_api.Users):
    @extend_schema(request=DeactivationSerializer, responses={200: DepartureSerializer, **refusals(400, 403, 404, 409)})
    def deactivate(self, request: Request, pk: int) -> Response:
        """End a user's access at once, and do with what they have what is asked for, all or nothing."""
        user, asked = self.get_object(), validated(DeactivationSerializer(data=request.data))
        owners = {each["project"]: each["owner"] for each in asked.get("owners", ())}
        heir = asked.get("reservations_to")
        if user in (*owners.values(), heir):
            field = "reservations_to" if heir == user else "owners"
            raise Refused(f"{user} is the user who is being deactivated. Choose another.", field=field)
        if strange := set(owners) - set(owned_alone(user).values_list("pk", flat=True)):
            numbers = ", ".join(map(str, sorted(strange)))
            raise Refused(f"{user} is not the only owner of project {numbers}.", field="owners")
        choices = departures.Choices(
            cancel_waiting=asked["cancel_waiting"],
            cancel_running=asked["cancel_running"],
            owners=owners,
            end_reservations=asked["end_reservations"] and heir is None,
            reservations_to=heir,
        )
        return Response(DepartureSerializer(departures.deactivate(signed_in(request), user, choices)).data)
