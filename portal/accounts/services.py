"""Actions on accounts: invite, join, change roles, end access. Views, the API and commands call these."""

import secrets
from collections.abc import Iterable
from datetime import datetime, timedelta

from django.contrib.auth import password_validation
from django.contrib.auth.hashers import UNUSABLE_PASSWORD_PREFIX
from django.contrib.auth.models import Group
from django.contrib.auth.tokens import default_token_generator
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.db.models import Q, QuerySet
from django.dispatch import Signal
from django.urls import reverse
from django.utils import timezone
from django.utils.encoding import force_bytes
from django.utils.http import urlsafe_base64_encode

from portal.accounts.audit import audit, last_actor
from portal.accounts.mails import Invitation
from portal.accounts.models import ApiToken, Invite, LabSettings, User, digest, new_session_salt
from portal.accounts.outbox import send_mail
from portal.accounts.people import groups_called
from portal.names import name_problem
from portal.refused import Refused

INVITE_LIFETIME = timedelta(days=7)
RECOVERY_LIFETIME = timedelta(hours=1)
INVITE_STATES = {"open": "open", "used": "used", "expired": "expired or withdrawn"}
person_will_be_added = Signal()
"""Sent before a person is invited, joins or is reactivated. Receivers may raise Refused."""
EXAMPLES_OWNER = "schedulearn"
"""The account that owns the examples of the first start. It has no password or address, so no one can sign in as it."""
MAX_TOKENS = 50
"""Valid tokens per user; more would be the fault of a script."""


# Joining


def setup_link(base_url: str, *, again: bool = False) -> str | None:
    """Return the one-time link with which the first user becomes admin; None once there is an admin.

    Each call creates a new link and invalidates earlier ones: the newest link in the terminal is the valid one. With
    ``again`` there is a link although there is an admin. It is valid for an hour, and the audit log has it.
    """
    with transaction.atomic():
        recovers = active_admins().exists()
        if recovers and not again:
            return None
        Invite.objects.filter(makes_admin=True, created_by=None, used_at=None).delete()
        if recovers:
            invite, token = _new_invite(RECOVERY_LIFETIME, makes_admin=True, recovers=True)
            audit(None, "invite.recovery", f"invite {invite.pk}", after={"makes_admin": True})
        else:
            _, token = _new_invite(makes_admin=True)
    return base_url.rstrip("/") + reverse("accounts:invite", args=[token])


def has_admin() -> bool:
    """Return whether there is an admin, who has used the set-up link."""
    return active_admins().exists()


def invite_refusal() -> str:
    """Return the sentence that refuses every invitation at present, or ""."""
    try:
        person_will_be_added.send(sender=Invite)
    except Refused as refusal:
        return refusal.message
    return ""


def create_invite(
    actor: User, *, email: str = "", groups: Iterable[Group] = (), makes_admin: bool = False
) -> tuple[Invite, str]:
    """Create an invitation, and mail its link if there is an address. Return its row and the token of its link."""
    groups = list(groups)
    person_will_be_added.send(sender=Invite)
    with transaction.atomic():
        invite, token = _new_invite(created_by=actor, email=email, makes_admin=makes_admin)
        invite.groups.set(groups)
        audit(
            actor,
            "invite.create",
            f"invite {invite.pk}",
            after={"email": email, "makes_admin": makes_admin, "groups": [group.name for group in groups]},
        )
        if email:
            path = reverse("accounts:invite", args=[token])
            send_mail(Invitation(actor.get_full_name() or actor.username, path, INVITE_LIFETIME.days), email)
    return invite, token


def _new_invite(lifetime: timedelta = INVITE_LIFETIME, **fields: object) -> tuple[Invite, str]:
    token = secrets.token_urlsafe(32)
    return Invite.objects.create(token_digest=digest(token), expires_at=timezone.now() + lifetime, **fields), token


def revoke_invite(actor: User, invite: Invite) -> None:
    with transaction.atomic():
        if Invite.objects.filter(pk=invite.pk, used_at=None).delete()[0]:
            audit(actor, "invite.revoke", f"invite {invite.pk}", before={"email": invite.email})


def open_invites() -> QuerySet[Invite]:
    """Return the invitations that can still be used. The set-up link is invalid once an admin exists, however created."""
    rows = Invite.objects.filter(used_at=None, expires_at__gt=timezone.now())
    return rows.exclude(makes_admin=True, created_by=None, recovers=False) if active_admins().exists() else rows


def open_invites_of(creator: User) -> QuerySet[Invite]:
    """Return the invitations of an admin that can still be used. They end with the access or role with which they were made."""
    return open_invites().filter(created_by=creator)


