"""How the benches of unequal workers and of a burst read their rows."""

import math
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.bench.learning import burst, picture, unequal


def row(
    mode: str,
    reached: float | None,
    *,
    load: str = "one slow",
    seed: int = 0,
    last: float = 0.1,
    slow: float = 4.0,
    beside: float | None = None,
) -> dict[str, Any]:
    curve = [[0.5, 2.0], [reached or 1.0, 0.2], [9.0, last]]
    ranks = {"computing": [0.01, 0.01, 0.01, 0.01 * slow]}
    found = {
        "model": "mlp",
        "load": load,
        "seed": seed,
        "mode": mode,
        "reached": reached,
        "curve": curve,
        "ranks": ranks,
    }
    return {**found, "beside": beside} if load == "equal" else found


def test_a_mode_that_mostly_never_came_there_took_for_ever() -> None:
    assert unequal.seconds_to_target([row("asp", 3.0), row("asp", None), row("asp", None)]) == math.inf
    assert unequal.seconds_to_target([row("asp", 3.0), row("asp", None), row("asp", 4.0)]) == 4.0


def test_times_on_equal_workers_are_compared_with_those_of_bsp_beside_them() -> None:
    """So it does not matter that the machine was twice as slow in one of the pairs."""
    rows = [
        row("asp", was * ratio, load="equal", beside=was) for was, ratio in ((2.0, 1.0), (4.0, 1.05), (8.0, 1.1025))
    ]
    assert unequal.time_ratio_to_bsp(rows) == pytest.approx(1.05)
    assert unequal.time_ratio_to_bsp([*rows, row("asp", None, load="equal", beside=2.0)]) == math.inf
    assert unequal.time_ratio_to_bsp([*rows, row("asp", 2.0, load="equal", beside=None)]) == math.inf


def test_the_target_is_reached_between_the_two_measurements_around_it() -> None:
    curve = [[1.0, 2.0], [2.0, 1.0], [3.0, 0.5]]
    assert unequal.crossing(curve, 1.25) == 1.75
    assert unequal.crossing(curve, 2.5) == 1.0
    assert unequal.crossing(curve, 0.1) is None


def test_the_gap_is_how_much_longer_the_slowest_computes() -> None:
    assert unequal.computing_gap(row("bsp", 8.0)) == pytest.approx(3.0)


def test_each_target_is_held_to_what_was_measured() -> None:
    rows = [
        row("bsp", 8.0),
        row("bsp_balanced", 4.0, slow=1.05),
        row("adaptive_ksync", 6.0, last=0.3),
        row("adaptive_ksync, balanced", 5.0, slow=1.25),
        row("adaptive_ksync", 6.0, last=0.1, seed=1),
        *(row("asp", 3.0, last=last, seed=seed) for seed, last in enumerate((0.14, 0.15, 0.9))),
        row("adaptive_ksync", 2.1, load="equal", beside=2.0),
    ]
    held = {target.name: (round(target.value, 3), target.is_met) for target in unequal.targets(rows)}
    assert held == {
        "mlp, one slow: BSP's time to the target over that of bsp_balanced": (2.0, True),
        "mlp, one slow: the worst loss of bsp_balanced in the end, beside ASP's best": (0.1, True),
        "mlp, one slow: the worst loss of bsp_balanced in the end, beside ASP's": (0.1, True),
        "mlp, one slow: loss of bsp_balanced in the end over ASP's": (0.714, True),
        "mlp, one slow: the worst loss of adaptive_ksync in the end, beside ASP's": (0.3, False),
        "mlp, one slow: loss of adaptive_ksync in the end over ASP's": (1.195, False),
        "mlp, one slow: the worst loss of adaptive_ksync, balanced in the end, beside ASP's": (0.1, True),
        "mlp, one slow: loss of adaptive_ksync, balanced in the end over ASP's": (0.714, True),
        "mlp, equal: time of adaptive_ksync to the target over BSP's": (1.05, False),
        "mlp, one slow: gap of iterations under bsp_balanced": (0.05, True),
        "mlp, one slow: gap of iterations under adaptive_ksync, balanced": (0.25, False),
    }


def test_the_tables_have_a_cell_for_each_mode_with_its_ratio() -> None:
    rows = [
        row("bsp", 8.0),
        row("bsp_balanced", 4.0),
        row("bsp_balanced", 2.0),
        row("bsp_balanced", None),
        row("asp", None),
    ]
    equal = [row(mode, 2.2 if mode == "asp" else 2.0, load="equal", beside=2.0) for mode in unequal.MODES]
    both = unequal.tables([*rows, *equal]).splitlines()
    assert both[2] == f"| mlp | equal | {' | '.join(4 * ['2.0 s (2.0 to 2.0)'])} | 2.2 s (2.2 to 2.2) |"
    assert both[-1] == "| mlp | 1.000 | 1.000 | 1.000 | 1.000 | 1.100 |"
    lines = unequal.tables(rows).splitlines()
    assert lines[2:4] == [
        "| mlp | one slow | 8.0 s (8.0 to 8.0) | 4.0 s (2.0 to never), 2.00 times |  |  | never |",
        "",
    ]
    assert lines[6:-3] == [
        "| mlp: loss in the end | 0.100 | 0.100 |  |  | 0.100 |",
        "| its longest computing over its shortest | +300% | +300% |  |  | +300% |",
    ]


def test_the_picture_shows_what_most_had_reached_by_then() -> None:
    curves = [[(1.0, 2.0), (2.0, 1.0)], [(1.5, 4.0), (2.0, 3.0)], [(1.0, 6.0), (3.0, 5.0)]]
    assert picture.median_at(curves, 1.0) == 4.0
    assert picture.median_at(curves, 2.5) == 3.0
    drawn = ElementTree.fromstring(picture.losses("mlp < cnn", {"bsp": curves}, 0.5))
    assert sum(each.get("stroke") == "#0f766e" for each in drawn.iter()) == 2


def test_of_a_burst_jobs_are_counted_that_had_ended_half_way_through_the_baseline() -> None:
    slow, quick = burst.BurstResult((50.0, 95.0), 105.0, 3), burst.BurstResult((40.0, 41.0), 51.0, 4)
    rows = {"batch as asked": [slow], "batch chosen": [quick]}
    assert burst.half_time(rows) == 52.5
    assert (slow.done_within(52.5), quick.done_within(52.5)) == (1, 2)
    assert [(round(target.value, 3), target.is_met) for target in burst.targets(rows)] == [(0.559, True), (1.0, True)]
    other_way = {"batch as asked": [quick], "batch chosen": [slow]}
    assert [target.is_met for target in burst.targets(other_way)] == [False, True]  # none is done by then
    assert burst.table(rows).splitlines()[2:] == [
        "| batch as asked | 72 s (72 to 72) | 105 s (105 to 105) | 1 (1 to 1) | 3 (3 to 3) |",
        "| batch chosen | 40 s (40 to 40) | 51 s (51 to 51) | 2 (2 to 2) | 4 (4 to 4) |",
    ]
