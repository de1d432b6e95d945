"""Where jobs can run: the lab's nodes, which environments are ready on them, and why a job can start on none."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar, NamedTuple, TypedDict

from django.db.models import Count, Exists, Min, OuterRef, Q
from django.db.models.fields.json import KT
from django.db.models.query import QuerySet

from portal.cluster import unconfined
from portal.cluster.models import LIVE_NODE, Gpu, Node, usable_gpu
from portal.cluster.pools import GpuCount, Pool, pools_of, pools_on
from portal.cluster.services import is_online
from portal.environments.models import NodeEnvironment
from portal.environments.summary import is_behind_others
from portal.jobs.models import Allocation
from scheduling.messages import Message
from scheduling.types import GpuRequest

USABLE_GPU = usable_gpu()
LAYERS, IMAGES, HOSTS, INPUTS, SECRETS, DATASETS = "layers", "images", "hosts", "inputs", "secrets", "datasets"
NEEDS = {
    LAYERS: "layer_format",
    IMAGES: "image_format",
    HOSTS: "allowed_hosts",
    INPUTS: "job_inputs",
    SECRETS: "job_secrets",
    DATASETS: "job_datasets",
}
"""What some jobs need of agents, and the fact by which an agent shows that it has it: environments with a recipe, images, which
need a Docker Engine, allowed hosts, outputs of another job, secrets, and datasets. Agents refuse specifications with keys that they do not know."""


class EnvironmentStatus(NamedTuple):
    """The state of an environment on a node, from ``NodeEnvironment``."""

    node_id: int
    environment_id: int
    state: str
    progress_percent: int
    detail: Any


@dataclass
class Nodes:
    """The lab's nodes and what they can run."""

    rows: Sequence[Node]
    gpus: Mapping[int, int]
    """The number of usable GPUs, by node."""
    pools: Mapping[int, Sequence[Pool]]
    """The same by model, as policies know them."""
    environments: Mapping[int, Mapping[int, EnvironmentStatus]]
    """By environment, then by node."""
    open: frozenset[int]
    names: Mapping[int, str]
    closed: "Mapping[int, ClosedNode]"
    """Why nodes are not open, by node."""
    out_of_reach: frozenset[int]
    """Nodes that report no address at which containers of other nodes reach theirs."""
    lacking: Mapping[str, frozenset[int]] = field(default_factory=dict)
    """By what a job may need of an agent (``NEEDS``), the nodes whose agent, of an earlier release, does not have it."""

    def able(self, needs: frozenset[str]) -> frozenset[int]:
        """Return the open nodes whose agents have what a job needs of them."""
        return self.open.difference(*(self.lacking.get(need, frozenset()) for need in needs))


@dataclass(frozen=True)
class Availability:
    """Where jobs of one environment can run."""

    ready: frozenset[int]
    """Open nodes on which the environment is ready."""
    ids: frozenset[str]
    """Their pools: the nodes that policies know."""
    reachable: frozenset[str]
    """Those of the nodes that containers on other nodes can reach."""
    reachable_nodes: frozenset[int]


def is_open(node: Node, now: datetime) -> bool:
    """Return whether the node accepts new jobs."""
    return why_closed(node, now) is None


class ClosedNode(TypedDict):
    """A node that accepts no new jobs, in a ``NoNodeAccepts``."""

    node: str
    why: str
    """A key of ``portal.sentences.reasons.CLOSED``."""
    problem: dict[str, Any] | None
    """Of ``Node.problems``, for a node that is *unfit*."""


def why_closed(node: Node, now: datetime) -> ClosedNode | None:
    """Return why the node accepts no new jobs; None when it does accept them."""
    problem = next((problem for problem in node.problems if problem.get("blocking")), None)
    reasons = {
        "not_in_the_lab": node.removed_at is not None or node.approved_at is None,
        "draining": node.draining,
        "cordoned": node.cordoned,
        "silent": not is_online(node, now),
        "starting": not node.ready,
        "unconfined": unconfined.is_refused(node.runtime),
        "unfit": problem is not None,
    }
    why = next((why for why, holds in reasons.items() if holds), None)
    return ClosedNode(node=node.name, why=why, problem=problem if why == "unfit" else None) if why else None