def _withdraw_invites(actor: User, rows: QuerySet[Invite]) -> None:
    for invite in rows:
        revoke_invite(actor, invite)


def invites_in_state(rows: QuerySet[Invite], state: str) -> QuerySet[Invite]:
    """Return those of the invitations that are in one of the ``INVITE_STATES``; all for none of them."""
    if state == "open":
        return rows.filter(pk__in=open_invites().values("pk"))
    if state == "used":
        return rows.filter(used_at__isnull=False)
    return rows.filter(used_at=None, expires_at__lte=timezone.now()) if state == "expired" else rows


def find_invite(token: str) -> Invite | None:
    return open_invites().filter(token_digest=digest(token)).first()


def accept_invite(token: str, *, username: str, password: str, email: str = "") -> User:
    """Create the account of an invitation, which is used up. Name and password must have been validated."""
    with transaction.atomic():
        invite = open_invites().select_for_update(of=("self",)).filter(token_digest=digest(token)).first()
        if invite is None:
            raise Refused("This invitation was used already or has expired. Ask your admin for a new one.", "conflict")
        if not invite.recovers:  # the same person as before, whose own account does not open any more
            person_will_be_added.send(sender=Invite)
        try:
            with transaction.atomic():
                user: User = User.objects.create_user(username, email, password, is_staff=invite.makes_admin)
        except IntegrityError as error:  # another user took them after the form was validated
            raise Refused(
                "This name or e-mail address has just been taken. Choose another.", field="username"
            ) from error
        user.groups.set(invite.groups.all())
        Invite.objects.filter(pk=invite.pk).update(used_at=timezone.now(), used_by=user)
        audit(user, "user.join", f"user {user}", after={"admin": invite.makes_admin, "invite": invite.pk})
    return user


# Admins and members


def people() -> QuerySet[User]:
    """Return the accounts that a person can sign in to once active: all but the one that owns the first examples."""
    everyone: QuerySet[User] = User.objects.all()
    return everyone.exclude(username=EXAMPLES_OWNER, password__startswith=UNUSABLE_PASSWORD_PREFIX)


def active_people() -> QuerySet[User]:
    return people().filter(is_active=True)


def active_admins() -> QuerySet[User]:
    """Return the admins who can sign in."""
    admins: QuerySet[User] = User.objects.filter(is_staff=True, is_active=True)
    return admins


def _lock_admins(and_user: int) -> list[User]:
    """Lock the admins and a user, so that two admins who remove each other's role cannot both succeed."""
    return list(User.objects.select_for_update(of=("self",)).filter(Q(is_staff=True) | Q(pk=and_user)).order_by("pk"))


def set_admin(actor: User, user: User, admin: bool) -> None:
    with transaction.atomic():
        row = _locked_unless_last_admin(user, losing=not admin)
        if row.is_staff == admin:
            return
        User.objects.filter(pk=row.pk).update(is_staff=admin)
        audit(actor, "user.role", f"user {row}", {"admin": row.is_staff}, {"admin": admin})
        if not admin:
            _withdraw_invites(actor, open_invites_of(row).filter(makes_admin=True))


def set_active(actor: User, user: User, active: bool) -> int:
    """End or restore a user's access. Both end all sessions and revoke all API tokens; return their number."""
    with transaction.atomic():
        row = _locked_unless_last_admin(user, losing=not active)
        if row.is_active == active:
            return 0
        if not active:
            require_may_deactivate(actor, row)
        else:
            person_will_be_added.send(sender=User)
        User.objects.filter(pk=row.pk).update(is_active=active, session_salt=new_session_salt())
        revoked = revoke_tokens(row)  # also those that an earlier release left to a user whom it deactivated
        audit(
            actor,
            "user.activate" if active else "user.deactivate",
            f"user {row}",
            {"active": row.is_active},
            {"active": active} | ({"revoked_tokens": revoked} if revoked else {}),
        )
        if not active:
            _withdraw_invites(actor, open_invites_of(row))
    return revoked


def require_may_deactivate(actor: User, user: User) -> None:
    if not people().filter(pk=user.pk).exists():
        raise Refused(f"{user} is no person: it owns the examples of the portal and cannot sign in.", "conflict")
    if user.is_admin and not active_admins().exclude(pk=user.pk).exists():
        raise Refused(f"{user} is the last admin. Make another user an admin first.", "conflict")
    if user.pk == actor.pk:
        raise Refused("You cannot deactivate yourself. Ask another admin to do it.", "conflict")


