"""Forecasts are made for all waiting jobs, shown to users who may see the jobs, and scored when these start."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from portal.accounts.models import User
from portal.cluster.models import Node
from portal.forecast import services, tasks
from portal.forecast.messages import NotByItself, TooFarBack
from portal.forecast.models import Forecast, Score
from portal.jobs import lifecycle
from portal.jobs import services as jobs
from portal.jobs.models import Attempt, Job
from portal.projects.models import Membership
from portal.scheduler.job_history import History
from portal.scheduler.services import switch_policy
from tests.portal.api_client import Script
from tests.portal.control_world import project_of, queue, ready_node, run_agents, turn
from tests.portal.jobs_world import make_user
from tests.portal.pages import one_line

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def first_come() -> None:
    switch_policy(None, "fifo", {})


def busy_lab(gpus: int = 4) -> Job:
    """One node, all of it in use."""
    ready_node("a", gpus)
    job = queue(gpus, name="the-big-one")
    turn()
    run_agents()
    return job


def moment(minutes: float, now: datetime) -> datetime:
    """Make it half a minute early, so that the full minutes until then stay the same while a test runs."""
    return now + timedelta(minutes=minutes, seconds=-30)


def forecast(job: Job, low: float | None, high: float | None, made_ago: float = 0, *, known: bool = True) -> Forecast:
    """Store a forecast with its ends so many minutes from now."""
    now = timezone.now()
    row = Forecast(
        job=job,
        snapshot_at=now,
        made_at=now - timedelta(minutes=made_ago),
        low=None if low is None else moment(low, now),
        high=None if high is None else moment(high, now),
        until=now + timedelta(hours=24),
        draws=20,
        lengths_known=known,
    )
    row.trail = services._extended_trail([], row)
    row.save()
    return row


def browser(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def alice() -> User:
    return User.objects.get(username="alice")


class TestMaking:
    def test_every_waiting_job_gets_a_range_and_running_ones_none(self) -> None:
        busy_lab()
        second, third = queue(2), queue(4)
        assert services.refresh() == 2
        assert set(Forecast.objects.values_list("job", flat=True)) == {second.pk, third.pk}
        soon, late = Forecast.objects.get(job=second), Forecast.objects.get(job=third)
        now = timezone.now()
        assert soon.low and soon.high and late.high and now - timedelta(minutes=1) < soon.low < soon.high
        assert late.high > soon.high
        assert (soon.low.second, soon.high.second) == (0, 0)
        assert soon.draws == 20

    def test_it_may_be_repeated_and_keeps_the_first_range_shown(self) -> None:
        busy_lab()
        job = queue(2)
        services.refresh()
        first = Forecast.objects.get(job=job)
        services.refresh()
        again = Forecast.objects.get(job=job)
        assert again.made_at > first.made_at
        assert again.trail == first.trail and len(first.trail) == 1

    def test_what_does_not_pass_with_time_has_no_range_but_a_sentence(self) -> None:
        busy_lab()
        job = queue(8)
        services.refresh()
        row = Forecast.objects.get(job=job)
        assert (row.low, row.high, row.trail) == (None, None, [])
        assert row.note == NotByItself().data()
        assert (
            services.describe(row).sentence
            == "There is no forecast: how long the job waits for this cannot be known beforehand."
        )

    def test_of_a_long_queue_the_first_jobs_are_looked_at(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(services, "MAX_JOBS", 1)
        busy_lab()
        first, second = queue(1), queue(1)
        assert services.refresh() == 1
        assert Forecast.objects.get(job=first).high
        row = Forecast.objects.get(job=second)
        assert row.note == TooFarBack(1).data()
        assert (
            services.describe(row).sentence
            == "It is too far back in the queue for a forecast: these are made for the first 1 jobs."
        )

    def test_a_row_of_the_release_before_shows_its_text_until_the_next_forecast(self, client: Client) -> None:
        busy_lab()
        job = queue(8)
        forecast(job, None, None)
        with connection.cursor() as cursor:
            cursor.execute("UPDATE forecast_forecast SET note = 'No forecast, as before.'")
        assert Script(job.submitted_by).get(f"jobs/{job.pk}/forecast/").json()["sentence"] == "No forecast, as before."
        client.force_login(job.submitted_by)
        assert "No forecast, as before." in client.get(f"/jobs/{job.pk}/").content.decode()
        services.refresh()
        assert (
            "cannot be known beforehand" in Script(job.submitted_by).get(f"jobs/{job.pk}/forecast/").json()["sentence"]
        )

    def test_without_a_policy_that_decides_the_old_forecasts_stay(self) -> None:
        busy_lab()
        job = queue(1)
        services.refresh()
        before = Forecast.objects.get(job=job).made_at
        config = switch_policy(None, "fifo", {})
        config.__class__.objects.filter(pk=config.pk).update(policy="gone")
        assert services.refresh() == 0
        assert Forecast.objects.get(job=job).made_at == before

    def test_the_task_is_not_repeated_within_half_a_minute(
        self, settings: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(tasks, "_history", History())
        settings.CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache", "LOCATION": "f"}}
        busy_lab()
        queue(1)
        tasks.refresh()
        assert Forecast.objects.exists()
        Forecast.objects.all().delete()
        tasks.refresh()
        assert not Forecast.objects.exists()

    def test_its_queries_do_not_grow_with_the_jobs(self) -> None:
        busy_lab()
        counts = []
        for _ in range(2):
            for _ in range(3):
                queue(1)
            services.refresh()  # rows that are made and rows that are renewed take the same
            with CaptureQueriesContext(connection) as queries:
                services.refresh()
            counts.append(len(queries))
        assert counts[0] == counts[1]

    def test_the_trail_keeps_the_first_range_and_those_of_the_last_hour(self) -> None:
        busy_lab()
        row = forecast(queue(1), 5, 10)
        first = row.trail[0]
        for _ in range(200):
            row.made_at += timedelta(minutes=1)
            row.trail = services._extended_trail(row.trail, row)
        assert row.trail[0] == first
        ages = [(row.made_at.timestamp() - at) / 60 for at, *_ in row.trail[1:]]
        assert 60 < max(ages) <= 80 and len(ages) <= 20


class TestScoring:
    def start(self, job: Job) -> datetime:
        """Start the job by a real cycle, in place of what ran."""
        run_agents(finish=True)
        turn()
        return Attempt.objects.get(job=job).created_at

    @pytest.mark.parametrize(
        ("low", "high", "held"), [(-1, 5, True), (10, 20, False), (-9, -1, False), (None, None, False)]
    )
    def test_a_start_within_the_first_range_shown_holds(
        self, low: float | None, high: float | None, held: bool
    ) -> None:
        busy_lab()
        job = queue(2)
        forecast(job, low, high, made_ago=3)
        self.start(job)
        services.close_forecasts(timezone.now())
        score = Score.objects.get()
        assert (score.made, score.held, score.job_id) == ("first", held, job.pk)
        assert not Forecast.objects.exists()

    def test_the_forecasts_an_hour_and_ten_minutes_before_are_scored_too(self) -> None:
        busy_lab()
        job = queue(2)
        row = forecast(job, -1, 5, made_ago=200)
        now = timezone.now().timestamp()
        good, bad = [now - 60, now + 300], [now + 900, now + 1800]
        row.trail = [[now - ago * 60, *ends] for ago, ends in ((200, bad), (63, good), (58, bad), (11, good), (4, bad))]
        row.save()
        self.start(job)
        services.close_forecasts(timezone.now())
        assert dict(Score.objects.values_list("made", "held")) == {"first": False, "hour": True, "minutes": True}

    def test_a_job_that_is_cancelled_or_held_is_not_scored(self) -> None:
        busy_lab()
        cancelled, held, waits = queue(1), queue(1), queue(1)
        for job in (cancelled, held, waits):
            forecast(job, 5, 10)
        jobs.cancel(alice(), cancelled)
        jobs.hold(alice(), held)
        services.close_forecasts(timezone.now())
        assert not Score.objects.exists()
        assert list(Forecast.objects.values_list("job", flat=True)) == [waits.pk]

    def test_a_job_that_waits_again_is_forecast_and_scored_again(self) -> None:
        busy_lab()
        job = queue(2)
        forecast(job, -1, 5, made_ago=3)
        self.start(job)
        services.close_forecasts(timezone.now())
        part = Attempt.objects.get(job=job).containers.first()
        assert part is not None
        for part in Attempt.objects.get(job=job).containers.all():
            lifecycle.advance(part, "EXITED", exit_reason="lost")
        forecast(job, 0, 5)
        services.close_forecasts(timezone.now())
        assert Score.objects.count() == 1  # the earlier start does not score this forecast
        turn()
        services.close_forecasts(timezone.now() + timedelta(seconds=1))
        assert Score.objects.count() == 2

    def test_the_percentage_is_shown_only_for_enough_of_them(self) -> None:
        busy_lab()
        job, now = queue(1), timezone.now()
        assert "none was tested" in services.reliability(now).sentence
        for number in range(25):
            fields: dict[str, Any] = {"made_at": now, "low": now, "placed_at": now - timedelta(days=number)}
            Score.objects.create(job=job, made="first", held=number >= 5, **fields)
            Score.objects.create(job=job, made="hour", held=False, **fields)
            if number == 3:
                assert "only 4 were tested" in services.reliability(now).sentence
        assert services.reliability(now).sentence == "In the last 30 days, 80 % of 25 ranges were right."
        assert services.reliability(now + timedelta(days=30)).percent is None

    def test_old_scores_are_forgotten(self) -> None:
        busy_lab()
        now = timezone.now()
        fields: dict[str, Any] = {"job": queue(1), "made": "first", "made_at": now, "low": now, "held": True}
        for days in (1, 91):
            Score.objects.create(placed_at=now - timedelta(days=days), **fields)
        services.close_forecasts(now)
        assert Score.objects.count() == 1


class TestSaying:
    def text(self, low: float | None, high: float | None, made_ago: float = 0) -> services.ForecastText:
        ready_node("a", 1)
        return services.describe(forecast(queue(1), low, high, made_ago))

    def test_a_range_is_shown_as_times_and_as_a_span(self) -> None:
        shown = self.text(20.9, 100)
        assert shown.sentence.startswith("Probably between ") and "UTC" in shown.sentence
        assert shown.span in shown.sentence and shown.span.endswith(" 100 minutes") and shown.short.endswith("100 min")

    def test_an_open_end_is_shown(self) -> None:
        assert "perhaps not within 24 hours" in self.text(20, None).sentence
        assert services.describe(None).sentence == "The first forecast comes within a minute."

    def test_beyond_the_horizon_nothing_is_promised(self) -> None:
        shown = self.text(None, None)
        assert (shown.sentence, shown.short) == ("Not within 24 hours.", "not within 24 h")

    def test_a_range_that_has_passed_is_not_repeated(self) -> None:
        assert "was expected to start by" in self.text(-20, -10).sentence

    def test_without_new_forecasts_it_is_stale(self) -> None:
        assert self.text(20, 30, made_ago=4).stale is False
        job = Job.objects.get()
        Forecast.objects.update(made_at=timezone.now() - timedelta(minutes=6))
        page = one_line(browser(job.submitted_by).get(f"/jobs/{job.pk}/").content.decode())
        assert "No new forecast since" in page


class TestWithoutHistory:
    """Nothing is known of the jobs ahead but their time limits, and the page does not pretend otherwise."""

    def test_a_new_lab_states_the_latest_start_and_no_guess(self) -> None:
        busy_lab()
        Job.objects.update(time_limit_seconds=4 * 3600)
        job = queue(2)
        turn()
        services.refresh()
        row = Forecast.objects.get(job=job)
        assert not row.lengths_known and row.low and row.high and row.high - row.low > timedelta(hours=3.9)
        page = one_line(browser(alice()).get(f"/jobs/{job.pk}/").content.decode())
        assert "no similar job has succeeded here. At the latest by" in page and "(in 4 hours)" in page
        assert "when they reach their time limits" in page and "simulated future" not in page and "Probably" not in page
        listed = one_line(browser(alice()).get("/jobs/?state=queued").content.decode())
        assert "When others end, at the latest in 4 h." in listed
        answer = Script(job.submitted_by).get(f"jobs/{job.pk}/forecast/").json()
        assert answer["lengths_known"] is False and answer["sentence"].startswith("When the jobs ahead of it end.")

    def test_once_similar_jobs_have_succeeded_there_is_a_range(self) -> None:
        busy_lab()
        run_agents(finish=True)
        queue(4)
        turn()
        run_agents()
        job = queue(4)
        services.refresh()
        row = Forecast.objects.get(job=job)
        assert row.lengths_known
        assert services.describe(row).sentence.startswith("Probably by ")

    def test_an_open_end_is_not_called_a_range(self) -> None:
        busy_lab()
        shown = services.describe(forecast(queue(1), 0, None, known=False))
        assert shown.sentence.endswith("Perhaps not within 24 hours.") and shown.short == "when others end"

    @pytest.mark.parametrize("known", [True, False])
    def test_each_kind_is_scored_by_itself(self, known: bool) -> None:
        busy_lab()
        job = queue(2)
        forecast(job, -1, 200, made_ago=3, known=known)
        run_agents(finish=True)
        turn()
        services.close_forecasts(timezone.now())
        assert Score.objects.get().lengths_known is known
        counts = [services.reliability(lengths_known=kind).ranges for kind in (known, not known)]
        assert counts == [1, 0]

    def test_their_percentage_is_about_the_latest_time(self) -> None:
        busy_lab()
        job, now = queue(1), timezone.now()
        assert services.reliability(lengths_known=False).sentence.startswith("How reliable such times are is not known")
        for number in range(25):
            placed = now - timedelta(minutes=number)
            Score.objects.create(
                job=job, made="first", made_at=now, low=now, placed_at=placed, held=number > 0, lengths_known=False
            )
        text = services.reliability_of(forecast(job, 0, 60, known=False)).sentence
        assert text == "In the last 30 days, 96 % of 25 such jobs started in time."
        assert services.reliability_of(None).ranges == 0

    def test_a_trail_of_the_release_before_is_scored_as_known(self) -> None:
        busy_lab()
        row = forecast(queue(2), -1, 5, made_ago=3)
        row.trail = [entry[:3] for entry in row.trail]
        (score,) = services.scores_of(row, timezone.now())
        assert score.lengths_known and score.held


class TestPages:
    def test_a_waiting_job_shows_why_until_when_and_how_good_that_is(self) -> None:
        busy_lab()
        job = queue(2)
        turn()
        forecast(job, 20, 100)
        job.refresh_from_db()
        page = browser(job.submitted_by).get(f"/jobs/{job.pk}/").content.decode()
        assert job.why_waiting and job.why_waiting in page
        assert (
            "100 minutes)" in page and "none was tested in the last 30 days" in page and f"/jobs/{job.pk}/help" in page
        )

    def test_a_running_job_shows_none_of_it(self) -> None:
        job = busy_lab()
        page = browser(job.submitted_by).get(f"/jobs/{job.pk}/").content.decode()
        assert "waiting-card" not in page and f"/jobs/{job.pk}/help" not in page

    def test_the_list_shows_the_range_shortly_with_one_query_for_all(self) -> None:
        busy_lab()
        client, counts = browser(alice()), []
        for _ in range(2):
            for _ in range(3):
                forecast(queue(1), 20, 100)
            turn()
            with CaptureQueriesContext(connection) as queries:
                page = client.get("/jobs/?state=queued").content.decode()
            counts.append(len(queries))
        assert page.count("100 min.") == 6
        assert counts[0] == counts[1]

    def test_who_may_not_see_another_persons_jobs_reads_no_word_of_them(self) -> None:
        busy_lab()
        victor = make_user("victor")
        job = queue(2, owner="bob")
        Membership.objects.create(project=job.project, user=victor, role=Membership.Role.VIEWER)
        turn()
        services.refresh()
        for path in (
            f"/jobs/{job.pk}/",
            f"/jobs/{job.pk}/help",
            f"/api/v1/jobs/{job.pk}/forecast/",
            f"/api/v1/jobs/{job.pk}/forecast/changes/",
        ):
            answer = browser(victor).get(path)
            assert answer.status_code == 200
            text = answer.content.decode()
            assert "the-big-one" not in text and "alice" not in text, path

    def test_scripts_get_the_same(self) -> None:
        busy_lab()
        job = queue(2)
        row = forecast(job, 20, 100)
        answer = browser(job.submitted_by).get(f"/api/v1/jobs/{job.pk}/forecast/").json()
        assert datetime.fromisoformat(answer["low"]) == row.low and datetime.fromisoformat(answer["high"]) == row.high
        assert answer["sentence"].startswith("Probably between") and answer["futures"] == 20
        assert answer["measured"] == {
            "days": 30,
            "ranges": 0,
            "held": 0,
            "percent": None,
            "sentence": services.reliability().sentence,
        }

    def test_a_job_that_does_not_wait_has_no_forecast(self) -> None:
        job = busy_lab()
        answer = browser(job.submitted_by).get(f"/api/v1/jobs/{job.pk}/forecast/").json()
        assert (answer["state"], answer["low"], answer["sentence"]) == (
            "RUNNING",
            None,
            "This job has left the queue.",
        )


def test_the_forecast_is_kept_by_the_real_loop() -> None:
    """A forecast is scored against a start by a real cycle."""
    busy_lab()
    job = queue(4)
    services.refresh()
    low = Forecast.objects.get(job=job).low
    Node.objects.update(last_seen_at=timezone.now())
    run_agents(finish=True)  # far sooner than anybody thought
    turn()
    services.refresh()
    score = Score.objects.get(job=job)
    assert score.placed_at == Attempt.objects.get(job=job).created_at
    assert score.held is (low is not None and low <= score.placed_at)
    assert project_of().jobs.filter(forecast__isnull=False).count() == 0
