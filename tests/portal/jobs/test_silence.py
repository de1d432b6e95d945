"""Which running jobs count as silent, and which of their ranks: never one that only prints rarely or not at all."""

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client

from portal.cluster.models import Gpu
from portal.jobs import lifecycle, logs, silence
from portal.jobs.models import CheckpointSet, Job, LogStream, StopReason
from portal.jobs.silence import Silence, SilentRank
from tests.portal import jobs_world as world
from tests.portal.api_client import Script
from tests.portal.pages import one_line
from tests.portal.silence_world import NOON, Lab
from tests.portal.upgrades import upgrade_from

pytestmark = [pytest.mark.django_db, pytest.mark.both_databases]


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> Lab:
    return Lab(monkeypatch)


@pytest.fixture
def job(lab: Lab) -> Job:
    return lab.job([lab.node()])


def found(lab: Lab, job: Job) -> Silence | None:
    return silence.silences(lab.now).get(job.attempts.get().pk)


def test_a_job_is_silent_once_nothing_has_come_for_the_limit(lab: Lab, job: Job) -> None:
    lab.passes(10)
    lab.prints(job)
    lab.passes(29)
    assert found(lab, job) is None
    lab.passes(1)
    seen = found(lab, job)
    assert seen is not None and (seen.since, seen.ranks) == (NOON + timedelta(minutes=10), ())
    assert seen.text().startswith("No output for 30 min: its worker processes (ranks) are alive")
    lab.prints(job)
    assert found(lab, job) is None


def test_a_job_that_has_never_printed_is_silent_since_its_ranks_run(lab: Lab, job: Job) -> None:
    lab.passes(31)
    seen = found(lab, job)
    assert seen is not None and seen.since == NOON


@pytest.mark.parametrize("stream", ["0", "metrics"])
def test_lines_and_metrics_end_a_silence_but_words_of_ours_do_not(lab: Lab, job: Job, stream: str) -> None:
    lab.passes(40)
    lab.prints(job, stream="setup", text="The ring has 1 rank\n")
    lab.prints(job, stream="setup", host=1, text="The ring has 1 rank\n")
    assert found(lab, job) is not None
    lab.prints(job, stream=stream)
    assert found(lab, job) is None


def test_output_beyond_the_limit_of_a_log_is_output(lab: Lab, job: Job, settings: Any) -> None:
    settings.MAX_LOG_MIB = 1
    lab.prints(job, "x" * (1024 * 1024 + 1))
    assert LogStream.objects.get().cut
    lab.passes(40)
    lab.prints(job, "")
    assert found(lab, job) is not None
    lab.prints(job)
    assert found(lab, job) is None


def test_a_checkpoint_ends_a_silence(lab: Lab, job: Job) -> None:
    lab.passes(40)
    CheckpointSet.objects.create(job=job, attempt=job.attempts.get(), stored_at=lab.now - timedelta(minutes=5))
    assert found(lab, job) is None


def test_bytes_that_come_again_are_no_output(lab: Lab, job: Job) -> None:
    lab.prints(job, "step\n")
    lab.passes(31)
    logs.append(LogStream.objects.get(), 0, b"step\n")
    assert found(lab, job) is not None


@pytest.mark.parametrize(("lab_minutes", "own", "silent_after"), [(30, None, 30), (30, 5, 5), (0, 5, 5), (5, 30, 30)])
def test_the_jobs_limit_comes_before_the_labs(
    lab: Lab, settings: Any, lab_minutes: int, own: int | None, silent_after: int
) -> None:
    settings.SILENT_RANK_MINUTES = lab_minutes
    job = lab.job([lab.node()], silent_rank_minutes=own)
    lab.passes(silent_after - 0.1)
    assert found(lab, job) is None
    lab.passes(0.1)
    assert found(lab, job) is not None


@pytest.mark.parametrize(("lab_minutes", "own"), [(0, None), (30, 0)])
def test_zero_reports_nothing(lab: Lab, settings: Any, lab_minutes: int, own: int | None) -> None:
    settings.SILENT_RANK_MINUTES = lab_minutes
    job = lab.job([lab.node()], silent_rank_minutes=own)
    lab.passes(600)
    assert found(lab, job) is None


