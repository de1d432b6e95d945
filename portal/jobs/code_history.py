"""What the code of a job came from: its commit, and how it differs from what ran before."""

from portal.jobs.models import Job
from portal.projects.git.models import VersionCommit


def job_with_other_code(job: Job) -> Job | None:
    """Return the last job of the project before this one that ran another version of the code."""
    rows = Job.objects.filter(project=job.project_id, pk__lt=job.pk, deleted_at=None).exclude(code=job.code_id)
    rows = rows.filter(code__deleted_at=None)
    return rows.select_related("code").only("pk", "code__number").order_by("-pk").first()


def commit_before(job: Job) -> VersionCommit | None:
    """Return the commit over which the code of a job was uploaded; None if it is of a commit itself, or there is none before."""
    if VersionCommit.objects.filter(version=job.code_id).exists():
        return None
    rows = VersionCommit.objects.filter(version__project=job.project_id, version__number__lt=job.code.number)
    rows = rows.filter(version__deleted_at=None)
    return rows.select_related("version").order_by("-version__number").first()
