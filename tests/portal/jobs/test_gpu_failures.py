"""A GPU that eats jobs is taken out of use; bad code takes none."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from portal.cluster import quarantine
from portal.cluster.models import Gpu
from portal.cluster.quarantine import release
from portal.jobs import gpu_failures
from portal.jobs.gpu_failures import GpuUse, count_failures_in_a_row, quarantine_failing_gpus
from portal.jobs.models import Container
from portal.sentences import sentence_of
from runners.messages.gpus import UncorrectedErrors, XidError
from tests.portal.jobs_world import add_host, exit, make_code, make_job, make_node, make_project, make_user, place, run

BAD = GpuUse(1, 1, failed_at_once=True)
GOOD = GpuUse(9, 9, failed_at_once=False)


pytestmark = pytest.mark.both_databases


@pytest.mark.parametrize(
    ("stays", "elsewhere", "count"),
    [
        ([BAD, GpuUse(2, 2, True), GpuUse(3, 3, True)], set(), 3),
        ([BAD, BAD, BAD], set(), 1),  # retries of one job
        ([BAD, GOOD, GpuUse(2, 2, True)], set(), 1),
        ([GOOD, BAD], set(), 0),
        ([BAD, GpuUse(2, 2, True), GpuUse(3, 2, True)], {2}, 1),  # that code fails anywhere
        ([BAD, GpuUse(5, 5, False, ended_by_portal=True), GpuUse(2, 2, True)], set(), 2),
        ([], set(), 0),
    ],
)
def test_different_jobs_in_a_row_count(stays: list[GpuUse], elsewhere: set[int], count: int) -> None:
    assert count_failures_in_a_row(stays, elsewhere) == count


@pytest.fixture
def gpus(db: None) -> list[Gpu]:
    make_node("gpu-1")
    Gpu.objects.update(kind="cuda")
    return list(Gpu.objects.select_related("node").order_by("index"))


class Lab:
    def __init__(self) -> None:
        self.project = make_project(make_user("alice"))
        self.codes = 0

    def fail(self, gpu: Gpu, code: Any = None, status: int = 1, after: timedelta = timedelta(seconds=2)) -> Any:
        self.codes += 1
        code = code or make_code(self.project, sha256=f"{self.codes:064}")
        attempt = place(make_job(self.project, code=code), [gpu])
        part = attempt.containers.get()
        run(part)
        Container.objects.filter(pk=part.pk).update(running_at=timezone.now() - after)
        exit(Container.objects.get(pk=part.pk), status)
        quarantine_failing_gpus([part.pk])
        return code


def test_three_jobs_that_fail_at_once_take_the_gpu_out_and_only_it(gpus: list[Gpu]) -> None:
    lab, (bad, good) = Lab(), gpus
    lab.fail(bad)
    lab.fail(bad)
    assert not Gpu.objects.exclude(quarantined_at=None).exists()
    lab.fail(bad)
    (taken,) = Gpu.objects.exclude(quarantined_at=None)
    assert taken == bad and sentence_of(taken.quarantine_reason).startswith(
        "3 different jobs in a row failed within 30 s"
    )
    release(make_user("ada", is_staff=True), bad)
    lab.fail(bad)  # what was before no longer counts
    assert not Gpu.objects.exclude(quarantined_at=None).exists()
    assert good.usable


def test_code_that_fails_elsewhere_too_is_to_blame_itself(gpus: list[Gpu]) -> None:
    lab = Lab()
    code = lab.fail(gpus[1])
    for _ in range(4):
        lab.fail(gpus[0], code=code)
    assert not Gpu.objects.exclude(quarantined_at=None).exists()


@pytest.mark.parametrize("kept", [{"status": 0}, {"after": timedelta(minutes=5)}])
def test_a_job_that_worked_for_a_while_clears_the_gpu(gpus: list[Gpu], kept: dict[str, Any]) -> None:
    lab = Lab()
    lab.fail(gpus[0])
    lab.fail(gpus[0])
    lab.fail(gpus[0], **kept)
    lab.fail(gpus[0])
    assert not Gpu.objects.exclude(quarantined_at=None).exists()


def test_the_last_usable_gpu_stays_in_use(gpus: list[Gpu]) -> None:
    Gpu.objects.filter(pk=gpus[1].pk).update(healthy=False)
    lab = Lab()
    for _ in range(4):
        lab.fail(gpus[0])
    assert not Gpu.objects.exclude(quarantined_at=None).exists()


def test_it_can_be_turned_off(gpus: list[Gpu], settings: Any) -> None:
    settings.GPU_QUARANTINE_FAILURES = 0
    lab = Lab()
    for _ in range(4):
        lab.fail(gpus[0])
    assert not Gpu.objects.exclude(quarantined_at=None).exists()


class TestGpusThatFailed:
    """GPUs whose driver reported a grave error."""

    def fails(self, gpu: Gpu, fault: Any = XidError(79, "2026-11-21T12:00:00+00:00").data()) -> None:  # noqa: B008
        Gpu.objects.filter(pk=gpu.pk).update(fault=fault)
        quarantine.quarantine(gpu, quarantine.Fault(fault))

    def test_a_job_that_ends_badly_on_it_was_lost_and_waits_again(self, gpus: list[Gpu]) -> None:
        job = make_job(Lab().project)
        attempt = place(job, gpus[:1])
        part = attempt.containers.get()
        run(part)
        self.fails(gpus[0])
        exit(part, 1)
        attempt.refresh_from_db()
        job.refresh_from_db()
        assert (attempt.outcome, job.state) == ("lost", "QUEUED")
        detail = "A GPU of it has failed: XID 79 (it has fallen off the bus) at 2026-11-21 12:00:00 UTC."
        assert sentence_of(Container.objects.get().detail) == detail

    @pytest.mark.parametrize("again", ["XID 7 at noon", XidError(7, "noon").data(), ""], ids=["text", "data", "none"])
    def test_a_gpu_that_the_previous_release_took_out_of_use_is_left(self, gpus: list[Gpu], again: Any) -> None:
        """Its rows have texts; the fault may be data since the last report of an agent of this release."""
        job = make_job(Lab().project)
        attempt = place(job, gpus[:1])
        with connection.cursor() as cursor:
            cursor.execute(
                "UPDATE cluster_gpu SET quarantined_at = %s, quarantine_reason = %s, fault = %s WHERE id = %s",
                [timezone.now(), "XID 7 at noon.", "XID 7 at noon", gpus[0].pk],
            )
        if again:
            Gpu.objects.filter(pk=gpus[0].pk).update(fault=again)
        gpu_failures.move_jobs_off_faulty_gpus()
        attempt.refresh_from_db()
        assert (attempt.wanted, attempt.stop_reason) == ("stop", "gpu_fault")

    def test_a_second_fault_does_not_hide_the_first(self, gpus: list[Gpu]) -> None:
        attempt = place(make_job(Lab().project), gpus[:1])
        self.fails(gpus[0])
        Gpu.objects.filter(pk=gpus[0].pk).update(fault=UncorrectedErrors(1).data())
        gpu_failures.move_jobs_off_faulty_gpus()
        attempt.refresh_from_db()
        assert attempt.stop_reason == "gpu_fault"

    def test_a_fault_from_before_a_job_does_not_excuse_its_failure(self, gpus: list[Gpu]) -> None:
        self.fails(gpus[0])
        release(make_user("root", is_superuser=True), gpus[0])
        attempt = place(make_job(Lab().project), gpus[:1])
        part = attempt.containers.get()
        run(part)
        exit(part, 1)
        attempt.refresh_from_db()
        assert attempt.outcome == "failed"

    def test_a_job_that_ends_well_on_it_has_succeeded(self, gpus: list[Gpu]) -> None:
        job = make_job(Lab().project)
        part = place(job, gpus[:1]).containers.get()
        run(part)
        self.fails(gpus[0])
        exit(part, 0)
        job.refresh_from_db()
        assert job.state == "SUCCEEDED"

    def test_a_job_that_runs_on_there_is_stopped_once_and_waits_again(self, gpus: list[Gpu]) -> None:
        job = make_job(Lab().project)
        attempt = place(job, gpus[:1])
        part = attempt.containers.get()
        run(part)
        self.fails(gpus[0])
        gpu_failures.move_jobs_off_faulty_gpus()
        gpu_failures.move_jobs_off_faulty_gpus()
        attempt.refresh_from_db()
        assert (attempt.wanted, attempt.stop_reason) == ("stop", "gpu_fault")
        exit(Container.objects.get(pk=part.pk), None, "stopped")
        job.refresh_from_db()
        assert job.state == "QUEUED" and job.events.filter(kind="stopping").count() == 1

    def test_an_elastic_attempt_continues_without_the_container_that_had_it(self, gpus: list[Gpu]) -> None:
        job = make_job(Lab().project, elastic=True, max_gpus=2)
        attempt = place(job, gpus[:1], driver=True)
        more = add_host(attempt, 5, gpus[1].node, gpus[1:])
        self.fails(gpus[1])
        gpu_failures.move_jobs_off_faulty_gpus()
        attempt.refresh_from_db()
        more.refresh_from_db()
        assert (attempt.wanted, more.wanted, more.stop_reason) == ("run", "stop", "gpu_fault")

    @pytest.mark.parametrize("how", ["before", "by an admin"])
    def test_what_is_no_news_of_the_driver_stops_nothing(self, gpus: list[Gpu], how: str) -> None:
        admin = make_user("root", is_superuser=True)
        if how == "before":
            self.fails(gpus[0])
            release(admin, gpus[0])
        attempt = place(make_job(Lab().project), gpus[:1])
        if how != "before":
            Gpu.objects.filter(pk=gpus[0].pk).update(fault=XidError(79, "noon").data())
            quarantine.quarantine_by_admin(admin, gpus[0])
        gpu_failures.move_jobs_off_faulty_gpus()
        attempt.refresh_from_db()
        assert attempt.wanted == "run"
