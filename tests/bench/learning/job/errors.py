"""Prints the error of each predictor under each kind of load: medians and ranges of several seeds."""

import statistics

import numpy as np
from schedulearn_train.gru import MIN_VALUES, Gru
from schedulearn_train.predict import Blend, LastValue, Predictor, Smoothing

ITERATIONS, SEEDS = 600, 10
NOISE = 0.05
SHIFTS_EVERY, LARGEST_SHIFT = 60, 4.0
"""The average number of iterations from one level to the next, and the slowdown of the slowest level."""
PERIODS, SLOWER = (10, 30), 1.5


def stable(chance: np.random.Generator) -> np.ndarray:
    return np.zeros(ITERATIONS)


def shifting(chance: np.random.Generator) -> np.ndarray:
    """Return a load by other programs that come and go."""
    level, levels = 0.0, []
    for _ in range(ITERATIONS):
        if chance.random() < 1 / SHIFTS_EVERY:
            level = chance.uniform(0, np.log(LARGEST_SHIFT))
        levels.append(level)
    return np.array(levels)


def periodic(chance: np.random.Generator) -> np.ndarray:
    """Return a load by another program that works and pauses periodically."""
    period, phase = chance.integers(*PERIODS), chance.integers(PERIODS[1])
    return np.where((np.arange(ITERATIONS) + phase) % period < period / 2, np.log(SLOWER), 0.0)


def error(predictor: Predictor, trace: np.ndarray) -> float:
    wrong = []
    for at, value in enumerate(trace):
        meant = predictor.predict()
        if at > MIN_VALUES and meant is not None:
            wrong.append(abs(meant - value))
        predictor.observe(float(value))
    return float(np.mean(wrong))


def main() -> None:
    kinds = {
        "last value": lambda seed: LastValue(),
        "smoothing": lambda seed: Smoothing(),
        "GRU": Gru,
        "blend": lambda seed: Blend(Smoothing(), Gru(seed)),
    }
    print(f"| load | {' | '.join(kinds)} |\n|---|{'---:|' * len(kinds)}")
    for load in (stable, shifting, periodic):
        cells = []
        for make in kinds.values():
            found = []
            for seed in range(SEEDS):
                chance = np.random.default_rng(seed)
                found.append(error(make(seed), load(chance) + chance.normal(0, NOISE, ITERATIONS) - 6))
            cells.append(f"{statistics.median(found):.1%} ({min(found):.1%} to {max(found):.1%})")
        print(f"| {load.__name__} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