def read_nodes(now: datetime) -> Nodes:
    """Read the nodes of the lab, their usable GPUs and their environments."""
    ours = Node.objects.filter(LIVE_NODE, approved_at__isnull=False)
    # The facts that a node reports are long; only these are read here.
    rows = list(
        ours.defer("facts")
        .annotate(
            address=KT("facts__ring_address"), **{f"has_{need}": KT(f"facts__{fact}") for need, fact in NEEDS.items()}
        )
        .order_by("name")
    )
    pools = read_pools(ours)
    gpus = {node: sum(pool.gpus for pool in found) for node, found in pools.items()}
    environments: dict[int, dict[int, EnvironmentStatus]] = defaultdict(dict)
    for row in map(
        EnvironmentStatus._make, NodeEnvironment.objects.filter(node__in=ours).values_list(*EnvironmentStatus._fields)
    ):
        environments[row.environment_id][row.node_id] = row
    closed = {node.pk: why for node in rows if (why := why_closed(node, now))}
    return Nodes(
        rows=rows,
        gpus=gpus,
        pools={node.pk: pools.get(node.pk, (Pool.without_gpus(node.pk),)) for node in rows},
        environments=environments,
        open=frozenset(node.pk for node in rows if node.pk not in closed),
        names={node.pk: node.name for node in rows},
        closed=closed,
        out_of_reach=frozenset(node.pk for node in rows if not node.address),
        lacking={need: frozenset(node.pk for node in rows if not getattr(node, f"has_{need}")) for need in NEEDS},
    )


def read_pools(nodes: QuerySet[Node]) -> dict[int, list[Pool]]:
    """Return the pools of nodes that have GPUs. A model counts as long as its GPUs are there, or jobs hold them."""
    held = Exists(Allocation.objects.filter(gpu=OuterRef("pk"), released_at__isnull=True))
    there = Gpu.objects.filter(Q(present=True) | held, node__in=nodes).order_by().values_list("node", "model")
    return pools_of(
        GpuCount(node, model, count, smallest or 0)
        for node, model, count, smallest in there.annotate(
            count=Count("pk", filter=USABLE_GPU), smallest=Min("memory_mib", filter=USABLE_GPU)
        )
    )


def gpus_of_largest_node() -> int:
    """Return the number of usable GPUs of the node that has the most; 1 when there are none."""
    usable = Gpu.objects.filter(USABLE_GPU).values("node").annotate(n=Count("pk"))
    return max(usable.values_list("n", flat=True), default=1)


def needs_of(
    *,
    has_recipe: bool,
    has_hosts: bool,
    is_image: bool = False,
    has_inputs: bool = False,
    has_secrets: bool = False,
    has_datasets: bool = False,
) -> frozenset[str]:
    """Return what a job needs of agents, by whether its environment has a recipe or is an image, hosts are allowed to it,
    and it uses the outputs of another job, secrets or datasets."""
    needed = {
        LAYERS: has_recipe,
        IMAGES: is_image,
        HOSTS: has_hosts,
        INPUTS: has_inputs,
        SECRETS: has_secrets,
        DATASETS: has_datasets,
    }
    return frozenset(need for need, is_needed in needed.items() if is_needed)


def availability_of(nodes: Nodes, environment: int, needs: frozenset[str] = frozenset()) -> Availability:
    """Return the nodes on which jobs of an environment, with these needs, can run."""
    prepared, able = nodes.environments.get(environment, {}), nodes.able(needs - {LAYERS, IMAGES})
    ready = frozenset(
        node for node, row in prepared.items() if node in able and row.state == NodeEnvironment.State.READY
    )
    reachable = ready - nodes.out_of_reach
    return Availability(ready, pools_on(ready, nodes.pools), pools_on(reachable, nodes.pools), reachable)


@dataclass(frozen=True)
class NoNodeYet(Message):
    code: ClassVar[str] = "no_node_yet"


@dataclass(frozen=True)
class LargerThanLab(Message):
    """It needs more GPUs than all nodes of the lab have together."""

    code: ClassVar[str] = "larger_than_lab"
    needed: int
    total: int


@dataclass(frozen=True)
class NoSuchGpus(Message):
    """All nodes of the lab together have too few of the GPUs that it accepts, even if all were free and open."""

    code: ClassVar[str] = "no_such_gpus"
    needed: int
    total: int
    memory_mib: int
    kinds: list[str]
    same_kind: bool


@dataclass(frozen=True)
class NoNodeAccepts(Message):
    """All nodes are closed; with the reasons of the first three."""

    code: ClassVar[str] = "no_node_accepts"
    closed: list[ClosedNode]


@dataclass(frozen=True)
class EnvironmentPreparing(Message):
    code: ClassVar[str] = "environment_preparing"
    title: str
    node: str
    percent: int
    detail: Any
    """As ``NodeEnvironment.detail`` has it."""


@dataclass(frozen=True)
class AgentsTooOld(Message):
    """The agents of all open nodes know only the environments of their release."""

    code: ClassVar[str] = "agents_too_old"
    title: str
    nodes: list[str]


