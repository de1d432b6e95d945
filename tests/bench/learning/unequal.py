"""``python -m tests.bench.learning.unequal``: time to a target on unequal workers, mode by mode.

Four workers are containers with shares of a processor: equal ones, one at a quarter, and slow ones that change. Three
models learn on them, from several initial weights, each in every mode; the loss on held-out data is measured afterwards,
so it costs no time. Modes alternate, so that other load of the machine affects them equally. Rows are kept in a file:
``--resume`` continues where an interrupted run stopped. ``--plots`` writes plots.
"""

import argparse
import itertools
import json
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from runners.environments.preparing import cache_home
from tests.bench.learning import picture
from tests.bench.learning.workers import LOADS, FailedError, train, two_worker_groups
from tests.bench.targets import Target, verdict
from tests.run.packages import MissingError, Need, provide

MODES: Mapping[str, tuple[str, bool]] = {
    "bsp": ("bsp", False),
    "bsp_balanced": ("bsp_balanced", False),
    "adaptive_ksync": ("adaptive_ksync", False),
    "adaptive_ksync, balanced": ("adaptive_ksync", True),
    "asp": ("asp", False),
}
BALANCED = ("bsp_balanced", "adaptive_ksync, balanced")
OURS = (*BALANCED, "adaptive_ksync")
TARGETS = {"mlp": 0.22, "cnn": 0.15, "transformer": 2.5}
"""Target losses on held-out data, in nats: what BSP reaches after about two thirds of its epochs."""
SEEDS = 5
MIN_GAIN, MAX_LOSS, MAX_GAP = 1.5, 1.03, 0.1
Row = dict[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.learning.unequal", description=__doc__)
    parser.add_argument("--models", nargs="*", default=list(TARGETS), choices=list(TARGETS))
    parser.add_argument("--loads", nargs="*", default=list(LOADS), choices=list(LOADS))
    parser.add_argument("--modes", nargs="*", default=list(MODES), choices=list(MODES))
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--minutes", type=float, default=180, help="no run is begun after so long")
    parser.add_argument("--file", type=Path, default=cache_home() / "bench-unequal.json", help="where rows are kept")
    parser.add_argument("--resume", action="store_true", help="go on with what the file has")
    parser.add_argument("--plots", type=Path, help="a folder for pictures of the losses over time")
    given = parser.parse_args()
    rows: list[Row] = json.loads(given.file.read_text()) if given.resume and given.file.exists() else []
    left = measure(rows, runs_of(given), given.file, time.monotonic() + given.minutes * 60)
    print(tables(rows))
    if given.plots:
        picture.write(given.plots, rows, TARGETS)
    if left:
        print(f"{left} runs are left: go on with --resume.")
    return verdict(list(targets(rows))) or int(left > 0)


def runs_of(given: argparse.Namespace) -> Iterator[tuple[str, str, int, str]]:
    for seed in range(given.seeds):
        for model in given.models:
            for load in given.loads:
                for mode in given.modes:
                    yield model, load, seed, mode


def measure(rows: list[Row], runs: Iterator[tuple[str, str, int, str]], file: Path, until: float) -> int:
    """Add a row for each run; return how many runs are left."""
    known = {(row["model"], row["load"], row["seed"], row["mode"]) for row in rows}
    todo = [run for run in runs if run not in known]
    if not todo:
        return 0
    try:
        provide({Need.ENGINE})
    except MissingError as problem:
        raise SystemExit(f"The bench needs a Docker Engine: {problem}") from None
    with two_worker_groups() as pair:
        for count, (model, load, seed, mode) in enumerate(todo):
            if time.monotonic() > until:
                return len(todo) - count
            modes = (mode, "bsp") if load == "equal" else (mode,)
            ways = [MODES[each] for each in modes]
            orders = [{"name": model, "seed": seed, "mode": name, "balanced": balanced} for name, balanced in ways]
            turn = slice(None, None, -1 if seed % 2 else 1)  # the first one to start may be at a disadvantage
            try:
                found = train(pair[: len(modes)], load, orders[turn])[turn]
            except FailedError as error:
                raise SystemExit(f"{model}, {load}, {mode}: {error}") from error
            reached, *beside = (crossing(each["curve"], TARGETS[model]) for each in found)
            row = {"model": model, "load": load, "seed": seed, "mode": mode, "reached": reached, **found[0]}
            rows.append({**row, "beside": beside[0]} if beside else row)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(rows))
            outcome = "not reached" if reached is None else f"after {reached:.1f} s"
            print(f"{model:12} {load:15} seed {seed} {mode:25} target {outcome}, {row['seconds']:.1f} s", flush=True)
    return 0


def crossing(curve: Sequence[Sequence[float]], target: float) -> float | None:
    """Return when the loss reached the target, by linear interpolation between the two measurements around it."""
    for (before, high), (at, loss) in itertools.pairwise([(0.0, float("inf")), *curve]):
        if loss <= target:
            return at if high == float("inf") else before + (at - before) * (high - target) / (high - loss)
    return None


def select_rows(rows: Sequence[Row], model: str, load: str, mode: str) -> list[Row]:
    return [row for row in rows if (row["model"], row["load"], row["mode"]) == (model, load, mode)]


def seconds_to_target(rows: Sequence[Row]) -> float:
    """Return the median seconds; infinite where most runs never reached the target."""
    return statistics.median(row["reached"] if row["reached"] is not None else float("inf") for row in rows)


