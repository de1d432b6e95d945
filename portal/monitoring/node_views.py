"""Pages about nodes, with the jobs on their GPUs."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_safe

from portal.accounts.models import User
from portal.accounts.permissions import admin_required, signed_in
from portal.cluster import findings, unconfined
from portal.cluster.models import Gpu, Node
from portal.cluster.node_state import state_of
from portal.cluster.slots import lab_noun, noun
from portal.editions import sent_if_changed
from portal.environments.models import NodeEnvironment
from portal.jobs.models import Job
from portal.jobs.occupancy import gpus_of, holder, nodes_with_gpus, visible_holders
from portal.jobs.queue import may_see_queue
from portal.jobs.stop_costs import stop_costs
from portal.lists import Column, Listing, Table, read_table, unknown_choice
from portal.names import search_key
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
    nodes = nodes_with_gpus(user)
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


NODES = Listing(
    "nodes",
    (
        Column("name", "Name", ("name",), fixed=True),
        Column("free", "Free", ("free",), falls=True, fixed=True),
        Column("busy", "Busy", ("busy",), falls=True, fixed=True),
        Column("state", "State", ("state",), fixed=True),
        Column("seen", "Last seen", ("last_seen_at",), falls=True, fixed=True),
    ),
    "name",
    ("q", "show"),
)
NODE_VALUES: dict[str, Callable[[Machine], Any]] = {
    "name": lambda machine: search_key(machine.node.name),
    "free": lambda machine: machine.free if machine.accepts_jobs else 0,
    "busy": lambda machine: machine.busy,
    "state": lambda machine: machine.state_text or machine.state,
    "seen": lambda machine: machine.node.last_seen_at.timestamp() if machine.node.last_seen_at else 0,
}
"""What nodes are sorted by; they are few, and all are in memory with the jobs on their GPUs."""
SHOWN: dict[str, tuple[str, Callable[[Machine], bool]]] = {
    "free": ("with a free GPU", lambda machine: machine.accepts_jobs and machine.free > 0),
    "busy": ("busy", lambda machine: machine.busy > 0),
    "closed": ("not accepting jobs", lambda machine: not machine.accepts_jobs),
}


def _chosen(machines: list[Machine], table: Table, words: str, show: str) -> list[Machine]:
    """Return the machines that match, in the order of the table."""
    _, fits = SHOWN.get(show, ("", lambda machine: True))
    wanted = search_key(words)
    found = [machine for machine in machines if fits(machine) and wanted in search_key(machine.node.name)]
    found.sort(key=NODE_VALUES["name"])
    return sorted(found, key=NODE_VALUES[table.sorted_by], reverse=table.falls)


@require_safe
@sent_if_changed
def nodes(request: HttpRequest) -> HttpResponse:
    user = signed_in(request)
    machines = [machine for machine in machines_for(user) if machine.node.approved_at]
    show, words = request.GET.get("show", ""), request.GET.get("q", "").strip()
    problems = unknown_choice(show, SHOWN, "all nodes are shown")
    table = read_table(request, NODES, user, problems)
    places = [each for machine in machines for each in machine.environments]
    about = {
        "machines": _chosen(machines, table, words, show),
        "has_machines": bool(machines),
        "node_count": len(machines),
        "table": table,
        "words": words,
        "show": show,
        "choices": [(key, text) for key, (text, _) in SHOWN.items()],
        "total": sum(len(machine.slots) for machine in machines),
        "unit": lab_noun(),
        "busy": sum(machine.busy for machine in machines),
        "preparing": [each for each in places if each.state not in ("ready", "failed")],
        "unprepared": [each for each in places if each.state == "failed"],
        "shows_people": may_see_queue(user),
    }
    return render(request, "monitoring/nodes.html", about)


@admin_required
@require_safe
@sent_if_changed
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
