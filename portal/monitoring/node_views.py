"""Pages about nodes, with the jobs on their GPUs."""

from dataclasses import dataclass, replace

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_safe

from portal.accounts.models import User
from portal.accounts.permissions import admin_required, signed_in
from portal.cluster import findings, unconfined
from portal.cluster.models import Environment, Gpu, Node, NodeEnvironment
from portal.cluster.node_state import state_of
from portal.cluster.slots import lab_noun, noun
from portal.jobs.models import Job
from portal.jobs.occupancy import gpus_of, holder, nodes_with_gpus, visible_holders
from portal.jobs.queue import may_see_queue
from portal.jobs.stop_costs import stop_costs
from portal.sentences.stops import drain_question


@dataclass(frozen=True, slots=True)
class Slot:
    """A GPU or CPU slot as the pages show it."""

    gpu: Gpu
    job: Job | None
    """The job that runs on it, None when it is free."""
    visible: bool
    mine: bool

    @property
    def css(self) -> str:
        if not self.gpu.healthy or self.gpu.quarantined_at is not None:
            return "bad"
        if self.gpu.outside and self.job is None:
            return "outside"
        if self.job is None:
            return "free"
        return "mine" if self.mine else "busy"


@dataclass(frozen=True, slots=True)
class Machine:
    """A node as the pages show it."""

    node: Node
    state: str
    """A key of ``ui.BADGES``."""
    state_text: str
    slots: tuple[Slot, ...]
    environments: tuple[NodeEnvironment, ...]
    drain_question: str = ""
    """What an admin is asked before it is drained."""

    @property
    def accepts_jobs(self) -> bool:
        return self.state == "ready"

    @property
    def free(self) -> int:
        return sum(slot.job is None and slot.gpu.usable for slot in self.slots)

    @property
    def busy(self) -> int:
        return sum(slot.job is not None for slot in self.slots)


def machines_for(user: User) -> list[Machine]:
    nodes = nodes_with_gpus()
    refused = any(node.runtime == unconfined.PROCESS for node in nodes) and unconfined.is_refused(unconfined.PROCESS)
    known = visible_holders(user, gpus_of(nodes))
    machines = []
    for node in nodes:
        slots = []
        for gpu in node.gpus.all():
            job = holder(gpu)
            slots.append(
                Slot(gpu, job, job is not None and job.pk in known, job is not None and job.submitted_by_id == user.pk)
            )
        state = state_of(node, refused and node.runtime == unconfined.PROCESS)
        machines.append(Machine(node, *state, tuple(slots), tuple(node.environments.all())))
    return machines


@require_safe
def nodes(request: HttpRequest) -> HttpResponse:
    user = signed_in(request)
    machines = [machine for machine in machines_for(user) if machine.node.approved_at]
    about = {
        "machines": machines,
        "total": sum(len(machine.slots) for machine in machines),
        "unit": lab_noun(),
        "busy": sum(machine.busy for machine in machines),
        "preparing": [each for machine in machines for each in machine.environments if each.state != "ready"],
        "shows_people": may_see_queue(user),
        "environments": Environment.objects.filter(retired=False),
    }
    return render(request, "monitoring/nodes.html", about)


@admin_required
@require_safe
def admin_nodes(request: HttpRequest) -> HttpResponse:
    machines = _with_drain_questions(machines_for(signed_in(request)))
    waiting = [machine for machine in machines if machine.node.approved_at is None]
    about = {
        "machines": machines,
        "waiting": waiting,
        "quarantined": [slot for machine in machines for slot in machine.slots if slot.gpu.quarantined_at],
    }
    return render(request, "monitoring/admin_nodes.html", about)


def _with_drain_questions(machines: list[Machine]) -> list[Machine]:
    jobs = {slot.job.pk: slot.job for machine in machines for slot in machine.slots if slot.job}
    costs = stop_costs(jobs, timezone.now())
    asked = []
    for machine in machines:
        here = sorted({slot.job.pk for slot in machine.slots if slot.job and slot.job.pk in costs})
        named = [(f"job {pk} ({jobs[pk].name}, {jobs[pk].submitted_by})", costs[pk]) for pk in here]
        asked.append(replace(machine, drain_question=drain_question(machine.node.name, named)))
    return asked


@admin_required
@require_safe
def admin_node(request: HttpRequest, pk: int) -> HttpResponse:
    """Show one node: its GPUs, the report of its agent, its token."""
    machine = next((each for each in machines_for(signed_in(request)) if each.node.pk == int(pk)), None)
    if machine is None:
        raise Http404
    about = {
        "machine": machine,
        "node": machine.node,
        "findings": findings.node_findings(machine.node),
        "noun": noun(slot.gpu.kind for slot in machine.slots),
    }
    return render(request, "monitoring/admin_node.html", about)