def test_a_job_whose_node_is_out_of_contact_is_not_judged(lab: Lab, job: Job) -> None:
    lab.passes(40, in_contact=False)
    assert found(lab, job) is None


def test_ranks_that_wait_for_another_node_are_not_silent(lab: Lab) -> None:
    row = world.make_job(lab.project)
    nodes = [lab.node("gpu-1"), lab.node("gpu-2")]
    attempt = world.place(row, [node.gpus.all()[0] for node in nodes])
    first, second = attempt.containers.order_by("index")
    world.run(first)
    lab.passes(40)
    assert found(lab, row) is None
    world.run(second)
    lab.passes(40)
    seen = found(lab, row)
    assert seen is not None and seen.since == NOON + timedelta(minutes=40)


def test_a_host_that_joins_does_not_hide_the_silence_of_an_elastic_job(lab: Lab) -> None:
    node = lab.node()
    job = lab.job([node], elastic=True)
    lab.passes(20)
    world.add_host(job.attempts.get(), 2, node, [Gpu.objects.get(node=node, index=1)])
    lab.passes(11)
    seen = found(lab, job)
    assert seen is not None and seen.since == NOON


def test_a_job_that_is_being_stopped_is_not_silent(lab: Lab, job: Job) -> None:
    lab.passes(40)
    lifecycle.stop_attempt(job.attempts.get(), StopReason.HELD)
    assert found(lab, job) is None


