"""Adds, replaces and deletes secrets, and decides which of them a job may use."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils import timezone
from django.views.decorators.debug import sensitive_variables

from portal.accounts.audit import audit
from portal.accounts.models import User
from portal.names import is_unstorable
from portal.projects.models import Project
from portal.projects.services import lock, may_submit, require_member, require_owner, role_of
from portal.refused import Refused
from portal.secrets import keys
from portal.secrets.models import PROJECT_PREFIX, Secret
from portal.variable_names import ENV_NAME, reason_reserved

MAX_OF_AN_OWNER = 50
MAX_VARIABLE_CHARACTERS = 4096
MAX_FILE_BYTES = 64 * 1024
MIN_MASKED_CHARACTERS = 6
"""Shorter values are not masked in logs: they would hide half of every line."""
FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
NEWLINE_REMOVED = "The line break at the end of the value was left out."
TOO_SHORT_TO_MASK = f"A value of fewer than {MIN_MASKED_CHARACTERS} characters is not masked in logs."

Owner = User | Project
"""Whose a secret is."""


@dataclass(frozen=True)
class CheckedValue:
    """A value as it is stored, and what whoever entered it should know about it."""

    text: str = field(repr=False)
    notices: tuple[str, ...] = ()


@dataclass(frozen=True)
class StoredSecret:
    """A secret that was added or whose value was replaced, with what whoever did it should know."""

    row: Secret
    notices: tuple[str, ...] = ()


# --- add, replace, delete ----------------------------------------------------------------------------------------


def secrets_of(owner: Owner) -> QuerySet[Secret]:
    """Return the secrets of a person or of a project, with who changed them last."""
    return Secret.objects.filter(**_owned_by(owner)).select_related("changed_by", "project")


@sensitive_variables("value")
def create(user: User, owner: Owner, kind: str, name: str, value: str) -> StoredSecret:
    """Add a secret to a person's own, or to a project, which its owners do. Raises Refused."""
    _require_right(user, owner)
    check_name(kind, name)
    checked = check_value(kind, value)
    sealed = keys.seal(checked.text)  # may write the key's file
    with transaction.atomic():
        _lock(user, owner)
        rows = Secret.objects.filter(**_owned_by(owner))
        if rows.filter(name=name).exists():
            raise Refused(
                f"There is a secret {name} already. Replace its value, or choose another name.", "conflict", "name"
            )
        if rows.count() >= MAX_OF_AN_OWNER:
            raise Refused(f"There are {MAX_OF_AN_OWNER} secrets already. Delete one that no job needs.", "limit")
        row = Secret.objects.create(name=name, kind=kind, sealed=sealed, changed_by=user, **_owned_by(owner))
        audit(user, "secret.add", _target(row), after={"secret": name, "given_as": kind})
    return StoredSecret(row, checked.notices)


@sensitive_variables("value")
def replace_value(user: User, secret: Secret, value: str) -> StoredSecret:
    """Replace the value; jobs that start from then on get the new one. Raises Refused."""
    owner = secret.owner
    _require_right(user, owner)
    checked = check_value(secret.kind, value)
    sealed = keys.seal(checked.text)
    with transaction.atomic():
        _lock(user, owner)
        row = _current(secret)
        row.sealed, row.changed_at, row.changed_by = sealed, timezone.now(), user
        row.save(update_fields=["sealed", "changed_at", "changed_by"])
        audit(user, "secret.replace", _target(row), after={"secret": row.name})
    return StoredSecret(row, checked.notices)


def delete(user: User, secret: Secret) -> None:
    """Delete a secret, also of an archived project; jobs that start from then on cannot get it. Raises Refused."""
    if isinstance(secret.owner, Project):
        require_owner(user, secret.owner)
    else:
        _require_right(user, secret.owner)
    with transaction.atomic():
        row = Secret.objects.select_for_update(of=("self",)).filter(pk=secret.pk).first()
        if row is not None:
            audit(user, "secret.delete", _target(row), before={"secret": row.name, "given_as": row.kind})
            row.delete()


def is_unreadable(secret: Secret) -> bool:
    """Return whether the value is lost: the database was restored without the key that encrypted it."""
    return keys.unseal(secret.sealed) is None


def may_see_secrets(user: User, project: Project) -> bool:
    """Return whether a user may see the names of a project's secrets. Viewers may not: they submit no jobs."""
    return may_submit(role_of(user, project))


