"""Users, groups, invitations and the audit log over REST, for admins. The pages use the same services."""

from typing import Any

import django_filters
from django.conf import settings
from django.contrib.auth.models import Group
from django.db.models import QuerySet
from django.urls import reverse
from drf_spectacular.utils import extend_schema, extend_schema_field
from rest_framework import mixins, serializers, status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import GenericViewSet

from portal.accounts import services
from portal.accounts.models import AuditEntry, Invite, User
from portal.accounts.people import people_called
from portal.accounts.permissions import IsAdmin, signed_in
from portal.accounts.serializers import GroupField
from portal.refused import Refused
from portal.rest import KnownParameters, NewestFirst, refusals, validated
from portal.search import any_contains
from portal.sentences.audit import title_of

TRUE_OR_FALSE = [("true", "true"), ("false", "false")]
MAX_MEMBERS = 10_000


# --- users -------------------------------------------------------------------------------------------------------


class UserSerializer(serializers.ModelSerializer[User]):
    admin = serializers.BooleanField(source="is_staff", read_only=True)
    active = serializers.BooleanField(source="is_active", read_only=True, help_text="False after deactivation.")
    groups = serializers.SlugRelatedField[Any](many=True, read_only=True, slug_field="name")

    class Meta:
        model = User
        fields = (
            "id",
            "username",
            "email",
            "first_name",
            "last_name",
            "admin",
            "active",
            "groups",
            "date_joined",
            "last_login",
        )
        read_only_fields = fields


class UserFilter(django_filters.FilterSet):
    q = django_filters.CharFilter(method="with_words", label="Part of the name or the e-mail address.")
    admin = django_filters.ChoiceFilter(method="of_flag", choices=TRUE_OR_FALSE)
    active = django_filters.ChoiceFilter(method="of_flag", choices=TRUE_OR_FALSE)

    class Meta:
        model = User
        fields: list[str] = []

    def with_words(self, rows: QuerySet[User], _: str, words: str) -> QuerySet[User]:
        return rows.filter(any_contains(words, "username", "email", "first_name", "last_name"))

    def of_flag(self, rows: QuerySet[User], name: str, value: str) -> QuerySet[User]:
        return rows.filter(**{{"admin": "is_staff", "active": "is_active"}[name]: value == "true"})


class Users(KnownParameters, mixins.ListModelMixin, mixins.RetrieveModelMixin, GenericViewSet[User]):
    """The people of the lab, those whose access has ended included."""

    permission_classes = [IsAdmin]
    serializer_class = UserSerializer
    filterset_class = UserFilter
    queryset = User.objects.none()

    def get_queryset(self) -> QuerySet[User]:
        return services.people().order_by("pk").prefetch_related("groups")

    def _answer(self) -> Response:
        return Response(UserSerializer(self.get_object()).data)

    @extend_schema(request=None, responses={200: UserSerializer, **refusals(404, 409)})
    def activate(self, request: Request, pk: int) -> Response:
        """Restore a user's access. What ended with it, such as API tokens and cancelled jobs, does not come back."""
        services.set_active(signed_in(request), self.get_object(), True)
        return self._answer()

    @extend_schema(request=None, responses={200: UserSerializer, **refusals(404, 409)})
    def make_admin(self, request: Request, pk: int) -> Response:
        """Make a user an admin."""
        services.set_admin(signed_in(request), self.get_object(), True)
        return self._answer()

    @extend_schema(request=None, responses={200: UserSerializer, **refusals(404, 409)})
    def make_member(self, request: Request, pk: int) -> Response:
        """Make an admin a member. The last admin stays one."""
        services.set_admin(signed_in(request), self.get_object(), False)
        return self._answer()


# --- groups ------------------------------------------------------------------------------------------------------


