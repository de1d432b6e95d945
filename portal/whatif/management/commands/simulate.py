"""``manage.py simulate``: a workload, or the lab's recent history, under one or several policies."""

import csv
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, TextIO, get_args

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError
from django.db.models import Min
from django.utils import timezone

from portal import charts, percentages
from portal.refused import Refused
from portal.scheduler import policy_args
from portal.scheduler import services as scheduler_services
from portal.scheduler.failures import violation_sentences
from portal.scheduler.models import SchedulerConfig
from portal.usage.models import CapacitySpell
from portal.whatif import report, simulation_runs
from scheduling.simulate import (
    InvalidPlanError,
    Loss,
    Options,
    Result,
    Submission,
    accounts_of,
    compare,
    plot,
    simulate,
    traces,
)
from scheduling.simulate.truth import Knowledge
from scheduling.types import Node, Policy

MAX_DAYS = 365
REALLY = "what really happened"
TRACE_OPTIONS = ("profiles", "cluster", "rounds", "placement", "mode", "knowledge", "jobs", "until", "lose")


@dataclass(frozen=True, slots=True)
class ChosenPolicy:
    """A policy on the command line."""

    name: str
    key: str
    params: dict[str, Any]
    policy: Policy


class Command(BaseCommand):
    """Runs policies in simulated time. A trace needs neither database nor Redis; the history needs the database.

    1. Read the trace, with measured speeds if it names any; or the lab's recent history, with what really happened.
    2. Simulate it under each policy; progress is written to standard error.
    3. Print the figures side by side; write JSON, CSV and a chart on request.
    """

    help = (
        "Simulate a trace, or the lab's recent history, under one or several policies. See docs/policies/simulating.md."
    )
    requires_system_checks = []  # noqa: RUF012

    def add_arguments(self, parser: CommandParser) -> None:
        policy_args.add_arguments(parser, several=True)
        add = parser.add_argument
        add("--trace", type=Path, help="A trace of Pollux, Philly or the prototype, or our own CSV or JSON.")
        add("--history", type=int, metavar="DAYS", help="Simulate the last DAYS days of the lab instead of a trace.")
        add("--profiles", type=Path, help="A folder of measured speeds, of Pollux or ElasticFlow.")
        add(
            "--cluster",
            help="16x4 (the default) is 16 nodes with 4 GPUs; 8x4:T4/15+2x8:A100/40 has two kinds of GPUs, with GiB of memory.",
        )
        add(
            "--rounds",
            type=float,
            metavar="SECONDS",
            help="Decide only at multiples of this time, as published simulators do.",
        )
        add(
            "--placement",
            choices=["own", "larger first", "queue order"],
            help="With --rounds: how jobs are placed; see docs/policies/simulating.md.",
        )
        add(
            "--mode",
            choices=["rigid", "fixed", "free"],
            help="Jobs of the requested size, elastic jobs, or jobs that are elastic in size and batch size.",
        )
        add("--knowledge", choices=get_args(Knowledge), help=KNOWLEDGE)
        add("--jobs", type=int, metavar="N", help="Only the first N jobs of the trace.")
        add("--until", type=float, metavar="SECONDS", help="End the simulation at this time.")
        add(
            "--lose",
            action="append",
            default=[],
            metavar="NODE:AT[:BACK]",
            help="A node is lost at AT, and comes back at BACK.",
        )
        add(
            "--release",
            type=float,
            default=10.0,
            metavar="SECONDS",
            help="How long jobs take to release GPUs that are requested back.",
        )
        add(
            "--window",
            type=float,
            default=0.0,
            metavar="SECONDS",
            help="Make one decision for all events within this time.",
        )
        add("--json", type=Path, help="Write all results, job by job, as JSON; - for standard output.")
        add("--csv", type=Path, help="Write a row for each job and policy as CSV.")
        add("--plot", type=Path, help="Draw how long jobs took, as SVG.")

    def handle(self, *args: Any, **given: Any) -> None:
        try:
            _check_options(given)
            policies = [
                ChosenPolicy(
                    " ".join([key, *(f"{item}={value}" for item, value in given_params.items())]), key, params, policy
                )
                for key, given_params in given["policies"]
                for policy, params in [policy_args.build(key, given_params)]
            ]
            comparison = (
                self._simulate_trace(given, policies)
                if given["history"] is None
                else self._simulate_history(given, policies)
            )
        except (ValueError, Refused) as error:
            raise CommandError(str(error)) from error
        except InvalidPlanError as error:
            raise CommandError(f"A plan breaks a rule: {violation_sentences(error.violations)}") from error
        except DatabaseError as error:
            raise CommandError(f"The lab's history cannot be read from the portal's database: {error}") from error
        if given["json"] != Path("-"):
            facts = (
                f"{name.replace('_', ' ')} {value}" for name, value in comparison.about.items() if value is not None
            )
            self.stdout.write(", ".join(facts))
            self.stdout.write(compare.table(compare.row(run.name, run.summary) for run in comparison.shown))
            for line in comparison.notes:
                self.stdout.write(line)
        try:
            self._write(given, comparison)
        except OSError as error:
            raise CommandError(f"{error.filename} cannot be written: {error.strerror}.") from error

    # --- a trace

    def _simulate_trace(self, given: dict[str, Any], policies: Sequence[ChosenPolicy]) -> "Comparison":
        given = {**given, "cluster": given["cluster"] or "16x4", "knowledge": given["knowledge"] or "oracle"}
        nodes = compare.parse_cluster(given["cluster"])
        submissions = self._read_trace(given, nodes)
        options = self._options(given, nodes)
        runs: list[compare.PolicyRun] = []
        for each in policies:
            how = options
            if options.round_seconds is not None:
                placing = given["placement"] or compare.REFERENCE_PLACEMENT.get(each.key, "own")
                how = replace(options, placement=placing)
            if runs and given["knowledge"] in ("learnt", "declared"):
                submissions = self._read_trace(
                    given, nodes
                )  # what was learnt under one policy is unknown under the next
            result = self._run(each, nodes, submissions, how)
            runs.append(compare.PolicyRun.of(each.name, each.key, each.params, result))
        about = {
            "trace": given["trace"].name,
            "jobs": len(submissions),
            "cluster": given["cluster"],
            "rounds": given["rounds"],
            "mode": given["mode"] or "as in the trace",
            "knowledge": given["knowledge"],
        }
        return Comparison(f"{about['trace']} on {about['cluster']}", about, runs)

    def _read_trace(self, given: dict[str, Any], nodes: Sequence[Node]) -> list[Submission]:
        submissions = traces.read(
            given["trace"],
            given["profiles"],
            given["mode"],
            knowledge=given["knowledge"],
            whole_seconds=given["rounds"] is not None,
            node_gpus=max(node.total for node in nodes),
        )
        submissions.sort(key=lambda item: item.job.submitted_at)
        if not submissions:
            raise ValueError(f"There are no jobs in {given['trace']}.")
        return submissions[: given["jobs"]]

    def _options(self, given: dict[str, Any], nodes: Sequence[Node]) -> Options:
        if given["rounds"] is not None and not given["rounds"] > 0:
            raise ValueError("--rounds must be a number of seconds above 0.")
        return Options(
            release_seconds=max(0.0, given["release"]),
            until=given["until"],
            round_seconds=given["rounds"],
            window_seconds=max(0.0, given["window"]),
            losses=[_parse_loss(text, {node.id for node in nodes}) for text in given["lose"]],
        )

    def _run(
        self, each: ChosenPolicy, nodes: Sequence[Node], submissions: Sequence[Submission], options: Options
    ) -> Result:
        first = submissions[0].job.submitted_at
        now = 0.0 if 0 <= first < 1e6 else first
        result = simulate(
            each.policy, nodes, submissions, now=now, accounts=accounts_of(submissions), options=options,
            clock=time.perf_counter, on_progress=_progress_printer(each.name, sys.stderr),
        )  # fmt: skip
        _print_done(each.name, result, sys.stderr)
        return result

    # --- the lab's recent history

    def _simulate_history(self, given: dict[str, Any], policies: Sequence[ChosenPolicy]) -> "Comparison":
        days = given["history"]
        end = timezone.now()
        start = end - timedelta(days=days)
        world = simulation_runs.read_world(start, end)
        really = compare.PolicyRun(REALLY, "", {}, *simulation_runs.actual_report(world))
        if not really.summary.jobs:
            raise Refused("No job ended by itself in these days, so there is nothing to compare.")
        options = Options(release_seconds=max(0.0, given["release"]), window_seconds=max(0.0, given["window"]))
        runs = []
        for each in policies:
            result = simulation_runs.simulate_world(
                world, each.policy, options=options, clock=time.perf_counter,
                on_progress=_progress_printer(each.name, sys.stderr),
            )  # fmt: skip
            _print_done(each.name, result, sys.stderr)
            runs.append(
                compare.PolicyRun(each.name, each.key, each.params, *simulation_runs.simulated_report(world, result))
            )
        config = scheduler_services.current_config()
        about = {
            "history": f"of {days} days until {end:%Y-%m-%d %H:%M} UTC",
            "jobs": len(world.jobs),
            "compared": really.summary.jobs,
            "nodes": len(world.nodes),
            "gpu_hours_offered": round(world.capacity_gpu_seconds / 3600),
            "in_force": config.policy,
        }
        notes = []
        begun = CapacitySpell.objects.aggregate(first=Min("since"))["first"]
        if begun is not None and begun > start + timedelta(days=1):
            notes.append(f"The lab's history is shorter: its first node offered GPUs on {begun:%Y-%m-%d %H:%M} UTC.")
        if switches := report.count_switches(start, end):
            notes.append(
                f"The policy was switched in these days ({switches}×), so what really happened is not due to one policy."
            )
        notes.append(_describe_error(really, next((run for run in runs if _in_force(run, config)), None)))
        return Comparison(f"The lab's last {days} days", about, runs, really, notes)

    # --- output

    def _write(self, given: dict[str, Any], comparison: "Comparison") -> None:
        if given["json"]:
            everything: dict[str, Any] = {**comparison.about, "runs": [run.to_json() for run in comparison.runs]}
            if comparison.really:
                everything["really"] = {"summary": asdict(comparison.really.summary), "jobs": comparison.really.jobs}
            text = json.dumps(everything, indent=1)
            if given["json"] == Path("-"):
                self.stdout.write(text)
            else:
                given["json"].write_text(text + "\n")
        if given["csv"]:
            rows = [{"run": run.name, **job} for run in comparison.shown for job in run.jobs]
            with given["csv"].open("w", newline="") as file:
                writer = csv.DictWriter(file, list(rows[0]))
                writer.writeheader()
                writer.writerows(rows)
        if given["plot"]:
            took = {run.name: [job["turnaround"] for job in run.jobs if _is_compared(job)] for run in comparison.shown}
            given["plot"].write_text(plot.turnarounds(comparison.title, took))