def check_name(kind: str, name: str) -> None:
    """Raise Refused for a name that no secret of this kind can have."""
    if kind not in Secret.Kind.values:
        raise Refused(f"A secret is one of {', '.join(Secret.Kind.values)}.", field="kind")
    if kind == Secret.Kind.FILE:
        if not FILE_NAME.fullmatch(name):
            raise Refused(
                "The name of a file has at most 100 letters, digits, _, . and -, and begins with none of . and -.",
                field="name",
            )
    elif not ENV_NAME.fullmatch(name):
        raise Refused(
            "The name of a variable has at most 100 letters, digits and _, and does not begin with a digit.",
            field="name",
        )
    elif (reason := reason_reserved(name)) is not None:
        raise Refused(f"A job cannot set {name}: it {reason}.", field="name")


@sensitive_variables("value", "text")
def check_value(kind: str, value: str) -> CheckedValue:
    """Return a value as it is stored. Raises Refused, with a sentence that has nothing of the value."""
    if is_unstorable(value):
        raise Refused(
            "The value is not text. Encode it, for example with base64, and decode it in the job.", field="value"
        )
    if kind == Secret.Kind.FILE:
        if not value:
            raise Refused("The file is empty.", field="value")
        if len(value.encode()) > MAX_FILE_BYTES:
            raise Refused(f"A file has at most {MAX_FILE_BYTES // 1024} KiB.", field="value")
        return CheckedValue(value)
    text = value.rstrip("\r\n")
    if not text:
        raise Refused("The value is empty.", field="value")
    if len(text) > MAX_VARIABLE_CHARACTERS:
        raise Refused(
            f"The value of a variable has at most {MAX_VARIABLE_CHARACTERS:,} characters. Store it as a file.",
            field="value",
        )
    notices = [NEWLINE_REMOVED] if text != value else []
    notices += [TOO_SHORT_TO_MASK] if len(text) < MIN_MASKED_CHARACTERS else []
    return CheckedValue(text, tuple(notices))


def _owned_by(owner: Owner) -> dict[str, Owner]:
    return {"project" if isinstance(owner, Project) else "user": owner}


def _require_right(user: User, owner: Owner) -> None:
    if isinstance(owner, Project):
        require_owner(user, owner)
        require_member(user, owner)  # not in an archived project
    elif owner.pk != user.pk:
        raise Refused("These are secrets of another person.", "forbidden")


def _lock(user: User, owner: Owner) -> None:
    """Lock the secrets of an owner until the transaction ends, and check once more whether the user may change them."""
    if isinstance(owner, Project):
        _require_right(user, lock(owner))
    else:
        User.objects.select_for_update(of=("self",)).get(pk=owner.pk)


def _current(secret: Secret) -> Secret:
    """Return a secret as it is stored now. Raises Refused if it was deleted."""
    row = Secret.objects.select_related("user", "project").filter(pk=secret.pk).first()
    if row is None:
        raise Refused("This secret was deleted. Add it again.", "conflict")
    return row


def _target(row: Secret) -> str:
    owner = row.owner
    of = f"project {owner.pk} {owner.name}" if isinstance(owner, Project) else owner.username
    return f"secret {row.name} of {of}"


# --- what jobs may use -------------------------------------------------------------------------------------------


def usable_by(user: User, project: Project) -> QuerySet[Secret]:
    """Return the secrets that a job of this user in this project may use: the user's own, and the project's for its members.

    Someone whose account is deactivated can use none.
    """
    if not user.is_active:
        return Secret.objects.none()
    own = Q(user=user)
    return Secret.objects.filter(own | Q(project=project) if may_submit(role_of(user, project)) else own)


def find(user: User, project: Project, references: Sequence[str]) -> list[Secret]:
    """Return the secrets that a job names, ``HF_TOKEN`` or ``project/HF_TOKEN``, in this order.

    Raises Refused for one that does not exist or that the user may not use, and for two that would have the same name in the
    job.
    """
    known = {secret.reference: secret for secret in usable_by(user, project)} if references else {}
    for reference in references:
        if reference not in known:
            raise Refused(
                f"There is no secret “{reference[:110]}” that you may use. {_where(reference)}", field="secrets"
            )
    names = [known[reference].name for reference in references]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise Refused(f"The secret {twice} is chosen twice. Choose your own or the project's.", field="secrets")
    return [known[reference] for reference in references]


def _where(reference: str) -> str:
    if reference.startswith(PROJECT_PREFIX):
        return "An owner of the project adds it on the project's page “Secrets”."
    return "Add it on your page “Secrets”."
