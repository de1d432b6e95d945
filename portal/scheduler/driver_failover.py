"""Replacement of drivers: a rank group whose driver is gone gets another one, on the node of its first remaining host.

The ranks keep training in the meantime: they need a driver only when their group changes. Their agents report the new
driver's address to their supervisors (``portal.agents.sync``), and the driver takes over the ranks that are there.
"""

from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import Exists, OuterRef
from django.utils import timezone

from portal.jobs import lifecycle
from portal.jobs.models import Attempt, Container, ContainerState, Job
from portal.jobs.survival import hosts_of, lacks_driver, survival_rule_for
from portal.scheduler import overlay_networks, run_specs
from portal.scheduler.events import DriverMoved
from portal.wake import wake_node

REPLACEMENT_DELAY = timedelta(seconds=3)
"""How long a driver must be gone before it is replaced: at the end of a job it ends a moment before its hosts."""


def replace(now: datetime | None = None) -> None:
    """Replace the drivers that are gone. Takes one query when every rank group has its driver; may be repeated."""
    live = Container.objects.filter(attempt=OuterRef("pk"), role=Container.Role.DRIVER)
    without = Attempt.objects.filter(
        ~Exists(live.exclude(state=ContainerState.EXITED)),
        ended_at__isnull=True,
        wanted=Attempt.Wanted.RUN,
        overlay_network__isnull=False,
        job__elastic=True,
    )
    for pk in without.order_by("job_id").values_list("pk", flat=True):
        _replace(pk, now or timezone.now())


@transaction.atomic
def _replace(pk: int, now: datetime) -> None:
    job = lifecycle.get_locked(Attempt.objects.values_list("job", flat=True).get(pk=pk))
    attempt = Attempt.objects.select_related("job__environment__base", "job__code").get(pk=pk)
    parts = list(attempt.containers.select_related("node").order_by("index"))
    drivers = [part for part in parts if part.role == Container.Role.DRIVER]
    if attempt.ended_at or job.intent != Job.Intent.RUN or not lacks_driver(survival_rule_for(job, attempt), parts):
        return
    if not drivers or any(part.exited_at is None or now - part.exited_at < REPLACEMENT_DELAY for part in drivers):
        return
    live = [part for part in parts if part.state != ContainerState.EXITED]
    hosts = [part for part in hosts_of(live) if part.wanted == Container.Wanted.RUN]
    running = [part.node for part in hosts if part.state == ContainerState.RUNNING]
    if not running:
        return
    home = min(running, key=lambda node: node.draining)
    index = overlay_networks.next_index([part.index for part in parts], [part.index for part in live])
    try:
        spec = run_specs.driver_spec(attempt, index, home, len(hosts))
    except run_specs.NodeLacksError:
        return  # once the node has it again
    lifecycle.add_container(attempt, home, index, Container.Role.DRIVER, spec.name, spec.to_json())
    lifecycle.record(job, DriverMoved(spec.name, home.name))
    for node in {part.node_id for part in live}:
        wake_node(node)