@dataclass(frozen=True, slots=True)
class Comparison:
    """The results to print and write."""

    title: str
    about: dict[str, Any]
    runs: Sequence[compare.PolicyRun]
    really: compare.PolicyRun | None = None
    notes: Sequence[str] = ()

    @property
    def shown(self) -> list[compare.PolicyRun]:
        return [*([self.really] if self.really else []), *self.runs]


KNOWLEDGE = (
    "What policies know: everything (oracle, the default); speeds learnt from the steps that jobs of the same program have "
    "made so far, without lengths (learnt) or with them (declared); true speeds but no lengths (speed); or nothing (none)."
)


def _check_options(given: dict[str, Any]) -> None:
    """Check that the options can be combined. Raises ValueError when they cannot."""
    if given["history"] is None:
        if given["trace"] is None:
            raise ValueError("Give what to simulate: --trace FILE, or --history DAYS for the lab's recent history.")
        return
    if given["trace"] is not None:
        raise ValueError("Give either --trace or --history, not both.")
    if wrong := [name for name in TRACE_OPTIONS if given[name] not in (None, [])]:
        raise ValueError(f"--{wrong[0]} works with --trace only: --history takes it from the lab's past.")
    if not 1 <= given["history"] <= MAX_DAYS:
        raise ValueError(f"--history needs a number of days from 1 to {MAX_DAYS}.")


