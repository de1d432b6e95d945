from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.toolkit.job_updates import updated_job
from scheduling.types import Job
from tests.scheduling.worlds import running

FACTS = st.fixed_dictionaries({}, optional={"served_gpu_seconds": st.floats(0, 1e9), "batch": st.integers(0, 1 << 20)})


@given(FACTS)
def test_it_is_the_job_that_replace_makes(facts: dict[str, Any]) -> None:
    job = running("1", {"a": 2}, elastic=True, base={"a": 1}, script="train")
    before = replace(job)
    assert updated_job(job, **facts) == replace(job, **facts)
    assert job == before


def test_it_can_be_changed_no_more_than_any_job() -> None:
    job = updated_job(running("1", {"a": 2}), batch=64)
    assert type(job) is Job
    with pytest.raises(FrozenInstanceError):
        job.batch = 32  # type: ignore[misc]


def test_there_are_no_facts_but_those_of_jobs() -> None:
    with pytest.raises(AttributeError):
        updated_job(running("1", {"a": 2}), bacth=64)
