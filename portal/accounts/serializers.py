"""API representations of accounts. Each field is listed explicitly, so that no new one leaks or becomes writable."""

from typing import Any

from django.contrib.auth.models import Group
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from portal.accounts.limits import LimitInForce
from portal.accounts.models import ApiToken, User
from portal.accounts.people import find_person, groups_called
from portal.refused import Refused


@extend_schema_field(str)
class PersonField(serializers.RelatedField[User, Any, str]):
    """A user by user name, in any case, or by e-mail address."""

    def to_internal_value(self, data: str) -> User:
        try:
            return find_person(str(data), User.objects.filter(pk__in=self.get_queryset()))
        except Refused as refusal:
            raise serializers.ValidationError(refusal.message) from None

    def to_representation(self, value: Any) -> str:
        return str(value.username)


@extend_schema_field(str)
class GroupField(serializers.RelatedField[Group, Any, str]):
    """A group by its name, in any case."""

    def to_internal_value(self, data: str) -> Group:
        found = groups_called(str(data), self.get_queryset())
        if len(found) != 1:
            names = ", ".join(sorted(group.name for group in found))
            raise serializers.ValidationError(
                f"“{data}” may mean several groups: {names}." if found else f"There is no group called “{data}”."
            )
        return found[0]

    def to_representation(self, value: Any) -> str:
        return str(value.name)


class LimitSerializer(serializers.Serializer[LimitInForce]):
    name = serializers.CharField()
    max_gpus = serializers.IntegerField(allow_null=True)
    max_queued = serializers.IntegerField(allow_null=True)


class MeSerializer(serializers.ModelSerializer[User]):
    admin = serializers.BooleanField(source="is_admin", read_only=True)
    groups = serializers.SlugRelatedField[Any](many=True, read_only=True, slug_field="name")
    limits = LimitSerializer(many=True, read_only=True)

    class Meta:
        model = User
        fields = ("id", "username", "email", "first_name", "last_name", "admin", "groups", "limits")
        read_only_fields = fields


class TokenSerializer(serializers.ModelSerializer[ApiToken]):
    live = serializers.BooleanField(source="is_live", read_only=True)

    class Meta:
        model = ApiToken
        fields: tuple[str, ...] = (
            "id",
            "name",
            "prefix",
            "scope",
            "live",
            "created_at",
            "expires_at",
            "last_used_at",
            "revoked_at",
        )
        read_only_fields = fields


class NewTokenSerializer(serializers.ModelSerializer[ApiToken]):
    days = serializers.IntegerField(
        min_value=1, max_value=3650, allow_null=True, default=90, write_only=True, help_text="null: does not expire"
    )

    class Meta:
        model = ApiToken
        fields = ("name", "scope", "days")


class IssuedTokenSerializer(TokenSerializer):
    token = serializers.CharField(read_only=True, help_text="In this response only.")

    class Meta(TokenSerializer.Meta):
        fields = (*TokenSerializer.Meta.fields, "token")
        read_only_fields = fields
