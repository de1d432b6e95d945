"""The wall clocks of the portal's machine and of the nodes are set, or the machine sleeps, at random moments.

Nothing that runs is lost, time limits count the time that passed, and a node that is lost at the same moment is noticed.
"""

from collections.abc import Callable, Iterator

from portal.cluster import services as cluster
from portal.jobs import services
from portal.jobs.models import FINISHED_STATES, Job
from tests.portal.crashes.judge import Expected
from tests.portal.crashes.lab import Lab, Story
from tests.portal.crashes.spanning import LEASE_SECONDS, after
from tests.portal.crashes.stories import CANCELLED, RING

Waits = Iterator[Callable[[], object]]
STEPS = (3600.0, -3600.0, 86_400.0, -86_400.0, 20.0, -20.0)
LIMIT_SECONDS = 200
LATE_SECONDS = 45.0
"""A limit may be noticed late: turns of the scheduler, and the time a container has to stop."""


def set_a_clock(lab: Lab) -> None:
    """Of the portal, of the nodes, or of all: a machine that slept has all of them ahead."""
    step, whose = lab.chance.choice(STEPS), lab.chance.choice(("portal", "nodes", "sleep"))
    if whose != "nodes":
        lab.clock.set_by += abs(step) if whose == "sleep" else step
    if whose != "portal":
        lab.node_clock.set_by += abs(step) if whose == "sleep" else step


def set_again_and_again(lab: Lab) -> Waits:
    """Two jobs go on, one has a time limit that it runs into, one is drained and restarts from its checkpoint."""
    yield lab.submit("plain", Expected(CANCELLED, 1), time_limit_seconds=3000)
    yield lab.submit("limited", Expected("FAILED", 1), time_limit_seconds=LIMIT_SECONDS)
    yield lab.submit("ring", Expected(CANCELLED, 1), **{**RING, "max_gpus": 2})
    yield lab.runs("limited")
    began = lab.judge.at_work("limited")[0].began
    for _ in range(lab.chance.randint(2, 5)):
        yield after(lab, lab.chance.uniform(0, 60))
        set_a_clock(lab)
    yield lab.stopped("limited")
    ran = lab.clock.seconds - began
    if not LIMIT_SECONDS - 1 <= ran <= LIMIT_SECONDS + LATE_SECONDS:
        lab.judge.complain(f"a job with {LIMIT_SECONDS} s ran for {ran:.0f} s")
    yield lambda: Job.objects.get(pk=lab.judge.jobs["limited"]).state in FINISHED_STATES
    yield lab.runs("plain")
    yield lab.act(services.cancel, "plain")
    yield lab.act(services.cancel, "ring")


def set_when_a_node_is_lost(lab: Lab) -> Waits:
    """The job runs elsewhere as soon as without the step: a time in the future is no sign of life."""
    yield lab.submit("moved", Expected(CANCELLED, 2), min_gpus=2, time_limit_seconds=3000)
    yield lab.runs("moved", hosts=1)
    home = lab.home_of("moved")
    if lab.chance.random() < 0.5:
        home.power_off(lab.chance.uniform(LEASE_SECONDS + 20, 300))
    else:
        home.cut = True
    if lab.chance.random() < 0.7:
        yield after(lab, lab.chance.uniform(0, 20))
    set_a_clock(lab)
    yield lab.runs("moved", 2)
    home.cut = False
    yield lab.act(services.cancel, "moved")


def set_while_it_moves(lab: Lab) -> Waits:
    """A drain or a hold is under way: what starts and what stops keeps its patience."""
    yield lab.submit("moved", Expected(CANCELLED, 2, goes_on=True), resumable=True, time_limit_seconds=3000)
    yield lab.runs("moved")
    home = lab.home_of("moved").name
    yield lab.admin(cluster.drain, home)
    for _ in range(3):
        yield after(lab, lab.chance.uniform(0, 5))
        set_a_clock(lab)
    yield lab.runs("moved", 2)
    yield lab.admin(cluster.resume, home)
    yield lab.act(services.cancel, "moved")


STORIES: tuple[Story, ...] = (set_again_and_again, set_when_a_node_is_lost, set_while_it_moves)
