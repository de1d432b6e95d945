"""What a simulation is given: jobs that come, nodes that are lost, and how the world treats both."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from scheduling.simulate.truth import Truth
from scheduling.types import Job, NodeId


@dataclass(frozen=True, slots=True)
class Interruption:
    """What a change of its GPUs does to a running job."""

    notice_seconds: float = 0.0
    """So long it trains on as before: a new container starts, or the ring does not know yet that one will leave."""
    still_seconds: float | None = None
    """So long it stands still after that; None: as long as policies are told, its job's ``resize_seconds``."""


@dataclass(frozen=True, slots=True)
class Submission:
    """A job that comes at ``job.submitted_at``, or is there already, waiting, or running on ``job.now_on``."""

    job: Job
    truth: Truth
    start_seconds: float = 0.0
    """From its first GPUs to its first step; later starts take ``job.restart_seconds``."""
    end_seconds: float = 0.0
    """From its last step until its GPUs are free and it counts as ended."""
    growing: Interruption = Interruption()
    shrinking: Interruption = Interruption()
    """Where it gives GPUs back and gets none."""
    checkpoint_seconds: float | None = None
    """It saves this often, and a stop loses what came since. None: it saves when it is told to stop."""
    movable: bool = False
    """It may change all its GPUs at once, at the price of a restart: it has no base."""
    cancelled_at: float | None = None
    """When its owner gave up, whether it had started or not."""


@dataclass(frozen=True, slots=True)
class Loss:
    """A node is lost, with all that runs on it, and comes back empty."""

    node: NodeId
    at: float
    back_at: float | None = None


@dataclass(frozen=True, slots=True)
class Options:
    release_seconds: float = 10.0
    """From asking GPUs back to their being free: the class measured on real containers."""
    tick_seconds: float = 300.0
    """A policy that does not say when time alone may change its mind (``Plan.again_at``) is asked this long after the
    last turn, and then, as long as nothing happens, after twice as long each time, up to an hour."""
    window_seconds: float = 0.0
    """What happens within so many seconds of the first event is decided together, at their end: months go faster."""
    window_part: float = 0.0
    """The window is at least this part of the time since the beginning, up to ``max_window_seconds``, also for a policy
    that asks to be asked sooner: what is near is exact, and what is far not more so than can be known."""
    max_window_seconds: float = 300.0
    losses: Sequence[Loss] = ()
    until: float | None = None
    """The clock stops here; what has not ended by then is unfinished."""
    round_seconds: float | None = None
    """Decide at each multiple of it only, with GPUs given back at once; see ``rounds``."""
    placement: Literal["own", "larger first", "queue order"] = "own"
    """In rounds: the policy's own, or that of the reference simulators, emptiest node first."""
    patience_seconds: float = float("inf")
    """Whoever has waited longer is next, whatever the policy."""
    damping_seconds: float = 0.0
    """No job is stopped so soon after it was placed; 0 switches ``scheduling.damping`` off."""
    used_days: int = 14
    """How far back ``Account.used`` reaches."""
    state: Mapping[str, Any] = field(default_factory=dict)
    """The policy's memory at the beginning."""
