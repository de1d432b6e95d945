"""A backup of the database is restored while jobs run: the portal knows less than the nodes, or what they have forgotten."""

from collections.abc import Callable, Iterator

from portal.jobs import services
from portal.jobs.models import FINISHED_STATES, Job
from tests.portal.crashes.judge import Expected
from tests.portal.crashes.lab import Lab, Story
from tests.portal.crashes.spanning import after, trains
from tests.portal.crashes.stories import CANCELLED, RING

Waits = Iterator[Callable[[], object]]


def is_over(lab: Lab, key: str) -> Callable[[], bool]:
    return lambda: Job.objects.get(pk=lab.judge.jobs[key]).state in FINISHED_STATES


def jobs_run_on(lab: Lab) -> Waits:
    """What the backup knows continues; a job that it does not know is ended, and its GPUs and number go to another."""
    yield lab.submit("known", Expected(CANCELLED, 1), **{**RING, "max_gpus": 2})
    yield lab.runs("known", hosts=2)
    saved = lab.backup()
    yield lab.submit("later", Expected(CANCELLED, 1), min_gpus=lab.chance.choice((1, 2)))
    yield after(lab, lab.chance.uniform(0, 30))
    lab.restore(saved)
    yield after(lab, lab.chance.uniform(0, 60))
    yield lab.submit("again", Expected("SUCCEEDED", 1), 20, min_gpus=2)
    yield is_over(lab, "again")
    yield trains(lab, "known")
    yield lab.act(services.cancel, "known")


def jobs_have_ended_since(lab: Lab) -> Waits:
    """The nodes have forgotten what the portal takes for running, or for waiting: that runs again, and can be cancelled."""
    yield lab.submit("known", Expected(CANCELLED, None), min_gpus=2)
    yield lab.submit("waiting", Expected("SUCCEEDED", None), 5, min_gpus=2, max_gpus=2)
    if lab.chance.random() < 0.8:
        yield lab.runs("known")
    saved = lab.backup()
    yield after(lab, lab.chance.uniform(0, 10))
    yield lab.act(services.cancel, "known")
    yield is_over(lab, "known")
    yield after(lab, lab.chance.uniform(0, 60))
    lab.restore(saved)
    yield trains(lab, "known")
    yield lab.act(services.cancel, "known")


STORIES: tuple[Story, ...] = (jobs_run_on, jobs_have_ended_since)
