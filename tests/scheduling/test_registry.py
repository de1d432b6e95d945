"""Policies are found by one line each; their parameters explain themselves and refuse nonsense."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from scheduling import registry
from scheduling.policies.elastic_fifo import ElasticFifo
from tests.scheduling.worlds import draw, running, waiting


@pytest.mark.parametrize("key", registry.POLICIES)
def test_every_policy_explains_itself_to_an_admin(key: str) -> None:
    description = registry.describe(key)
    assert description.title and description.explanation.count(".") >= 2
    for param in description.params:
        assert param.label and param.help.endswith(".")
        assert param.kind in (bool, int, float, str)


ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("page", ["docs/policies/index.md", "docs/policies/how-each-works.md", "README.md"])
def test_every_policy_of_ours_is_described(page: str) -> None:
    """A lab keeps one of its own in another package."""
    ours = {key for key, policy in registry.POLICIES.items() if policy.__module__.startswith("scheduling.policies.")}
    described = set(re.findall(r"`(\w+)`", (ROOT / page).read_text()))
    missing = sorted(ours - described)
    assert not missing, f"Describe in {page}, as the others are: {', '.join(missing)}"


@pytest.mark.parametrize("key", registry.POLICIES)
def test_every_policy_keeps_its_state_as_json(key: str) -> None:
    lab = draw({"a": 4, "b": 2}, running("x", {"a": 1}, 1, 4), waiting("y"))
    state = registry.build(key, {}).plan(lab).state
    assert json.loads(json.dumps(state)) == state


def test_parameters_not_given_have_their_defaults() -> None:
    assert registry.build("elastic_fifo", {"strict": True}) == ElasticFifo(strict=True)
    assert registry.complete("elastic_fifo", {}) == {
        "strict": False,
        "grow_after_seconds": 10,
        "up_to": "asked",
        "least_gain": 0.05,
    }


@pytest.mark.parametrize(
    ("key", "params", "sentence"),
    [
        ("sjf", {}, "There is no policy 'sjf'. The policies are: fifo, round_robin, elastic_fifo"),
        ("fifo", {"nice": 1}, "There is no parameter nice; this policy has strict, size, backfill."),
        ("fifo", {"strict": "yes"}, "Strictly in order must be yes or no, not 'yes'."),
        ("fifo", {"strict": 1}, "Strictly in order must be yes or no, not 1."),
        ("fifo", {"size": "all"}, "GPUs at the start must be one of most, least, not 'all'."),
        ("fair_share", {"half_life_days": 10**400}, "is too large a number."),
        ("elastic_fifo", {"grow_after_seconds": -1}, "Seconds before a running job grows must be at least 0, not -1."),
        ("elastic_fifo", {"grow_after_seconds": 9999}, "must be at most 3600"),
        ("elastic_fifo", {"grow_after_seconds": True}, "must be a whole number, not True."),
        ("elastic_fifo", {"grow_after_seconds": float("nan")}, "must be a whole number"),
        ("elastic_fifo", {"grow_after_seconds": None}, "must be a whole number, not None."),
    ],
)
def test_nonsense_is_refused_with_a_sentence(key: str, params: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=r"\.$") as refused:
        registry.build(key, params)
    assert sentence in str(refused.value)
