"""``make bench-live``: the same half hour in the real product and in the simulator, under the same policies.

Some twenty small jobs are submitted within half an hour, drawn from a seed: plain commands, and real elastic Horovod jobs
whose step is a sleep shared among the ranks, so that two processors suffice and the speed curve is known. The product runs
them in real containers. From its database and the logs of the jobs, ``measure`` computes the mean durations of starts,
ends, steps and changes. The simulator gets these means and the jobs as they were submitted, and the results are compared:
mean turnaround and makespan must agree within a tenth. The policies run at the same time, each in its own product.
"""

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from scheduling import registry, wire
from scheduling.simulate import Result, simulate
from scheduling.types import Node
from tests import engine
from tests.bench import measure
from tests.bench.measure import Costs, Figures, HeldGpu, JobHistory, Work
from tests.run.packages import MissingError, Need, provide
from tests.system.product import Product, running, wait_for

SEED = 20251121
SLOTS = 6
MAX_DEVIATION = 0.10
ENDED = ("SUCCEEDED", "FAILED", "CANCELLED")
PAST_EXTRA_SECONDS = 20.0
"""The time of earlier runs of these programs in addition to their steps, as in the history of a lab."""
POLICIES: Mapping[str, Mapping[str, Any]] = {"fifo": {"strict": False}, "elastic_fifo": {}, "srjf": {}}
DEFAULT = ("fifo", "elastic_fifo")
PLAIN = """
import os, pathlib, sys, time

steps, seconds = int(sys.argv[1]), float(sys.argv[2])
kept = pathlib.Path(os.environ["SCHEDULEARN_CHECKPOINTS"]) / "step"
step = int(kept.read_text()) if kept.exists() else 0
print(f"begin on 1 at {time.time():.3f}", flush=True)
while step < steps:
    time.sleep(seconds)
    step += 1
    kept.with_suffix(".new").write_text(str(step))
    kept.with_suffix(".new").replace(kept)
    print(f"step {step} on 1 at {time.time():.3f}", flush=True)
"""
DISTRIBUTED = """
import os, pathlib, sys, time

os.environ["HOROVOD_CYCLE_TIME"] = "20"  # milliseconds between looks, not 1: a rank that waits leaves the processor alone

import horovod.torch as hvd
import torch

steps, seconds = int(sys.argv[1]), float(sys.argv[2])
kept = pathlib.Path(os.environ["SCHEDULEARN_CHECKPOINTS"]) / "step"
hvd.init()


def stamp(what):
    if hvd.rank() == 0:
        print(f"{what} on {hvd.size()} at {time.time():.3f}", flush=True)


@hvd.elastic.run
def train(state):
    stamp("begin")
    while state.step < steps:
        time.sleep(seconds / hvd.size())
        hvd.allreduce(torch.ones(8), name="gradient")
        state.step += 1
        if hvd.rank() == 0:
            kept.with_suffix(".new").write_text(str(state.step))
            kept.with_suffix(".new").replace(kept)
        stamp(f"step {state.step}")
        state.commit()


train(hvd.elastic.TorchState(step=int(kept.read_text()) if kept.exists() else 0))
"""


@dataclass(frozen=True, slots=True)
class TraceJob:
    """A job of the trace."""

    at: float
    work: Work
    min_gpus: int
    max_gpus: int

    @property
    def spec(self) -> dict[str, Any]:
        numbers = [str(self.work.steps), f"{self.work.step_seconds:g}"]
        usual = {"min_gpus": self.min_gpus, "max_gpus": self.max_gpus, "resumable": True, "time_limit_seconds": 7200}
        if not self.work.distributed:
            return {
                **usual,
                "launcher": "command",
                "environment": "python",
                "entry": f"python plain.py {' '.join(numbers)}",
            }
        horovod = {"launcher": "horovod", "environment": "pytorch-horovod", "entry": "elastic.py", "arguments": numbers}
        return {**usual, **horovod, "elastic": True}


def trace(minutes: float, seed: int = SEED) -> list[TraceJob]:
    """Return jobs for about ``minutes`` minutes of ``SLOTS`` slots; shorter jobs where the time is short."""
    rng = random.Random(seed)  # noqa: S311
    count = max(6, round(26 * minutes / 30))
    shorter = min(1.0, max(0.35, minutes / 30))
    ats = sorted(rng.uniform(0, 60 * minutes * 0.85) for _ in range(count - 2))
    jobs = []
    for number, at in enumerate([0.0, 5.0, *ats]):
        if number % 5 in (1, 3):
            length = rng.uniform(50, 180) * shorter
            jobs.append(TraceJob(at, Work(round(length), 1.0, distributed=False), 1, 1))
        else:
            length, minimum = rng.uniform(250, 750) * shorter, rng.choice((1, 1, 2))
            maximum = rng.choice((2, 3, 4, 6))
            step = rng.choice((1.5, 2.0, 3.0))
            jobs.append(
                TraceJob(at, Work(round(length / step), step, distributed=True), minimum, max(minimum, maximum))
            )
    return jobs


