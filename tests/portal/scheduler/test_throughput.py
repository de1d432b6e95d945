"""From the steps that jobs report to what policies know about speeds, batch sizes and remaining work."""

import json
from dataclasses import replace
from typing import Any

import pytest
from django.utils import timezone

from portal.jobs import logs
from portal.jobs.models import Attempt, Job, StepStat
from portal.scheduler import snapshot
from portal.scheduler.job_history import History
from portal.scheduler.models import ChosenBatch
from portal.scheduler.reported_progress import read_progress
from portal.scheduler.throughput import Speeds
from scheduling import registry
from scheduling.decide import decide
from scheduling.toolkit import performance
from scheduling.toolkit.performance import Measurement, Model, fit
from tests.portal import jobs_world as world
from tests.portal.control_world import queue, ready_node

pytestmark = pytest.mark.django_db
ALONE, BOTH = 0.40, 0.22
"""Seconds of a step on one GPU, and on two."""


def running(gpus: int, nodes: int = 1, **fields: Any) -> Attempt:
    """A job on so many GPUs, as many on each of its nodes."""
    places = [ready_node(f"node-{Attempt.objects.count()}-{number}", 4) for number in range(nodes)]
    attempt = world.place(
        queue(gpus, 8, elastic=True, **fields),
        [gpu for node in places for gpu in list(node.gpus.all())[: gpus // nodes]],
    )
    for part in attempt.containers.all():
        world.run(part)
    return attempt


def report(attempt: Attempt, ranks: int, seconds: float, *, times: int = 3, batch: int = 64, **facts: Any) -> None:
    """So many reports, as ``schedulearn_train`` writes them."""
    stream = logs.open_stream(attempt.containers.order_by("pk")[0], "metrics", "metrics")
    lines = []
    for step in range(100, 100 * (times + 1), 100):
        common = {"at": timezone.now().timestamp() - 1, "step": step}
        usual = {"epoch": 0, "done": 0.25, "loss": 1.0, "batches": [64, 64, 64], "noise": None}
        lines.append({"kind": "step", **common, "batch": batch, "ranks": ranks, "seconds": seconds, **usual, **facts})
        waiting = [0.02 + 0.01 * rank for rank in range(ranks)]
        lines.append({"kind": "ranks", **common, "first": 0, "waiting": waiting})
    stream.refresh_from_db()
    logs.append(stream, stream.size, "".join(f"{json.dumps(line)}\n" for line in lines).encode())


def speeds_of(job: Job, most: int = 8) -> Speeds:
    history = History()
    history.refresh(timezone.now())
    return history.speeds((job.project_id, job.launcher, job.entry), most, 4)


def test_reports_of_steps_become_a_row_for_each_batch() -> None:
    attempt = running(2)
    report(attempt, 2, 0.2)
    report(attempt, 2, 0.4)
    report(attempt, 2, 0.5, batch=128, batches=[64, 32, 512], noise=[0.5, 80.0])
    small, large = StepStat.objects.order_by("batch")
    assert (small.nodes, small.gpus, small.reports, small.asked_batch, small.max_batch) == (1, 2, 6, 64, 64)
    assert small.seconds == pytest.approx(0.3) and small.waiting_seconds == pytest.approx(0.02)
    assert (large.batch, large.max_batch, large.noise_sqr, large.noise_var) == (128, 512, 0.5, 80.0)


def test_what_was_reported_while_gpus_came_or_went_is_no_measurement() -> None:
    attempt = running(2)
    report(attempt, 1, 0.2)
    report(attempt, 2, 0.0)
    report(attempt, 2, 0.2, batch=0)
    assert not StepStat.objects.exists()


@pytest.mark.parametrize(
    "facts",
    [
        {"batches": "x"},
        {"batches": [1, 2]},
        {"batches": [-1, 0, "x"]},
        {"noise": [1]},
        {"noise": [-1, 2]},
        {"noise": 5},
    ],
)
def test_nonsense_beside_a_step_is_passed_over(facts: dict[str, Any]) -> None:
    attempt = running(2)
    report(attempt, 2, 0.2, **facts)
    row = StepStat.objects.get()
    assert (row.asked_batch, row.max_batch, row.noise_sqr) == (64, 64, None)


def test_steps_on_one_and_two_gpus_show_how_fast_it_is_on_more() -> None:
    report(running(1), 1, ALONE)
    attempt = running(2)
    report(attempt, 2, BOTH)
    speeds = speeds_of(attempt.job)
    assert speeds.fixed is not None and speeds.fixed.source == "measured"
    assert speeds.fixed.speeds[1] == pytest.approx(ALONE / BOTH, rel=0.1)
    assert len(speeds.fixed.speeds) == 4  # twice as many as were measured
    assert speeds.free is None  # its owner allows no other batch


def test_a_batch_is_free_within_what_its_owner_allows_once_its_noise_is_known() -> None:
    allowed: Any = {"batches": [64, 64, 1024]}
    attempt = running(2)
    report(attempt, 2, BOTH, **allowed)
    assert speeds_of(attempt.job).free is None
    report(attempt, 2, BOTH, batch=256, noise=[1.0, 6400.0], **allowed)
    free = speeds_of(attempt.job).free
    assert free is not None and free.batches[0] >= 64
    assert all(64 <= batch <= 1024 for batch in free.batches)
    assert free.batches[-1] > 64


@pytest.mark.parametrize("gpus", [1, 2, 3, 8])
def test_a_job_that_asks_for_fewer_gpus_is_seen_with_the_start_of_the_same_curve(gpus: int) -> None:
    allowed: Any = {"batches": [64, 64, 1024]}
    report(running(1), 1, ALONE)
    report(running(2), 2, BOTH, batch=256, noise=[1.0, 6400.0], **allowed)
    most, fewer = queue(8), queue(gpus)
    seen = {job.id: job for job in snapshot.take().jobs}
    cut, asked = snapshot.with_max_gpus(seen[str(most.pk)], gpus), seen[str(fewer.pk)]
    assert cut == replace(asked, id=cut.id, submitted_at=cut.submitted_at, speed=cut.speed, free_speed=cut.free_speed)
    for mine, theirs in ((cut.speed, asked.speed), (cut.free_speed, asked.free_speed)):
        assert mine is not None and theirs is not None
        assert mine == replace(theirs, apart=mine.apart)
        assert mine.apart == pytest.approx(theirs.apart, abs=0.05), "an average over all sizes"


def test_small_changes_of_what_was_measured_are_none() -> None:
    """Otherwise each report would cost a fit in each cycle."""
    attempt = running(2)
    report(attempt, 2, BOTH, times=4)
    before = speeds_of(attempt.job)
    report(attempt, 2, 1.001 * BOTH, times=1)
    assert speeds_of(attempt.job).fixed is before.fixed


def test_curves_of_different_lengths_share_one_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    attempt, fits = running(2), []
    report(attempt, 2, 0.0717)  # as no other test, since fits are remembered

    def counted(some: list[Measurement]) -> Model | None:
        fits.append(some)
        return fit(some)

    monkeypatch.setattr(performance, "fit", counted)
    short, long = speeds_of(attempt.job, 1).fixed, speeds_of(attempt.job, 4).fixed
    assert short is not None and long is not None
    assert len(fits) == 1 and short.speeds == long.speeds[:1]


def test_steps_over_several_nodes_are_distinguished() -> None:
    attempt = running(4, nodes=2)
    report(attempt, 4, 0.3)
    row = StepStat.objects.get()
    assert (row.nodes, row.gpus) == (2, 4)


def test_a_slower_kind_of_gpu_has_a_factor() -> None:
    fast, slow = running(1), running(1, entry="other.py")
    Job.objects.filter(pk=slow.job_id).update(entry=fast.job.entry, project=fast.job.project)
    for attempt, kind in ((fast, "NVIDIA H100"), (slow, "NVIDIA T4")):
        for gpu in attempt.containers.get().node.gpus.all():
            gpu.model = kind
            gpu.save()
    report(fast, 1, 0.1, times=9)
    report(slow, 1, 0.4)
    fixed = speeds_of(fast.job).fixed
    assert fixed is not None
    assert fixed.kinds["NVIDIA T4"] == pytest.approx(0.25, rel=0.05)
    assert fixed.kinds["NVIDIA H100"] == 1.0


def test_policies_see_the_speed_the_work_that_is_left_and_choose_a_batch() -> None:
    attempt = running(2, resumable=True)
    report(attempt, 2, BOTH, batches=[64, 64, 1024], noise=[1.0, 6400.0], done=0.25)
    seen = snapshot.take()
    (job,) = seen.jobs
    assert job.speed is not None and job.speed.source == "measured"
    assert job.free_speed is not None
    assert job.work is not None and job.work.source == "measured"
    pace = job.speed.speeds[1]
    assert job.work.value == pytest.approx(300 * 3 * BOTH * pace, rel=0.01)
    plan = decide(registry.build("ffdl", {}), replace(seen, damping_seconds=0.0))  # else it grows a little later
    assert 64 < plan.batches[job.id] <= 1024


def test_the_remaining_work_is_estimated_at_the_pace_with_the_chosen_batch() -> None:
    attempt = running(2, resumable=True)
    report(attempt, 2, BOTH, batches=[64, 64, 1024], noise=[1.0, 6400.0], done=0.25)
    ChosenBatch.objects.create(attempt=attempt, batch=512)
    report(attempt, 2, BOTH, batches=[64, 64, 1024], noise=[1.0, 6400.0], done=0.25, batch=512, total=51200)
    (job,) = snapshot.take().jobs
    assert job.speed is not None and job.free_speed is not None and job.work is not None
    assert job.free_speed.speeds[1] > 1.5 * job.speed.speeds[1]
    assert job.work.value == pytest.approx(75 * BOTH * job.free_speed.speeds[1], rel=0.01)


def test_the_progress_of_an_attempt_that_nothing_resumes_is_forgotten() -> None:
    attempt = running(2, resumable=False)
    report(attempt, 2, BOTH)
    Attempt.objects.filter(pk=attempt.pk).update(ended_at=timezone.now(), outcome="failed")
    assert read_progress({attempt.job_id}) == {}
    Job.objects.filter(pk=attempt.job_id).update(resumable=True)
    assert read_progress({attempt.job_id})[attempt.job_id].step == 300
