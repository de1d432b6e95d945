"""``manage.py decide``: a policy as a filter, for external simulators and tools."""

import json
import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from portal.scheduler import policy_args
from portal.scheduler.failures import violation_sentences
from scheduling.simulate.filter import BadRequestError, Filter
from scheduling.simulate.settle import InvalidPlanError


class Command(BaseCommand):
    """Reads one snapshot per line and answers each with one plan per line; see docs/policies/simulating.md.

    The policy keeps its state as long as the command runs. An invalid line is answered with ``{"error": ...}`` and
    changes nothing. Needs no database.
    """

    help = "Read one JSON snapshot per line, answer one JSON plan per line. docs/policies/simulating.md has the format."
    requires_system_checks = []  # noqa: RUF012

    def add_arguments(self, parser: CommandParser) -> None:
        policy_args.add_arguments(parser)

    def handle(self, *args: Any, policies: list[tuple[str, dict[str, str]]], **options: Any) -> None:
        if len(policies) != 1:
            raise CommandError("Name one policy.")
        try:
            policy, _ = policy_args.build(*policies[0])
        except ValueError as error:
            raise CommandError(str(error)) from error
        policy_filter = Filter(policy)
        try:
            for line in sys.stdin:
                if line.strip():
                    self.stdout.write(json.dumps(answer(policy_filter, line)))
                    self.stdout.flush()
        except BrokenPipeError:
            sys.stderr.close()  # the reader is gone; Python would report the broken pipe again at exit


def answer(policy_filter: Filter, line: str) -> dict[str, Any]:
    """Return the answer to one line, an error included."""
    try:
        return policy_filter.answer(json.loads(line))
    except BadRequestError as error:
        return {"error": f"{error}."}
    except ValueError as error:
        return {"error": f"This line is not JSON: {error}."}
    except RecursionError:
        return {"error": "This line is nested too deeply."}
    except InvalidPlanError as error:
        return {"error": f"The policy made a plan that breaks a rule: {violation_sentences(error.violations)}"}
    except Exception as error:
        return {"error": f"The policy failed: {type(error).__name__}: {error}"}
