"""``python -m tests.bench.resize``: changing the GPUs of a running job, against stopping and restarting it.

The training is that of ``live``: steps that are a sleep shared among the ranks, as if GPUs worked, and a checkpoint
after each. As an elastic job it grows when GPUs become free, and shrinks when another job comes. Otherwise it is put on
hold and released when there is room for another size. The *time lost* to a change is the time without a step, from the
decision until it trains on its new size, in addition to the usual length of steps.

All GPUs that are asked back, also those of jobs that ignore SIGTERM, show how soon they are free: in the rows of the
portal, and never before the engine has reported the end of the container.
"""

import argparse
import statistics
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.bench import live
from tests.bench.measure import Stamp, stamps_of, step_lengths
from tests.bench.rig import ENVIRONMENT, SLOTS, START_SECONDS, Rig, p95, rig, seconds
from tests.bench.targets import Target, verdict
from tests.system.product import wait_for

ROUNDS = 4
STUBBORN_ROUNDS = 3
MAX_SHARE_OF_RESTART = 0.5
MAX_PAUSE_SECONDS = 2.0
MAX_GIVE_BACK_SECONDS = 15.0
MIN_SAMPLES = 20
STEP_SECONDS = 0.4
"""Seconds of a step on one rank."""
SETTLED_STEPS = 5
"""The number of steps on the new size before the next change."""
STUBBORN = (
    "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('deaf', flush=True)\ntime.sleep(600)\n"
)
CLOCK_SECONDS = 0.05
"""Tolerance: the events of the engine and the rows of the portal use the same clock, but not the same instant."""


@dataclass(frozen=True, slots=True)
class HeldGpu:
    """One GPU that a job held."""

    job: int
    container: str
    since: float
    asked_back: float | None
    free: float | None

    @property
    def give_back(self) -> float | None:
        """Return the seconds from asking for the GPU to its release; None when it was not asked back."""
        return None if self.asked_back is None or self.free is None else self.free - self.asked_back


def pauses(stamps: Sequence[Stamp], after: float) -> list[float]:
    """Return the pauses after a moment in seconds, in addition to the usual length of a step: one for each time that
    training began again, or that a step took twice as long.

    ``stamps`` has other steps of each size, which give the usual length.
    """
    lengths: dict[int, list[float]] = defaultdict(list)
    for ranks, length in step_lengths(stamps):
        lengths[ranks].append(length)
    beyond: list[float] = []
    before, began_again = None, False
    for stamp in stamps:
        if stamp.begin:
            began_again = True
            continue
        usual = statistics.median(lengths[stamp.ranks])
        if before is not None and stamp.at > after and (began_again or stamp.at - before > 2 * usual):
            beyond.append(max(0.0, stamp.at - before - usual))
        before, began_again = stamp.at, False
    return beyond


@dataclass
class Pauses:
    """The pauses of each change, by the new number of ranks."""

    changes: dict[int, list[list[float]]] = field(default_factory=lambda: defaultdict(list))

    def totals(self, ranks: int) -> list[float]:
        return [sum(change) for change in self.changes[ranks]]

    def longest(self, ranks: int) -> float:
        return max((pause for change in self.changes[ranks] for pause in change), default=0.0)


class Training:
    """A job of ``live.DISTRIBUTED``."""

    def __init__(self, it: Rig, code: Mapping[str, int], elastic: bool) -> None:
        self.it = it
        self.elastic = elastic
        self.job = it.product.submit(
            dict(code), "elastic.py", launcher="horovod", environment=ENVIRONMENT, arguments=["100000", str(STEP_SECONDS)],
            max_gpus=SLOTS, elastic=elastic, resumable=True, time_limit_seconds=3600,
        )  # fmt: skip

    def stamps(self) -> list[Stamp]:
        return stamps_of(live.output_of(self.it.product, self.job))

    def wait_until_trains_on(self, ranks: int, after: float = 0.0) -> None:
        """Wait until it trains on ``ranks`` ranks."""

        def look() -> bool:
            steps = [stamp for stamp in self.stamps() if not stamp.begin and stamp.at > after]
            return len(steps) > SETTLED_STEPS and all(stamp.ranks == ranks for stamp in steps[-SETTLED_STEPS:])

        wait_for(f"steps on {ranks} ranks", look, START_SECONDS, every=0.5)

    def record_pauses(self, found: "Pauses", ranks: int, after: float) -> None:
        """Record the cost of the change that was decided at ``after``, once training has settled."""
        self.wait_until_trains_on(ranks, after)
        found.changes[ranks].append(pauses(self.stamps(), after))
        words = ", ".join(f"{pause:.2f}" for pause in found.changes[ranks][-1]) or "none"
        print(f"{'elastic' if self.elastic else 'restart'} to {ranks} ranks: pauses of {words} s", flush=True)

    def restart(self) -> float:
        """Restart the job; return the time of the decision."""
        at = time.time()
        self.it.product.post(f"jobs/{self.job}/hold/")
        wait_for("it is held", lambda: self.it.product.job_state(self.job) == "HELD", 60, every=0.02)
        self.it.product.post(f"jobs/{self.job}/release/")
        return at

    def cancel(self) -> None:
        self.it.product.post(f"jobs/{self.job}/cancel/")
        self.it.product.wait_for_job(self.job, "CANCELLED", seconds=60)


