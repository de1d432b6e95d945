"""What a workload would look like under one policy or several."""

import csv
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO, get_args

from django.core.management.base import BaseCommand, CommandError, CommandParser

from portal.control import policy_args
from scheduling.simulate import Loss, Options, Refused, Submission, accounts_of, compare, plot, simulate, traces
from scheduling.simulate.result import job_to_json
from scheduling.simulate.truth import Knowledge
from scheduling.types import Node, Policy


class Command(BaseCommand):
    """Drives policies through a trace in a virtual clock. Needs neither database nor Redis.

    1. Read the trace, with measured speeds if it names any.
    2. Simulate it under each policy; progress goes to the error stream.
    3. Print the figures side by side; write JSON, CSV and a picture if asked to.
    """

    help = "Simulate a trace under one or several policies. docs/policies.md has examples and formats."
    requires_system_checks = []  # noqa: RUF012

    def add_arguments(self, parser: CommandParser) -> None:
        policy_args.add_arguments(parser, several=True)
        add = parser.add_argument
        add("--trace", type=Path, required=True, help="Pollux, Philly, the prototype's runs, or our own CSV or JSON.")
        add("--profiles", type=Path, help="A folder of measured speeds, Pollux's or ElasticFlow's.")
        add("--cluster", default="16x4", help="16x4 is 16 nodes with 4 GPUs; 8x4:T4+2x8:A100 has two kinds.")
        add("--rounds", type=float, metavar="SECONDS", help="Decide at each multiple only, as published simulators do.")
        add("--placement", choices=["own", "larger first", "queue order"], help="In rounds: whose; see the handbook.")
        add(
            "--mode",
            choices=["rigid", "fixed", "free"],
            help="Jobs of asked size, elastic, or elastic in size and batch.",
        )
        add("--knowledge", choices=get_args(Knowledge), default="oracle", help=KNOWLEDGE)
        add("--jobs", type=int, metavar="N", help="Only the first N jobs of the trace.")
        add("--until", type=float, metavar="SECONDS", help="Stop the clock then.")
        add("--release", type=float, default=10.0, metavar="SECONDS", help="From asking GPUs back to their being free.")
        add("--window", type=float, default=0.0, metavar="SECONDS", help="Decide together what happens within so long.")
        add("--lose", action="append", default=[], metavar="NODE:AT[:BACK]", help="A node is lost, and comes back.")
        add("--json", type=Path, help="Everything, job by job; - for the standard output.")
        add("--csv", type=Path, help="A row for each job and policy.")
        add("--plot", type=Path, help="How long jobs took, as SVG.")

    def handle(self, *args: Any, **given: Any) -> None:
        try:
            nodes = compare.cluster(given["cluster"])
            submissions = self._read(given, nodes)
            policies = [(*policy_args.build(key, params), key, params) for key, params in given["policies"]]
            options = self._options(given, nodes)
        except ValueError as error:
            raise CommandError(str(error)) from error
        runs: list[compare.Run] = []
        for policy, params, key, said in policies:
            name = " ".join([key, *(f"{item}={value}" for item, value in said.items())])
            how = options
            if options.round_seconds is not None:
                placing = given["placement"] or compare.REFERENCE_PLACEMENT.get(key, "own")
                how = replace(options, placement=placing)
            if runs and given["knowledge"] in ("learnt", "declared"):
                submissions = self._read(given, nodes)  # what one policy's world has learnt is not known in the next
            runs.append(compare.Run(name, key, params, self._run(name, policy, nodes, submissions, how)))
        about = {
            "trace": given["trace"].name,
            "jobs": len(submissions),
            "cluster": given["cluster"],
            "rounds": given["rounds"],
            "mode": given["mode"] or "as the trace says",
            "knowledge": given["knowledge"],
        }
        if given["json"] != Path("-"):
            self.stdout.write(", ".join(f"{name} {value}" for name, value in about.items() if value is not None))
            self.stdout.write(compare.table(compare.row(run.name, run.result.summary()) for run in runs))
        try:
            self._write(given, about, runs)
        except OSError as error:
            raise CommandError(f"{error.filename} cannot be written: {error.strerror}.") from error

    def _read(self, given: dict[str, Any], nodes: Sequence[Node]) -> list[Submission]:
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
            losses=[_loss(text, {node.id for node in nodes}) for text in given["lose"]],
        )

    def _run(
        self, name: str, policy: Policy, nodes: Sequence[Node], submissions: Sequence[Submission], options: Options
    ) -> Any:
        first = submissions[0].job.submitted_at
        now = 0.0 if 0 <= first < 1e6 else first
        try:
            result = simulate(
                policy, nodes, submissions, now=now, accounts=accounts_of(submissions), options=options,
                clock=time.perf_counter, on_progress=_progress(name, sys.stderr),
            )  # fmt: skip
        except Refused as error:
            raise CommandError(f"{name} made a plan that breaks a rule: {error}") from error
        print(f"\r{name}: done in {result.turns} turns".ljust(60), file=sys.stderr)  # noqa: T201
        return result

    def _write(self, given: dict[str, Any], about: dict[str, Any], runs: Sequence[compare.Run]) -> None:
        if given["json"]:
            everything = {
                **about,
                "runs": [
                    {"name": run.name, "policy": run.policy, "params": run.params, **run.result.to_json()}
                    for run in runs
                ],
            }
            text = json.dumps(everything, indent=1)
            if given["json"] == Path("-"):
                self.stdout.write(text)
            else:
                given["json"].write_text(text + "\n")
        if given["csv"]:
            rows = [{"run": run.name, **job_to_json(job)} for run in runs for job in run.result.jobs]
            with given["csv"].open("w", newline="") as file:
                writer = csv.DictWriter(file, list(rows[0]))
                writer.writeheader()
                writer.writerows(rows)
        if given["plot"]:
            took = {run.name: [job.turnaround for job in run.result.jobs if job.turnaround is not None] for run in runs}
            given["plot"].write_text(plot.turnarounds(f"{about['trace']} on {about['cluster']}", took))


KNOWLEDGE = (
    "What policies are told: everything (oracle); speeds learnt from the steps that jobs of the same program have made so "
    "far, without lengths (learnt) or with them (declared); true speeds but no lengths (speed); or nothing (none)."
)


def _progress(name: str, stream: TextIO) -> Callable[[float], None]:
    told = -1

    def tell(part: float) -> None:
        nonlocal told
        if int(part * 20) != told:
            told = int(part * 20)
            print(f"\r{name}: {part:.0%} of the jobs", end="", file=stream, flush=True)

    return tell


def _loss(text: str, nodes: set[str]) -> Loss:
    parts = text.split(":")
    node = parts[0].zfill(5)
    if len(parts) not in (2, 3) or node not in nodes:
        raise ValueError(
            f"--lose needs NODE:AT or NODE:AT:BACK with one of the {len(nodes)} nodes from 0, not {text!r}."
        )
    times = [float(part) for part in parts[1:]]
    return Loss(node, *times)
