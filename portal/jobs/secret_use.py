"""Which jobs use a secret: for the question before it is deleted."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from django.db.models import Q

from portal.jobs.models import Job
from portal.jobs.states import UNFINISHED_STATES
from portal.secrets.models import PROJECT_PREFIX, Secret

MAX_NAMED_JOBS = 3


def unfinished_jobs_of(secrets: Collection[Secret]) -> Mapping[int, Sequence[int]]:
    """Return the numbers of the jobs that use each of these secrets and have not ended, those on hold included, by the number
    of the secret, in one query."""
    if not secrets:
        return {}
    own = Q(submitted_by__in={secret.user_id for secret in secrets if secret.user_id is not None})
    shared = Q(project__in={secret.project_id for secret in secrets if secret.project_id is not None})
    rows = Job.objects.filter(own | shared, state__in=UNFINISHED_STATES).exclude(secrets=[]).order_by("pk")
    numbers = {(secret.user_id, secret.project_id, secret.name): secret.pk for secret in secrets}
    found: dict[int, list[int]] = defaultdict(list)
    for job, user, project, references in rows.values_list("pk", "submitted_by", "project", "secrets"):
        for reference in references:
            is_shared = reference.startswith(PROJECT_PREFIX)
            owner = (None, project) if is_shared else (user, None)
            if number := numbers.get((*owner, reference.removeprefix(PROJECT_PREFIX))):
                found[number].append(job)
    return found


def delete_question(secret: Secret, jobs: Sequence[int]) -> str:
    """Return the question before a secret is deleted, with the waiting and running jobs that use it."""
    if not jobs:
        return f"Delete “{secret.name}”? Jobs that start later cannot get it."
    named = ", ".join(str(job) for job in jobs[:MAX_NAMED_JOBS])
    more = f" and {len(jobs) - MAX_NAMED_JOBS} more" if len(jobs) > MAX_NAMED_JOBS else ""
    words = f"Job {named} uses it" if len(jobs) == 1 else f"Jobs {named}{more} use it"
    return f"Delete “{secret.name}”? {words}. None can get it when it starts or restarts later."
