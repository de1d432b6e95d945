"""Which secrets a job may use, and what it gets."""

from collections.abc import Sequence

from django.db.models import Q, QuerySet

from portal.accounts.models import User
from portal.projects.models import Project
from portal.projects.services import may_submit, role_of
from portal.refused import Refused
from portal.secrets.models import PROJECT_PREFIX, Secret


def usable_by(user: User, project: Project) -> QuerySet[Secret]:
    """Return the secrets that a job of this user in this project may use: the user's own, and the project's for its members."""
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
