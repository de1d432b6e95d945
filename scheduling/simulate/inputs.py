"""The input of a simulation: jobs, losses of nodes, and options."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from scheduling.simulate.truth import Truth
from scheduling.types import Job, NodeId


@dataclass(frozen=True, slots=True)
class Interruption:
    """The effect of a change of its GPUs on a running job."""

    notice_seconds: float = 0.0
    """How long it trains as before: a new container starts, or the ranks do not know yet that one will leave."""
    still_seconds: float | None = None
    """How long it pauses after that; None: as long as policies assume, the ``resize_seconds`` of its job."""


@dataclass(frozen=True, slots=True)
class Submission:
    """A job that is submitted at ``job.submitted_at``, or exists already: waiting, or running on ``job.now_on``."""

    job: Job
    truth: Truth
    start_seconds: float = 0.0
    """The time from its first GPUs to its first step; later starts take ``job.restart_seconds``."""
    end_seconds: float = 0.0
    """The time from its last step until its GPUs are free and it counts as ended."""
    growing: Interruption = Interruption()
    shrinking: Interruption = Interruption()
    """The interruption where it releases GPUs and gets none."""
    checkpoint_seconds: float | None = None
    """The time between checkpoints; a stop loses the work since the last one. None: it saves when it is stopped."""
    movable: bool = False
    """Whether it may change all its GPUs at once, at the cost of a restart: it has no base."""
    cancelled_at: float | None = None
    """When its owner cancels it, started or not."""


@dataclass(frozen=True, slots=True)
class Loss:
    """The loss of a node with all that runs on it; it comes back empty."""

    node: NodeId
    at: float
    back_at: float | None = None


@dataclass(frozen=True, slots=True)
class Options:
    release_seconds: float = 10.0
    """The time from asking for GPUs to their release, as measured on real containers."""
    tick_seconds: float = 300.0
    """A policy without ``Plan.again_at`` is asked this long after the last cycle, and then, as long as nothing happens,
    after twice as long each time, up to an hour."""
    window_seconds: float = 0.0
    """Events within this time after the first one are decided together, at its end, which makes months faster."""
    window_part: float = 0.0
    """The window is at least this fraction of the time since the start, up to ``max_window_seconds``, also for a policy
    with an earlier ``again_at``: the near future is exact, the distant future only as exact as it can be."""
    max_window_seconds: float = 300.0
    losses: Sequence[Loss] = ()
    until: float | None = None
    """The end of the simulation; jobs that have not ended by then are unfinished."""
    round_seconds: float | None = None
    """Decide only at multiples of this time, with GPUs released at once; see ``rounds``."""
    placement: Literal["own", "larger first", "queue order"] = "own"
    """In rounds: the policy's own placement, or that of the reference simulators, emptiest node first."""
    patience_seconds: float = float("inf")
    """A job that has waited longer than this is next, under any policy."""
    damping_seconds: float = 0.0
    """No job is stopped within this time after its placement; 0 switches ``scheduling.damping`` off."""
    used_days: int = 14
    """How far back ``Account.used`` reaches."""
    state: Mapping[str, Any] = field(default_factory=dict)
    """The state of the policy at the start."""
    explain: bool = True
    """Whether ``on_turn`` reads why jobs wait. To work that out takes about a third of the time."""
