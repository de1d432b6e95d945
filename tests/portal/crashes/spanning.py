"""An elastic ring whose minimum spans both nodes, and one node that is drained, lost, or cut off, at a random moment.

Each story ends the fault, waits until the job trains again, and cancels it. The lab's judge complains when GPUs are held
without enough ranks in between.
"""

from collections.abc import Callable, Iterator
from typing import Any

from portal.cluster import services as cluster
from portal.jobs import services
from portal.jobs.models import Attempt, Job, JobState
from tests.portal.crashes.judge import Expected
from tests.portal.crashes.lab import Lab, Story
from tests.portal.crashes.node import Node

Waits = Iterator[Callable[[], object]]
LEASE_SECONDS = 50.0
"""A node that cannot be reached for longer is lost, whenever its last lease was renewed."""


def submitted(lab: Lab, attempts: int | None = None) -> Callable[[], bool]:
    """Submit a ring that needs 3 or 4 of the 2 + 2 GPUs."""
    ring: dict[str, Any] = {"elastic": True, "max_gpus": 4, "entry": "train.py"}
    ring |= {"launcher": lab.chance.choice(("horovod", "torchrun")), "min_gpus": lab.chance.choice((3, 4))}
    return lab.submit("ring", Expected("CANCELLED", attempts), **ring)


def while_it_starts_or_runs(lab: Lab) -> Waits:
    """Wait for a random moment: placed, partly started, or in training for a while."""
    ranks = lab.chance.choice((0, 1, 4, 4))
    yield lambda: Attempt.objects.exists() and lab.judge.ranks("ring", 1) >= ranks
    yield after(lab, lab.chance.uniform(0, 20))


def after(lab: Lab, seconds: float) -> Callable[[], bool]:
    until = lab.clock.seconds + seconds
    return lambda: lab.clock.seconds >= until


def a_node(lab: Lab) -> Node:
    """The driver's or the other."""
    return lab.nodes[lab.chance.choice(sorted(lab.nodes))]


def trains(lab: Lab, key: str = "ring") -> Callable[[], bool]:
    """Its newest attempt has enough living ranks, and is not being stopped."""

    def look() -> bool:
        job = Job.objects.get(pk=lab.judge.jobs[key])
        attempt = job.attempts.filter(ended_at=None, wanted="run").first()
        least = 1 if job.launcher == Job.Launcher.COMMAND else job.min_gpus
        return attempt is not None and lab.judge.ranks(key, attempt.number) >= least

    return look


def stopped(lab: Lab) -> Callable[[], object]:
    """The job waits, and holds nothing."""
    return lambda: not Job.objects.filter(state=JobState.RUNNING).exists() and lab.stopped("ring")()


def drained(lab: Lab) -> Waits:
    """Cannot go on, and waits for room until it is cancelled."""
    yield submitted(lab, 1)
    yield from while_it_starts_or_runs(lab)
    yield lab.admin(cluster.drain, a_node(lab).name)
    yield stopped(lab)
    yield after(lab, 60)
    yield lab.act(services.cancel, "ring")


def drained_and_resumed(lab: Lab) -> Waits:
    """The drain ends at a random moment: before it has been noticed, while the job stops, or later."""
    yield submitted(lab)
    yield from while_it_starts_or_runs(lab)
    node = a_node(lab).name
    yield lab.admin(cluster.drain, node)
    yield after(lab, lab.chance.choice((0, 2, 6, 15, 90)))
    yield lab.admin(cluster.resume, node)
    yield trains(lab)
    yield lab.act(services.cancel, "ring")


def lost(lab: Lab) -> Waits:
    """Its machine loses its power, and comes back."""
    yield submitted(lab, 2)
    yield from while_it_starts_or_runs(lab)
    a_node(lab).power_off(lab.chance.uniform(LEASE_SECONDS + 10, 300))
    yield lambda: Attempt.objects.filter(number=1).exclude(ended_at=None).exists()
    yield trains(lab)
    yield lab.act(services.cancel, "ring")


def lost_for_good(lab: Lab) -> Waits:
    """It waits meanwhile, and holds nothing."""
    yield submitted(lab, 1)
    yield from while_it_starts_or_runs(lab)
    node = a_node(lab)
    node.power_off(2000)
    yield stopped(lab)
    yield after(lab, 200)
    yield lab.act(services.cancel, "ring")
    yield lambda: Job.objects.filter(state=JobState.CANCELLED).exists()
    node.back_at = 0.0  # the lab comes to rest when each node has tidied up


def cut_off_and_healed(lab: Lab) -> Waits:
    """Its fence ends what runs there; its agent reports that when it is back."""
    yield submitted(lab, 2)
    yield from while_it_starts_or_runs(lab)
    node = a_node(lab)
    node.cut = True
    yield after(lab, lab.chance.uniform(LEASE_SECONDS + 15, 300))
    node.cut = False
    yield trains(lab)
    yield lab.act(services.cancel, "ring")


def cut_off_for_a_moment(lab: Lab) -> Waits:
    """Shorter than the lease allows: nothing is run again."""
    yield submitted(lab, 1)
    yield from while_it_starts_or_runs(lab)
    node = a_node(lab)
    node.cut = True
    yield after(lab, lab.chance.uniform(1, 18))
    node.cut = False
    yield trains(lab)
    yield after(lab, 90)
    yield lab.act(services.cancel, "ring")


def flapping(lab: Lab) -> Waits:
    """Drained, resumed, cut off, and without power, several times in a row."""
    yield submitted(lab)
    yield from while_it_starts_or_runs(lab)
    for _ in range(4):
        node, fault = a_node(lab), lab.chance.choice(("drain", "cut", "power"))
        lasts = after(lab, lab.chance.uniform(1, 100))
        if fault == "drain":
            yield lab.admin(cluster.drain, node.name)
            yield lasts
            yield lab.admin(cluster.resume, node.name)
        elif fault == "cut":
            node.cut = True
            yield lasts
            node.cut = False
        else:
            node.power_off(lab.chance.uniform(1, 100))
            yield lasts
        yield after(lab, lab.chance.uniform(0, 30))
    yield trains(lab)
    yield lab.act(services.cancel, "ring")


STORIES: tuple[Story, ...] = (
    drained,
    drained_and_resumed,
    lost,
    lost_for_good,
    cut_off_and_healed,
    cut_off_for_a_moment,
    flapping,
)
