"""How far a simulation is, policy by policy, and how long it still takes.

Policies differ a hundredfold in how long they think, so the first of four being done says nothing about the rest. For
the one under way the time left follows from the part done; for those that come later from earlier simulations of the
same policy, or nobody knows it, and then it is said so.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from portal.whatif.history import World
from portal.whatif.models import Simulation
from scheduling.types import Snapshot

SURE_PART, SURE_SECONDS = 0.02, 1.0
"""From then on what is left is told from the part done."""
LOOKED_BACK = 20
"""So many of the last simulations are looked at for how long a policy usually takes."""


def events(world: World) -> list[float]:
    """When its jobs come, sorted: what ``part`` counts by."""
    return sorted(max(world.start, job.submission.job.submitted_at) for job in world.jobs)


def part(coming: Sequence[float], snapshot: Snapshot) -> float:
    """Of all jobs that come and go, how many have done so. Most turns are for one or the other."""
    came = bisect_right(coming, snapshot.now)
    return (2 * came - len(snapshot.jobs)) / (2 * len(coming)) if coming else 1.0


def begin(simulation: Simulation, jobs: int) -> list[dict[str, Any]]:
    """What ``Simulation.parts`` is before the first policy begins."""
    rows = Simulation.objects.filter(status=Simulation.State.DONE).order_by("-pk")
    earlier = [
        (policy, entry)
        for policies, parts in rows.values_list("policies", "parts")[:LOOKED_BACK]
        for policy, entry in zip(policies, parts, strict=False)
    ]
    return [
        {"part": 0.0, "seconds": 0.0, "jobs": jobs, "usual": _usual(each, jobs, earlier)}
        for each in simulation.policies
    ]


def _usual(
    wanted: Mapping[str, Any], jobs: int, earlier: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]
) -> float | None:
    """As long as the last time, with the same parameters if there was one, for so many jobs."""
    same = [(policy, entry) for policy, entry in earlier if policy["policy"] == wanted["policy"] and entry["jobs"]]
    same.sort(key=lambda each: each[0]["params"] != wanted["params"])
    return same[0][1]["seconds"] * jobs / same[0][1]["jobs"] if same else None


@dataclass(frozen=True, slots=True)
class Step:
    """One policy."""

    title: str
    part: float
    seconds: float
    """That it has taken so far."""
    usual: float | None

    @property
    def left(self) -> float | None:
        """Seconds; None when nobody knows."""
        if self.part >= 1.0:
            return 0.0
        if self.part >= SURE_PART and self.seconds >= SURE_SECONDS:
            return self.seconds * (1 - self.part) / self.part
        return None if self.usual is None else max(0.0, self.usual - self.seconds)

    @property
    def sentence(self) -> str:
        if self.part >= 1.0:
            return f"done in {about(self.seconds)}"
        if self.seconds:
            left = "" if self.left is None else f", {about(self.left)} left"
            return f"{int(100 * self.part)} %{left}"
        return "comes later" if self.usual is None else f"comes later, {about(self.usual)} if it is as the last time"


def steps(simulation: Simulation, titles: Sequence[str]) -> list[Step]:
    """None before it has begun."""
    return [
        Step(title, entry["part"], entry["seconds"], entry["usual"])
        for title, entry in zip(titles, simulation.parts, strict=False)
    ]


def left(them: Sequence[Step]) -> tuple[float, bool]:
    """Seconds that are left, and whether that is all of it: else at least so many."""
    known = [step.left for step in them]
    return sum(each for each in known if each is not None), bool(known) and None not in known


def done(them: Sequence[Step]) -> float:
    """The part that is done: of the time if that can be told, else of the policies."""
    if not them:
        return 0.0
    seconds, sure = left(them)
    spent = sum(step.seconds for step in them)
    if sure and spent + seconds > 0:
        return spent / (spent + seconds)
    return sum(step.part for step in them) / len(them)


def sentence(them: Sequence[Step]) -> str:
    seconds, sure = left(them)
    if sure:
        return f"{about(seconds).capitalize()} left."
    unknown = [step.title for step in them if step.left is None]
    whose = f"How long “{unknown[0]}” takes" if len(unknown) == 1 else f"How long {len(unknown)} of the policies take"
    least = f"At least {about(seconds)} left. " if seconds else ""
    return f"{least}{whose} is not known before it has begun." if unknown else "Reading the lab's history."


def about(seconds: float) -> str:
    """Not more exact than such a guess is."""
    if seconds < 5:
        return "a few seconds"
    if seconds < 90:
        return f"about {max(5, round(seconds / 5) * 5)} seconds"
    return f"about {round(seconds / 60)} minutes"
