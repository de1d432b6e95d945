"""Notices and webhooks over REST. The pages use the same services."""

from typing import Any

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import mixins, status
from rest_framework.generics import get_object_or_404
from rest_framework.permissions import IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import GenericViewSet

from portal.accounts.permissions import IsAdmin, signed_in
from portal.notifications import services
from portal.notifications.models import Channel, Delivery, Notice
from portal.notifications.serializers import (
    DeliverySerializer,
    NewWebhookAnswerSerializer,
    NewWebhookSerializer,
    NoticeSerializer,
    ReadCountSerializer,
    ReadNoticesSerializer,
    WebhookEventsSerializer,
    WebhookSerializer,
)
from portal.projects.models import Project
from portal.projects.services import require_owner
from portal.rest import KnownParameters, NewestFirst, refusals, validated


class Notices(KnownParameters, mixins.ListModelMixin, GenericViewSet[Notice]):
    """The notices of the caller in the portal, the newest first."""

    queryset = Notice.objects.none()
    serializer_class = NoticeSerializer
    pagination_class = NewestFirst

    def get_queryset(self) -> QuerySet[Notice]:
        return services.shown_to(signed_in(self.request))

    @extend_schema(request=ReadNoticesSerializer, responses={200: ReadCountSerializer, **refusals(400, 403)})
    def read(self, request: Request) -> Response:
        """Mark notices as read."""
        sent = validated(ReadNoticesSerializer(data=request.data))
        return Response({"marked": services.mark_read(signed_in(request), sent.get("ids"))})


class Webhooks(KnownParameters, mixins.ListModelMixin, GenericViewSet[Channel]):
    """URLs that receive the events of a project's jobs. Owners of the project and admins."""

    queryset = Channel.objects.none()
    serializer_class = WebhookSerializer

    @property
    def project(self) -> Project | None:
        """The project of the address, which the caller owns."""
        user = signed_in(self.request)
        found = get_object_or_404(Project.objects.visible_to(user), pk=self.kwargs["project_pk"])
        require_owner(user, found)
        return found

    def get_queryset(self) -> QuerySet[Channel]:
        return services.webhooks_of(self.project).order_by("pk")

    @extend_schema(responses={200: WebhookSerializer(many=True), **refusals(403, 404)})
    def list(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """List the webhooks."""
        return super().list(request, *args, **kwargs)

    @extend_schema(
        request=NewWebhookSerializer, responses={201: NewWebhookAnswerSerializer, **refusals(400, 403, 404, 429)}
    )
    def create(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Register a URL. The answer has the secret of its signatures, which is not sent again."""
        project = self.project
        sent = validated(NewWebhookSerializer(data=request.data))
        row, secret = services.add_webhook(signed_in(request), project, sent["url"], sent["events"], sent["name"])
        return Response(NewWebhookAnswerSerializer(row, context={"secret": secret}).data, status.HTTP_201_CREATED)

    @extend_schema(responses={200: WebhookSerializer, **refusals(403, 404)})
    def retrieve(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Return a webhook."""
        return Response(WebhookSerializer(self.get_object()).data)

    @extend_schema(request=WebhookEventsSerializer, responses={200: WebhookSerializer, **refusals(400, 403, 404)})
    def partial_update(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Set the events of a webhook."""
        row = self.get_object()
        sent = validated(WebhookEventsSerializer(data=request.data))
        services.set_webhook_events(signed_in(request), row, sent["events"])
        return Response(WebhookSerializer(row).data)

    @extend_schema(responses={204: None, **refusals(403, 404)})
    def destroy(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Remove a webhook. Events that wait for it are not sent."""
        services.remove_channel(signed_in(request), self.get_object())
        return Response(status=status.HTTP_204_NO_CONTENT)

    @extend_schema(request=None, responses={202: DeliverySerializer, **refusals(403, 404, 429)})
    def test(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Send an event `test`. `deliveries` shows what came of it. A paused webhook is resumed."""
        made = services.send_test(signed_in(request), self.get_object())
        return Response(DeliverySerializer(made).data, status.HTTP_202_ACCEPTED)

    @extend_schema(request=None, responses={200: WebhookSerializer, **refusals(403, 404)})
    def resume(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Switch a paused webhook on again. What happened in the meantime is not sent."""
        services.resume(signed_in(request), self.get_object())
        return Response(WebhookSerializer(self.get_object()).data)


class LabWebhooks(Webhooks):
    """URLs that receive the events of all jobs. Admins only."""

    def get_permissions(self) -> list[Any]:
        return [IsAdmin()]

    @property
    def project(self) -> Project | None:
        return None


class WebhookDeliveries(KnownParameters, mixins.ListModelMixin, GenericViewSet[Delivery]):
    """What was sent to a webhook in the last 30 days, the newest first."""

    queryset = Delivery.objects.none()
    serializer_class = DeliverySerializer
    pagination_class = NewestFirst

    def get_permissions(self) -> list[Any]:
        return [IsAuthenticated()]

    def get_queryset(self) -> QuerySet[Delivery]:
        user = signed_in(self.request)
        project = get_object_or_404(Project.objects.visible_to(user), pk=self.kwargs["project_pk"])
        require_owner(user, project)
        webhook = get_object_or_404(services.webhooks_of(project), pk=self.kwargs["pk"])
        return webhook.deliveries.select_related("notice", "channel").order_by("-pk")

    @extend_schema(responses={200: DeliverySerializer(many=True), **refusals(403, 404)})
    def list(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """List the deliveries of a webhook."""
        return super().list(request, *args, **kwargs)

    @extend_schema(request=None, responses={202: DeliverySerializer, **refusals(403, 404)})
    def again(self, request: Request, project_pk: int, pk: int, delivery_pk: int) -> Response:
        """Send a delivery once more, with the same id."""
        row = get_object_or_404(self.get_queryset(), pk=delivery_pk)
        services.deliver_again(signed_in(request), row)
        return Response(DeliverySerializer(self.get_queryset().get(pk=delivery_pk)).data, status.HTTP_202_ACCEPTED)
