"""What a simulation's page begins with: true for the figures, and silent on differences that mean nothing."""

from datetime import UTC, datetime
from typing import Any

import pytest

from portal.whatif import figures, story
from portal.whatif.figures import Outcome
from portal.whatif.report import REALLY, Column

MINUTE, HOUR = 60.0, 3600.0
N = story.NO_BREAK


def spread(p50: float, mean: float | None = None, longest: float | None = None) -> dict[str, float]:
    found = {"mean": p50 if mean is None else mean, "p50": p50, "p95": 4 * p50}
    return found if longest is None else found | {"max": longest}


def some(wait: dict[str, float], turnaround: float = 2 * HOUR, jobs: int = 20) -> dict[str, Any]:
    return {"compared": jobs, "waiting": wait, "turnaround": spread(turnaround), "utilisation": 0.8}


def column(name: str, wait: dict[str, float], *, in_force: bool = False, **more: Any) -> Column:
    values: dict[str, Any] = {"total": some(wait), "people": {}, "groups": {}} | more
    return Column(name, values, in_force=in_force, knows="nothing")


def stories(base: Column, *others: Column, error: float = 0.0) -> list[str]:
    really = Column(REALLY, base.figures)
    return [
        " ".join(each.sentences).replace(story.NO_BREAK, " ")
        for each in story.stories_of([really, base, *others], error)
    ]


def test_waits_starts_and_the_longest_wait_are_mentioned() -> None:
    base = column("FIFO", spread(21 * MINUTE, longest=3 * HOUR), in_force=True)
    other = column("Tiresias", spread(4 * MINUTE, longest=5 * HOUR), starts={"sooner": 312, "later": 41, "same": 7})
    assert stories(base, other) == [
        "Under “Tiresias” the median job would have waited 4 min instead of 21 min. 312 jobs would have started sooner, "
        "41 later and 7 at about the same time. The longest wait grows from 3 h to 5 h."
    ]


def test_a_difference_of_seconds_or_of_a_few_percent_is_none() -> None:
    base = column("FIFO", spread(0.2, longest=10 * HOUR), in_force=True)
    same = {"sooner": 0, "later": 0, "same": 9}
    tiny = column("A", spread(30.0, longest=10.2 * HOUR), starts=same)
    assert stories(base, tiny) == [
        "Under “A” the mean and the median wait would have been about the same. "
        "All jobs would have started at about the same time."
    ]


def test_the_mean_is_mentioned_where_the_median_stays() -> None:
    base = column("FIFO", spread(0.0, mean=HOUR), in_force=True)
    [text] = stories(base, column("A", spread(0.0, mean=10 * MINUTE), starts={"sooner": 1, "later": 0, "same": 0}))
    assert "10 min on average instead of 1 h; the median wait would have been about the same." in text
    assert "1 job would have started sooner, 0 later." in text


def test_next_to_no_wait_is_less_than_a_minute() -> None:
    [text] = stories(column("FIFO", spread(HOUR), in_force=True), column("A", spread(0.0)))
    assert "waited less than a minute instead of 1 h" in text


def test_simulations_from_before_these_figures_have_an_answer_too() -> None:
    base, other = column("FIFO", spread(HOUR), in_force=True), column("A", spread(2 * HOUR))
    assert stories(base, other) == ["Under “A” the median job would have waited 2 h instead of 1 h."]
    assert story.daily_chart([base, other], datetime(2026, 11, 1, tzinfo=UTC)) is None


def test_a_change_within_the_error_of_the_simulation_is_called_uncertain() -> None:
    base = column("FIFO", spread(HOUR), in_force=True)
    other = column("A", spread(2 * HOUR), total=some(spread(2 * HOUR), turnaround=2.2 * HOUR))
    assert "changes by 10 %, which is no more than the error" in stories(base, other, error=0.2)[0]
    assert "uncertain" not in stories(base, other, error=0.05)[0]


@pytest.mark.parametrize(("used", "text"), [(0.2, "too idle for a policy to matter: 20 %"), (0.7, "hardly matters")])
def test_an_idle_lab_is_called_idle(used: float, text: str) -> None:
    calm = some(spread(1.0)) | {"utilisation": used}
    columns = [column("FIFO", spread(0.0), in_force=True, total=calm), column("A", spread(0.0), total=calm)]
    assert text in story.why_idle(columns)
    assert story.why_idle([*columns, column("B", spread(HOUR))]) == "", "under B, jobs would have waited"


def test_who_gains_and_who_loses_are_named_with_amounts() -> None:
    def people(**turnarounds: tuple[float, int]) -> dict[str, Any]:
        return {name: some(spread(0.0), seconds, jobs) for name, (seconds, jobs) in turnarounds.items()}

    base = column(
        "FIFO", spread(0.0), in_force=True,
        people=people(ann=(2 * HOUR, 9), bob=(HOUR, 9), cleo=(HOUR, 9), once=(HOUR, 2)),
        groups=people(vision=(3 * HOUR, 9)),
    )  # fmt: skip
    other = column(
        "A", spread(0.0),
        people=people(ann=(HOUR, 9), bob=(1.5 * HOUR, 9), cleo=(HOUR + 30, 9), once=(9 * HOUR, 2)),
        groups=people(vision=(HOUR, 9)),
    )  # fmt: skip
    [found] = story.stories_of([base, other], 0.0)
    assert [(each.name, each.amount) for each in found.gain.named] == [("group vision", f"2{N}h"), ("ann", f"1{N}h")]
    assert [(each.name, each.amount) for each in found.lose.named] == [("bob", f"30{N}min")] and not found.lose.more


def test_without_the_policy_in_force_nothing_is_compared() -> None:
    broken = Column("FIFO", {}, wrong="It failed.", in_force=True, knows="nothing")
    assert story.stories_of([broken, column("A", spread(HOUR))], 0.0) == [] and story.why_idle([broken]) == ""


def outcome(waiting: float | None, *, compared: bool = True) -> Outcome:
    return Outcome("ann", "", compared, 1.0, waiting, None, 0.0, 0.0, 0, 0, 0)


def test_starts_within_a_minute_are_the_same() -> None:
    base = [outcome(600.0), outcome(600.0), outcome(600.0), outcome(None), outcome(5.0, compared=False)]
    then = [outcome(500.0), outcome(700.0), outcome(659.0), outcome(5.0), outcome(900.0, compared=False)]
    assert figures.compare_starts(then, base) == {"sooner": 1, "later": 1, "same": 1}
