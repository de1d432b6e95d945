"""Which jobs use a secret: for the question before it is deleted."""

from collections.abc import Iterable, Mapping, Sequence

from portal.secrets.models import Secret

MAX_NAMED_JOBS = 3


def unfinished_jobs_of(secrets: Iterable[Secret]) -> Mapping[int, Sequence[int]]:
    """Return the numbers of the jobs that use each of these secrets and have not ended, those on hold included, by the
    number of the secret. Jobs name no secrets yet, so there are none."""
    return {}


def delete_question(secret: Secret, jobs: Sequence[int]) -> str:
    """Return the question before a secret is deleted, with the waiting and running jobs that use it."""
    if not jobs:
        return f"Delete “{secret.name}”? Jobs that start later cannot get it."
    named = ", ".join(str(job) for job in jobs[:MAX_NAMED_JOBS])
    more = f" and {len(jobs) - MAX_NAMED_JOBS} more" if len(jobs) > MAX_NAMED_JOBS else ""
    words = f"Job {named} uses it" if len(jobs) == 1 else f"Jobs {named}{more} use it"
    return f"Delete “{secret.name}”? {words}: those that have not started will fail without it."
