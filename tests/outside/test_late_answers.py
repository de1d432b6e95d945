"""Answers to nodes that are seconds late cost no job."""

import os
import time

import pytest

from tests.bench.attacks import NODES, interrupted_jobs, start_jobs
from tests.outside.lab import lab
from tests.system.product import wait_for

MINUTES = float(os.environ.get("LATE_MINUTES", "1"))
LATE_SECONDS = 3.0

pytestmark = [pytest.mark.outside, pytest.mark.thorough, pytest.mark.timeout(MINUTES * 60 + 600)]


def test_no_job_is_lost_while_each_answer_to_a_node_takes_three_seconds() -> None:
    """For a minute; LATE_MINUTES=10 for ten."""
    with lab(NODES, nodes_late_by=LATE_SECONDS) as made:
        running = start_jobs(made)
        until = time.monotonic() + MINUTES * 60
        while time.monotonic() < until:
            assert all(node["online"] for node in made.admin.get("nodes/"))
            assert not interrupted_jobs(made, running.jobs)
            time.sleep(2)
        for job in running.jobs:
            made.people[0].rest.call("POST", f"jobs/{job}/cancel/")
        cancelled = {"CANCELLED"}
        wait_for(
            "all jobs have ended",
            lambda: {made.admin.get(f"jobs/{job}/")["state"] for job in running.jobs} == cancelled,
            60,
            every=0.5,
        )
