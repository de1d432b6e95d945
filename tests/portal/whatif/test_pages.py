"""Simulations of recent history: requested, run, cancelled and shown, by pages and by REST, for admins alone."""

import html
import json
import os
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from portal.accounts.models import User
from portal.refused import Refused
from portal.scheduler.services import switch_policy
from portal.whatif import services, simulation_runs, tasks
from portal.whatif.models import Simulation
from tests import month
from tests.portal import jobs_world as world
from tests.portal.api_client import Script
from tests.portal.live_parts import fetch_part

pytestmark = [pytest.mark.django_db, pytest.mark.both_databases]
State = Simulation.State


@pytest.fixture
def ada() -> User:
    return world.make_user("ada", is_staff=True)


@pytest.fixture
def client(ada: User) -> Client:
    client = Client()
    client.force_login(ada)
    return client


@pytest.fixture
def lab() -> month.Month:
    return month.make(days=10, count=150, rolled=False)


def queued(ada: User, **values: Any) -> Simulation:
    row = services.queue_simulation(ada, 7, [("srjf", {})])
    Simulation.objects.filter(pk=row.pk).update(**values)
    row.refresh_from_db()
    return row


class TestWho:
    def test_for_members_there_is_nothing(self, ada: User) -> None:
        row = queued(ada)
        member = Client()
        member.force_login(world.make_user("bob"))
        for path in ("", "new", f"{row.pk}/"):
            assert member.get(f"/admin/simulations/{path}").status_code == 404
        assert member.post(f"/admin/simulations/{row.pk}/cancel").status_code == 404
        assert member.post("/admin/simulations/new", {"policy": "fifo", "days": 7}).status_code == 404
        script = Script(User.objects.get(username="bob"))
        for path in ("simulations/", f"simulations/{row.pk}/"):
            assert script.get(path).status_code == 404
        assert script.send("post", "simulations/", {"policies": [{"policy": "fifo"}]}).status_code == 404
        assert script.send("post", f"simulations/{row.pk}/cancel/").status_code == 404
        row.refresh_from_db()
        assert row.status == State.QUEUED and Simulation.objects.count() == 1


class TestAsking:
    def test_the_form_starts_one_with_the_policy_in_force_first(self, client: Client) -> None:
        switch_policy(None, "fifo", {})
        page = client.get("/admin/simulations/new?policy=tiresias&policy=srjf&days=30")
        assert "Simulate the last 30 days" in page.content.decode()
        sent = {"days": "30", "policy": ["tiresias", "srjf"]}
        sent |= {
            f"p{place}-{name}": "on" if value is True else value
            for place, form in enumerate(page.context["form"].policies)
            for name, value in form.initial.items()
            if value is not False
        }
        answer = client.post("/admin/simulations/new", sent)
        row = Simulation.objects.get()
        assert answer.headers["Location"] == f"/admin/simulations/{row.pk}/"
        assert [each["policy"] for each in row.policies] == ["fifo", "tiresias", "srjf"]
        assert row.days == 30 and row.status == State.QUEUED and row.result is None

    def test_the_link_of_the_preview_fills_in_the_parameters(self, client: Client) -> None:
        page = client.get("/admin/simulations/new", {"policy": "fifo", "params": json.dumps({"strict": True})})
        [form] = page.context["form"].policies
        assert form.policy.key == "fifo" and form.initial["strict"] is True
        page = client.get("/admin/simulations/new", {"policy": "fifo", "params": '{"strict": 7}'})
        assert page.status_code == 200 and "were ignored" in page.content.decode()
        assert client.get("/admin/simulations/new?policy=nothing").status_code == 404

    def test_what_makes_no_sense_is_refused_with_a_sentence(self, ada: User, client: Client) -> None:
        for days, choices, message in (
            (8, [("fifo", {})], "Choose the last 7, 14 or 30 days."),
            (7, [], "Choose at least one"),
            (7, [("nothing", {})], "There is no policy"),
            (7, [("fifo", {"strict": 3})], "must be yes or no"),
            (7, [("srjf", {}), ("fifo", {}), ("tiresias", {}), ("afs", {})], "At most 4 policies"),
        ):
            with pytest.raises(Refused, match=message):
                services.queue_simulation(ada, days, choices)
        assert not Simulation.objects.exists()
        assert client.post("/admin/simulations/new", {"days": "7", "policy": ""}).status_code == 400

    def test_the_same_twice_is_simulated_once(self, ada: User) -> None:
        switch_policy(None, "fifo", {})
        row = services.queue_simulation(ada, 7, [("fifo", {}), ("srjf", {}), ("srjf", {})])
        assert [each["policy"] for each in row.policies] == ["fifo", "srjf"]


