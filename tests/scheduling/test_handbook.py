"""The example of the handbook works as it stands there, and is a policy like the others."""

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from scheduling import params, registry
from scheduling.check import violations
from scheduling.types import Snapshot
from tests.examples import examples
from tests.scheduling.strategies import snapshots
from tests.scheduling.toolkit import test_free_first as free_first
from tests.scheduling.worlds import draw, sizes, waiting

HANDBOOK = Path(__file__).resolve().parents[2] / "docs" / "policies" / "writing-one.md"


def smallest_first() -> Any:
    code = re.findall(r"```python\n(.*?)```", HANDBOOK.read_text(), re.DOTALL)[0]
    module: dict[str, Any] = {"__name__": "handbook"}
    exec(compile(code, str(HANDBOOK), "exec"), module)
    return module["SmallestFirst"]()


def test_small_jobs_pass_large_ones_until_these_have_waited_long() -> None:
    policy = smallest_first()
    assert sizes(policy.plan(draw({"a": 4}, waiting("large", 4), waiting("small", 1)))) == {"small": 1}
    late = draw({"a": 4}, waiting("large", 4), waiting("small", 1, submitted_at=5000.0), now=6000.0)
    assert sizes(policy.plan(late)) == {"large": 4}


def test_its_parameter_can_be_asked_for_in_a_form() -> None:
    (param,) = params.describe(type(smallest_first()))
    assert (param.name, param.kind, param.maximum) == ("patience_minutes", int, 10_080)


@settings(max_examples=examples(50), deadline=None)
@given(snapshot=snapshots())
def test_it_breaks_no_rule(snapshot: Snapshot) -> None:
    assert violations(snapshot, smallest_first().plan(snapshot)) == []


def test_it_waits_for_gpus_that_are_being_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.POLICIES, "smallest_first", type(smallest_first()))
    free_first.test_a_job_waits_for_one_node_rather_than_spread_over_two("smallest_first")
    free_first.test_of_two_jobs_one_starts_and_the_other_waits_for_what_is_given_back("smallest_first")
    for tier in ("standard", "premium"):
        free_first.test_a_job_starts_on_free_gpus_although_others_would_be_a_tighter_fit("smallest_first", tier)
    free_first.test_a_job_that_started_there_stays_there("smallest_first")
