"""Pages and endpoints about GPUs: their readings, who held them, and who may see that."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from portal.accounts.models import LabSettings, User
from portal.cluster import services as cluster
from portal.cluster.models import Gpu, Node
from portal.hues import hue_of
from portal.jobs import lifecycle
from portal.jobs.models import Allocation, Job
from portal.jobs.resize_timeline.models import RankGroup
from portal.monitoring import gantt, rollups, sampling, series, visibility
from portal.monitoring.models import Hour
from portal.monitoring.sampling import Reading
from portal.monitoring.views import job_gpu_context
from tests.portal import jobs_world as world

pytestmark = [pytest.mark.django_db, pytest.mark.both_databases]


@pytest.fixture
def people() -> dict[str, User]:
    return {
        "alice": world.make_user("alice"),
        "charlie": world.make_user("charlie"),
        "ada": world.make_user("ada", is_staff=True),
    }


@pytest.fixture
def node() -> Node:
    return world.make_node("alpha", gpus=2)


def browser(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def seen(user: User, path: str) -> str:
    answer = browser(user).get(path)
    assert answer.status_code == 200
    return answer.content.decode()


def get_json(user: User, path: str) -> Any:
    answer = browser(user).get(f"/api/v1/{path}")
    assert answer.status_code == 200, answer.content
    return answer.json()


def running(owner: User, gpus: list[Gpu], name: str = "digits run", minutes: int = 30) -> Job:
    """A job that has held these GPUs for so long."""
    job = world.make_job(world.make_project(owner), name=name)
    attempt = world.place(job, gpus)
    for part in attempt.containers.all():
        world.run(part)
    Allocation.objects.filter(attempt=attempt).update(allocated_at=timezone.now() - timedelta(minutes=minutes))
    return job


def sampled(node: Node, minutes: int, percent: int = 80, since: timedelta = timedelta(minutes=50)) -> None:
    start = timezone.now() - since
    for quarter in range(minutes * 4):
        readings = [Reading(gpu.pk, percent, 20_480, 60 + gpu.index) for gpu in node.gpus.all()]
        sampling.store_sample(node, start + quarter * sampling.SLOT, readings)


class TestNow:
    def test_readings_and_holders_are_shown(self, people: dict[str, User], node: Node) -> None:
        Gpu.objects.update(utilisation_percent=73, memory_used_mib=20_480, memory_mib=40_960, temperature_celsius=61)
        sampled(node, 40)
        job = running(people["alice"], [node.gpus.get(index=0)])
        page = " ".join(seen(people["alice"], "/gpus/").split())
        assert "73 %" in page and "20 of 40 GiB" in page and "61 °C" in page
        assert f'href="/jobs/{job.pk}/"' in page and "In the last hour 80 % on average." in page

    def test_a_strangers_job_has_no_name(self, people: dict[str, User], node: Node) -> None:
        job = running(people["alice"], [node.gpus.get(index=0)])
        page = seen(people["charlie"], "/gpus/")
        assert "private project of alice" in " ".join(page.split())
        assert "digits run" not in page and f"/jobs/{job.pk}/" not in page
        LabSettings.objects.create(pk=1, queue_for_members=False)
        page = seen(people["charlie"], "/gpus/")
        assert "private project<" in page and "alice" not in page
        assert "digits run" in seen(people["ada"], "/gpus/")

    @pytest.mark.parametrize(
        ("query", "shown"),
        [
            ("state=busy", {"0"}),
            ("state=free", {"1", "2"}),
            ("state=unfit", {"3"}),
            ("state=mine", {"0"}),
            ("q=beta", {"2", "3"}),
            ("q=slot", {"0", "1", "2", "3"}),
            ("q=nothing", set()),
            ("state=nonsense&node=x&page=99", {"0", "1", "2", "3"}),
        ],
    )
    def test_filters(self, people: dict[str, User], node: Node, query: str, shown: set[str]) -> None:
        other = world.make_node("beta", gpus=2)
        other.gpus.update(index=2)
        other.gpus.filter(uuid="beta-gpu1").update(index=3, healthy=False)
        running(people["alice"], [node.gpus.get(index=0)])
        page = seen(people["alice"], f"/gpus/?{query}")
        assert {str(index) for index in range(4) if f"CPU slot {index}<" in page} == shown

    @pytest.mark.parametrize(
        ("facts", "word"),
        [({"quarantined_at": timezone.now()}, "quarantined"), ({"outside": "blender"}, "in use outside")],
    )
    def test_what_cannot_be_had_is_not_free(
        self, people: dict[str, User], node: Node, facts: dict[str, Any], word: str
    ) -> None:
        node.gpus.filter(index=1).update(**facts)
        assert "CPU slot 1<" not in seen(people["charlie"], "/gpus/?state=free")
        unfit = seen(people["charlie"], "/gpus/?state=unfit")
        assert "CPU slot 1<" in unfit and word in unfit and "blender" not in unfit

    def test_machines_that_wait_for_approval_are_not_shown(self, people: dict[str, User]) -> None:
        waiting = world.make_node("newcomer", approved_at=None)
        for path in ("/gpus/", "/gpus/timeline/"):
            assert "newcomer" not in seen(people["charlie"], path)
        gpu = waiting.gpus.first()
        client = browser(people["charlie"])
        assert gpu is not None
        assert client.get(f"/gpus/nodes/{waiting.pk}/").status_code == 404
        assert client.get(f"/api/v1/gpus/{gpu.pk}/readings/").status_code == 404

    def test_long_lists_have_pages(self, people: dict[str, User]) -> None:
        world.make_node("large", gpus=45)
        assert "1–40 of 45 CPU slots" in seen(people["alice"], "/gpus/")
        assert "41–45 of 45 CPU slots" in seen(people["alice"], "/gpus/timeline/?page=2")


class TestOverTime:
    def test_a_node_has_charts_of_its_readings(self, people: dict[str, User], node: Node) -> None:
        sampled(node, 40)
        page = seen(people["alice"], f"/gpus/nodes/{node.pk}/")
        assert "Utilisation: 80 % on average, 80 % at most." in page
        assert page.count('class="">100</text>') == 3  # the axis ends there, in each size
        assert "Memory in use: 20 GiB on average" in page and "61 °C at most" in page

    def test_without_readings_it_shows_that(self, people: dict[str, User], node: Node) -> None:
        assert "Nothing was reported in this time." in seen(people["alice"], f"/gpus/nodes/{node.pk}/")

    def test_a_days_window_joins_hours_and_samples(self, node: Node) -> None:
        now = timezone.now().replace(minute=30, second=0, microsecond=0)
        gpu = node.gpus.first()
        assert gpu is not None
        for hours, percent in ((5, 20), (1, 60), (0, 90)):
            sampling.store_sample(node, now - timedelta(hours=hours), [Reading(gpu.pk, percent, None, None)])
        rollups.roll_up(now)
        assert Hour.objects.count() == 2
        trace = series.trace([gpu], now - timedelta(days=1), now + timedelta(seconds=1), now)
        values = [value for value in trace.values[gpu.pk]["utilisation"] if value is not None]
        assert values == [20, 60, 90] and not trace.has_values("memory")

    def test_a_months_window_is_made_of_hours(self, node: Node) -> None:
        now = timezone.now()
        gpu = node.gpus.first()
        assert gpu is not None
        hour = rollups.start_of_hour(now - timedelta(days=20))
        Hour.objects.create(gpu=gpu, at=hour, utilisation_mean=33.5, minutes={})
        trace = series.trace([gpu], now - timedelta(days=30), now, now)
        assert [value for value in trace.values[gpu.pk]["utilisation"] if value is not None] == [33.5]
        assert len(trace.times) <= series.MAX_POINTS + 1

    @pytest.mark.parametrize("window", series.WINDOWS.values())
    def test_every_window_gives_a_readable_number_of_points(self, window: series.Window) -> None:
        assert 20 <= window.length / series.step_for(window.length) <= series.MAX_POINTS

    def test_an_attempt_has_only_the_readings_while_it_held_its_gpus(self, people: dict[str, User], node: Node) -> None:
        sampled(node, 49, percent=10)
        job = running(people["alice"], [node.gpus.get(index=0)], minutes=20)
        found = visibility.attempt_readings(job.attempts.get(), timezone.now())
        assert found is not None and len(found.gpus) == 1
        known = [value for value in found.trace.values[found.gpus[0].pk]["utilisation"] if value is not None]
        assert 17 * 4 <= len(known) <= 20 * 4  # of 49 minutes with readings

    def test_a_jobs_page_shows_its_gpus(self, people: dict[str, User], node: Node) -> None:
        sampled(node, 49)
        job = running(people["alice"], list(node.gpus.all()))
        page = seen(people["alice"], f"/jobs/{job.pk}/gpus/")
        assert "GPUs over time" in page and f'hx-get="/jobs/{job.pk}/gpus"' in page
        assert "GPUs over time" in seen(people["alice"], f"/jobs/{job.pk}/gpus")
        assert browser(people["charlie"]).get(f"/jobs/{job.pk}/gpus").status_code == 404

    def test_many_gpus_are_drawn_as_their_mean(self, people: dict[str, User]) -> None:
        large = world.make_node("large", gpus=9)
        for quarter in range(80):
            readings = [Reading(gpu.pk, gpu.index * 10, None, None) for gpu in large.gpus.all()]
            sampling.store_sample(large, timezone.now() - quarter * sampling.SLOT, readings)
        page = seen(people["alice"], f"/gpus/nodes/{large.pk}/")
        assert "lowest" in page and "highest" in page and "Utilisation: 40 % on average" in page

    def test_charts_of_an_elastic_job_mark_its_resizes(self, people: dict[str, User], node: Node) -> None:
        sampled(node, 40)
        job = world.make_job(world.make_project(people["alice"]), elastic=True, max_gpus=2)
        attempt = world.place(job, list(node.gpus.all()), driver=True)
        for part in attempt.containers.all():
            world.run(part)
        now = timezone.now()
        Allocation.objects.filter(attempt=attempt).update(allocated_at=now - timedelta(minutes=45))
        driver = attempt.containers.get(role="driver")
        for number, (hosts, minutes) in enumerate(((["h0"], 45), (["h0", "h0"], 20)), 1):
            RankGroup.objects.create(driver=driver, number=number, at=now - timedelta(minutes=minutes), hosts=hosts)
        charts = job_gpu_context(job)["charts"]
        assert [mark["text"] for mark in charts[0].plot["marks"]] == ["1 → 2 CPU slots"]
        assert "1 → 2 CPU slots</text>" in seen(people["alice"], f"/jobs/{job.pk}/gpus")


class TestTimeline:
    @pytest.mark.parametrize("all_see_queue", [True, False])
    def test_bars_lead_to_jobs_one_may_see(self, people: dict[str, User], node: Node, all_see_queue: bool) -> None:
        LabSettings.objects.create(pk=1, queue_for_members=all_see_queue)
        job = running(people["alice"], [node.gpus.get(index=0)])
        page = seen(people["alice"], "/gpus/timeline/?window=hour")
        assert f'<a href="/jobs/{job.pk}/" aria-label="alpha CPU slot 0: digits run #{job.pk} of alice' in page
        assert f"span hue-{hue_of(people['alice'].pk)}" in page and " mine" in page
        stranger = seen(people["charlie"], "/gpus/timeline/?window=hour")
        holder = "a job of alice" if all_see_queue else "another project"
        assert f"alpha CPU slot 0: {holder}, since" in stranger and f"/jobs/{job.pk}/" not in stranger
        assert "digits run" not in stranger and ("alice" in stranger) is all_see_queue

    def test_only_what_overlaps_the_window_is_there(self, people: dict[str, User], node: Node) -> None:
        gpus = list(node.gpus.all())
        long_ago = running(people["alice"], gpus[:1], "long ago")
        now = timezone.now()
        Allocation.objects.filter(attempt__job=long_ago).update(
            allocated_at=now - timedelta(hours=5), released_at=now - timedelta(hours=4)
        )
        line = visibility.timeline(people["alice"], gpus, now - timedelta(hours=1), now)
        assert line.spans == ()
        line = visibility.timeline(people["alice"], gpus, now - timedelta(hours=6), now)
        assert [span.job for span in line.spans] == [long_ago]

    @pytest.mark.parametrize("leaves", ["machine", "gpu"])
    def test_what_a_machine_or_gpu_did_before_it_left_the_lab_stays(
        self, people: dict[str, User], node: Node, leaves: str
    ) -> None:
        gone = world.make_node("gone", gpus=1)
        job = running(people["alice"], list(gone.gpus.all()))
        lifecycle.advance(job.attempts.get().containers.get(), "EXITED", exit_code=0)
        if leaves == "machine":
            cluster.remove(people["ada"], gone)
        else:
            gone.gpus.update(present=False)
        page = seen(people["alice"], "/gpus/timeline/?window=hour")
        assert f'<a href="/jobs/{job.pk}/"' in page and 'aria-label="gone' in page
        (span,) = get_json(people["alice"], f"timeline/?window=hour&node={gone.pk}")["results"]
        assert (span["job"], span["node"][:4], span["index"]) == (job.pk, "gone", 0)
        later = timezone.now() + timedelta(seconds=1)
        assert set(visibility.gpus_with_history(later)) == set(node.gpus.all()), "an empty lane"

    def test_more_than_can_be_drawn_is_cut_with_a_note(
        self, people: dict[str, User], node: Node, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(visibility, "MAX_SPANS", 1)
        running(people["alice"], list(node.gpus.all()))
        assert "Only the latest are drawn." in seen(people["alice"], "/gpus/timeline/")

    def test_names_of_jobs_are_escaped(self, people: dict[str, User], node: Node) -> None:
        running(people["alice"], [node.gpus.get(index=0)], "<script>alert(1)</script>")
        assert "<script>alert" not in seen(people["alice"], "/gpus/timeline/")

    def test_bars_stay_within_the_picture(self, people: dict[str, User], node: Node) -> None:
        running(people["alice"], list(node.gpus.all()), minutes=600)
        now = timezone.now()
        gpus = list(node.gpus.select_related("node"))
        line = visibility.timeline(people["alice"], gpus, now - timedelta(hours=1), now)
        frame = gantt.Frame(gantt.SIZES[0], now - timedelta(hours=1), now)
        assert {frame.x_at(span.since) for span in line.spans} == {gantt.LEFT}
        assert f'x="{gantt.LEFT:.1f}"' in gantt.draw(gpus, line.spans, frame.since, frame.until)


class TestRest:
    def test_gpus_with_readings_and_holders(self, people: dict[str, User], node: Node) -> None:
        job = running(people["alice"], [node.gpus.get(index=0)])
        rows = get_json(people["alice"], "gpus/?q=alpha")["results"]
        assert [(row["node"], row["index"], row["busy"], row["job"]) for row in rows] == [
            ("alpha", 0, True, job.pk),
            ("alpha", 1, False, None),
        ]
        rows = get_json(people["charlie"], "gpus/?state=busy")["results"]
        assert [(row["busy"], row["job"]) for row in rows] == [(True, None)]

    def test_readings_of_a_gpu(self, people: dict[str, User], node: Node) -> None:
        sampled(node, 30)
        gpu = node.gpus.first()
        assert gpu is not None
        answer = get_json(people["charlie"], f"gpus/{gpu.pk}/readings/")
        assert answer["step_seconds"] == 60
        (one,) = answer["gpus"]
        assert len(one["utilisation_percent"]) == len(answer["times"])
        assert {value for value in one["utilisation_percent"] if value is not None} == {80}

    def test_readings_of_a_job_and_of_an_attempt(self, people: dict[str, User], node: Node) -> None:
        sampled(node, 49)
        job = running(people["alice"], list(node.gpus.all()))
        assert [one["index"] for one in get_json(people["alice"], f"jobs/{job.pk}/readings/")["gpus"]] == [0, 1]
        assert get_json(people["alice"], f"jobs/{job.pk}/readings/?attempt=1")["gpus"]
        for path in (f"jobs/{job.pk}/readings/?attempt=2", f"jobs/{job.pk}/readings/?attempt=x"):
            assert browser(people["alice"]).get(f"/api/v1/{path}").status_code == 404
        assert browser(people["charlie"]).get(f"/api/v1/jobs/{job.pk}/readings/").status_code == 404

    def test_the_timeline(self, people: dict[str, User], node: Node) -> None:
        job = running(people["alice"], [node.gpus.get(index=0)])
        (span,) = get_json(people["alice"], "timeline/")["results"]
        assert (span["job"], span["attempt"], span["until"], span["mine"]) == (job.pk, 1, None, True)
        (span,) = get_json(people["charlie"], f"timeline/?node={node.pk}")["results"]
        assert (span["job"], span["attempt"], span["mine"]) == (None, None, False)


def test_a_larger_lab_costs_no_more_queries(people: dict[str, User]) -> None:
    client = browser(people["alice"])
    project = world.make_project(people["alice"])
    last: list[int] = []

    def add() -> None:
        made = world.make_node(gpus=4)
        job = world.make_job(project)
        world.place(job, list(made.gpus.all()))
        sampled(made, 2)
        last[:] = [made.pk, job.pk]

    def cost() -> dict[str, int]:
        found = {}
        paths = (
            "/gpus/",
            "/gpus/timeline/",
            f"/gpus/nodes/{last[0]}/?window=day",
            "/api/v1/gpus/",
            "/api/v1/timeline/",
        )
        for path in (*paths, f"/jobs/{last[1]}/gpus"):
            with CaptureQueriesContext(connection) as queries:
                assert client.get(path).status_code == 200
            found["".join(letter for letter in path if not letter.isdigit())] = len(queries)
        return found

    add()
    few = cost()
    for _ in range(4):
        add()
    assert cost() == few
    assert max(few.values()) <= 14