@dataclass(frozen=True)
class AgentsWithoutHosts(Message):
    """The agents of all open nodes are of an earlier release, which cannot give a job its allowed hosts."""

    code: ClassVar[str] = "agents_without_hosts"
    nodes: list[str]


@dataclass(frozen=True)
class AgentsWithoutInputs(Message):
    """The agents of all open nodes are of an earlier release, which cannot give a job the outputs of another one."""

    code: ClassVar[str] = "agents_without_inputs"
    nodes: list[str]


@dataclass(frozen=True)
class AgentsWithoutSecrets(Message):
    """The agents of all open nodes are of an earlier release, which cannot give a job its secrets."""

    code: ClassVar[str] = "agents_without_secrets"
    nodes: list[str]


@dataclass(frozen=True)
class AgentsWithoutDatasets(Message):
    """The agents of all open nodes are of an earlier release, which cannot give a job its datasets."""

    code: ClassVar[str] = "agents_without_datasets"
    nodes: list[str]


@dataclass(frozen=True)
class ImagesNeedDocker(Message):
    """The environment is an image, and no open node has both a Docker Engine and an agent of this release."""

    code: ClassVar[str] = "images_need_docker"
    title: str
    nodes: list[str]


@dataclass(frozen=True)
class EnvironmentPlanned(Message):
    code: ClassVar[str] = "environment_planned"
    title: str
    node: str = ""
    """One that prepares others first; empty if a node may begin at once."""


@dataclass(frozen=True)
class EnvironmentFailed(Message):
    code: ClassVar[str] = "environment_failed"
    title: str
    node: str
    detail: Any
    """As ``NodeEnvironment.detail`` has it."""


def why_blocked(
    min_gpus: int,
    environment: int,
    title: str,
    nodes: Nodes,
    ready: frozenset[int],
    needs: frozenset[str] = frozenset(),
) -> Message | None:
    """Return why a job cannot start on any node now, whatever the policy; None when it can. ``needs``: see ``NEEDS``."""
    if not nodes.rows:
        return NoNodeYet()
    lab = sum(nodes.gpus.values())
    if min_gpus > lab:
        return LargerThanLab(min_gpus, lab)
    if not nodes.open:
        return NoNodeAccepts(list(nodes.closed.values())[:3])
    if not ready:
        able, names = nodes.able(needs), sorted(nodes.names[node] for node in nodes.open)[:3]
        if not able and not nodes.able(needs & {LAYERS}):
            return AgentsTooOld(title, names)
        if not able and not nodes.able(needs & {LAYERS, IMAGES}):
            return ImagesNeedDocker(title, names)
        if not able and not nodes.able(needs - {INPUTS, SECRETS, DATASETS}):
            return AgentsWithoutHosts(names)
        if not able and not nodes.able(needs - {SECRETS, DATASETS}):
            return AgentsWithoutInputs(names)
        if not able and not nodes.able(needs - {DATASETS}):
            return AgentsWithoutSecrets(names)
        if not able:
            return AgentsWithoutDatasets(names)
        return _preparation_message(nodes, environment, title, able)
    return None


def why_no_such_gpus(min_gpus: int, request: GpuRequest, nodes: Nodes) -> Message | None:
    """Return that the lab has too few of the GPUs that a job accepts; None when it has enough."""
    by_model: Counter[str] = Counter()
    for pool in (pool for pools in nodes.pools.values() for pool in pools):
        if request.accepts(pool.memory_mib, pool.model):
            by_model[pool.model] += pool.gpus
    total = max(by_model.values(), default=0) if request.same_kind else by_model.total()
    if total >= min_gpus:
        return None
    return NoSuchGpus(min_gpus, total, request.memory_mib, list(request.kinds), request.same_kind)


def _preparation_message(nodes: Nodes, environment: int, title: str, able: frozenset[int]) -> Message:
    """Describe the preparation of the environment on the node, of those that can have it, that will have it first."""
    State = NodeEnvironment.State  # noqa: N806
    here = [row for node, row in nodes.environments.get(environment, {}).items() if node in able]
    preparing = max(
        (row for row in here if row.state == State.PREPARING), key=lambda row: row.progress_percent, default=None
    )
    if preparing is not None:
        name = nodes.names[preparing.node_id]
        return EnvironmentPreparing(title, name, preparing.progress_percent, preparing.detail)
    waiting = [row for row in here if row.state == State.WAITING]
    if waiting or len(here) < len(able):
        behind = next((row for row in waiting if is_behind_others(row.detail)), None)
        return EnvironmentPlanned(title, nodes.names[behind.node_id] if behind else "")
    failed = here[0]
    return EnvironmentFailed(title, nodes.names[failed.node_id], failed.detail)
