"""The board of the lab: each machine with its GPUs now, and who held them in the last hours. For the home page and the wall.

It takes the same queries for any number of machines, GPUs and jobs, and reads columns instead of models: a lab may have
hundreds of GPUs, and the page is refreshed whenever something changes.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal, NamedTuple, Self

from django.db.models import F, Q

from portal.accounts.models import User
from portal.cluster import unconfined
from portal.cluster.models import LIVE_NODE, Gpu, Node
from portal.cluster.node_state import state_of
from portal.cluster.slots import CPU_SLOT_MODEL, counted, noun
from portal.hues import Mark, mark_of_person, mark_of_project
from portal.jobs.models import Allocation
from portal.jobs.occupancy import visible_job_ids
from portal.jobs.queue import may_see_queue
from portal.monitoring.gantt import HIDDEN_JOB_LABEL
from portal.ui import duration

HISTORY = timedelta(hours=6)
MAX_HOLDINGS = 3_000
"""The most that are read: those of now first, then the latest. More cannot be distinguished in a strip."""

ColourBy = Literal["person", "project"]
Condition = Literal["busy", "idle", "outside", "quarantined", "unfit"]


@dataclass(frozen=True, slots=True)
class Viewer:
    """Who looks at the board: a user, or a screen on a wall, which sees no jobs and no projects."""

    user: User | None
    names_people: bool
    """Whether the holder is shown of jobs that the viewer may not see."""

    @classmethod
    def of(cls, user: User) -> Self:
        return cls(user, may_see_queue(user))

    @property
    def hidden_as(self) -> str:
        return "in use" if self.user is None else HIDDEN_JOB_LABEL


@dataclass(frozen=True, slots=True)
class Holding:
    """The time in which a job held a GPU, as far as the viewer may know."""

    gpu: int
    attempt: int
    since: datetime
    until: datetime | None
    """None while it is held."""
    job: int | None
    """None when the viewer may not see the job."""
    job_name: str
    person: Mark | None
    project: Mark | None
    mine: bool
    hidden_as: str
    """What stands for a holder that the viewer may not know."""

    @property
    def holder(self) -> str:
        """Return whose it is: ``job 12 (digits) of ada``, ``ada`` or ``another project``."""
        if self.job is not None and self.person is not None:
            return f"job {self.job} ({self.job_name}) of {self.person.name}"
        return self.person.name if self.person is not None else self.hidden_as

    def mark(self, by: ColourBy) -> Mark | None:
        return self.person if by == "person" else self.project


@dataclass(frozen=True, slots=True)
class Square:
    """A GPU or CPU slot now."""

    pk: int
    index: int
    label: str
    """``GPU 3`` or ``CPU slot 0``."""
    model: str
    condition: Condition
    percent: int | None
    """Its utilisation."""
    holding: Holding | None

    def sentence(self, node: str, state: str, now: datetime) -> str:
        """Describe the square for its tooltip and for screen readers."""
        model = "" if self.model == CPU_SLOT_MODEL else f" ({self.model})"
        facts = []
        if self.holding is not None:
            facts.append(self.holding.holder)
            if self.percent is not None:
                facts.append(f"{self.percent} % busy")
            facts.append(in_minutes(now - self.holding.since))
        if self.condition not in ("busy", "idle") or self.holding is None:
            facts.append(CONDITIONS[self.condition])
        if state:
            facts.append(f"node {state}")
        return f"{node}, {self.label}{model}: {', '.join(facts)}"


CONDITIONS: dict[Condition, str] = {
    "busy": "busy",
    "idle": "idle",
    "outside": "in use outside the portal",
    "quarantined": "quarantined",
    "unfit": "broken",
}


def in_minutes(length: timedelta) -> str:
    """Return a duration without its seconds, so that what contains it changes once a minute."""
    minutes = int(length.total_seconds()) // 60
    return duration(minutes * 60) if minutes else "less than a minute"


@dataclass(frozen=True, slots=True)
class Machine:
    pk: int
    name: str
    state: str
    """A key of ``ui.BADGES``."""
    state_text: str
    squares: tuple[Square, ...]
    holdings: tuple[Holding, ...]
    """Those of the last hours, the present ones included."""
    noun: str
    joined: datetime

    @property
    def is_up(self) -> bool:
        return self.state == "ready"

    @property
    def busy(self) -> int:
        return sum(square.holding is not None for square in self.squares)


@dataclass(frozen=True, slots=True)
class Board:
    machines: tuple[Machine, ...]
    now: datetime
    since: datetime
    """When the strips begin."""
    is_cut: bool
    """There were more holdings than are drawn."""
    hidden_as: str

    @property
    def squares(self) -> list[Square]:
        return [square for machine in self.machines for square in machine.squares]

    @property
    def total(self) -> int:
        return len(self.squares)

    @property
    def busy(self) -> int:
        return sum(machine.busy for machine in self.machines)

    @property
    def machines_up(self) -> int:
        return sum(machine.is_up for machine in self.machines)

    @property
    def noun(self) -> str:
        """``GPU``, or ``CPU slot`` if the lab has no GPU."""
        return noun({"cpu" if square.label.startswith("CPU") else "cuda" for square in self.squares})

    @property
    def sum_text(self) -> str:
        return f"{self.busy} of {counted(self.total, self.noun)} busy"

    def present_marks(self, by: ColourBy) -> list[tuple[Mark, int]]:
        """Return the marks of those who hold GPUs now, with their number, the most first."""
        counts = Counter(
            mark for square in self.squares if square.holding and (mark := square.holding.mark(by)) is not None
        )
        return sorted(counts.items(), key=lambda item: (-item[1], item[0].name))

    def hidden(self, by: ColourBy) -> int:
        """Return the number of GPUs whose holder the viewer may not know."""
        return sum(square.holding is not None and square.holding.mark(by) is None for square in self.squares)

    def count(self, condition: Condition) -> int:
        return sum(square.condition == condition for square in self.squares)


class _GpuRow(NamedTuple):
    pk: int
    node: int
    number: int
    """Its index on the node."""
    kind: str
    model: str
    percent: int | None
    healthy: bool
    quarantined_at: datetime | None
    outside: object

    @property
    def label(self) -> str:
        return f"{'CPU slot' if self.kind == Gpu.Kind.CPU else 'GPU'} {self.number}"

    def condition(self, is_held: bool) -> Condition:
        if self.quarantined_at is not None:
            return "quarantined"
        if not self.healthy:
            return "unfit"
        if is_held:
            return "busy"
        return "outside" if self.outside else "idle"


GPU_COLUMNS = ("pk", "node", "index", "kind", "model", "utilisation_percent", "healthy", "quarantined_at", "outside")


class _HoldingRow(NamedTuple):
    gpu: int
    attempt: int
    since: datetime
    until: datetime | None
    job: int
    job_name: str
    person: int
    username: str
    first_name: str
    last_name: str
    project: int
    project_name: str


HOLDING_COLUMNS = (
    "gpu",
    "attempt",
    "allocated_at",
    "released_at",
    "attempt__job",
    "attempt__job__name",
    "attempt__job__submitted_by",
    "attempt__job__submitted_by__username",
    "attempt__job__submitted_by__first_name",
    "attempt__job__submitted_by__last_name",
    "attempt__job__project",
    "attempt__job__project__name",
)


def board_for(viewer: Viewer, now: datetime) -> Board:
    """Return the board as a viewer may see it. Four or five queries."""
    rows = Node.objects.filter(LIVE_NODE, approved_at__isnull=False)
    nodes = list(rows.defer("facts").order_by("name", "pk"))
    refused = any(node.runtime == unconfined.PROCESS for node in nodes) and unconfined.is_refused(unconfined.PROCESS)
    gpus: dict[int, list[_GpuRow]] = {node.pk: [] for node in nodes}
    of_lab = Gpu.objects.filter(present=True, node__in=list(gpus)).order_by("node", "index", "pk")
    for gpu in map(_GpuRow._make, of_lab.values_list(*GPU_COLUMNS)):
        gpus[gpu.node].append(gpu)
    holdings, is_cut = _holdings(viewer, now - HISTORY)
    machines = tuple(
        _machine(node, gpus[node.pk], holdings, refused and node.runtime == unconfined.PROCESS) for node in nodes
    )
    return Board(machines, now, now - HISTORY, is_cut, viewer.hidden_as)


def _holdings(viewer: Viewer, since: datetime) -> tuple[dict[int, list[Holding]], bool]:
    """Return by GPU what was held since then, the present one first."""
    rows = Allocation.objects.filter(Q(released_at=None) | Q(released_at__gt=since))
    newest = rows.order_by(F("released_at").desc(nulls_first=True), "-pk").values_list(*HOLDING_COLUMNS)
    found = [_HoldingRow._make(row) for row in newest[: MAX_HOLDINGS + 1]]
    visible = visible_job_ids(viewer.user, {row.job for row in found}) if viewer.user is not None else set[int]()
    by_gpu: dict[int, list[Holding]] = {}
    for row in found[:MAX_HOLDINGS]:
        by_gpu.setdefault(row.gpu, []).append(_holding(row, viewer, visible))
    return by_gpu, len(found) > MAX_HOLDINGS


def _holding(row: _HoldingRow, viewer: Viewer, visible: Collection[int]) -> Holding:
    person = mark_of_person(row.person, row.username, row.first_name, row.last_name)
    if row.job in visible:
        return Holding(
            row.gpu, row.attempt, row.since, row.until, row.job, row.job_name, person,
            mark_of_project(row.project, row.project_name), viewer.user is not None and row.person == viewer.user.pk,
            viewer.hidden_as,
        )  # fmt: skip
    shown = person if viewer.names_people else None
    return Holding(
        row.gpu, row.attempt, row.since, row.until, None, "", shown, None, mine=False, hidden_as=viewer.hidden_as
    )


def _machine(node: Node, gpus: Sequence[_GpuRow], holdings: dict[int, list[Holding]], refused: bool) -> Machine:
    squares, history = [], []
    for gpu in gpus:
        own = holdings.get(gpu.pk, [])
        present = next((each for each in own if each.until is None), None)
        condition = gpu.condition(present is not None)
        squares.append(Square(gpu.pk, gpu.number, gpu.label, gpu.model, condition, gpu.percent, present))
        history += own
    state, text = state_of(node, refused)
    return Machine(
        node.pk,
        node.name,
        state,
        text,
        tuple(squares),
        tuple(history),
        noun({gpu.kind for gpu in gpus}),
        node.created_at,
    )
