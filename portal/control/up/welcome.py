"""The first start shows the main job done: it submits the gallery's elastic Horovod example and tells its way."""

import re
from collections.abc import Iterator

from django.urls import reverse

from portal.accounts.models import User
from portal.jobs.gallery import run_example
from portal.jobs.logs import tail
from portal.jobs.models import FINISHED_STATES, Job, JobState
from portal.projects import examples

EXAMPLE = "horovod-elastic"
HOUSE_USER = "schedulearn"
"""Owns the example. It has no password and no address, so nobody can sign in as it."""


def submit_example() -> Job | None:
    """The example's job, or None when this portal has seen a job before."""
    if Job.objects.exists():
        return None
    user = User.objects.filter(username=HOUSE_USER).first() or User.objects.create_user(HOUSE_USER)
    example = examples.find(EXAMPLE)
    return run_example(user, example) if example else None


def unfinished_example() -> Job | None:
    return Job.objects.filter(submitted_by__username=HOUSE_USER).exclude(state__in=FINISHED_STATES).first()


class Story:
    """What to print about a job since the last look."""

    def __init__(self, job: Job, site_url: str) -> None:
        self.job_id = job.pk
        self.link = site_url + reverse("jobs:detail", args=[job.pk])
        self.said = ""
        self.accuracy = ""
        self.over = False

    def news(self) -> Iterator[str]:
        job = Job.objects.get(pk=self.job_id)
        now = self._now(job)
        if now != self.said and job.state not in FINISHED_STATES:
            self.said = now
            yield now
        if job.state in (JobState.RUNNING, JobState.SUCCEEDED):
            found = re.findall(r"accuracy: (\d\.\d+)", self._log(job))
            if found and found[-1] != self.accuracy:
                self.accuracy = found[-1]
                yield f"accuracy {self.accuracy}"
        if job.state in FINISHED_STATES:
            self.over = True
            yield f"{JobState(job.state).label}: {self.link}"

    def _now(self, job: Job) -> str:
        if job.state == JobState.QUEUED:
            return f"waiting: {job.waiting_reason or 'for the scheduler'}"
        return JobState(job.state).label

    def _log(self, job: Job) -> str:
        attempt = job.attempts.last()
        return tail(attempt) if attempt else ""
