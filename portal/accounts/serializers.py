"""API representations of accounts. Each field is listed explicitly, so that no new one leaks or becomes writable."""

from abc import abstractmethod
from typing import Any

from django.contrib.auth.models import Group
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers
from rest_framework.relations import MANY_RELATION_KWARGS

from portal.accounts.limits import LimitInForce
from portal.accounts.models import ApiToken, User
from portal.accounts.people import find_person, groups_called
from portal.refused import Refused

MAX_NAMED = 200
"""Users or groups that one field of a request names; each takes a query."""


class NamedRows(serializers.ManyRelatedField):
    """Several users or groups by name. More than ``MAX_NAMED`` are refused before any is looked up."""

    def to_internal_value(self, data: Any) -> list[Any]:
        if isinstance(data, list) and len(data) > MAX_NAMED:
            raise serializers.ValidationError(f"Name at most {MAX_NAMED}.")
        return list(super().to_internal_value(data))


class NameField(serializers.RelatedField[Any, Any, str]):
    """A row by a name."""

    default_error_messages = {"no_text": "Send a name as text."}

    @classmethod
    def many_init(cls, *args: Any, **options: Any) -> NamedRows:
        ours = {name: value for name, value in options.items() if name in MANY_RELATION_KWARGS}
        return NamedRows(child_relation=cls(*args, **options), **ours)

    def to_internal_value(self, data: Any) -> Any:
        if not isinstance(data, str):
            self.fail("no_text")
        return self.named(data)

    @abstractmethod
    def named(self, name: str) -> Any:
        """Return the row called this. Raises ValidationError."""


@extend_schema_field(str)
class PersonField(NameField):
    """A user by user name, in any case, or by e-mail address."""

    def named(self, name: str) -> User:
        try:
            return find_person(name, User.objects.filter(pk__in=self.get_queryset()))
        except Refused as refusal:
            raise serializers.ValidationError(refusal.message) from None

    def to_representation(self, value: Any) -> str:
        return str(value.username)


@extend_schema_field(str)
class GroupField(NameField):
    """A group by its name, in any case."""

    def named(self, name: str) -> Group:
        found = groups_called(name, self.get_queryset())
        if len(found) != 1:
            names = ", ".join(sorted(group.name for group in found))
            raise serializers.ValidationError(
                f"“{name}” may mean several groups: {names}." if found else f"There is no group called “{name}”."
            )
        return found[0]

    def to_representation(self, value: Any) -> str:
        return str(value.name)


class LimitSerializer(serializers.Serializer[LimitInForce]):
    name = serializers.CharField()
    max_gpus = serializers.IntegerField(allow_null=True)
    max_queued = serializers.IntegerField(allow_null=True)
    max_space_gib = serializers.IntegerField(
        allow_null=True, help_text="How much the portal may store of them, in GiB."
    )


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