@dataclass(frozen=True)
class LiveComparison:
    """The run of one policy, and its simulation."""

    policy: str
    lived: Sequence[JobHistory]
    costs: Costs
    result: Result

    @property
    def figures(self) -> tuple[Figures, Figures]:
        live = Figures.of((job.job.submitted_at, job.ended) for job in self.lived)
        return live, Figures.of((job.submitted_at, job.ended_at or float("inf")) for job in self.result.jobs)

    @property
    def errors(self) -> tuple[float, float]:
        """The relative errors of mean turnaround and makespan."""
        live, simulated = self.figures
        return measure.relative_error(simulated.turnaround, live.turnaround), measure.relative_error(
            simulated.makespan, live.makespan
        )

    @property
    def is_within_deviation(self) -> bool:
        return all(abs(error) <= MAX_DEVIATION for error in self.errors)

    def report(self) -> str:
        lines = [f"\n{self.policy}", *(f"  {line}" for line in self.costs.lines())]
        lines += [f"  changes that were never felt: {self.costs.unmatched}"]
        lines += [f"  attempts that ended before their first step: {self.costs.failed_starts}", ""]
        lines += ["| job | kind | ranks | work s | submitted s | live s | simulated s | off |"]
        lines += ["|----:|------|------:|-------:|------------:|-------:|------------:|----:|"]
        simulated = {job.id: job for job in self.result.jobs}
        began = min(job.job.submitted_at for job in self.lived)
        for lived in sorted(self.lived, key=lambda lived: lived.job.submitted_at):
            job, work, took = lived.job, lived.work, simulated[lived.job.id].turnaround or float("inf")
            ranks = f"{job.min_gpus} to {job.max_gpus}" if work.distributed else "1"
            columns = [
                job.id,
                "Horovod" if work.distributed else "plain",
                ranks,
                f"{work.steps * work.step_seconds:.0f}",
            ]
            columns += [f"{job.submitted_at - began:.0f}", f"{lived.turnaround:.0f}", f"{took:.0f}"]
            lines.append(f"| {' | '.join(columns)} | {measure.relative_error(took, lived.turnaround):+.0%} |")
        (live, here), errors = self.figures, self.errors
        single = [
            abs(measure.relative_error(simulated[job.job.id].turnaround or 0.0, job.turnaround)) for job in self.lived
        ]
        resizes = sum(len({round(gpu.since) for gpu in held}) - 1 for job in self.lived for held in job.attempts)
        stops = sum(len(job.attempts) - 1 for job in self.lived) - self.costs.failed_starts
        lines += [
            "",
            f"  mean turnaround: live {live.turnaround:.1f} s, simulated {here.turnaround:.1f} s, off {errors[0]:+.1%}",
            f"  makespan: live {live.makespan:.1f} s, simulated {here.makespan:.1f} s, off {errors[1]:+.1%}",
            f"  single jobs are off by {sum(single) / len(single):.1%} on average, {max(single):.1%} at most",
            f"  live {resizes} times grown and {stops} stops; simulated {self.result.summary().resizes} resizes and "
            f"{self.result.summary().preemptions} stops",
        ]
        return "\n".join(lines)


def main() -> int:
    options = arguments().parse_args()
    if options.again:
        happened = {key: json.loads((options.again / f"{key}.json").read_text()) for key in options.policy or DEFAULT}
    else:
        try:
            provide({Need.ENGINE})
        except MissingError as problem:
            print(f"The bench needs a Docker Engine: {problem}")
            return 1
        happened = run_all_live(options.policy or DEFAULT, options.minutes, options.keep)
    compared = [compare(key, read_histories(content)) for key, content in happened.items()]
    for each in compared:
        print(each.report(), flush=True)
    if wrong := [each.policy for each in compared if not each.is_within_deviation]:
        print(f"\nThe simulator is off by more than {MAX_DEVIATION:.0%} under {' and '.join(wrong)}.")
        return 1
    print(f"\nThe simulator is within {MAX_DEVIATION:.0%} of the product under {' and '.join(happened)}.")
    return 0


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.live", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0, help="of the trace (30); less to try it out")
    parser.add_argument("--policy", action="append", choices=list(POLICIES), help="may be repeated (the first two)")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="write down what happened, to compare it again")
    parser.add_argument("--again", type=Path, metavar="FOLDER", help="run nothing: compare what was kept there")
    return parser