class Filler:
    """A job that holds one GPU, or waits for one."""

    def __init__(self, it: Rig, code: Mapping[str, int]) -> None:
        self.it = it
        self.job = it.product.submit(dict(code), "sleep 3600", environment=ENVIRONMENT)

    def leave(self) -> None:
        self.it.product.post(f"jobs/{self.job}/cancel/")
        self.it.product.wait_for_job(self.job, "CANCELLED", seconds=60)


def measure_resizes(it: Rig, code: Mapping[str, int], rounds: int) -> Pauses:
    training, found = Training(it, code, elastic=True), Pauses()
    training.wait_until_trains_on(SLOTS)
    for _ in range(rounds):
        at = time.time()
        filler = Filler(it, code)
        training.record_pauses(found, 1, at)
        at = time.time()
        filler.leave()
        training.record_pauses(found, SLOTS, at)
    training.cancel()
    return found


def measure_restarts(it: Rig, code: Mapping[str, int], rounds: int) -> Pauses:
    """Measure the same changes of a job that is not elastic."""
    training, found = Training(it, code, elastic=False), Pauses()
    training.wait_until_trains_on(SLOTS)
    for _ in range(rounds):
        filler = Filler(it, code)
        training.record_pauses(found, 1, training.restart())
        filler.leave()
        training.record_pauses(found, SLOTS, training.restart())
    training.cancel()
    return found


def hold_stubborn_jobs(it: Rig, code: Mapping[str, int], rounds: int) -> None:
    """Put jobs on hold that use up their grace period."""
    for _ in range(rounds):
        jobs = [it.product.submit(dict(code), "python deaf.py", environment=ENVIRONMENT) for _ in range(SLOTS)]
        for job in jobs:
            wait_for("it is deaf", lambda: b"deaf" in it.product.log(job), START_SECONDS)  # noqa: B023
        for job in jobs:
            it.product.post(f"jobs/{job}/hold/")
        for job in jobs:
            it.product.wait_for_job(job, "HELD", seconds=60)
            it.product.post(f"jobs/{job}/cancel/")


@contextmanager
def container_ends(it: Rig) -> Iterator[dict[str, float]]:
    """Yield the end times of containers by name, in Unix seconds, filled as the engine reports them."""
    seen: dict[str, float] = {}
    events: Any = it.client.events(decode=True, filters={"type": "container", "event": "die"})

    def follow() -> None:
        for event in events:
            name = event["Actor"]["Attributes"].get("sl.name")
            if name:
                seen[name] = event["timeNano"] / 1e9

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        events.close()
        thread.join(5)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.resize", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"there and back ({ROUNDS})")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    with rig("elastic_fifo", {"grow_after_seconds": 0}) as it, container_ends(it) as ended:
        code = it.product.upload("resize", elastic=live.DISTRIBUTED, deaf=STUBBORN)
        resized = measure_resizes(it, code, options.rounds)
        restarted = measure_restarts(it, code, options.rounds)
        hold_stubborn_jobs(it, code, STUBBORN_ROUNDS)
        held = [HeldGpu(*row) for row in it.rows("print_allocations")]
    targets = []
    for ranks, name in ((1, "2 -> 1"), (SLOTS, "1 -> 2")):
        here, there = resized.totals(ranks), restarted.totals(ranks)
        print(f"{name} ranks, time lost: {seconds(here)}; stopped and started again: {seconds(there)}")
        ratio = sum(here) / sum(there)
        targets.append(Target(f"{name}: time lost, of that of a restart", ratio, MAX_SHARE_OF_RESTART))
    targets.append(Target("survivors pause when shrinking", resized.longest(1), MAX_PAUSE_SECONDS, "s"))
    targets += release_targets(held, ended)
    return verdict(targets)


def release_targets(held: Sequence[HeldGpu], ended: Mapping[str, float]) -> list[Target]:
    back = [gpu.give_back for gpu in held if gpu.give_back is not None]
    early = [gpu.container for gpu in held if gpu.free and gpu.free < ended.get(gpu.container, 0.0) - CLOCK_SECONDS]
    unseen = [gpu.container for gpu in held if gpu.free and gpu.container not in ended]
    print(f"asked back -> free: {seconds(back)}")
    return [
        Target("GPUs asked back -> free, p95", p95(back), MAX_GIVE_BACK_SECONDS, "s"),
        Target("GPUs that were asked back", len(back), MIN_SAMPLES, at_least=True),
        Target("GPUs called free before their container had ended", len(early), 0),
        Target("GPUs for which the engine has not reported the end of the container", len(unseen), 0),
    ]


if __name__ == "__main__":
    sys.exit(main())