class TestCarryingOut:
    def test_a_lab_without_history_gets_the_reason(self, ada: User) -> None:
        row = queued(ada)
        assert services.run_queued() == 1
        row.refresh_from_db()
        assert row.status == State.FAILED and row.why_failed.startswith("No job ran or waited")

    def test_one_at_a_time_and_the_first_first(self, ada: User) -> None:
        first, second = queued(ada), queued(ada)
        Simulation.objects.filter(pk=first.pk).update(status=State.RUNNING, seen_at=timezone.now())
        assert services.run_queued() == 0
        assert services.ahead_of(second) == 1
        with pytest.raises(IntegrityError), transaction.atomic():
            Simulation.objects.filter(pk=second.pk).update(status=State.RUNNING)

    def test_one_that_was_interrupted_makes_way(self, ada: User) -> None:
        row = queued(ada, status=State.RUNNING, seen_at=timezone.now() - services.DEAD_AFTER - timedelta(seconds=1))
        services.run_queued()
        row.refresh_from_db()
        assert row.status == State.FAILED and "interrupted" in row.why_failed

    def test_a_cancel_ends_it_on_the_way(self, ada: User, lab: month.Month, monkeypatch: pytest.MonkeyPatch) -> None:
        row = queued(ada)
        monkeypatch.setattr(services, "SAVE_SECONDS", 0.0)
        save = services._ProgressReporter.save

        def cancelled_soon(self: Any) -> None:
            save(self)
            if self.policy == 1:
                services.cancel(Simulation.objects.get(pk=row.pk))

        monkeypatch.setattr(services._ProgressReporter, "save", cancelled_soon)
        assert services.run_queued() == 1
        row.refresh_from_db()
        assert row.status == State.CANCELLED and row.result is None and row.progress == 0.5
        with pytest.raises(Refused, match="over"):
            services.cancel(row)

    def test_what_takes_too_long_fails_with_the_reason(
        self, ada: User, lab: month.Month, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        row = queued(ada)
        monkeypatch.setattr(services, "MAX_SECONDS", 0.0)
        services.run_queued()
        row.refresh_from_db()
        assert row.status == State.FAILED and "Choose fewer days" in row.why_failed

    def test_a_policy_that_fails_is_shown_with_its_error(
        self, ada: User, client: Client, lab: month.Month, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_: Any, **__: Any) -> None:
            raise KeyError("gpu")

        monkeypatch.setattr(simulation_runs, "simulate_world", fail)
        row = queued(ada)
        services.run_queued()
        row.refresh_from_db()
        result = row.result
        assert result is not None
        assert result["simulated"][1]["wrong"] == {"code": "failed_on_history", "error": "KeyError: 'gpu'"}
        Simulation.objects.update(result=result | {"simulated": [{"wrong": "As before."}, result["simulated"][1]]})
        shown = ["As before.", "It failed on this history: KeyError: 'gpu'"]
        found = Script(ada).get(f"simulations/{row.pk}/").json()["result"]["simulated"]
        assert found == [{"wrong": text} for text in shown]
        page = html.unescape(client.get(f"/admin/simulations/{row.pk}/").content.decode())
        assert all(text in page for text in shown)

    def test_only_the_last_ones_are_kept(self, ada: User, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(services, "MAX_KEPT", 2)
        rows = [queued(ada) for _ in range(4)]
        services.run_queued()
        assert list(Simulation.objects.values_list("pk", flat=True)) == [rows[3].pk, rows[2].pk]


UP = """
import django
django.setup()
from pathlib import Path
from portal.celery import app
from portal.ops.management.commands import up

class Service:
    def __init__(self, app, **options):
        print(sorted(entry["task"] for entry in app.conf.beat_schedule.values() if entry["task"] not in app.tasks))
    def start(self):
        pass

up.EmbeddedService = Service
up.start_schedule(Path("beat"))
"""


class TestInTheSmallSize:
    def test_it_knows_every_task_of_the_schedule(self, tmp_path: Path) -> None:
        env = {**os.environ, "SCHEDULEARN_HOME": str(tmp_path), "DJANGO_SETTINGS_MODULE": "portal.settings"}
        env = {name: value for name, value in env.items() if name not in ("DATABASE_URL", "REDIS_URL")}
        done = subprocess.run([sys.executable, "-c", UP], env=env, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == "[]"

    def test_the_schedule_goes_on_while_a_thread_simulates(
        self, monkeypatch: pytest.MonkeyPatch, settings: Any
    ) -> None:
        settings.LAB = False
        begun, go_on, done = threading.Event(), threading.Event(), []

        def run_queued() -> int:
            begun.set()
            go_on.wait(60)
            done.append(threading.current_thread())
            return 1

        monkeypatch.setattr(services, "run_queued", run_queued)
        tasks.work()
        assert begun.wait(60)
        thread = tasks._thread
        tasks.work()
        assert tasks._thread is thread and not done, "one at a time, and the task did not wait for it"
        go_on.set()
        assert thread is not None
        thread.join(60)
        assert done == [thread] and thread is not threading.current_thread()


class TestPages:
    def test_queued_and_running_ones_show_their_progress(self, ada: User, client: Client) -> None:
        row = queued(ada)
        assert "It starts within seconds." in client.get(f"/admin/simulations/{row.pk}/").content.decode()
        Simulation.objects.filter(pk=row.pk).update(status=State.RUNNING, progress=0.42, begun_at=timezone.now())
        part = fetch_part(client, f"/admin/simulations/{row.pk}/")
        assert "42 %" in part.content.decode() and "<html" not in part.content.decode()
        client.post(f"/admin/simulations/{row.pk}/cancel")
        part = fetch_part(client, f"/admin/simulations/{row.pk}/")
        assert part.status_code == 204 and part.headers["HX-Refresh"] == "true"

    def test_a_finished_one_compares_and_leads_to_the_preview(
        self, ada: User, client: Client, lab: month.Month
    ) -> None:
        row = services.queue_simulation(ada, 7, [("srjf", {}), ("elastic_fifo", {})])
        services.run_queued()
        page = client.get(f"/admin/simulations/{row.pk}/")
        text = page.content.decode()
        assert "How accurate the simulation is" in text and "What really happened" in text
        assert text.count("Preview switching to this") == 2
        assert "/admin/policy/preview/?policy=srjf&amp;set=1" in text
        assert len(page.context["people"]) > 3 and "carol" in text and "speech" in text

    def test_a_policy_that_fails_is_marked_and_the_others_are_shown(
        self, ada: User, client: Client, lab: month.Month, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from scheduling.policies.srjf import Srjf

        def broken(self: Any, snapshot: Any) -> Any:
            raise ZeroDivisionError("made for a test")

        row = services.queue_simulation(ada, 7, [("srjf", {})])
        monkeypatch.setattr(Srjf, "plan", broken)
        services.run_queued()
        text = client.get(f"/admin/simulations/{row.pk}/").content.decode()
        assert "could not decide" in text and "made for a test" in text and "How accurate" in text

    def test_the_list_takes_a_constant_number_of_queries(self, ada: User, client: Client) -> None:
        queued(ada)

        def count() -> int:
            with CaptureQueriesContext(
                connection,
            ) as seen:
                assert client.get("/admin/simulations/").status_code == 200
            return len(seen)

        count()
        one = count()
        for _ in range(6):
            queued(ada)
        assert count() == one


class TestRest:
    def test_a_script_asks_waits_and_reads(self, ada: User, lab: month.Month) -> None:
        script = Script(ada)
        answer = script.send("post", "simulations/", {"days": 7, "policies": [{"policy": "srjf"}]})
        assert answer.status_code == 201, answer.json()
        row = answer.json()
        assert row["status"] == "queued" and row["result"] is None and row["policies"][1]["policy"] == "srjf"
        services.run_queued()
        row = script.get(f"simulations/{row['id']}/").json()
        assert row["status"] == "done" and row["progress"] == 1.0
        assert row["result"]["really"]["total"]["compared"] == row["result"]["simulated"][1]["total"]["compared"] > 0
        [listed] = script.get("simulations/?status=done").json()["results"]
        assert "result" not in listed
        assert script.send("post", f"simulations/{row['id']}/cancel/").status_code == 409

    def test_errors_come_in_the_one_shape(self, ada: User) -> None:
        script = Script(ada)
        sent: dict[str, Any]
        for sent in (
            {"days": 5, "policies": [{"policy": "srjf"}]},
            {"policies": []},
            {},
            {"policies": [{"policy": "nothing"}]},
            {"policies": [{"policy": "fifo", "params": {"x": 1}}]},
        ):
            answer = script.send("post", "simulations/", sent)
            assert answer.status_code == 400 and answer.json()["error"]["message"], sent
        assert not Simulation.objects.exists()
