"""Users, their limits, and their tokens."""

import hashlib
import secrets
from typing import Any, ClassVar, Self

from django.contrib.auth.models import AbstractUser, Group, UserManager
from django.db import models
from django.db.models import Q
from django.db.models.functions import Lower
from django.db.models.signals import post_save
from django.dispatch import receiver
from django.utils import timezone
from django.utils.crypto import salted_hmac

from portal.generics import TextField
from portal.names import SPARE, is_key_of, may_be_name, name_key, search_key


def digest(token: str) -> str:
    """Return the digest under which a token is stored. Tokens are long and random, so one round of SHA-256 suffices."""
    return hashlib.sha256(token.encode()).hexdigest()


def new_session_salt() -> str:
    return secrets.token_hex(8)


def same_key(*keys: str) -> Q:
    """Return the condition that the key of a row's name is one of these, or a spare one: the caller compares their names.

    Names of earlier releases may have the same key. The upgrade left it to the first row, and gave the others spare keys.
    """
    return Q(name_key__in=keys) | Q(name_key__startswith=SPARE)


class NameKeyField(TextField[str, str]):
    """The key of a row's ``username``. It is unique: names that differ by case or by the way to write a letter are one."""

    def pre_save(self, model_instance: models.Model, add: bool) -> Any:
        key = name_key(getattr(model_instance, "username"))  # noqa: B009  # of whichever model has the field
        now = getattr(model_instance, self.attname)
        if not now or not is_key_of(now, key):
            setattr(model_instance, self.attname, key)
        return getattr(model_instance, self.attname)


class PeopleQuerySet(models.QuerySet["User"]):
    def called(self, name: str) -> list["User"]:
        """Return the users whom a name means: the one of exactly this name, otherwise all of the same in another case."""
        if not may_be_name(name):
            return []
        key = name_key(name.strip())
        found: list[User] = list(self.filter(same_key(key)).order_by("pk"))
        rows = [user for user in found if name_key(user.username) == key]
        return [user for user in rows if user.username == name.strip()] or rows

    def matching(self, typed: str) -> list["User"]:
        """Return the users whom a user name or an e-mail address means: one, none, or several when it is ambiguous."""
        found = self.called(typed)
        if "@" in typed and may_be_name(typed):
            found += [user for user in self.filter(email__folded=search_key(typed.strip())) if user not in found]
        return found


class People(UserManager.from_queryset(PeopleQuerySet)):  # type: ignore[misc]
    def get_by_natural_key(self, username: str | None) -> "User":
        """Return the user who signs in with this: a user name in any case, or an e-mail address. Exactly one may match."""
        found: list[User] = self.called(username or "") or self.matching(username or "")
        if len(found) != 1:
            raise self.model.DoesNotExist
        return found[0]


class User(AbstractUser):
    """A member of the lab; ``is_staff`` marks an admin."""

    name_key = NameKeyField(unique=True, editable=False)
    email = models.EmailField("e-mail address", blank=True)
    session_salt = models.CharField(max_length=16, default=new_session_salt, editable=False)
    """Part of each session's hash: changing it signs the user out everywhere."""

    objects: ClassVar[People] = People()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                Lower("email"),
                condition=~Q(email=""),
                name="email_belongs_to_one_user",
                violation_error_message="This e-mail address has an account already.",
            ),
            # Alice and alice would be mistaken for each other.
            models.UniqueConstraint(
                Lower("username"),
                name="username_differs_by_more_than_case",
                violation_error_message="This name is taken.",
            ),
        ]

    @property
    def is_admin(self) -> bool:
        return self.is_active and self.is_staff

    def _get_session_auth_hash(self, secret: str | None = None) -> str:
        proof = f"{self.password}:{self.session_salt}"
        return salted_hmac("portal.accounts.session", proof, secret=secret, algorithm="sha256").hexdigest()


class GroupName(models.Model):
    """The key of a group's name, unique: two admins cannot create Vision and vision at the same moment."""

    group = models.OneToOneField(Group, primary_key=True, on_delete=models.CASCADE, related_name="+")
    name_key = models.TextField(unique=True)


@receiver(post_save, sender=Group)
def save_group_name(instance: Group, raw: bool = False, **_: object) -> None:
    """Keep the key of a group's name with the group, whoever creates it."""
    if raw:
        return
    key = name_key(instance.name)
    now = GroupName.objects.filter(group=instance).values_list("name_key", flat=True).first()
    if now is None or not is_key_of(now, key):
        GroupName.objects.update_or_create(group=instance, defaults={"name_key": key})


