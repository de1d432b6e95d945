"""What a stop means for a job, before it is stopped."""

from collections.abc import Sequence
from dataclasses import dataclass

from portal.ui import duration

MAX_NAMED = 5


@dataclass(frozen=True, slots=True)
class StopCost:
    """What a running job loses when it is stopped now."""

    resumable: bool
    """Whether its code restarts from its checkpoints."""
    ran_seconds: float
    """How long its attempt has run."""
    checkpoint_seconds: float | None
    """The age of its newest checkpoint in the portal; None without one."""


def _about(seconds: float) -> str:
    """A duration that does not change each second: pages that show it are drawn again when it does."""
    step = 10 if seconds < 60 else 60 if seconds < 3600 else 600
    return duration(max(seconds // step * step, 10))


def restart_sentence(cost: StopCost) -> str:
    """Return from where a job restarts, and what is lost."""
    ran = _about(cost.ran_seconds)
    if not cost.resumable:
        return f"It keeps no checkpoints, so it starts over: the {ran} that it has run are lost."
    if cost.checkpoint_seconds is None:
        return f"It has no checkpoint in the portal yet, so it may start over: up to {ran} of work are lost."
    return f"It restarts from its newest checkpoint, which is {_about(cost.checkpoint_seconds)} old."


def _restart_words(cost: StopCost) -> str:
    if not cost.resumable:
        return f"starts over, {_about(cost.ran_seconds)} lost"
    if cost.checkpoint_seconds is None:
        return f"may start over, up to {_about(cost.ran_seconds)} lost"
    return f"restarts from a checkpoint that is {_about(cost.checkpoint_seconds)} old"


def cancel_words(cost: StopCost) -> str:
    """Return what is lost when a running job is cancelled."""
    if not cost.resumable:
        return f"keeps no checkpoints: the {_about(cost.ran_seconds)} that it has run are lost"
    if cost.checkpoint_seconds is None:
        return f"has no checkpoint in the portal yet: up to {_about(cost.ran_seconds)} of work are lost"
    return f"loses the work since its newest checkpoint, which is {_about(cost.checkpoint_seconds)} old"


def hold_question(job: int, cost: StopCost | None) -> str:
    """Return what a person is asked before a running job is put on hold."""
    then = f" {restart_sentence(cost)}" if cost else ""
    return f"Hold job {job}? It is stopped now, and runs again when it is released.{then}"


def drain_question(node: str, costs: Sequence[tuple[str, StopCost]]) -> str:
    """Return what an admin is asked before a node is drained; ``costs`` has the label of each of its jobs."""
    if not costs:
        return f"Drain {node}? No job runs on it, and it gets none until it is resumed."
    named = [f"{label} {_restart_words(cost)}" for label, cost in costs[:MAX_NAMED]]
    more = f"; and {len(costs) - MAX_NAMED} more" if len(costs) > MAX_NAMED else ""
    return (
        f"Drain {node}? Elastic jobs move to other nodes where those have room. Those that cannot are stopped: "
        f"{'; '.join(named)}{more}. Cordon lets all of them end first."
    )
