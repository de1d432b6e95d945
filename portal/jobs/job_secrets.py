"""The secrets of a job: what the form offers, what may be chosen, and what its containers get."""

from collections.abc import Iterable, Sequence

from django.utils import timezone

from portal.accounts.models import User
from portal.jobs.models import Job
from portal.jobs.spec import MAX_SECRETS, Submission
from portal.projects.models import Project
from portal.refused import Refused
from portal.secrets import keys, services
from portal.secrets.models import PROJECT_PREFIX, Secret
from portal.variable_names import reason_reserved


def choices(user: User | None, project: Project, chosen: Iterable[str] = ()) -> list[tuple[str, str]]:
    """Return the names and labels that the form offers, with those chosen before that the user cannot use."""
    found = services.usable_by(user, project) if user else ()
    usable = {secret.reference: label_of(secret) for secret in found}
    gone = {name: f"{name} (there is none that you may use)" for name in chosen if name not in usable}
    return [*usable.items(), *gone.items()]


def label_of(secret: Secret) -> str:
    whose = "yours" if secret.project_id is None else "the project’s"
    return f"{secret.name} ({whose}{', a file' if secret.kind == Secret.Kind.FILE else ''})"


def check(user: User, project: Project, asked: Submission) -> None:
    """Raise Refused for secrets that the job cannot have, or whose variables it sets itself."""
    if len(asked.secrets) > MAX_SECRETS:
        raise Refused(f"A job gets at most {MAX_SECRETS} secrets.", field="secrets")
    for secret in services.find(user, project, asked.secrets):
        _value_of(secret)
        if secret.kind != Secret.Kind.VARIABLE:
            continue
        if secret.name in asked.env_vars:
            raise Refused(
                f"{secret.name} is both a secret and an environment variable of the job. Remove one of them.",
                field="secrets",
            )
        if (reason := reason_reserved(secret.name)) is not None:
            raise Refused(
                f"A job cannot set {secret.name}: it {reason}. Add the secret under another name.", field="secrets"
            )


def _value_of(secret: Secret) -> str:
    """Return the value. Raises Refused if the key that encrypted it is lost."""
    if (value := keys.unseal(secret.sealed)) is None:
        raise Refused(f"The value of the secret {secret} cannot be read any more. Enter it again.", field="secrets")
    return value


def names_and_kinds(job: Job) -> tuple[tuple[str, str], ...]:
    """Return the name and the kind of each secret of a job. One that is gone counts as a variable: ``values`` refuses it."""
    if not job.secrets:
        return ()
    known = {secret.reference: secret for secret in services.usable_by(job.submitted_by, job.project)}
    return tuple(
        (known[name].name, known[name].kind)
        if name in known
        else (name.removeprefix(PROJECT_PREFIX), Secret.Kind.VARIABLE)
        for name in job.secrets
    )


def values(job: Job, promised: Sequence[Sequence[str]] | None = None) -> list[dict[str, str]]:
    """Return what a node gives to a job, ``{"name", "kind", "value"}`` of each secret. It is for no log and no other answer.

    ``promised`` has the names and kinds in the specification of its container. Raises Refused for a secret that is gone, that
    its submitter may no longer use, that is of another kind now, or whose key is lost.
    """
    user = job.submitted_by
    if not user.is_active:
        raise Refused(f"The account of {user} is deactivated, and so are its secrets.", field="secrets")
    found = services.find(user, job.project, job.secrets)
    given = []
    for secret in found:
        if promised is not None and [secret.name, secret.kind] not in list(map(list, promised)):
            raise Refused(
                f"The secret {secret} was replaced by one of another kind while the job was being placed. Run it again.",
                "conflict",
                "secrets",
            )
        given.append({"name": secret.name, "kind": secret.kind, "value": _value_of(secret)})
    Secret.objects.filter(pk__in=[secret.pk for secret in found]).update(used_at=timezone.now())
    return given
