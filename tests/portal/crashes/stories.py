"""Short lives of a lab of two nodes with two GPUs each: what people do, and what happens to machines."""

from collections.abc import Callable, Iterator
from typing import Any

from portal.cluster import services as cluster
from portal.jobs import services
from portal.jobs.models import Attempt
from portal.scheduler.services import switch_policy
from tests.portal.crashes.judge import Expected
from tests.portal.crashes.lab import Lab, Story

Waits = Iterator[Callable[[], object]]
CANCELLED = "CANCELLED"
RING: dict[str, Any] = {"launcher": "horovod", "entry": "train.py", "elastic": True, "min_gpus": 1, "max_gpus": 4}


def finish(lab: Lab) -> Waits:
    """One that ends well, one over both nodes, one that fails twice; and a deploy."""
    yield lab.submit("plain", Expected("SUCCEEDED", 1), 4)
    yield lab.submit("gang", Expected("SUCCEEDED", 1), 6, launcher="torchrun", entry="train.py", min_gpus=3)
    yield lab.ran("plain")
    lab.restart()
    yield lab.submit("failing", Expected("FAILED", 2), 1, code=3, retries=1)


def cancel(lab: Lab) -> Waits:
    """One that runs on both nodes, one that waits, one that has just been placed, one that does not listen."""
    yield lab.submit("gang", Expected(CANCELLED, 1), launcher="horovod", entry="train.py", min_gpus=4)
    yield lab.submit("waiting", Expected(CANCELLED, 0))
    yield lab.runs("gang", hosts=2)
    yield lab.act(services.cancel, "waiting")
    yield lab.submit("placed", Expected(CANCELLED, 1))
    yield lab.submit("deaf", Expected(CANCELLED, 1), deaf="yes")
    yield lab.act(services.cancel, "gang")
    yield lambda: Attempt.objects.filter(job=lab.judge.jobs["placed"]).exists()
    yield lab.act(services.cancel, "placed")
    yield lab.runs("deaf")
    yield lab.act(services.cancel, "deaf")


def hold(lab: Lab) -> Waits:
    yield lab.submit("held", Expected(CANCELLED, 2, goes_on=True), resumable=True)
    yield lab.runs("held")
    yield lab.act(services.hold, "held")
    yield lab.stopped("held")
    yield lab.act(services.release, "held")
    yield lab.runs("held", 2)
    yield lab.act(services.cancel, "held")


def power(lab: Lab) -> Waits:
    """A machine goes down for longer than the fence: its job runs elsewhere."""
    yield lab.submit("moved", Expected(CANCELLED, 2), min_gpus=2)
    yield lab.runs("moved")
    lab.home_of("moved").power_off(70)
    yield lab.runs("moved", 2)
    yield lab.act(services.cancel, "moved")


def cut(lab: Lab) -> Waits:
    """A machine cannot reach the portal for longer than the fence."""
    yield lab.submit("moved", Expected(CANCELLED, 2), min_gpus=2)
    yield lab.runs("moved")
    home = lab.home_of("moved")
    home.cut = True
    yield lab.runs("moved", 2)
    home.cut = False
    yield lab.act(services.cancel, "moved")


def preempt(lab: Lab) -> Waits:
    """What takes only idle GPUs makes room."""
    yield lab.submit("spare", Expected(CANCELLED, 2), min_gpus=2, opportunistic=True, resumable=True)
    yield lab.submit("other", Expected(CANCELLED, 1), min_gpus=2)
    yield lab.runs("spare")
    yield lab.runs("other")
    yield lab.submit("first", Expected("SUCCEEDED", 1), 5, min_gpus=2)
    yield lab.runs("spare", 2)
    yield lab.act(services.cancel, "spare")
    yield lab.act(services.cancel, "other")


def elastic(lab: Lab) -> Waits:
    """A ring over both nodes shrinks for a newcomer and grows again."""
    yield lab.answered(lambda: switch_policy(None, "elastic_fifo", {"grow_after_seconds": 2}))
    yield lab.submit("ring", Expected(CANCELLED, 1), **RING)
    yield lab.runs("ring", hosts=4)
    yield lab.submit("newcomer", Expected("SUCCEEDED", 1), 5, min_gpus=2)
    yield lab.ran("newcomer")
    yield lab.runs("ring", hosts=4)
    yield lab.act(services.cancel, "ring")


def ring(lab: Lab) -> Waits:
    """A ring over both nodes goes on without the node of its driver."""
    yield lab.submit("ring", Expected(CANCELLED, 1), **RING)
    yield lab.runs("ring", hosts=4)
    home = lab.home_of("ring")
    home.power_off(70)
    yield lambda: any(run.spec.role == "driver" and run.node != home.name for run in lab.judge.at_work("ring"))
    yield lab.act(services.cancel, "ring")


def drain(lab: Lab) -> Waits:
    yield lab.submit("drained", Expected(CANCELLED, 2, goes_on=True), resumable=True)
    yield lab.runs("drained")
    home = lab.home_of("drained").name
    yield lab.admin(cluster.drain, home)
    yield lab.runs("drained", 2)
    yield lab.admin(cluster.resume, home)
    yield lab.act(services.cancel, "drained")


STORIES: tuple[Story, ...] = (finish, cancel, hold, power, cut, preempt, elastic, ring, drain)
