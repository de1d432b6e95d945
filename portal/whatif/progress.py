"""Progress of a simulation, policy by policy, and how long it still takes.

Policies differ a hundredfold in how long they take to decide, so the first of four gives no hint about the others. For
the policy that runs now, the remaining time follows from the part that is done; for later ones it is taken from earlier
simulations of the same policy. Where there are none it is unknown, and the page shows this.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from portal.whatif.history import World
from portal.whatif.models import Simulation
from scheduling.types import Snapshot

SURE_PART, SURE_SECONDS = 0.02, 1.0
"""From this part and time on, the remaining time is computed from the part that is done."""
MAX_EARLIER_SIMULATIONS = 20
"""The number of earlier simulations that are searched for how long a policy usually takes."""


def submission_times(world: World) -> list[float]:
    """Return the times at which jobs are submitted, sorted: the input of ``simulated_share``."""
    return sorted(max(world.start, job.submission.job.submitted_at) for job in world.jobs)


def simulated_share(submission_times: Sequence[float], snapshot: Snapshot) -> float:
    """Return the share of submissions and ends that have happened; most scheduling cycles are for one of these."""
    submitted = bisect_right(submission_times, snapshot.now)
    events = 2 * len(submission_times)
    return (2 * submitted - len(snapshot.jobs)) / events if events else 1.0


def initial_parts(simulation: Simulation, jobs: int) -> list[dict[str, Any]]:
    """Return ``Simulation.parts`` as it is before the first policy begins."""
    rows = Simulation.objects.filter(status=Simulation.State.DONE).order_by("-pk")
    earlier = [
        (policy, entry)
        for policies, parts in rows.values_list("policies", "parts")[:MAX_EARLIER_SIMULATIONS]
        for policy, entry in zip(policies, parts, strict=False)
    ]
    return [
        {"part": 0.0, "seconds": 0.0, "jobs": jobs, "usual": _expected_seconds(each, jobs, earlier)}
        for each in simulation.policies
    ]


def _expected_seconds(
    wanted: Mapping[str, Any], jobs: int, earlier: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]
) -> float | None:
    """Return how long a policy took last time, if possible with the same parameters, scaled to this number of jobs."""
    same = [(policy, entry) for policy, entry in earlier if policy["policy"] == wanted["policy"] and entry["jobs"]]
    same.sort(key=lambda each: each[0]["params"] != wanted["params"])
    return same[0][1]["seconds"] * jobs / same[0][1]["jobs"] if same else None


@dataclass(frozen=True, slots=True)
class Step:
    """The progress of one policy."""

    title: str
    part: float
    seconds: float
    """How long it has taken so far."""
    usual: float | None

    @property
    def left(self) -> float | None:
        """The remaining seconds; None when unknown."""
        if self.part >= 1.0:
            return 0.0
        if self.part >= SURE_PART and self.seconds >= SURE_SECONDS:
            return self.seconds * (1 - self.part) / self.part
        return None if self.usual is None else max(0.0, self.usual - self.seconds)

    @property
    def sentence(self) -> str:
        if self.part >= 1.0:
            return f"done in {approximate_duration(self.seconds)}"
        if self.seconds:
            left = "" if self.left is None else f", {approximate_duration(self.left)} left"
            return f"{int(100 * self.part)} %{left}"
        return (
            "not started" if self.usual is None else f"not started, took {approximate_duration(self.usual)} last time"
        )


def steps(simulation: Simulation, titles: Sequence[str]) -> list[Step]:
    """Return the progress of each policy; empty before the simulation begins."""
    return [
        Step(title, entry["part"], entry["seconds"], entry["usual"])
        for title, entry in zip(titles, simulation.parts, strict=False)
    ]


def remaining_seconds(steps: Sequence[Step]) -> tuple[float, bool]:
    """Return the remaining seconds, and whether they are complete; if not, it takes at least that long."""
    known = [step.left for step in steps]
    return sum(each for each in known if each is not None), bool(known) and None not in known


def share_done(steps: Sequence[Step]) -> float:
    """Return the share that is done: of the time if it is known, else of the policies."""
    if not steps:
        return 0.0
    seconds, sure = remaining_seconds(steps)
    spent = sum(step.seconds for step in steps)
    if sure and spent + seconds > 0:
        return spent / (spent + seconds)
    return sum(step.part for step in steps) / len(steps)


def sentence(steps: Sequence[Step]) -> str:
    """Describe the remaining time."""
    seconds, sure = remaining_seconds(steps)
    if sure:
        return f"{approximate_duration(seconds).capitalize()} left."
    unknown = [step.title for step in steps if step.left is None]
    if not unknown:
        return "Reading the lab's history."
    bound = f"At least {approximate_duration(seconds)} left. " if seconds else ""
    if len(unknown) == 1:
        return f"{bound}How long “{unknown[0]}” takes is unknown until it begins."
    return f"{bound}How long {len(unknown)} of the policies take is unknown until they begin."


def approximate_duration(seconds: float) -> str:
    """Describe a length of time as precisely as such an estimate can be."""
    if seconds < 5:
        return "a few seconds"
    if seconds < 90:
        return f"about {max(5, round(seconds / 5) * 5)} seconds"
    return f"about {round(seconds / 60)} minutes"
