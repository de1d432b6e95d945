"""``manage.py replay``: decides every recorded scheduling cycle again and reports how many give the same plan."""

import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from portal.scheduler.replay import ReplayedCycle, Summary, replay, replay_as
from portal.sentences import sentence_of
from scheduling import registry
from scheduling.replay import ReplayOutcome

SHOWN = 10
"""Cycles and jobs that are shown in full."""


class Command(BaseCommand):
    """Exits with 1 when the policy that was in force decides any recorded cycle differently now."""

    help = "Decide every recorded scheduling cycle again and compare the plans. Changes nothing."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--since", type=float, metavar="DAYS", help="Only the cycles of the last DAYS days.")
        parser.add_argument("--policy", metavar="KEY", help="Decide by this policy, on the same snapshots.")
        parser.add_argument(
            "--set",
            action="append",
            default=[],
            metavar="NAME=VALUE",
            help="A parameter of the policy, as JSON or plain text.",
        )
        parser.add_argument("--show", type=int, default=SHOWN, metavar="N", help="Differences to show in full.")

    def handle(self, *args: Any, **options: Any) -> None:
        since = None if options["since"] is None else timezone.now() - timedelta(days=options["since"])
        if options["set"] and not options["policy"]:
            raise CommandError("--set needs --policy: recorded cycles have their own parameters.")
        if options["policy"]:
            try:
                policy = registry.build(options["policy"], read_params(options["set"]))
            except ValueError as error:
                raise CommandError(str(error)) from error
            cycles = replay_as(policy, since)
        else:
            cycles = replay(since)
        summary, shown = Summary(), 0
        for one in cycles:
            summary.add(one)
            if one.outcome and not one.outcome.same and not options["policy"] and shown < options["show"]:
                shown += 1
                self._print_differences(one, one.outcome)
        self._print_summary(summary, options["policy"], options["show"])
        if not options["policy"] and summary.same < summary.compared:
            raise CommandError("Not every cycle was decided as before.")

    def _print_differences(self, one: ReplayedCycle, outcome: ReplayOutcome) -> None:
        code = " (its code has changed since)" if one.edited else ""
        by = one.cycle.config.policy if one.cycle.config else "no policy"
        self.stdout.write(f"cycle {one.cycle.pk} at {one.cycle.at:%Y-%m-%d %H:%M:%S} by {by}{code}:")
        if outcome.wrong:
            self.stdout.write(f"  {sentence_of(outcome.wrong)}")
        for each in outcome.differences[:SHOWN]:
            self.stdout.write(f"  job {each.job}: {each.what}")
        if outcome.state_differs:
            self.stdout.write("  it keeps another state for its next cycle")

    def _print_summary(self, summary: Summary, other: str | None, max_jobs: int) -> None:
        if not summary.cycles:
            self.stdout.write("No cycle is recorded in this time.")
            return
        self.stdout.write(f"{summary.cycles} recorded cycles, {summary.compared} decided again.")
        for why, count in summary.why_not.items():
            self.stdout.write(f"{count} not compared: {why}.")
        if summary.edited:
            self.stdout.write(f"{summary.edited} were decided by another version of their policy's code.")
        what = f"would have been decided equally by {other}" if other else "gave the same plan (fidelity)"
        self.stdout.write(f"{summary.same} of {summary.compared} {what}: {100 * summary.fidelity:.2f} %.")
        if not other:
            return
        for (was, would), count in summary.outcomes.most_common():
            self.stdout.write(f"  {count} times a job that {_clause(was)} would have been one that {_clause(would)}")
        for job, count in summary.jobs.most_common(max_jobs):
            self.stdout.write(f"  job {job}: another decision in {count} cycles")
        if len(summary.jobs) > max_jobs:
            self.stdout.write(f"  and {len(summary.jobs) - max_jobs} more jobs")


def _clause(kind: str) -> str:
    return "is preempted" if kind == "preempted" else kind


def read_params(pairs: list[str]) -> Mapping[str, Any]:
    """Parse pairs such as ``["strict=true", "size=least"]``: values are JSON where they parse as such, else text."""
    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise CommandError(f"--set takes NAME=VALUE, not {pair!r}.")
        try:
            found[name] = json.loads(value)
        except json.JSONDecodeError:
            found[name] = value
    return found
