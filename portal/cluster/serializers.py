"""API representations of reservations."""

from typing import Any

from django.contrib.auth.models import Group
from rest_framework import serializers

from portal.accounts.models import User
from portal.accounts.serializers import GroupField, PersonField
from portal.cluster import reservations
from portal.cluster.models import LIVE_NODE, Node, Reservation


class ReservationSerializer(serializers.ModelSerializer[Reservation]):
    node = serializers.CharField(source="node.name")
    gpu_model = serializers.CharField(read_only=True, help_text="Empty for any model.")
    mine = serializers.SerializerMethodField(help_text="Whether your jobs may use it.")
    users = serializers.SerializerMethodField(help_text="Visible to these users and to admins; empty for others.")
    groups = serializers.SerializerMethodField()

    class Meta:
        model = Reservation
        fields = ("id", "name", "node", "gpus", "gpu_model", "start", "end", "mine", "users", "groups")
        read_only_fields = fields

    def get_mine(self, row: Reservation) -> bool:
        return self.context["user"].pk in reservations.owner_ids(row)

    def _may_know(self, row: Reservation) -> bool:
        return self.context["user"].is_admin or self.get_mine(row)

    def get_users(self, row: Reservation) -> list[str]:
        return [user.username for user in row.users.all()] if self._may_know(row) else []

    def get_groups(self, row: Reservation) -> list[str]:
        return [group.name for group in row.groups.all()] if self._may_know(row) else []


class NewReservationSerializer(serializers.Serializer[Any]):
    name = serializers.CharField(max_length=80)
    node = serializers.SlugRelatedField(
        slug_field="name", queryset=Node.objects.filter(LIVE_NODE, approved_at__isnull=False)
    )
    gpus = serializers.IntegerField(min_value=1, max_value=1000)
    gpu_model = serializers.CharField(
        max_length=80, required=False, allow_blank=True, help_text="On a node with several models; empty for any."
    )
    start = serializers.DateTimeField()
    end = serializers.DateTimeField()
    users = PersonField(many=True, required=False, queryset=User.objects.filter(is_active=True))
    groups = GroupField(many=True, required=False, queryset=Group.objects.all())