class GroupSerializer(serializers.ModelSerializer[Group]):
    members = serializers.SerializerMethodField(help_text="User names.")

    class Meta:
        model = Group
        fields = ("id", "name", "members")
        read_only_fields = fields

    def get_members(self, group: Group) -> list[str]:
        return sorted(user.username for user in group.user_set.all())


class NewGroupSerializer(serializers.Serializer[Any]):
    name = serializers.CharField(max_length=150)


class GroupMembersSerializer(serializers.Serializer[Any]):
    members = serializers.ListField(
        child=serializers.CharField(max_length=150), max_length=MAX_MEMBERS, help_text="All members, by user name."
    )


class Groups(KnownParameters, mixins.ListModelMixin, mixins.RetrieveModelMixin, GenericViewSet[Group]):
    """Groups of users, which share limits and reservations."""

    permission_classes = [IsAdmin]
    serializer_class = GroupSerializer
    queryset = Group.objects.order_by("pk").prefetch_related("user_set")

    def _answer(self, group: Group, code: int = status.HTTP_200_OK) -> Response:
        return Response(GroupSerializer(self.get_queryset().get(pk=group.pk)).data, code)

    @extend_schema(request=NewGroupSerializer, responses={201: GroupSerializer, **refusals(400, 404, 409)})
    def create(self, request: Request) -> Response:
        """Create a group without members."""
        asked = validated(NewGroupSerializer(data=request.data))
        group = services.create_group(signed_in(request), services.new_group_name(asked["name"]))
        return self._answer(group, status.HTTP_201_CREATED)

    @extend_schema(request=GroupMembersSerializer, responses={200: GroupSerializer, **refusals(400, 404, 409)})
    def set_members(self, request: Request, pk: int) -> Response:
        """Replace the members of a group."""
        group, asked = self.get_object(), validated(GroupMembersSerializer(data=request.data))
        try:
            users = people_called(asked["members"], User.objects.all())
        except Refused as refusal:
            raise Refused(refusal.message, field="members") from None
        services.set_members(signed_in(request), group, users)
        return self._answer(group)

    @extend_schema(responses={204: None, **refusals(404)})
    def destroy(self, request: Request, pk: int) -> Response:
        """Delete a group with its limit. Its members keep their accounts."""
        services.delete_group(signed_in(request), self.get_object())
        return Response(status=status.HTTP_204_NO_CONTENT)


# --- invitations -------------------------------------------------------------------------------------------------


class InvitationSerializer(serializers.ModelSerializer[Invite]):
    open = serializers.BooleanField(source="is_open", read_only=True, help_text="It can still be used.")
    groups = serializers.SlugRelatedField[Any](many=True, read_only=True, slug_field="name")
    created_by = serializers.SlugRelatedField[Any](slug_field="username", read_only=True, allow_null=True)
    used_by = serializers.SlugRelatedField[Any](slug_field="username", read_only=True, allow_null=True)

    class Meta:
        model = Invite
        fields: tuple[str, ...] = (
            "id",
            "email",
            "makes_admin",
            "groups",
            "open",
            "created_by",
            "created_at",
            "expires_at",
            "used_at",
            "used_by",
        )
        read_only_fields = fields


class IssuedInvitationSerializer(InvitationSerializer):
    link = serializers.CharField(read_only=True, help_text="Where the person joins. In this response only.")

    class Meta(InvitationSerializer.Meta):
        fields = (*InvitationSerializer.Meta.fields, "link")
        read_only_fields = fields


class NewInvitationSerializer(serializers.Serializer[Any]):
    email = serializers.EmailField(
        required=False, allow_blank=True, default="", max_length=254, help_text="Filled in for them when they join."
    )
    groups = GroupField(many=True, required=False, queryset=Group.objects.all(), help_text="Groups that they join.")
    makes_admin = serializers.BooleanField(default=False)


class InvitationFilter(django_filters.FilterSet):
    state = django_filters.ChoiceFilter(method="in_state", choices=list(services.INVITE_STATES.items()))

    class Meta:
        model = Invite
        fields: list[str] = []

    def in_state(self, rows: QuerySet[Invite], _: str, state: str) -> QuerySet[Invite]:
        return services.invites_in_state(rows, state)


