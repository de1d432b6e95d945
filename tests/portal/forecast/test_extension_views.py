"""The pages about more time: ask, see whom it delays, withdraw, and decide as an admin."""

from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from portal.accounts.models import LabSettings
from portal.forecast import delays
from portal.jobs.models import Job, TimeExtension
from portal.jobs.time_extensions import services
from portal.jobs.time_extensions.services import HOUR
from portal.user_slots import BusyError
from tests.laws.people import CANARY, World, make_job, make_world
from tests.portal.pages import one_line

pytestmark = [pytest.mark.django_db, pytest.mark.both_databases]


@pytest.fixture
def world() -> World:
    return make_world()


def browser(world: World, role: str) -> Client:
    client = Client(raise_request_exception=False)
    client.force_login(world.users[role])
    return client


def text(answer: Any) -> str:
    return one_line(answer.content.decode())


def ask(world: World, role: str = "alice", **values: Any) -> Any:
    sent = {"time_amount": 2, "time_unit": HOUR, "reason": "one epoch is missing"} | values
    return browser(world, role).post(f"/jobs/{world.running.pk}/more-time", sent)


class TestAsking:
    def test_the_page_of_a_job_leads_to_the_form_and_shows_the_request(self, world: World) -> None:
        alice = browser(world, "alice")
        page = text(alice.get(f"/jobs/{world.running.pk}/"))
        assert "Ask for more time" in page and 'id="more-time"' not in page
        form = text(alice.get(f"/jobs/{world.running.pk}/more-time"))
        assert "Its time limit is 1 h" in form and "An admin decides about more." in form
        assert ask(world).url == f"/jobs/{world.running.pk}/"
        page = text(alice.get(f"/jobs/{world.running.pk}/"))
        assert "2 h more: waits for an admin" in page and "Withdraw the request" in page
        assert "No admin has decided yet" in text(alice.get(f"/jobs/{world.running.pk}/more-time"))
        assert "Withdraw the request" not in text(browser(world, "bob").get(f"/jobs/{world.running.pk}/"))

    def test_for_htmx_only_whom_it_would_delay(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        waits = make_job(world, world.project, world.code, world.alice, "QUEUED")
        found = services.Delays(
            [(waits.pk, 1800), (world.charlies_job.pk if world.charlies_job else 0, None)], waits.submitted_at
        )
        monkeypatch.setattr(delays, "delays_if_granted", lambda *_: found)
        answer = browser(world, "alice").get(
            f"/jobs/{world.running.pk}/more-time?time_amount=90&time_unit=60", headers={"HX-Request": "true"}
        )
        part = text(answer)
        assert "<html" not in part and "uses all 1 h 30 min, 2 waiting jobs start later" in part
        assert f"#{waits.pk}" in part and "30 min later" in part
        assert "A job of another project" in part and "of charlie" in part and "no longer within a day" in part

    def test_without_scripts_a_button_compares_and_keeps_what_was_typed(self, world: World) -> None:
        answer = ask(world, compare="yes")
        assert answer.status_code == 200 and "one epoch is missing" in text(answer)
        assert "No waiting job would start later." in text(answer) or "start later, in simulations" in text(answer)
        assert not TimeExtension.objects.exists()

    def test_when_it_cannot_be_computed_it_can_be_asked_for_all_the_same(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def busy(*_: Any) -> None:
            raise BusyError

        monkeypatch.setattr(delays, "delays_if_granted", busy)
        assert "Try again in a few seconds" in text(ask(world, compare="yes"))
        assert ask(world).status_code == 302
        assert TimeExtension.objects.get().delays is None
        assert "Not known: it could not be computed" in text(browser(world, "ada").get("/admin/more-time/"))

    def test_a_refusal_is_at_its_field(self, world: World) -> None:
        answer = ask(world, time_amount=60, time_unit=86_400)
        assert answer.status_code == 400 and "ask for at most" in text(answer)
        answer = ask(world, time_amount="", reason="x" * 1001)
        assert answer.status_code == 400 and "This field is required" in text(answer)

    def test_the_rule_of_the_lab_grants_at_once(self, world: World) -> None:
        LabSettings.objects.create(pk=1, hours_granted_by_rule=3)
        assert "The lab grants up to 3 h more at once" in text(
            browser(world, "alice").get(f"/jobs/{world.running.pk}/more-time")
        )
        alice = browser(world, "alice")
        alice.post(f"/jobs/{world.running.pk}/more-time", {"time_amount": 2, "time_unit": HOUR})
        page = text(alice.get(f"/jobs/{world.running.pk}/"))
        assert "Granted by the rule of the lab: the job has 2 h more." in page
        assert "2 h more: granted by the rule of the lab" in page

    def test_who_may_not_act_is_refused_and_strangers_find_nothing(self, world: World) -> None:
        for role in ("bob", "victor"):
            answer = ask(world, role)
            assert answer.url == f"/jobs/{world.running.pk}/"
        assert ask(world, "charlie").status_code == 404
        assert not TimeExtension.objects.exists()

    def test_a_request_is_withdrawn_once(self, world: World) -> None:
        ask(world)
        alice = browser(world, "alice")
        for state, words in (("withdrawn", "The request is withdrawn."), ("withdrawn", "no request that can be")):
            answer = alice.post(f"/jobs/{world.running.pk}/more-time/withdraw", follow=True)
            assert TimeExtension.objects.get().status == state and words in text(answer)

    @pytest.mark.parametrize("state", ["QUEUED", "SUCCEEDED"])
    def test_no_button_for_a_job_that_has_not_run_or_has_ended(self, world: World, state: str) -> None:
        page = text(browser(world, "alice").get(f"/jobs/{world.jobs[state].pk}/"))
        assert "Ask for more time" not in page
        form = text(browser(world, "alice").get(f"/jobs/{world.jobs[state].pk}/more-time"))
        why = {"QUEUED": "This job has not run yet", "SUCCEEDED": "This job has succeeded."}
        assert why[state] in form and "Ask for it" not in form


class TestDeciding:
    def decide(self, world: World, row: TimeExtension, **sent: str) -> Any:
        return browser(world, "ada").post(f"/admin/more-time/{row.pk}/decide", sent, follow=True)

    def test_an_admin_sees_whom_it_delays_and_grants(self, world: World) -> None:
        row = services.ask(world.alice, world.running, 2 * HOUR, "one epoch is missing")
        TimeExtension.objects.update(delays=[[world.jobs["QUEUED"].pk, 7200]], delays_at=row.asked_at)
        overview = text(browser(world, "ada").get("/admin/"))
        assert "1 waits for an admin" in overview and "alice asks for 2 h more" in overview
        page = text(browser(world, "ada").get("/admin/more-time/"))
        assert "one epoch is missing" in page and CANARY in page and "2 h later" in page
        answer = self.decide(world, row, decision="grant", answer="Good luck")
        assert f"Granted: job {world.running.pk} has 2 h more." in text(answer)
        assert Job.objects.get(pk=world.running.pk).time_limit_seconds == 3 * HOUR
        page = text(browser(world, "alice").get(f"/jobs/{world.running.pk}/"))
        assert "2 h more: granted" in page and "Good luck" in page

    def test_a_refusal_and_what_comes_too_late(self, world: World) -> None:
        row = services.ask(world.alice, world.running, HOUR)
        assert "keeps its time limit" in text(self.decide(world, row, decision="refuse", answer="No"))
        assert "was refused by ada in the meantime" in text(self.decide(world, row, decision="grant"))
        assert "Choose to grant or to refuse" in text(self.decide(world, row, decision="postpone"))
        assert "At most 1,000" in text(
            self.decide(world, services.ask(world.alice, world.running, HOUR), decision="grant", answer="x" * 1001)
        )
        assert Job.objects.get(pk=world.running.pk).time_limit_seconds == HOUR

    def test_it_is_filtered_and_paged(self, world: World) -> None:
        ada = browser(world, "ada")
        refused = services.ask(world.alice, world.running, HOUR)
        services.refuse(world.ada, refused)
        services.ask(world.ada, world.running, 3 * HOUR)
        assert "3 h more for" in text(ada.get("/admin/more-time/"))
        assert "1 h more for" not in text(ada.get("/admin/more-time/"))
        assert "1 h more for" in text(ada.get("/admin/more-time/?status=refused"))
        assert "No requests" in text(ada.get("/admin/more-time/?status=refused&user=bob"))
        both = text(ada.get("/admin/more-time/?status=all"))
        assert "1 h more for" in both and "3 h more for" in both
        assert "There is no choice “strange”" in text(ada.get("/admin/more-time/?status=strange&page=99"))

    def test_it_is_computed_again(self, world: World) -> None:
        row = services.ask(world.alice, world.running, HOUR)
        sent = {"next": "https://evil.example"}
        answer: Any = browser(world, "ada").post(f"/admin/more-time/{row.pk}/forecast", sent)
        assert answer.url == "/admin/more-time/"
        assert TimeExtension.objects.get().delays_at is not None

    def test_the_queries_do_not_grow_with_the_requests(self, world: World) -> None:
        counts = []
        ada = browser(world, "ada")
        for _ in range(2):
            for _ in range(3):
                job = make_job(world, world.project, world.code, world.alice, "QUEUED")
                TimeExtension.objects.create(
                    job=job, asked_by=world.alice, seconds=HOUR, delays=[[job.pk, 600]], delays_at=job.submitted_at
                )
            ada.get("/admin/more-time/")
            with CaptureQueriesContext(connection) as queries:
                assert ada.get("/admin/more-time/").status_code == 200
            counts.append(len(queries))
        assert counts[0] == counts[1]