class TestSingleRanks:
    @pytest.fixture
    def job(self, lab: Lab) -> Job:
        return lab.job([lab.node("gpu-1"), lab.node("gpu-2")])

    def train(self, lab: Lab, job: Job, minutes: int, hosts: tuple[int, ...], every: int = 5) -> None:
        for _ in range(minutes // every):
            lab.passes(every)
            for host in hosts:
                lab.prints(job, host=host)

    def test_one_that_printed_all_along_and_stopped_is_named(self, lab: Lab, job: Job) -> None:
        self.train(lab, job, 60, (0, 1))
        self.train(lab, job, 25, (0,))
        assert found(lab, job) is None
        self.train(lab, job, 5, (0,))
        seen = found(lab, job)
        assert seen is not None and seen.ranks == (("rank 1", "gpu-2"),)
        assert seen.since == NOON + timedelta(minutes=60)
        assert "rank 1 on gpu-2 has printed nothing for 30 min" in seen.text()
        lab.prints(job, host=1)
        assert found(lab, job) is None

    def test_one_that_printed_only_at_its_start_is_not_judged(self, lab: Lab, job: Job) -> None:
        lab.prints(job, "using device 1\n", host=1)
        self.train(lab, job, 600, (0,))
        assert found(lab, job) is None

    def test_one_that_prints_rarely_is_judged_by_its_own_pace(self, lab: Lab, job: Job) -> None:
        for _ in range(3):
            lab.prints(job, host=1)
            self.train(lab, job, 60, (0,))
        lab.prints(job, host=1)
        self.train(lab, job, 175, (0,))
        assert found(lab, job) is None
        self.train(lab, job, 5, (0,))
        seen = found(lab, job)
        assert seen is not None and seen.ranks == (("rank 1", "gpu-2"),)

    def test_metrics_alone_do_not_accuse_the_rank_that_sends_them(self, lab: Lab, job: Job) -> None:
        self.train(lab, job, 60, (0,))
        for _ in range(12):
            lab.passes(5)
            lab.prints(job, stream="metrics")
        assert found(lab, job) is None

    def test_all_silent_names_none(self, lab: Lab, job: Job) -> None:
        self.train(lab, job, 60, (0, 1))
        self.train(lab, job, 20, (0,))
        lab.passes(31)
        seen = found(lab, job)
        assert seen is not None and seen.ranks == () and len(seen.containers) == 2

    def test_of_many_the_text_names_some(self) -> None:
        ranks = tuple(SilentRank(f"rank {number}", "gpu-2") for number in range(8))
        text = Silence(1, 1, NOON - timedelta(hours=2), ranks).text(NOON)
        assert "rank 3 on gpu-2 and 4 others have printed nothing for 2 h" in text and "rank 4" not in text


def test_the_queries_are_few_however_many_jobs_run(lab: Lab, django_assert_max_num_queries: Any) -> None:
    nodes = [lab.node(f"gpu-{number}", gpus=12) for number in (1, 2)]
    jobs = [lab.job(nodes) for _ in range(12)]
    for _ in range(7):
        lab.passes(5)
        for job in jobs[:6]:
            lab.prints(job, host=0)
            lab.prints(job, host=1)
    for _ in range(7):
        lab.passes(5)
        for job in jobs[:6]:
            lab.prints(job, host=0)
    with django_assert_max_num_queries(4):
        seen = silence.silences(lab.now)
    assert len(seen) == 12 and sum(bool(each.ranks) for each in seen.values()) == 6


def test_the_page_shows_since_when_and_the_clues(lab: Lab, job: Job) -> None:
    client = Client()
    client.force_login(lab.alice)

    def page() -> str:
        return client.get(f"/jobs/{job.pk}/").content.decode()

    lab.prints(job, "epoch 1\n\x1b[31mloading <data>\x1b[0m\n\n")
    lab.passes(31)
    Gpu.objects.update(utilisation_percent=3)
    shown = page()
    assert "No output for <time" in shown and "The job is not stopped for this" in shown
    assert "Their 1 CPU slot is at 3\u00a0% utilisation." in shown
    assert "<code>loading &lt;data&gt;</code>" in shown
    live = client.get(f"/jobs/{job.pk}/live").content.decode()
    assert "No output for" in live
    lab.prints(job)
    assert "No output for" not in page()


def test_the_page_and_the_api_name_a_single_rank(lab: Lab) -> None:
    job = lab.job([lab.node("gpu-1"), lab.node("gpu-2")])
    for minute in range(0, 120, 5):
        lab.passes(5)
        for host in (0, 1) if minute < 60 else (0,):
            lab.prints(job, host=host)
    client = Client()
    client.force_login(lab.alice)
    assert "while others continue: rank 1 on gpu-2." in one_line(client.get(f"/jobs/{job.pk}/").content.decode())
    answer = Script(lab.alice).get(f"jobs/{job.pk}/").json()["silence"]
    assert answer["ranks"] == ["rank 1 on gpu-2"]


def test_the_api_reports_it_while_it_lasts(lab: Lab, job: Job) -> None:
    script = Script(lab.alice)
    assert script.get(f"jobs/{job.pk}/").json()["silence"] is None
    lab.passes(31)
    answer = script.get(f"jobs/{job.pk}/").json()["silence"]
    assert (answer["since"], answer["ranks"]) == ("2026-11-21T12:00:00Z", [])
    assert answer["text"].startswith("No output for 31 min")
    lab.prints(job)
    assert script.get(f"jobs/{job.pk}/").json()["silence"] is None


@pytest.mark.django_db(transaction=True)
@pytest.mark.thorough
def test_after_an_upgrade_the_silence_of_running_jobs_is_counted_from_then_on(lab: Lab) -> None:
    running, ended = lab.job([lab.node()]), lab.job([lab.node("gpu-2")])
    for job in (running, ended):
        lab.prints(job)
    for part in ended.attempts.get().containers.all():
        world.exit(part)
    lab.passes(120)
    upgrade_from("jobs", "0014_job_uid_required")
    kept = Job.objects.get(pk=running.pk)
    assert (kept.restarts_without_progress, kept.silent_rank_minutes) == (None, None)
    assert found(lab, running) is None
    assert LogStream.objects.get(container__attempt__job=ended).last_at is None
    lab.passes(31)
    seen = found(lab, running)
    assert seen is not None and seen.since == NOON + timedelta(minutes=120)