def _locked_unless_last_admin(user: User, *, losing: bool) -> User:
    rows = _lock_admins(user.pk)
    row = next(row for row in rows if row.pk == user.pk)
    if losing and row.is_admin and not any(other.is_admin for other in rows if other.pk != row.pk):
        raise Refused(f"{row} is the last admin. Make another user an admin first.", "conflict")
    return row


def end_sessions(user: User) -> None:
    """Sign a user out everywhere."""
    salt = new_session_salt()
    User.objects.filter(pk=user.pk).update(session_salt=salt)
    user.session_salt = salt


def reset_link(actor: User, user: User, base_url: str) -> str:
    """Return a link to choose a new password, which an admin can pass on when mail does not work."""
    with transaction.atomic():
        audit(actor, "user.reset_link", f"user {user}")
    uid = urlsafe_base64_encode(force_bytes(user.pk))
    path = reverse("accounts:password-reset-confirm", args=[uid, default_token_generator.make_token(user)])
    return base_url.rstrip("/") + path


def check_password_rules(password: str, user: User) -> list[str]:
    """Return sentences on what is wrong with a password, none if it is good."""
    try:
        password_validation.validate_password(password, user)
    except ValidationError as error:
        return list(error.messages)
    return []


# Groups


def new_group_name(typed: str) -> str:
    """Return the name of a group as it is stored. Raises Refused for one that is not allowed, or that there is."""
    name = " ".join(typed.split())
    if problem := name_problem(name):
        raise Refused(problem, field="name")
    if groups_called(name):
        raise Refused("There is a group with this name.", field="name")
    return name


def create_group(actor: User, name: str) -> Group:
    """Create a group, whose name must have been validated."""
    try:
        with transaction.atomic():
            group = Group.objects.create(name=name)
            audit(actor, "group.create", f"group {name}")
    except IntegrityError as error:  # another admin created it after the form was validated
        raise Refused("There is a group with this name.", "conflict", field="name") from error
    return group


def delete_group(actor: User, group: Group) -> None:
    with transaction.atomic():
        members = sorted(group.user_set.values_list("username", flat=True))
        group.delete()
        audit(actor, "group.delete", f"group {group.name}", before={"members": members})


def set_members(actor: User, group: Group, users: Iterable[User]) -> None:
    with transaction.atomic():
        if not Group.objects.select_for_update().filter(pk=group.pk).exists():
            raise Refused(f"The group {group.name} has been deleted in the meantime.", "conflict")
        before = sorted(group.user_set.values_list("username", flat=True))
        group.user_set.set(users)
        after = sorted(group.user_set.values_list("username", flat=True))
        if before != after:
            audit(actor, "group.members", f"group {group.name}", {"members": before}, {"members": after})


def last_to_set_members(group: Group) -> str:
    """Return the name of the admin who chose the present members, or "" if they came or went otherwise, as by invitation."""
    members = sorted(group.user_set.values_list("username", flat=True))
    return last_actor("group.members", f"group {group.name}", {"members": members})


# Tokens


def create_token(
    user: User, name: str, *, scope: str = ApiToken.Scope.WRITE, expires_at: datetime | None = None
) -> tuple[ApiToken, str]:
    with transaction.atomic():
        User.objects.select_for_update(of=("self",)).get(
            pk=user.pk
        )  # two simultaneous requests must not both create the last one
        if live_tokens(user).count() >= MAX_TOKENS:
            raise Refused(f"You have {MAX_TOKENS} API tokens already. Revoke one you no longer use.", "limit")
        return ApiToken.issue(user, name, scope=scope, expires_at=expires_at)


def live_tokens(user: User) -> QuerySet[ApiToken]:
    return ApiToken.objects.filter(Q(expires_at=None) | Q(expires_at__gt=timezone.now()), user=user, revoked_at=None)


def revoke_token(token: ApiToken) -> None:
    ApiToken.objects.filter(pk=token.pk, revoked_at=None).update(revoked_at=timezone.now())


def revoke_tokens(user: User) -> int:
    """Revoke all valid API tokens of a user; return their number."""
    return live_tokens(user).update(revoked_at=timezone.now())


# The lab


def set_lab_settings(actor: User, **settings: bool | int) -> None:
    """Store settings of the lab, by the names of its fields; those that are left out stay."""
    with transaction.atomic():
        row, _ = LabSettings.objects.select_for_update().get_or_create(pk=LabSettings.ONLY)
        before = {name: getattr(row, name) for name in settings}
        if before == settings:
            return
        for name, value in settings.items():
            setattr(row, name, value)
        row.save(update_fields=list(settings))
        audit(actor, "lab.settings_changed", "the lab", before, settings)
