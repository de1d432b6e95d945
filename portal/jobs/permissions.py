"""Who may do what with a job. Who may see it is decided by ``JobQuerySet.visible_to``."""

from portal.accounts.models import User
from portal.jobs.models import Job
from portal.projects.services import may_manage, may_submit, role_of
from portal.refused import Refused


def may_act_on(user: User, job: Job) -> bool:
    """Return whether a user may act on a job: its submitter while a member, owners of the project, and admins."""
    role = role_of(user, job.project)
    return may_manage(role) or (may_submit(role) and job.submitted_by_id == user.pk)


def require_may_act(user: User, job: Job) -> None:
    if not may_act_on(user, job):
        raise Refused("Only the user who submitted this job, the project's owners and admins may do that.", "forbidden")


def env_vars_for(user: User, job: Job) -> dict[str, str | None]:
    """Return the environment variables of a job; users who may only view the project get the names without values."""
    return dict(job.env_vars) if may_submit(role_of(user, job.project)) else dict.fromkeys(job.env_vars)