def run_all_live(wanted: Sequence[str], minutes: float, keep: Path | None) -> dict[str, dict[str, Any]]:
    """Run the trace under each policy, all at the same time."""
    with engine.docker_engine(), tempfile.TemporaryDirectory(prefix="sl-live-") as folder:
        for key in ("python", "pytorch-horovod"):
            engine.job_environment_image(key)
        jobs = trace(minutes)
        work = sum(job.work.steps * job.work.step_seconds for job in jobs)
        print(f"{len(jobs)} jobs in {minutes:g} minutes on {SLOTS} slots, {work:.0f} s of work", flush=True)

        def run(number: int, key: str) -> dict[str, Any]:
            happened = run_live(key, jobs, Path(folder) / key, number)
            if keep:
                keep.mkdir(parents=True, exist_ok=True)
                (keep / f"{key}.json").write_text(json.dumps(happened))
            return happened

        with ThreadPoolExecutor(len(wanted)) as pool:
            return dict(zip(wanted, pool.map(run, range(len(wanted)), wanted), strict=True))


def run_live(policy: str, jobs: Sequence[TraceJob], home: Path, number: int) -> dict[str, Any]:
    """Run the trace in a separate product (with its own ``number``), from the first submission to the last end.

    Return its rows and the logs of the jobs, for ``read_histories``.
    """
    home.mkdir()
    product = Product.make(
        home,
        "docker",
        SCHEDULEARN_BASE_IMAGE=engine.base_image(),
        SCHEDULEARN_CPU_SLOTS=str(SLOTS),
        NODE_NAME=policy,
        RING_NETWORK=f"10.{192 + 4 * number}.0.0/14",  # the products share one engine
    )
    with running(product):
        product.start_all()
        for key in ("python", "pytorch-horovod"):
            product.wait_for_environment(key)
        answer = product.api("PUT", "policy/", json={"policy": policy, "params": POLICIES[policy]})
        assert answer.status_code == 200, answer.text
        code = product.upload("live", plain=PLAIN, elastic=DISTRIBUTED)
        past = [(job.spec, job.work.steps * job.work.step_seconds + PAST_EXTRA_SECONDS) for job in jobs]
        product.kill("scheduler")  # it has read the past already, and reads only what comes after
        product.shell(f"from tests.bench import live_rows; live_rows.write_past({code['project']}, {past!r})")
        product.start("scheduler")
        numbers = {}
        began = time.time()
        for job in jobs:
            time.sleep(max(0.0, began + job.at - time.time()))
            numbers[product.submit(code, "", **job.spec)] = job.work
        for number in numbers:
            wait_for(f"job {number} is over", lambda: product.job_state(number) in ENDED, 3600, every=2.0)  # noqa: B023
            assert product.job_state(number) == "SUCCEEDED", output_of(product, number)[-2000:]
        texts = {str(job): log_of(product, job, work.steps) for job, work in numbers.items()}
        facts = product.shell("from tests.bench import live_rows; live_rows.print_facts()")
    works = {str(job): asdict(work) for job, work in numbers.items()}
    return {"rows": json.loads(facts.splitlines()[-1]), "works": works, "texts": texts}


def output_of(product: Product, job: int) -> str:
    """Return all streams of a job, one after the other."""
    streams = [stream["id"] for stream in product.get(f"jobs/{job}/streams/")]
    return "".join(product.api("GET", f"jobs/{job}/log/", params={"stream": each}).text for each in streams)


def log_of(product: Product, job: int, steps: int) -> str:
    """Return the log with the last step: the end of a log arrives a moment after the end of the job."""
    last = f"step {steps} on"
    return str(
        wait_for(f"the log of job {job} is complete", lambda: last in (text := output_of(product, job)) and text, 60)
    )


def read_histories(happened: Mapping[str, Any]) -> list[JobHistory]:
    rows, works, texts = happened["rows"], happened["works"], happened["texts"]
    seen = {number: wire.snapshot_from_json(row["first"]) for number, row in rows.items()}
    return [
        JobHistory(
            job=first.jobs[0],
            work=Work(**{"distributed" if name == "ring" else name: value for name, value in works[number].items()}),
            ended=row["ended"],
            first_cycle_at=first.now,
            attempts=[[HeldGpu(*gpu) for gpu in attempt] for attempt in row["attempts"]],
            stamps=measure.stamps_of(texts[number]),
        )
        for number, row in rows.items()
        for first in [seen[number]]
    ]


def compare(policy: str, lived: Sequence[JobHistory]) -> LiveComparison:
    costs = measure.measure_costs(lived)
    (place,) = {node for job in lived for node in job.job.nodes or ()}
    result = simulate(
        registry.build(policy, dict(POLICIES[policy])),
        [Node(place, place, SLOTS, SLOTS)],
        [measure.submission_of(job, costs) for job in lived],
        now=min(job.job.submitted_at for job in lived),
        options=measure.options_from(costs),
    )
    return LiveComparison(policy, lived, costs, result)


if __name__ == "__main__":
    sys.exit(main())