class Invite(models.Model):
    """A one-time link to create an account. The link of the first start creates an admin."""

    token_digest = models.CharField(max_length=64, unique=True)
    email = models.EmailField(blank=True)
    makes_admin = models.BooleanField(default=False)
    recovers = models.BooleanField(default=False, editable=False)
    """Printed on the portal's machine although there is an admin (``setup-link --again``)."""
    groups = models.ManyToManyField(Group, blank=True)
    created_by = models.ForeignKey(User, null=True, on_delete=models.CASCADE, related_name="invites")
    created_at = models.DateTimeField(default=timezone.now)
    expires_at = models.DateTimeField()
    used_at = models.DateTimeField(null=True, blank=True)
    used_by = models.ForeignKey(User, null=True, blank=True, on_delete=models.SET_NULL, related_name="+")

    class Meta:
        ordering = ["-created_at"]

    @property
    def is_open(self) -> bool:
        return self.used_at is None and self.expires_at > timezone.now()


class ApiToken(models.Model):
    """A named token for scripts. Only its digest is stored; the token is shown once."""

    class Scope(models.TextChoices):
        READ = "read", "read"
        WRITE = "write", "read and write"

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="api_tokens")
    name = models.CharField(max_length=80)
    prefix = models.CharField(max_length=12)
    token_digest = models.CharField(max_length=64, unique=True)
    scope = models.CharField(max_length=8, choices=Scope.choices, default=Scope.WRITE)
    created_at = models.DateTimeField(default=timezone.now)
    expires_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-created_at"]

    @classmethod
    def issue(cls, user: User, name: str, **fields: object) -> tuple[Self, str]:
        """Create a token. Return its row and the token, which cannot be retrieved later."""
        token = f"sl_{secrets.token_urlsafe(32)}"
        return cls.objects.create(user=user, name=name, prefix=token[:10], token_digest=digest(token), **fields), token

    @property
    def is_live(self) -> bool:
        return self.revoked_at is None and (self.expires_at is None or self.expires_at > timezone.now())


class Limit(models.Model):
    """The limits of a user or a group: GPUs at the same time, queued jobs and stored bytes (None means no limit).

    Also their weight under policies with fair sharing, and whether they may submit premium jobs.
    """

    user = models.OneToOneField(User, null=True, blank=True, on_delete=models.CASCADE, related_name="limit")
    group = models.OneToOneField(Group, null=True, blank=True, on_delete=models.CASCADE, related_name="limit")
    max_gpus = models.PositiveIntegerField(null=True, blank=True)
    max_queued = models.PositiveIntegerField(null=True, blank=True)
    max_space_gib = models.PositiveIntegerField(null=True, blank=True)
    """How much the portal may store of them; None means the default of the lab for a user, and no limit for a group."""
    weight = models.FloatField(default=1.0)
    premium = models.BooleanField(default=False)
    soft = models.BooleanField(default=False)
    """Jobs that can be stopped may use more than ``max_gpus`` while no one else needs the GPUs; they are stopped first."""

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(user__isnull=False, group__isnull=True) | Q(user__isnull=True, group__isnull=False),
                name="limit_is_of_a_user_or_of_a_group",
            ),
            models.CheckConstraint(condition=Q(weight__gt=0), name="limit_weight_is_positive"),
        ]


class AuditEntry(models.Model):
    """An action of an admin: written in the same transaction as the action, never changed."""

    at = models.DateTimeField(default=timezone.now)
    actor = models.ForeignKey(User, null=True, on_delete=models.PROTECT, related_name="+")
    action = models.CharField(max_length=60)
    target = models.CharField(max_length=200)
    before = models.JSONField(default=dict)
    after = models.JSONField(default=dict)

    class Meta:
        ordering = ["-id"]


class ListColumns(models.Model):
    """The columns that a user chose for a list; without a row, those that the list shows by itself."""

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="list_columns")
    list = models.CharField(max_length=20)
    """The key of a ``portal.lists.Listing``."""
    columns = models.JSONField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["user", "list"], name="columns_of_a_list_once")]


class SavedView(models.Model):
    """A name for filters, order and columns of a list, for one user."""

    MAX_NAME_LENGTH = 40
    MAX_QUERY_LENGTH = 2000

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="saved_views")
    list = models.CharField(max_length=20)
    name = models.CharField(max_length=MAX_NAME_LENGTH)
    query = models.CharField(max_length=MAX_QUERY_LENGTH, blank=True)
    """The query string of the list's page."""

    class Meta:
        constraints = [models.UniqueConstraint(fields=["user", "list", "name"], name="saved_view_name_once")]


class LabSettings(models.Model):
    """What admins set for the whole lab: at most one row; without it, the defaults."""

    ONLY = 1

    queue_for_members = models.BooleanField(default=True)
    """Members see who waits and who holds which GPU, also of projects of others; otherwise admins alone do."""
    hours_granted_by_rule = models.PositiveSmallIntegerField(default=0)
    """Hours of more time that a job gets without an admin, in total; with 0 an admin always decides."""
    max_space_gib = models.PositiveIntegerField(null=True, blank=True)
    """How much the portal may store of each user without a limit of their own; None means no limit."""

    class Meta:
        constraints = [models.CheckConstraint(condition=Q(pk=1), name="one_row_of_lab_settings")]

    @classmethod
    def current(cls) -> Self:
        return cls.objects.filter(pk=cls.ONLY).first() or cls(pk=cls.ONLY)
