"""Find attempts that hold GPUs although none of their ranks can train: for the crash points and the fault tests.

The portal reports which attempts hold GPUs; engines or the ranks themselves report what is alive. A ring with
fewer ranks than its job's minimum counts as none: its ranks wait for each other, and its driver may or may not end
them.
"""

from collections.abc import Mapping
from dataclasses import dataclass

LIMIT_SECONDS = 240.0
"""For real, busy machines: 49 s until a node is lost, at most ``ELASTIC_SECONDS`` (120) until a driver without enough hosts
gives up, and the time in which its parts stop or its ranks begin. docs/architecture/reliability.md has the bound of each
state."""


@dataclass(frozen=True, order=True)
class Try:
    """One attempt, by its job's number and its own."""

    job: int
    number: int


class StallWatch:
    """Compare at every look what is held with what is alive. The caller reads the clock and both sides."""

    def __init__(self, limit_seconds: float = LIMIT_SECONDS) -> None:
        self.limit_seconds = limit_seconds
        self.longest_seconds = 0.0
        """Of all stalls seen, those within the limit included."""
        self._since: dict[Try, float] = {}

    def forget(self) -> None:
        """Start over: what was held meanwhile is unknown."""
        self._since.clear()

    def look(self, at: float, holding: Mapping[Try, int], ranks: Mapping[Try, int]) -> list[str]:
        """Return a complaint for each attempt that has stalled for too long.

        ``at`` in seconds of a clock that never jumps; ``holding``: attempts with GPUs and the fewest ranks that can train;
        ``ranks``: living ranks.
        """
        stalled = {each for each, least in holding.items() if ranks.get(each, 0) < max(1, least)}
        self._since = {each: self._since.get(each, at) for each in stalled}
        lasted = {each: at - since for each, since in sorted(self._since.items())}
        self.longest_seconds = max([self.longest_seconds, *lasted.values()])
        return [
            f"job {each.job}, attempt {each.number} holds GPUs without enough living ranks "
            f"({ranks.get(each, 0)} of {holding[each]}) for more than {self.limit_seconds:g} s"
            for each, seconds in lasted.items()
            if seconds > self.limit_seconds
        ]
