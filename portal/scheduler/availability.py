"""Where jobs can run: the lab's nodes, which environments are ready on them, and why a job can start on none."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from django.db.models import Count
from django.db.models.fields.json import KT

from portal.cluster import unconfined
from portal.cluster.models import LIVE_NODE, Gpu, Node, NodeEnvironment, usable_gpu
from portal.cluster.services import is_online
from portal.cluster.slots import counted

USABLE_GPU = usable_gpu()


class Prepared(NamedTuple):
    """The state of an environment on a node, from ``NodeEnvironment``."""

    node_id: int
    environment_id: int
    state: str
    progress_percent: int
    detail: str


@dataclass
class Nodes:
    """The lab's nodes and what they can run."""

    rows: Sequence[Node]
    gpus: Mapping[int, int]
    """The number of usable GPUs, by node."""
    kinds: Mapping[int, str]
    """The most frequent GPU model, by node."""
    environments: Mapping[int, Mapping[int, Prepared]]
    """By environment, then by node."""
    open: frozenset[int]
    names: Mapping[int, str]
    closed: Mapping[int, str]
    """The node's name and a clause with the reason why it is not open, by node."""
    out_of_reach: frozenset[int]
    """Nodes that report no address at which containers of other nodes reach theirs."""


@dataclass(frozen=True)
class Availability:
    """Where jobs of one environment can run."""

    ready: frozenset[int]
    """Open nodes on which the environment is ready."""
    ids: frozenset[str]
    """The same nodes, by the ids that policies use."""
    linked: frozenset[str]
    """Those of them that containers of other nodes can reach."""


def is_open(node: Node, now: datetime) -> bool:
    """Return whether the node accepts new jobs."""
    return not why_closed(node, now)


def why_closed(node: Node, now: datetime) -> str:
    """Return why the node accepts no new jobs, as a clause that follows its name; empty when it does accept them."""
    if node.removed_at is not None or node.approved_at is None:
        return "is not part of the lab"
    if node.draining:
        return "is being drained"
    if node.cordoned:
        return "is cordoned by an admin"
    if not is_online(node, now):
        return "has not reported for a while"
    if not node.ready:
        return "is still starting"
    if unconfined.is_refused(node.runtime):
        return unconfined.CLAUSE.rstrip(".")
    return next((f"is unfit: {problem.get('text')}" for problem in node.problems if problem.get("blocking")), "")


def read_nodes(now: datetime) -> Nodes:
    """Read the nodes of the lab, their usable GPUs and their environments."""
    ours = Node.objects.filter(LIVE_NODE, approved_at__isnull=False)
    # The facts that a node reports are long; only its overlay address is read here.
    rows = list(ours.defer("facts").annotate(address=KT("facts__ring_address")).order_by("name"))
    usable = Gpu.objects.filter(USABLE_GPU, node__in=ours).values_list("node", "model").annotate(n=Count("pk"))
    gpus: Counter[int] = Counter()
    kinds: dict[int, str] = {}
    for node_id, kind, count in usable.order_by("node", "-n", "model"):
        gpus[node_id] += count
        kinds.setdefault(node_id, kind)
    environments: dict[int, dict[int, Prepared]] = defaultdict(dict)
    for row in map(Prepared._make, NodeEnvironment.objects.filter(node__in=ours).values_list(*Prepared._fields)):
        environments[row.environment_id][row.node_id] = row
    closed = {node.pk: f"{node.name} {why}" for node in rows if (why := why_closed(node, now))}
    return Nodes(
        rows=rows,
        gpus=gpus,
        kinds=kinds,
        environments=environments,
        open=frozenset(node.pk for node in rows if node.pk not in closed),
        names={node.pk: node.name for node in rows},
        closed=closed,
        out_of_reach=frozenset(node.pk for node in rows if not node.address),
    )


def largest_node() -> int:
    """Return the number of usable GPUs of the node that has most; 1 when there are none."""
    usable = Gpu.objects.filter(USABLE_GPU).values("node").annotate(n=Count("pk"))
    return max(usable.values_list("n", flat=True), default=1)


def availability_of(nodes: Nodes, environment: int) -> Availability:
    """Return the nodes on which jobs of an environment can run."""
    prepared = nodes.environments.get(environment, {})
    ready = frozenset(
        node for node, row in prepared.items() if node in nodes.open and row.state == NodeEnvironment.State.READY
    )
    return Availability(ready, frozenset(map(str, ready)), frozenset(map(str, ready - nodes.out_of_reach)))


def why_nowhere(min_gpus: int, environment: int, title: str, nodes: Nodes, ready: frozenset[int]) -> str:
    """Return why a job cannot start on any node now, whatever the policy; empty when it can."""
    if not nodes.rows:
        return "No node has joined the lab yet. An admin can add one under Nodes."
    lab = sum(nodes.gpus.values())
    if min_gpus > lab:
        needed = counted(min_gpus, "GPU")  # the cycle replaces it with CPU slot where the lab has no GPUs
        return f"It needs {needed} at once, but the lab has {lab}. Submit it with fewer, or ask an admin."
    if not nodes.open:
        return f"No node accepts new jobs now: {'; '.join(list(nodes.closed.values())[:3]).rstrip('.')}."
    if not ready:
        return _not_ready(nodes, environment, title)
    return ""


def _not_ready(nodes: Nodes, environment: int, title: str) -> str:
    """Describe the preparation of the environment on the node that will have it first."""
    State = NodeEnvironment.State  # noqa: N806
    here = [row for node, row in nodes.environments.get(environment, {}).items() if node in nodes.open]
    preparing = max(
        (row for row in here if row.state == State.PREPARING), key=lambda row: row.progress_percent, default=None
    )
    if preparing is not None:
        doing = f" ({preparing.detail})" if preparing.detail else ""
        name = nodes.names[preparing.node_id]
        return f"Its environment {title} is being prepared on node {name}: {preparing.progress_percent} %{doing}."
    waiting = next((row for row in here if row.state == State.WAITING), None)
    if waiting is not None or len(here) < len(nodes.open):
        return f"Its environment {title} will be prepared on a node first."
    failed = here[0]
    why = f": {failed.detail}" if failed.detail else "."
    return f"Its environment {title} could not be prepared on node {nodes.names[failed.node_id]}{why}"
