"""The scheduling policy over REST: everybody may know it, admins switch it."""

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework.permissions import IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from portal.accounts.permissions import IsAdmin, signed_in
from portal.control import services
from portal.control.serializers import ConfigSerializer, PolicySerializer, SwitchSerializer
from portal.refused import Refused
from portal.rest import refusals
from scheduling import registry


class Policy(APIView):
    def get_permissions(self) -> list[Any]:
        return [IsAdmin()] if self.request.method == "PUT" else [IsAuthenticated()]

    @extend_schema(operation_id="policy", tags=["policy"], responses={200: ConfigSerializer, **refusals()})
    def get(self, request: Request) -> Response:
        """The policy in force with its parameters."""
        return Response(ConfigSerializer(services.current_config()).data)

    @extend_schema(
        operation_id="policy_switch",
        tags=["policy"],
        request=SwitchSerializer,
        responses={200: ConfigSerializer, **refusals(400, 404)},
    )
    def put(self, request: Request) -> Response:
        """Decide by another policy from the next turn on. Running jobs go on."""
        asked = SwitchSerializer(data=request.data)
        asked.is_valid(raise_exception=True)
        data = asked.validated_data
        try:
            config = services.switch_policy(signed_in(request), data["policy"], data.get("params", {}))
        except ValueError as error:
            raise Refused(str(error)) from error
        return Response(ConfigSerializer(config).data)


class Policies(APIView):
    @extend_schema(
        operation_id="policies_list", tags=["policy"], responses={200: PolicySerializer(many=True), **refusals()}
    )
    def get(self, request: Request) -> Response:
        """The policies there are, with their parameters explained."""
        return Response(PolicySerializer(list(registry.describe_all()), many=True).data)
