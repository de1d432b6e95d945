"""Schedules, edits and more time, while the programs of a lab are killed and its clock is set."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.clock import ShiftedClock
from tests.system.docker_lab import docker_lab, engine
from tests.system.product import Product, wait_for

pytestmark = [pytest.mark.system, pytest.mark.thorough, pytest.mark.timeout(1800)]

HOUR, DAY = 3600, 86_400
ROUND_SECONDS = 90
"""Within which a round of the schedules happens, half a minute after the last, on a busy machine."""


@pytest.fixture(scope="module")
def clock(tmp_path_factory: pytest.TempPathFactory) -> ShiftedClock:
    return ShiftedClock(tmp_path_factory.mktemp("clock"))


@pytest.fixture(scope="module")
def lab(clock: ShiftedClock, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    with engine() as docker, docker_lab(docker, tmp_path_factory.mktemp("lab"), **clock.env) as product:
        yield product


def restart(lab: Product, *names: str) -> None:
    for name in names:
        lab.kill(name)
        lab.start(name)
    wait_for("the web process answers", lab.answers)


def test_a_schedule_gives_one_job_a_day_over_restarts_and_changes_of_the_clock(
    lab: Product, clock: ShiftedClock
) -> None:
    job = lab.submit(lab.upload("nightly", train="print('trained')\n"), "python train.py")
    lab.succeeds(job)
    due = (clock.now() + timedelta(hours=2)).replace(second=0, microsecond=0)
    row = lab.post("schedules/", json={"job": job, "at": f"{due:%H:%M}", "zone": "UTC", "overlap": "queue"})["id"]
    runs = lambda: lab.get(f"schedules/{row}/runs/")  # noqa: E731
    at_due = round((due - datetime.now(UTC)).total_seconds()) + 60

    clock.set(at_due)
    restart(lab, "worker", "scheduler")
    first = wait_for("it has run", runs, ROUND_SECONDS)
    assert [run["result"] for run in first] == ["submitted"]
    lab.succeeds(first[0]["job"])
    for ahead in (at_due - 3 * HOUR, at_due, at_due + HOUR):  # set back before the moment, and over it again
        clock.set(ahead)
        restart(lab, "worker")
        rounds_pass()
        assert len(runs()) == 1
    clock.set(at_due + DAY)
    rounds_pass()  # without a restart
    wait_for("it has run on the second day", lambda: len(runs()) == 2, ROUND_SECONDS)
    clock.set(at_due + 5 * DAY)
    wait_for("days that were missed give one run", lambda: len(runs()) == 3, ROUND_SECONDS)
    rounds_pass()
    assert [run["result"] for run in runs()] == ["submitted"] * 3
    clock.set(0)
    restart(lab, "worker", "scheduler", "agent")


def rounds_pass() -> None:
    """Wait until two rounds of the schedules must have happened."""
    time.sleep(65)


def test_edits_and_more_time_survive_the_death_of_the_scheduler(lab: Product) -> None:
    code = lab.upload("long", wait="import time\ntime.sleep(45)\nprint('done', flush=True)\n")
    running = lab.submit(code, "python wait.py", time_limit_seconds=30, min_gpus=2, max_gpus=2)
    waiting = [lab.submit(code, "true", name=name, min_gpus=2, max_gpus=2) for name in ("first", "second")]
    lab.wait_for_job(running, "RUNNING")
    asked = lab.post(f"jobs/{running}/time-extensions/", json={"seconds": 120, "reason": "it needs a little longer"})
    lab.kill("scheduler")
    granted = lab.api("POST", f"time-extensions/{asked['id']}/grant/", json={})
    assert granted.status_code == 200, granted.text
    edited = lab.api("PATCH", f"jobs/{waiting[0]}/", json={"name": "renamed", "time_limit_seconds": 900})
    assert edited.status_code == 200, edited.text
    lab.start("scheduler")
    lab.succeeds(running, seconds=180)
    for job in waiting:
        lab.succeeds(job)
    seen: Any = [lab.get(f"jobs/{job}/") for job in (running, *waiting)]
    assert [each["time_limit_seconds"] for each in seen] == [150, 900, 600]
    assert seen[1]["name"] == "renamed" and seen[1]["started_at"] < seen[2]["started_at"], "it kept its place"
