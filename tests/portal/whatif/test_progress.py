"""Progress of a simulation: of each policy, with what is unknown shown as such."""

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from portal.accounts.models import User
from portal.whatif import progress, services
from portal.whatif.models import Simulation
from portal.whatif.progress import Step
from scheduling.types import Job, Snapshot
from tests import month
from tests.portal import jobs_world as world
from tests.portal.api_client import Script
from tests.portal.live_parts import fetch_part

State = Simulation.State


def step(part: float = 0.0, seconds: float = 0.0, usual: float | None = None, title: str = "Goodput") -> Step:
    return Step(title, part, seconds, usual)


def seen(now: float, *jobs: str) -> Snapshot:
    return Snapshot(now, (), tuple(Job(id, "alice", 0.0, 1, 1) for id in jobs))


def test_the_part_counts_jobs_that_came_and_jobs_that_went() -> None:
    coming = [0.0, 0.0, 10.0, 20.0]
    assert progress.simulated_share(coming, seen(0.0, "a", "b")) == 2 / 8
    assert progress.simulated_share(coming, seen(15.0, "a", "c")) == 4 / 8
    assert progress.simulated_share(coming, seen(99.0)) == 1.0
    assert progress.simulated_share([], seen(0.0)) == 1.0


@pytest.mark.parametrize(
    ("one", "left", "text"),
    [
        (step(1.0, 3.0), 0.0, "done in a few seconds"),
        (step(0.25, 20.0), 60.0, "25 %, about 60 seconds left"),
        (step(0.25, 20.0, 7.0), 60.0, "25 %, about 60 seconds left"),  # what is seen counts more than the last time
        (step(0.01, 0.5), None, "1 %"),
        (step(0.01, 0.5, 40.0), 39.5, "1 %, about 40 seconds left"),
        (step(), None, "not started"),
        (step(usual=400.0), 400.0, "not started, took about 7 minutes last time"),
    ],
)
def test_what_is_left_of_one_policy(one: Step, left: float | None, text: str) -> None:
    assert one.left == left and one.sentence == text


def test_what_is_unknown_is_not_counted_and_is_shown() -> None:
    known = [step(1.0, 2.0), step(0.5, 10.0)]
    assert progress.remaining_seconds(known) == (10.0, True)
    assert progress.share_done(known) == 12 / 22
    assert progress.sentence(known) == "About 10 seconds left."
    more = [*known, step(title="ONES")]
    assert progress.remaining_seconds(more) == (10.0, False)
    assert progress.share_done(more) == pytest.approx(1.5 / 3)
    assert progress.sentence(more) == (
        "At least about 10 seconds left. How long “ONES” takes is unknown until it begins."
    )
    two = [step(), step()]
    assert progress.sentence(two) == "How long 2 of the policies take is unknown until they begin."
    assert progress.remaining_seconds([]) == (0, False) and progress.share_done([]) == 0.0
    assert progress.sentence([]) == "Reading the lab's history."


@pytest.mark.django_db
class TestInTheLab:
    @pytest.fixture
    def ada(self) -> User:
        return world.make_user("ada", is_staff=True)

    @pytest.fixture
    def lab(self) -> month.Month:
        return month.make(days=10, count=150, rolled=False)

    def test_the_next_one_knows_how_long_the_last_one_took(self, ada: User, lab: month.Month) -> None:
        first = services.queue_simulation(ada, 7, [("srjf", {})])
        services.run_queued()
        first.refresh_from_db()
        assert [entry["part"] for entry in first.parts] == [1.0, 1.0]
        assert [entry["usual"] for entry in first.parts] == [None, None] and first.progress == 1.0
        jobs = first.parts[0]["jobs"]
        other = [{"policy": "afs", "params": {}}]
        took = {"part": 1.0, "seconds": 30.0, "jobs": 100, "usual": None}
        Simulation.objects.filter(pk=first.pk).update(policies=other * 2, parts=[took, {**took, "jobs": 0}])
        second = services.queue_simulation(ada, 7, [("afs", {}), ("srjf", {})])
        usual = [entry["usual"] for entry in progress.initial_parts(second, jobs)]
        assert usual[0] is None and usual[1] == pytest.approx(30.0 * jobs / 100) and usual[2] is None

    def test_it_never_goes_back_and_reports_each_policy(
        self, ada: User, lab: month.Month, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(services, "SAVE_SECONDS", 0.0)
        row = services.queue_simulation(ada, 7, [("srjf", {})])
        saved: list[tuple[float, list[float]]] = []
        save = services._ProgressReporter.save

        def listen(self: Any) -> None:
            save(self)
            row.refresh_from_db()
            saved.append((row.progress, [entry["part"] for entry in row.parts]))

        monkeypatch.setattr(services._ProgressReporter, "save", listen)
        services.run_queued()
        overall = [each for each, _ in saved]
        assert overall == sorted(overall) and len(set(overall)) > 50
        assert all(parts[1] == 0 for _, parts in saved if parts[0] < 1.0)
        assert saved[-1][1] == [1.0, 1.0]

    def test_one_that_failed_is_no_measure(self, ada: User, lab: month.Month, monkeypatch: pytest.MonkeyPatch) -> None:
        from scheduling.policies.srjf import Srjf

        def broken(self: Any, snapshot: Any) -> Any:
            raise ZeroDivisionError("made for a test")

        monkeypatch.setattr(Srjf, "plan", broken)
        row = services.queue_simulation(ada, 7, [("srjf", {})])
        services.run_queued()
        row.refresh_from_db()
        assert row.status == State.DONE and [bool(entry["jobs"]) for entry in row.parts] == [True, False]

    def test_the_page_and_the_api_show_the_time_left(self, ada: User) -> None:
        row = services.queue_simulation(ada, 7, [("srjf", {})])
        script, client = Script(ada), Client()
        client.force_login(ada)
        assert script.get(f"simulations/{row.pk}/").json()["seconds_left"] is None
        parts: list[dict[str, Any]] = [
            {"part": 1.0, "seconds": 2.0, "jobs": 9, "usual": None},
            {"part": 0.2, "seconds": 60.0, "jobs": 9, "usual": None},
        ]
        begun = timezone.now() - timedelta(seconds=62)
        rows = Simulation.objects.filter(pk=row.pk)
        rows.update(status=State.RUNNING, parts=parts, progress=0.2, begun_at=begun, seen_at=timezone.now())
        assert script.get(f"simulations/{row.pk}/").json()["seconds_left"] == 240.0
        text = fetch_part(client, f"/admin/simulations/{row.pk}/").content.decode()
        assert "About 4 minutes left." in text and "20 %, about 4 minutes left" in text
        assert "done in a few seconds" in text
        rows.update(parts=[parts[1], {"part": 0.0, "seconds": 0.0, "jobs": 9, "usual": None}])
        assert script.get(f"simulations/{row.pk}/").json()["seconds_left"] is None
        text = client.get(f"/admin/simulations/{row.pk}/").content.decode()
        assert "At least about 4 minutes left." in text and "is unknown until it begins" in text
