"""The API endpoints for one's own account and API tokens."""

from datetime import timedelta
from typing import Any

from django.utils import timezone
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.utils import extend_schema
from rest_framework import mixins, status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView
from rest_framework.viewsets import GenericViewSet

from portal.accounts import services
from portal.accounts.limits import limits_for
from portal.accounts.models import ApiToken
from portal.accounts.permissions import signed_in
from portal.accounts.serializers import IssuedTokenSerializer, MeSerializer, NewTokenSerializer, TokenSerializer
from portal.rest import KnownParameters, refusals, validated


class TokenScheme(OpenApiAuthenticationExtension):
    """Describes in the schema how API tokens are sent."""

    target_class = "portal.accounts.authentication.TokenAuthentication"
    name = "token"

    def get_security_definition(self, auto_schema: AutoSchema) -> dict[str, Any]:
        return {"type": "http", "scheme": "bearer"}


class Me(KnownParameters, APIView):
    @extend_schema(tags=["me"], responses={200: MeSerializer, **refusals()})
    def get(self, request: Request) -> Response:
        """Return the user that this token belongs to."""
        user = signed_in(request)
        user.limits = limits_for(user)  # type: ignore[attr-defined]  # for the serializer
        return Response(MeSerializer(user).data)


class Tokens(KnownParameters, mixins.ListModelMixin, mixins.RetrieveModelMixin, GenericViewSet[ApiToken]):
    """The user's own API tokens."""

    queryset = ApiToken.objects.none()
    serializer_class = TokenSerializer

    def get_queryset(self) -> Any:
        return ApiToken.objects.filter(user=signed_in(self.request)) if self.request else self.queryset

    @extend_schema(request=NewTokenSerializer, responses={201: IssuedTokenSerializer, **refusals(400, 403, 429)})
    def create(self, request: Request) -> Response:
        """Create a token. It is in this response only and cannot be retrieved later."""
        data = validated(NewTokenSerializer(data=request.data))
        expires_at = timezone.now() + timedelta(days=data["days"]) if data["days"] else None
        scope = data.get("scope", ApiToken.Scope.WRITE)
        row, token = services.create_token(signed_in(request), data["name"], scope=scope, expires_at=expires_at)
        row.token = token  # type: ignore[attr-defined]  # for this one answer
        return Response(IssuedTokenSerializer(row).data, status.HTTP_201_CREATED, headers={"Cache-Control": "no-store"})

    @extend_schema(operation_id="tokens_revoke", responses={204: None, **refusals(403, 404)})
    def destroy(self, request: Request, pk: int) -> Response:
        """Revoke a token. It stays in the list."""
        services.revoke_token(self.get_object())
        return Response(status=status.HTTP_204_NO_CONTENT)
