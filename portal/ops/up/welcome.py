"""Examples for the first start: two jobs that are submitted, and whose progress is reported on the terminal.

The first is a plain training whose environment is ready soon; the second is elastic and needs Horovod, which is compiled
once.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from django.db.models import QuerySet
from django.urls import reverse
from django.utils import timezone

from portal.accounts.models import User
from portal.accounts.services import EXAMPLES_OWNER
from portal.environments.models import NodeEnvironment
from portal.jobs.gallery import run_example
from portal.jobs.logs import tail
from portal.jobs.models import FINISHED_STATES, Job, JobState
from portal.projects import examples
from portal.sentences import sentence_of

EXAMPLES = ("pytorch-digits", "horovod-elastic")
NAMES = ("first job", "second job")
SETTLE_TIME = timedelta(seconds=10)
ACCURACY = re.compile(r"accuracy:? (\d\.\d+)")


def submit_examples() -> list[Job]:
    """Submit the examples and return their jobs; none when this portal has had a job before."""
    if Job.objects.exists():
        return []
    user = User.objects.filter(username=EXAMPLES_OWNER).first() or User.objects.create_user(EXAMPLES_OWNER)
    found = [example for key in EXAMPLES if (example := examples.find(key)) is not None]
    return [run_example(user, example) for example in found]


def unfinished_examples() -> list[Job]:
    return list(_example_jobs().exclude(state__in=FINISHED_STATES))


def _example_jobs() -> QuerySet[Job]:
    return Job.objects.filter(submitted_by__username=EXAMPLES_OWNER).order_by("pk")


@dataclass
class JobReport:
    """What the terminal has shown about one job."""

    name: str
    job_id: int
    link: str
    shown: set[str] = field(default_factory=set)
    finished: bool = False
    succeeded: bool = False
    since: datetime = field(default_factory=timezone.now)
    """Earlier reports about environments are from an earlier start."""

    def new_lines(self, job: Job) -> Iterator[str]:
        """Yield new lines since the last call."""
        if job.state in FINISHED_STATES:
            self.finished, self.succeeded = True, job.state == JobState.SUCCEEDED
            if accuracy := _last_accuracy(job):
                yield f"{self.name}: accuracy {accuracy}"
            yield f"{self.name}: {JobState(job.state).label} ({self.link})"
        elif job.state == JobState.RUNNING:
            yield from self._if_new(f"{self.name}: running")
        elif failed := _node_environment(job, NodeEnvironment.State.FAILED):
            yield from self._if_new(
                f"{self.name}: waiting. {job.environment.title} could not be prepared: {sentence_of(failed.detail)}"
            )

    def progress(self, job: Job) -> tuple[str, str]:
        """Return what happens now, and how far it is."""
        if job.state == JobState.RUNNING:
            accuracy = _last_accuracy(job)
            return f"{self.name} runs", f"accuracy {accuracy} so far" if accuracy else "starting"
        row = _node_environment(job, NodeEnvironment.State.PREPARING)
        if row and row.updated_at >= self.since:
            return f"Preparing {job.environment.title}", f"{row.progress_percent} %, {sentence_of(row.detail)}"
        if row := _node_environment(job, NodeEnvironment.State.READY):
            # Until the scheduler notices that the environment is ready, its reason is still about that.
            settled = timezone.now() - row.updated_at > SETTLE_TIME
            return f"{self.name} waits", job.why_waiting if settled else "for the scheduler"
        if _node_environment(job, NodeEnvironment.State.FAILED):
            return "", ""  # the reason is printed already, and nothing continues by itself
        return "This machine joins the lab", ""

    def _if_new(self, line: str) -> Iterator[str]:
        if line not in self.shown:
            self.shown.add(line)
            yield line


class ExampleReport:
    """The lines to print about some jobs, and the progress of the first that is not finished."""

    def __init__(self, jobs: Sequence[Job], site_url: str, announces_first_success: bool = True) -> None:
        self.announces_first_success = announces_first_success
        """False after a restart: the user knows by then how it works."""
        order = list(_example_jobs().values_list("pk", flat=True))
        self.reports = [
            JobReport(_job_title(order.index(job.pk)), job.pk, site_url + reverse("jobs:detail", args=[job.pk]))
            for job in jobs
        ]

    @property
    def finished(self) -> bool:
        return all(report.finished for report in self.reports)

    @property
    def succeeded(self) -> bool:
        return all(report.succeeded for report in self.reports)

    @property
    def any_finished(self) -> bool:
        """Whether a job has finished."""
        return any(report.finished for report in self.reports)

    def new_lines(self) -> Iterator[str]:
        """Yield lines that stay on the terminal."""
        for report, job in self._unfinished():
            yield from report.new_lines(job)

    def progress(self) -> tuple[str, str]:
        """Return the text of the line that is replaced; empty when all is done."""
        return next((report.progress(job) for report, job in self._unfinished()), ("", ""))

    def _unfinished(self) -> list[tuple[JobReport, Job]]:
        open_ = [report for report in self.reports if not report.finished]
        jobs = Job.objects.select_related("environment").in_bulk([report.job_id for report in open_])
        return [(report, jobs[report.job_id]) for report in open_ if report.job_id in jobs]


def _job_title(number: int) -> str:
    return NAMES[number] if number < len(NAMES) else f"job {number + 1}"


def _node_environment(job: Job, state: NodeEnvironment.State) -> NodeEnvironment | None:
    """Return the environment's row on the node that will have it first."""
    rows = NodeEnvironment.objects.filter(environment=job.environment_id, state=state, node__removed_at=None)
    return rows.order_by("-progress_percent").first()


def _last_accuracy(job: Job) -> str:
    """Return the last accuracy in the job's log."""
    attempt = job.attempts.last()
    found = ACCURACY.findall(tail(attempt)) if attempt else []
    return found[-1] if found else ""