def _is_compared(job: dict[str, Any]) -> bool:
    return job["turnaround"] is not None and job.get("compared", True)


def _in_force(run: compare.PolicyRun, config: SchedulerConfig) -> bool:
    return run.policy == config.policy and run.params == {**run.params, **config.params}


def _describe_error(really: compare.PolicyRun, run: compare.PolicyRun | None) -> str:
    """Describe how far the simulation is from what really happened."""
    if run is None:
        return "Add the policy in force, with its parameters, to see how far a simulation is from what really happened."
    real, made = really.summary.turnaround.mean, run.summary.turnaround.mean
    off = percentages.difference(made, real, charts.SECONDS, min_base=percentages.MIN_BASE[charts.SECONDS])
    return (
        f"{run.name} is in force: in the simulation a job took {made:,.0f} s on average; in reality it was {real:,.0f} s "
        f"({off}). Smaller differences between policies are uncertain."
    )


def _progress_printer(name: str, stream: TextIO) -> Callable[[float], None]:
    shown_percent = -1

    def show(part: float) -> None:
        nonlocal shown_percent
        if int(part * 20) != shown_percent:
            shown_percent = int(part * 20)
            print(f"\r{name}: {part:.0%} of the jobs", end="", file=stream, flush=True)

    return show


def _print_done(name: str, result: Result, stream: TextIO) -> None:
    print(f"\r{name}: done in {result.turns} scheduling cycles".ljust(60), file=stream)  # noqa: T201


def _parse_loss(text: str, nodes: set[str]) -> Loss:
    parts = text.split(":")
    node = parts[0].zfill(5)
    if len(parts) not in (2, 3) or node not in nodes:
        raise ValueError(
            f"--lose needs NODE:AT or NODE:AT:BACK with one of the {len(nodes)} nodes from 0, not {text!r}."
        )
    times = [float(part) for part in parts[1:]]
    return Loss(node, *times)
