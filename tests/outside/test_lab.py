"""A running lab under a random load breaks no law."""

import os
import random

import pytest

from tests.outside import lab
from tests.outside.judging import report, violations

pytestmark = [pytest.mark.outside, pytest.mark.thorough, pytest.mark.timeout(600)]

SECONDS = 90.0


def test_no_law_is_broken_in_a_minute_and_a_half(capsys: pytest.CaptureFixture[str]) -> None:
    """``OUTSIDE_SEED`` repeats the choices of a run."""
    seed = int(os.environ.get("OUTSIDE_SEED") or random.SystemRandom().randrange(1_000_000))
    with capsys.disabled():
        print(f"\nrandom load: python -m tests.outside --seed {seed} repeats it")
    record = lab.run(seed, SECONDS)
    assert len(record.asked) > 15 and len(record.polls) > 60, "the load was too small to show anything"
    found = violations(record)
    assert not found, report(record, found)
