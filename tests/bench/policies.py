"""``make bench-policies DATA=FOLDER``: all policies on the workloads of the references, with the reference results.

FOLDER has ``pollux/workloads``, ``pollux/profiles`` and ``pollux/expected``. Each simulation uses rounds of 60 seconds,
like the references. Policies know speeds learnt online where the batch is free, and true ones where it is fixed; those that
use job lengths know them, and are marked. Decision times are of this machine.

1. A month of 200 users under ``fair_share``, while nothing else runs.
2. Every policy of the registry with its defaults, and some with other parameters, on tuned-6, with the references.
3. The same at equal knowledge: every policy knows nothing, then speeds, then also job lengths.
4. The mean on the other workloads, and the ratio to Tiresias on the same.
5. FfDL against its own baseline (the same program, batches fixed) on bursts of jobs whose batch is free.
6. The targets of all these; validation: per job against the expected turnarounds.

Ends with 1 when a target is missed, or a simulation failed.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scheduling import registry
from scheduling.simulate import Options, accounts_of, compare, plot, simulate, traces
from scheduling.simulate.loads import bursts, month
from tests.bench.targets import Target, verdict

CLUSTER = "16x4"
ROUND = 60.0
MODES = ("rigid", "fixed", "free")
TIRESIAS = {"threshold": 57_600.0, "knob": 0.0, "rank": "arrival"}
"""As in the reference: two queues, 16 GPU-hours, no promotion."""
DRAWN = 8
"""The largest number of lines in one plot that can be distinguished."""
KNOWS = {
    "none": "nothing", "speed": "speeds", "learnt": "speeds, learnt", "oracle": "job lengths",
    "declared": "job lengths, speeds learnt",
}  # fmt: skip
"""The knowledge of a policy, as in tables. Of the references, only those called oracle knew job lengths."""
EQUAL = ("none", "speed", "oracle")
SLOW = ("ones",)
"""Policies that take twenty minutes for each kind of knowledge, and use progress instead."""

ANCHORS = (
    # policy, mode, mean, p50, p99, makespan h, utilisation, GPU-h, restarts per job, decision ms p50 / p99
    ("FIFO strict", "rigid", "15,154", "8,323", "47,702", "22.9", "78%", "1,137", "0", "0.04 / 0.12"),
    ("FIFO skipping", "rigid", "6,262", "1,680", "37,692", "23.1", "78%", "1,148", "0", "0.04 / 0.22"),
    ("time slices, 10 min", "rigid", "5,143", "1,308", "54,491", "22.0", "85%", "1,194", "3.0", "0.06 / 0.20"),
    ("Tiresias", "rigid", "3,470", "1,248", "46,336", "21.8", "82%", "1,140", "0.27", "0.05 / 0.19"),
    ("SRTF, oracle", "rigid", "2,855", "912", "45,396", "22.2", "80%", "1,140", "0.33", "0.10 / 1.7"),
    ("Optimus + oracle", "fixed", "5,302", "2,494", "44,771", "18.4", "96%", "1,127", "5.4", "0.99 / 6.9"),
    ("elastic FIFO, to the asked", "fixed", "5,359", "3,145", "37,670", "18.6", "92%", "1,090", "1.3", "0.09 / 5.6"),
    ("elastic FIFO, to the most", "fixed", "7,719", "4,744", "43,602", "23.2", "100%", "1,476", "1.4", "0.09 / 4.3"),
    ("equal share", "fixed", "3,555", "1,143", "49,084", "19.7", "99%", "1,250", "4.1", "0.11 / 1.6"),
    ("DP on speed-ups", "fixed", "3,762", "952", "37,100", "17.8", "98%", "1,116", "2.7", "1.4 / 18"),
    ("elastic SRJF", "fixed", "2,814", "912", "46,146", "19.4", "90%", "1,115", "2.5", "0.20 / 3.6"),
    ("equal share", "free", "2,883", "1,132", "39,448", "17.0", "99%", "1,074", "6.8", "0.15 / 0.32"),
    ("DP on goodput speed-ups", "free", "2,799", "1,284", "37,018", "17.1", "98%", "1,075", "8.3", "88 / 209"),
    ("Pollux", "free", "2,457", "986", "36,830", "16.3", "97%", "1,017", "4.2", "1,716 / 3,728"),
)  # fmt: skip
VARIANTS: tuple[tuple[str, dict[str, Any], str, str], ...] = (
    # policy, parameters, mode, what it knows
    ("goodput", {}, "free", "declared"),
    ("srjf", {"elastic": False}, "fixed", "oracle"),
    ("tiresias", {"elastic": True}, "fixed", "speed"),
    ("tiresias", {"elastic": True}, "free", "learnt"),
    ("tiresias", {"rank": "gittins"}, "rigid", "speed"),
    ("tiresias", {"rank": "gittins"}, "fixed", "speed"),
    ("tiresias", {"rank": "gittins"}, "free", "learnt"),
    ("tiresias", {"rank": "gittins", "elastic": True}, "fixed", "speed"),
    ("tiresias", {"rank": "gittins", "elastic": True}, "free", "learnt"),
)
"""Runs on tuned-6 in addition to the defaults. Resizing changes nothing where jobs are rigid."""
MAX_MEAN_SECONDS = (
    # policy, mode, knowledge, workload, the highest acceptable mean in seconds
    ("goodput", "free", "learnt", "tuned-6", 2_300),
    ("goodput", "free", "declared", "tuned-6", 2_100),
    ("goodput", "free", "learnt", "realistic-6", 2_446),
    ("ffdl", "fixed", "speed", "tuned-6", 3_762),
    ("ffdl", "free", "learnt", "tuned-6", 2_700),
    ("srjf", "fixed", "oracle", "tuned-6", 2_750),
    ("elastic_fifo", "fixed", "speed", "tuned-6", 5_359),
    ("fair_share", "fixed", "speed", "tuned-6", 3_555),
    ("fair_share", "free", "learnt", "tuned-6", 2_883),
    ("pdors", "fixed", "oracle", "tuned-6", 6_262 / 1.8),
)
MONTH_SECONDS = 20.0
COLUMNS = (
    "policy", "mode", "knows", "mean s", "p50", "p99", "makespan h", "util", "useful", "GPU-h", "restarts/job",
    "rho mean", "rho worst", "rho > 1.25", "decision ms p50 / p99",
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    policy: str
    params: tuple[tuple[str, Any], ...]
    mode: str
    knowledge: str
    workload: str

    @property
    def name(self) -> str:
        """The policy with its parameters; for FfDL always with ``favour_short``, which the paper does not have."""
        params = dict(self.params)
        if self.policy == "ffdl":
            params.setdefault("favour_short", registry.complete("ffdl", {})["favour_short"])
        return " ".join([self.policy, *(f"{name}={value}" for name, value in params.items())])

    @property
    def is_default(self) -> bool:
        """Whether the policy has its defaults and its usual knowledge."""
        return not self.params and self.knowledge == default_knowledge(self.policy, self.mode)


@dataclass(frozen=True)
class CaseResult:
    case: Case
    turnaround: dict[str, float]
    figures: tuple[str, ...]
    mean: float
    seconds: float


def run(case: Case, data: Path) -> CaseResult:
    began = time.perf_counter()
    pollux = data / "pollux"
    nodes = compare.parse_cluster(CLUSTER)
    submissions = traces.read(
        pollux / "workloads" / f"{case.workload}.csv", pollux / "profiles", case.mode,  # type: ignore[arg-type]
        knowledge=case.knowledge, whole_seconds=True,  # type: ignore[arg-type]
    )  # fmt: skip
    placing = compare.REFERENCE_PLACEMENT.get(case.policy, "own")
    result = simulate(
        registry.build(case.policy, dict(case.params)), nodes, submissions, accounts=accounts_of(submissions),
        options=Options(round_seconds=ROUND, placement=placing), clock=time.perf_counter,
    )  # fmt: skip
    summary = result.summary()
    took = {job.id: job.turnaround for job in result.jobs if job.turnaround is not None}
    if len(took) < len(result.jobs):
        print(f"{case.name} ({case.mode}) left {len(result.jobs) - len(took)} jobs unfinished", file=sys.stderr)
    figures = (
        f"{summary.turnaround.mean:,.0f}", f"{summary.turnaround.p50:,.0f}", f"{summary.turnaround.p99:,.0f}",
        f"{summary.makespan / 3600:.1f}", f"{summary.utilisation:.0%}", f"{summary.useful_utilisation:.0%}",
        f"{summary.gpu_hours:,.0f}", f"{summary.restarts:.2f}", f"{summary.fairness.mean:.2f}",
        f"{summary.fairness.most:.2f}", f"{summary.unfair:.0%}",
        f"{summary.decision_ms.p50:.2f} / {summary.decision_ms.p99:.2f}",
    )  # fmt: skip
    return CaseResult(case, took, figures, summary.turnaround.mean, time.perf_counter() - began)


def validation_files() -> dict[Case, str]:
    """Return, by case, the file of the expected turnarounds."""
    tuned = "tuned-6"
    return {
        Case("fifo", (("strict", True),), "rigid", "none", tuned): "tuned-6.fifo-rigid.json",
        Case("fifo", (("strict", False),), "rigid", "none", tuned): "tuned-6.fifo-backfill-rigid.json",
        Case("tiresias", tuple(TIRESIAS.items()), "rigid", "none", tuned): "tuned-6.tiresias.json",
    }


def default_knowledge(policy: str, mode: str) -> str:
    if registry.describe(policy).knows == "job lengths":
        return "declared" if mode == "free" else "oracle"
    return "learnt" if mode == "free" else "speed"


def cases(workload: str, keys: Sequence[str]) -> Iterator[Case]:
    """Yield the cases with rigid jobs and with elastic ones, which even policies without resizing must handle."""
    for key in keys:
        for mode in MODES:
            yield Case(key, (), mode, default_knowledge(key, mode), workload)


def equal_cases(keys: Sequence[str]) -> list[Case]:
    return [Case(key, (), "fixed", knowledge, "tuned-6") for key in keys if key not in SLOW for knowledge in EQUAL]


def only_equal(keys: Sequence[str]) -> set[Case]:
    """Return the cases that are only in the table of equal knowledge."""
    return {case for case in equal_cases(keys) if not case.is_default}


def equal_knowledge_table(done: dict[Case, CaseResult], keys: Sequence[str]) -> tuple[list[list[str]], list[str]]:
    """Return a row for each policy and a column for each kind of knowledge, sorted by the mean with known speeds."""
    cases = {(case.policy, case.knowledge): done.get(case) for case in equal_cases(keys)}
    rows = []
    for key in {policy for policy, _ in cases}:
        found = [cases[key, knowledge] for knowledge in EQUAL]
        name = Case(key, (), "fixed", "speed", "tuned-6").name
        rows.append([name, *("" if one is None else f"{one.mean:,.0f}" for one in found)])
    rows.sort(key=lambda row: (not row[2], float(row[2].replace(",", "") or 0), row[0]))
    return rows, ["policy", *(f"knows: {KNOWS[knowledge]}" for knowledge in EQUAL)]


def turnaround_target(done: CaseResult, expected: Path) -> Target:
    """Return the number of jobs that ended at another second than expected, as a target."""
    theirs = json.loads(expected.read_text())["jct_s"]
    off = sum(abs(done.turnaround.get(job, 1e9) - seconds) > 1.0 for job, seconds in theirs.items())
    return Target(f"{done.case.name}: jobs of {len(theirs)} off by more than 1 s", off, 0)


def mean_targets(done: Iterable[CaseResult]) -> Iterator[Target]:
    """Yield the targets for the means of the workloads that were run."""
    mean = {
        (one.case.policy, one.case.mode, one.case.knowledge, one.case.workload): one.mean
        for one in done
        if not one.case.params
    }
    for policy, mode, knowledge, workload, maximum in MAX_MEAN_SECONDS:
        found = mean.get((policy, mode, knowledge, workload))
        if found is not None:
            yield Target(f"{policy}, {mode}, {knowledge}, on {workload}: mean", round(found), round(maximum), "s")


def bench_month(jobs: int = 20_000) -> Target:
    submissions = month(jobs=jobs, gpus=64)
    accounts = accounts_of(submissions)
    began, busy = time.perf_counter(), time.process_time()
    result = simulate(
        registry.build("fair_share", {}), compare.parse_cluster(CLUSTER), submissions, accounts=accounts,
        options=Options(window_seconds=ROUND),
    )  # fmt: skip
    wall, cpu = time.perf_counter() - began, time.process_time() - busy
    print(
        f"30 days, 200 users, {jobs:,} jobs on 64 GPUs under fair_share: {wall:.1f} s ({cpu:.1f} s of processor, "
        f"{result.turns:,} decisions, what happens within a minute decided together)"
    )
    return Target("the month simulated", wall, MONTH_SECONDS, "s")


def bench_bursts(loads: Sequence[tuple[int, int]] = ((12, 30), (12, 36), (4, 60))) -> str:
    rows = []
    for waves, minutes in loads:
        ours = (0, 0.0)
        for batch in ("chosen", "least", "drawn", "most"):
            submissions = bursts(batch=batch, waves=waves, minutes=minutes)
            result = simulate(
                registry.build("ffdl", {"batch": "chosen" if batch == "chosen" else "asked"}),
                compare.parse_cluster("8x4"), submissions, accounts=accounts_of(submissions),
                options=Options(round_seconds=ROUND),
            )  # fmt: skip
            until = waves * 3600.0
            done = sum(job.ended_at is not None and job.ended_at <= until for job in result.jobs)
            mean = result.summary().turnaround.mean
            ours = (done, mean) if batch == "chosen" else ours
            favour = registry.complete("ffdl", {})["favour_short"]
            name = f"FfDL, favour_short {favour}" if batch == "chosen" else f"baseline, {batch} batch"
            times = (f"{ours[0] / done:.2f}", f"{mean:,.0f}", f"{mean / ours[1]:.2f}")
            rows.append([str(waves), str(minutes), name, f"{done} of {len(result.jobs)}", *times])
    columns = ("waves", "minutes", "policy", "done", "FfDL does times", "mean s", "times FfDL's")
    return compare.table(rows, columns)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="All policies on the anchors' workloads, side by side.")
    parser.add_argument(
        "--data", type=Path, required=True, help="The folder with pollux/workloads, /profiles, /expected."
    )
    parser.add_argument("--policies", nargs="*", default=list(registry.POLICIES), help="Only these.")
    parser.add_argument("--others", nargs="*", default=["realistic-6", "half-load-6"], help="Further workloads.")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--plots", type=Path, help="Draw the turnarounds on tuned-6 into this folder, as SVG.")
    parser.add_argument("--no-month", action="store_true", help="Leave the month of 200 users out.")
    parser.add_argument("--no-bursts", action="store_true", help="Leave FfDL's bursts out.")
    given = parser.parse_args(arguments)
    if not (given.data / "pollux" / "workloads").is_dir():
        parser.error(f"{given.data} has no pollux/workloads")
    targets = [] if given.no_month else [bench_month()]
    checks = validation_files()
    todo = [*checks, *(case for workload in ("tuned-6", *given.others) for case in cases(workload, given.policies))]
    todo += [
        Case(key, tuple(params.items()), mode, knowledge, "tuned-6")
        for key, params, mode, knowledge in VARIANTS
        if key in given.policies
    ]
    todo += [case for case in equal_cases(given.policies) if case not in todo]
    done = measure(todo, given.data, given.processes)
    targets += [Target("simulations that failed", len(todo) - len(done), 0)]
    targets += [
        turnaround_target(done[case], given.data / "pollux" / "expected" / file)
        for case, file in checks.items()
        if case in done
    ]
    targets += mean_targets(done.values())
    print("\nOn tuned-6\n")
    rows = [
        [name, mode, "", *figures[:5], "", *figures[5:7], "", "", "", figures[7]] for name, mode, *figures in ANCHORS
    ]
    rows = [[f"*{row[0]}*", *row[1:]] for row in rows]
    ours = [one for case, one in done.items() if case.workload == "tuned-6" and case not in only_equal(given.policies)]
    rows += [[one.case.name, one.case.mode, KNOWS[one.case.knowledge], *one.figures] for one in ours]
    print(compare.table(sorted(rows, key=lambda row: (MODES.index(row[1]), float(row[3].replace(",", "")))), COLUMNS))
    print("\nOn tuned-6 with a fixed batch, at equal knowledge: mean turnaround in seconds\n")
    print(compare.table(*equal_knowledge_table(done, given.policies)))
    if given.others:
        print("\nMean turnaround, and its ratio to Tiresias on the same workload\n")
        print(compare.table(*other_workloads_table(done, ("tuned-6", *given.others))))
    if given.plots:
        draw(ours, given.plots)
    if not given.no_bursts:
        print(f"\nBursts of jobs whose batch is free, on 8 nodes with 4 GPUs\n\n{bench_bursts()}")
    print()
    return verdict(targets)


def measure(todo: Sequence[Case], data: Path, processes: int) -> dict[Case, CaseResult]:
    """Run the cases in parallel and print each; those that fail are left out."""
    done: dict[Case, CaseResult] = {}
    with ProcessPoolExecutor(processes) as pool:
        waiting = {pool.submit(run, case, data): case for case in todo}
        for number, future in enumerate(as_completed(waiting), start=1):
            case = waiting[future]
            what = f"[{number}/{len(todo)}] {case.name} ({case.mode}, {case.workload})"
            try:
                one = done[case] = future.result()
            except Exception as error:
                print(f"{what} FAILED: {error}", file=sys.stderr)
                continue
            print(f"{what}: {one.mean:,.0f} s, took {one.seconds:.0f} s", file=sys.stderr)
    return done


def draw(ours: Sequence[CaseResult], folder: Path) -> None:
    """Draw a plot for each mode, of the policies with the shortest mean."""
    folder.mkdir(parents=True, exist_ok=True)
    for mode in MODES:
        best = sorted((one for one in ours if one.case.mode == mode and one.case.is_default), key=lambda one: one.mean)
        took = {one.case.policy: list(one.turnaround.values()) for one in best[:DRAWN]}
        (folder / f"tuned-6-{mode}.svg").write_text(plot.turnarounds(f"tuned-6 on 16 nodes with 4 GPUs, {mode}", took))


def other_workloads_table(done: dict[Case, CaseResult], workloads: Sequence[str]) -> tuple[list[list[str]], list[str]]:
    mean = {
        (one.case.policy, one.case.mode, one.case.workload): one.mean for one in done.values() if one.case.is_default
    }
    rows = []
    for policy, mode in sorted({key[:2] for key in mean}):
        row = [f"{Case(policy, (), mode, '', '').name}, {mode}"]
        for workload in workloads:
            ours, theirs = mean.get((policy, mode, workload)), mean.get(("tiresias", "rigid", workload))
            row.append("" if ours is None else f"{ours:,.0f}" + (f" ({ours / theirs:.2f})" if theirs else ""))
        rows.append(row)
    return rows, ["policy", *workloads]


if __name__ == "__main__":
    sys.exit(main())
