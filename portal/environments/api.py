"""Environments over REST."""

from django.db.models import Prefetch, QuerySet
from rest_framework import mixins
from rest_framework.viewsets import GenericViewSet

from portal.environments.models import Environment, NodeEnvironment
from portal.environments.serializers import EnvironmentSerializer
from portal.rest import KnownParameters


class Environments(KnownParameters, mixins.ListModelMixin, mixins.RetrieveModelMixin, GenericViewSet[Environment]):
    """Curated sets of packages that jobs run in."""

    serializer_class = EnvironmentSerializer
    lookup_field = "key"
    queryset = Environment.objects.none()

    def get_queryset(self) -> QuerySet[Environment]:
        ready = NodeEnvironment.objects.filter(
            state=NodeEnvironment.State.READY, node__removed_at=None, node__approved_at__isnull=False
        ).select_related("node")
        return Environment.objects.filter(retired=False).prefetch_related(Prefetch("on_nodes", ready))