class Invitations(KnownParameters, mixins.ListModelMixin, mixins.RetrieveModelMixin, GenericViewSet[Invite]):
    """One-time links with which people join, the newest first."""

    permission_classes = [IsAdmin]
    pagination_class = NewestFirst
    serializer_class = InvitationSerializer
    filterset_class = InvitationFilter
    queryset = Invite.objects.order_by("-pk").select_related("created_by", "used_by").prefetch_related("groups")

    @extend_schema(
        request=NewInvitationSerializer, responses={201: IssuedInvitationSerializer, **refusals(400, 404, 409)}
    )
    def create(self, request: Request) -> Response:
        """Invite a person. The link is in this response only."""
        asked = validated(NewInvitationSerializer(data=request.data))
        invite, token = services.create_invite(signed_in(request), **asked)
        invite.link = settings.SITE_URL + reverse("accounts:invite", args=[token])  # type: ignore[attr-defined]  # for this one answer
        shown = IssuedInvitationSerializer(invite).data
        return Response(shown, status.HTTP_201_CREATED, headers={"Cache-Control": "no-store"})

    @extend_schema(operation_id="invitations_revoke", responses={204: None, **refusals(404, 409)})
    def destroy(self, request: Request, pk: int) -> Response:
        """Withdraw an invitation that was not used."""
        invite = self.get_object()
        if invite.used_at is not None:
            raise Refused("This invitation was used. Deactivate the user to end their access.", "conflict")
        services.revoke_invite(signed_in(request), invite)
        return Response(status=status.HTTP_204_NO_CONTENT)


# --- audit -------------------------------------------------------------------------------------------------------


@extend_schema_field(
    {
        "type": "object",
        "additionalProperties": {
            "oneOf": [{"type": kind} for kind in ("string", "number", "boolean", "object")]
            + [{"type": "array", "items": {}}],
            "nullable": True,
        },
    }
)
class Values(serializers.JSONField):
    """Values by name; which there are depends on the action."""


class AuditEntrySerializer(serializers.ModelSerializer[AuditEntry]):
    actor = serializers.SlugRelatedField[Any](
        slug_field="username", read_only=True, allow_null=True, help_text="Null for the portal itself."
    )
    title = serializers.SerializerMethodField(help_text="The action in words.")
    before = Values(read_only=True, help_text="What the action changed, as it was.")
    after = Values(read_only=True, help_text="And as it became.")

    class Meta:
        model = AuditEntry
        fields = ("id", "at", "actor", "action", "title", "target", "before", "after")
        read_only_fields = fields

    def get_title(self, entry: AuditEntry) -> str:
        return title_of(entry.action)


class AuditFilter(django_filters.FilterSet):
    actor = django_filters.CharFilter(method="of_actor", label="User name or e-mail address.")
    action = django_filters.CharFilter(label="Such as `user.deactivate`.")
    target = django_filters.CharFilter(method="with_target", label="Part of the target, such as `user bob`.")

    class Meta:
        model = AuditEntry
        fields: list[str] = []

    def of_actor(self, rows: QuerySet[AuditEntry], _: str, name: str) -> QuerySet[AuditEntry]:
        return rows.filter(actor__in=User.objects.matching(name))

    def with_target(self, rows: QuerySet[AuditEntry], _: str, words: str) -> QuerySet[AuditEntry]:
        return rows.filter(any_contains(words, "target"))


class Audit(KnownParameters, mixins.ListModelMixin, GenericViewSet[AuditEntry]):
    """What admins and the portal did, the newest first. Entries never change."""

    permission_classes = [IsAdmin]
    pagination_class = NewestFirst
    serializer_class = AuditEntrySerializer
    filterset_class = AuditFilter
    queryset = AuditEntry.objects.select_related("actor")