def time_ratio_to_bsp(rows: Sequence[Row]) -> float:
    """Return the time to the target over that of BSP in the same pair: the geometric mean of the pairs, of which every
    other one began with BSP. Infinite where one of them never reached it."""
    pairs = [(row["reached"], row["beside"]) for row in rows]
    if any(None in pair for pair in pairs):
        return float("inf")
    return statistics.geometric_mean(mine / bsp for mine, bsp in pairs)


def last_loss(row: Row) -> float:
    return float(row["curve"][-1][1])


def final_loss(rows: Sequence[Row]) -> float:
    return statistics.median(map(last_loss, rows))


def loss_ratio_to_asp(rows: Sequence[Row], asp: Sequence[Row]) -> float:
    """Return the final loss over that of ASP from the same initial weights, as the geometric mean.

    ASP's losses swing by a half from one look to the next: where one training, or the median of a few, happens to stop is luck.
    """
    ends = {row["seed"]: last_loss(row) for row in asp}
    return statistics.geometric_mean(last_loss(row) / ends[row["seed"]] for row in rows if row["seed"] in ends)


def computing_gap(row: Row) -> float:
    """Return how much longer the slowest worker computes in an iteration than the fastest, relative to the fastest."""
    computing = row["ranks"]["computing"]
    return float(max(computing) / max(1e-9, min(computing)) - 1)


def median_computing_gap(rows: Sequence[Row]) -> float:
    return statistics.median(map(computing_gap, rows))


def tables(rows: Sequence[Row]) -> str:
    """Return the tables of docs/training/measurements.md: the time to the target, the final losses with one slow worker, and the
    results of the same initial weights on equal workers."""
    head = " | ".join(MODES)
    lines = [f"| model | workers | {head} |", "|---|---|" + "---:|" * len(MODES)]
    for model in TARGETS:
        for load in LOADS:
            some = {mode: select_rows(rows, model, load, mode) for mode in MODES}
            if any(some.values()):
                cells = [duration(each, some["bsp"]) for each in some.values()]
                lines.append(f"| {model} | {load} | {' | '.join(cells)} |")
    lines += ["", f"| with one slow | {head} |", "|---|" + "---:|" * len(MODES)]
    for model in TARGETS:
        ends = [select_rows(rows, model, "one slow", mode) for mode in MODES]
        if any(ends):
            lines.append(
                f"| {model}: loss in the end | {' | '.join(f'{final_loss(some):.3f}' if some else '' for some in ends)} |"
            )
            gaps = (f"{median_computing_gap(some):+.0%}" if some else "" for some in ends)
            lines.append(f"| its longest computing over its shortest | {' | '.join(gaps)} |")
    lines += ["", f"| equal workers, time over that of BSP beside it | {head} |", "|---|" + "---:|" * len(MODES)]
    for model in TARGETS:
        ways = [select_rows(rows, model, "equal", mode) for mode in MODES]
        if any(ways):
            ratios = (f"{time_ratio_to_bsp(some):.3f}" if some else "" for some in ways)
            lines.append(f"| {model} | {' | '.join(ratios).replace('inf', 'never')} |")
    return "\n".join(lines)


def duration(some: Sequence[Row], bsp: Sequence[Row]) -> str:
    """Return the median seconds to the target, their range, and the speed-up over BSP, unless that trained in parallel."""
    if not some:
        return ""
    if (middle := seconds_to_target(some)) == float("inf"):
        return "never"
    times = sorted(row["reached"] if row["reached"] is not None else float("inf") for row in some)
    compared = bsp and bsp is not some and "beside" not in some[0]
    sooner = f", {seconds_to_target(bsp) / middle:.2f} times" if compared else ""
    return f"{middle:.1f} s ({times[0]:.1f} to {times[-1]:.1f}){sooner}".replace("inf", "never")


def targets(rows: Sequence[Row]) -> Iterator[Target]:
    for model in TARGETS:
        bsp = select_rows(rows, model, "one slow", "bsp")
        asp = select_rows(rows, model, "one slow", "asp")
        ours = {mode: select_rows(rows, model, "one slow", mode) for mode in OURS}
        measured = {mode: some for mode, some in ours.items() if some}
        if bsp and measured:
            best = min(measured, key=lambda mode: seconds_to_target(measured[mode]))
            gain = seconds_to_target(bsp) / seconds_to_target(measured[best])
            yield Target(
                f"{model}, one slow: BSP's time to the target over that of {best}", gain, MIN_GAIN, at_least=True
            )
            if asp:
                worst, minimum = max(map(last_loss, measured[best])), min(map(last_loss, asp))
                yield Target(
                    f"{model}, one slow: the worst loss of {best} in the end, beside ASP's best", worst, minimum
                )
        for mode, some in measured.items():
            if asp:
                worst = max(map(last_loss, some))
                yield Target(
                    f"{model}, one slow: the worst loss of {mode} in the end, beside ASP's",
                    worst,
                    final_loss(asp),
                )
                yield Target(
                    f"{model}, one slow: loss of {mode} in the end over ASP's", loss_ratio_to_asp(some, asp), 1.0
                )
        for mode in OURS:
            if some := select_rows(rows, model, "equal", mode):
                yield Target(
                    f"{model}, equal: time of {mode} to the target over BSP's", time_ratio_to_bsp(some), MAX_LOSS
                )
        for mode in BALANCED:
            if some := ours[mode]:
                yield Target(f"{model}, one slow: gap of iterations under {mode}", median_computing_gap(some), MAX_GAP)


if __name__ == "__main__":
    sys.exit(main())
