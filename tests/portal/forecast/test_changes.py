"""Advice for waiting jobs: each change that is proposed is made, and the job really starts."""

import random
from datetime import timedelta
from typing import Any
from unittest import mock

import pytest
from django.contrib.auth.models import Group
from django.core.cache import cache
from django.test import Client
from django.utils import timezone

from portal.accounts.models import Limit, User
from portal.cluster.models import Gpu
from portal.cluster.slots import CPU_SLOT_MODEL
from portal.environments.models import Environment, NodeEnvironment
from portal.forecast import advice, changes
from portal.forecast.messages import AdviceBusy
from portal.forecast.models import Forecast
from portal.jobs import services as jobs
from portal.jobs.models import Attempt, Job, JobState
from portal.projects.models import Membership
from portal.refused import Refused
from portal.scheduler.services import switch_policy
from portal.sentences import sentence_of
from scheduling import registry
from tests.examples import examples, mostly_thorough
from tests.portal.api_client import Script
from tests.portal.control_world import gpus_of, heartbeat, project_of, queue, ready_node, run_agents, turn
from tests.portal.jobs_world import make_environment, make_user
from tests.portal.live_parts import fetch_part
from tests.portal.pages import one_line

pytestmark = pytest.mark.django_db
POLICIES = [
    key
    for key in ("fifo", "round_robin", "elastic_fifo", "fair_share", "tiresias", "srjf", "themis", "afs", "ffdl")
    if key in registry.POLICIES
]


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clear what was cached of another test's lab."""
    cache.clear()
    monkeypatch.setattr(advice, "_lab_state", advice._LabStateCache())


def alice() -> User:
    return User.objects.get(username="alice")


def half_free(gpus: int = 4, held: int = 2) -> Job:
    """A node on which a job that keeps its GPUs holds some."""
    ready_node("a", gpus)
    job = queue(held, launcher="command", name="holder")
    turn()
    run_agents()
    assert gpus_of(job) == held
    return job


def keys(job: Job) -> dict[str, advice.Advice]:
    return {each.change: each for each in advice.advice_for(job, job.submitted_by).advice}


def do(job: Job, key: str) -> Job:
    """Make the change as its owner, and run real cycles until agents have released what was requested back."""
    changed = advice.make_change(job.submitted_by, job, key)
    turn()
    return changed


@pytest.mark.parametrize("policy", mostly_thorough(POLICIES, "fifo", "elastic_fifo", "fair_share"))
class TestWhateverThePolicy:
    def test_with_fewer_gpus_it_starts_now_and_then_it_does(self, policy: str) -> None:
        switch_policy(None, policy, {})
        half_free()
        job = queue(4, launcher="command")
        turn()
        offer = keys(job)["gpus-2"]
        assert offer.sentence == "With 2 CPU slots instead of 4 it starts now."
        assert offer.starts_now and offer.differs == {"min_gpus": 2, "max_gpus": 2}
        assert gpus_of(do(job, "gpus-2")) == 2
        job.refresh_from_db()
        assert job.state == JobState.CANCELLED

    def test_elastic_code_grows_from_what_is_free(self, policy: str) -> None:
        switch_policy(None, policy, {})
        half_free()
        job = queue(4)
        code = job.code
        code.guess = {"elastic": True}
        code.save(update_fields=["guess"])
        turn()
        if policy == "tiresias":  # gives each job what it asks for at most, elastic or not
            assert "elastic" not in keys(job)
            return
        offer = keys(job)["elastic"]
        assert offer.sentence == "As an elastic job with 1 to 4 CPU slots it starts now."
        changed = do(job, "elastic")
        assert (changed.elastic, changed.min_gpus, changed.max_gpus) == (True, 1, 4)
        assert gpus_of(changed) >= 1

    def test_in_an_environment_that_is_ready_elsewhere_it_starts_there(self, policy: str) -> None:
        switch_policy(None, policy, {})
        half_free(gpus=2)
        ready_node("b", 2, environments=("jax",))
        Environment.objects.filter(key="jax").update(packages=["torch", "numpy", "jax"])
        job = queue(2, launcher="command")
        turn()
        offer = keys(job)["environment-jax"]
        assert offer.sentence == "In the environment jax, which is ready on 1 other node, it starts now."
        assert gpus_of(do(job, "environment-jax")) == 2

    def test_every_promise_of_random_labs_is_kept(self, policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """A job with "starts now" does start when the change is made, before a lease or a time slice ends."""
        monkeypatch.setattr(changes, "_simulate", lambda *args: None)
        clock = [timezone.now()]
        monkeypatch.setattr(timezone, "now", lambda: clock[0])
        rng = random.Random(policy)
        switch_policy(None, policy, {})
        for number in range(3):
            ready_node(f"n{number}", rng.choice((3, 5)))
        people = ("alice", "bob", "carol")
        kept = 0
        for _ in range(examples(24, 8)):
            for _ in range(3):
                least = rng.randint(2, 4)
                elastic = rng.random() < 0.4
                most = least + rng.randint(0, 2) if elastic else least
                launcher = "horovod" if elastic else rng.choice(("horovod", "command"))
                queue(
                    least, most, rng.choice(people), launcher=launcher, elastic=elastic, priority=rng.choice((0, 0, 1))
                )
            turn()
            run_agents()
            waiting = list(Job.objects.filter(state=JobState.QUEUED, attempts=None).order_by("pk"))
            for job in rng.sample(waiting, min(2, len(waiting))):
                promises = [each for each in advice.advice_for(job, job.submitted_by).advice if each.starts_now]
                if not promises:
                    continue
                changed = do(job, rng.choice(promises).change)
                assert gpus_of(changed), (changed.pk, promises)
                kept += 1
                break  # the world has changed; ask the others again
            run_agents(finish=rng.random() < 0.3)
            clock[0] += timedelta(seconds=20)
            heartbeat()
        assert kept >= 1


class TestWhichChanges:
    def test_as_many_gpus_as_can_start_are_proposed(self) -> None:
        switch_policy(None, "fifo", {})
        half_free(gpus=8, held=3)
        job = queue(8, launcher="command")
        assert "gpus-5" in keys(job)

    def test_code_that_is_not_elastic_is_not_proposed_to_be(self) -> None:
        half_free()
        job = queue(4)
        turn()
        assert "elastic" not in keys(job)
        with pytest.raises(Refused):
            advice.make_change(alice(), job, "elastic")

    def test_an_environment_without_what_the_code_imports_is_not_proposed(self) -> None:
        half_free(gpus=2)
        ready_node("b", 2, environments=("jax",))
        job = queue(2, launcher="command")
        job.code.guess = {"imports": {"pandas": ["train.py", 1]}}
        job.code.save(update_fields=["guess"])
        assert "environment-jax" not in keys(job)

    def test_the_lab_is_read_once_for_all_jobs_until_the_scheduler_has_news(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        half_free(gpus=2)
        jobs = [queue(2, launcher="command") for _ in range(3)]
        turn()
        reading = mock.Mock(wraps=advice.policy_and_snapshot)
        monkeypatch.setattr(advice, "policy_and_snapshot", reading)
        for job in jobs:
            assert "starts it clearly sooner" in advice.advice_for(job, job.submitted_by).sentence
        assert reading.call_count == 1
        late = queue(2, launcher="command")  # it was not there when the lab was read
        assert "starts it clearly sooner" in advice.advice_for(late, late.submitted_by).sentence
        assert reading.call_count == 2

    def test_a_user_has_one_question_worked_out_at_a_time(self) -> None:
        half_free(gpus=2)
        job = queue(2, launcher="command")
        with advice._advice_slots.hold(job.submitted_by_id):
            assert advice.advice_for(job, job.submitted_by).sentence == sentence_of(AdviceBusy())
        assert "starts it clearly sooner" in advice.advice_for(job, job.submitted_by).sentence

    def test_a_job_that_is_about_to_start_needs_no_help(self) -> None:
        ready_node("a", 2)
        job = queue(1)
        found = advice.advice_for(job, job.submitted_by)
        assert (
            found.about_to_start
            and not found.advice
            and found.sentence == "It is about to start as it is, even if the last forecast was later."
        )

    def test_when_nothing_helps_the_answer_lists_what_was_tried(self) -> None:
        switch_policy(None, "fifo", {})
        half_free(gpus=2)
        job = queue(1, launcher="command")
        found = advice.advice_for(job, job.submitted_by)
        assert not found.advice
        assert found.sentence.startswith("None of these starts it clearly sooner: ")
        assert "a shorter time limit" in found.sentence

    @pytest.mark.parametrize("known", [True, False])
    def test_sooner_is_shown_with_what_it_saves_where_lengths_are_known(self, known: bool) -> None:
        switch_policy(None, "fifo", {"strict": True})
        ready_node("a", 2)
        ready_node("b", 4)
        first, second = queue(2, launcher="command"), queue(4, launcher="command", time_limit_seconds=3600)
        turn()
        run_agents()
        assert (gpus_of(first), gpus_of(second)) == (2, 4)
        Job.objects.filter(pk=second.pk).update(time_limit_seconds=86400)
        job = queue(6)
        made = timezone.now()
        Forecast.objects.create(job=job, snapshot_at=made, made_at=made, until=made, lengths_known=known)
        offer = keys(job)
        assert offer and not any(each.starts_now for each in offer.values())
        for each in offer.values():
            assert "it probably starts" in each.sentence and (each.high_seconds is not None) == known
            assert known or each.sentence.split(". ")[0].rstrip(".").endswith("it probably starts sooner")
        answer = Script(job.submitted_by).get(f"jobs/{job.pk}/forecast/changes/").json()["advice"]
        assert [each["high_seconds"] for each in answer] == [each.high_seconds for each in offer.values()]

    @pytest.mark.parametrize("unit", ["GPU", CPU_SLOT_MODEL])
    def test_it_is_in_the_units_of_the_lab(self, unit: str) -> None:
        switch_policy(None, "fifo", {})
        half_free()
        if unit == "GPU":
            Gpu.objects.update(kind=Gpu.Kind.CUDA, model="NVIDIA A40")
        job = queue(4)
        assert keys(job)["gpus-2"].sentence == f"With 2 {unit}s instead of 4 it starts now."
        turn()
        page = Client()
        page.force_login(alice())
        text = one_line(page.get(f"/jobs/{job.pk}/").content.decode())
        assert f"Try fewer {unit}s, a shorter time limit" in text

    def test_a_limit_is_about_the_changed_job_as_well(self) -> None:
        switch_policy(None, "fifo", {})
        half_free(gpus=8, held=2)
        Limit.objects.create(user=alice(), max_gpus=5)
        job = queue(5, launcher="command")
        assert "gpus-3" in keys(job)
        assert gpus_of(do(job, "gpus-3")) == 3

    def test_at_most_three_are_shown_each_of_its_own_kind(self) -> None:
        half_free(gpus=4, held=3)
        ready_node("b", 4, environments=("jax", "more"))
        Environment.objects.update(packages=["torch"])
        job = queue(4)
        job.code.guess = {"elastic": True}
        job.code.save(update_fields=["guess"])
        found = list(keys(job))
        assert 2 <= len(found) <= 3
        assert len({key.partition("-")[0] for key in found}) == len(found)


class TestChanging:
    def waiting(self, **fields: Any) -> Job:
        switch_policy(None, "fifo", {})
        half_free()
        return queue(4, launcher="command", **fields)

    def test_the_changed_job_keeps_its_place_and_is_otherwise_the_same(self) -> None:
        job = self.waiting(arguments=["--epochs", "3"], env_vars={"A": "1"}, retries=2)
        behind = queue(2, launcher="command")
        changed = advice.make_change(alice(), job, "gpus-2")
        assert changed.submitted_at == job.submitted_at and changed.copied_from_id == job.pk
        before, after = (jobs.submission_of(Job.objects.get(pk=each.pk)) for each in (job, changed))
        assert after == type(before)(
            **{**{name: getattr(before, name) for name in before.__slots__}, "min_gpus": 2, "max_gpus": 2}
        )
        turn()
        assert (gpus_of(changed), gpus_of(behind)) == (2, 0)
        assert (
            f"the place of job {job.pk} in the queue, with 2 CPU slots instead of 4"
            in changed.events.get(kind="requeued").sentence
        )

    def test_only_its_owner_may(self) -> None:
        job = self.waiting()
        bob, ada = make_user("bob"), make_user("ada", is_staff=True)
        Membership.objects.create(project=job.project, user=bob, role=Membership.Role.MEMBER)
        for user in (bob, ada):
            with pytest.raises(Refused, match="Only the user who submitted"):
                advice.make_change(user, job, "gpus-2")
            assert not advice.may_change(user, job)
        assert Job.objects.filter(state=JobState.QUEUED).get() == job

    def test_an_owner_who_has_left_the_project_may_not(self) -> None:
        job = self.waiting()
        Membership.objects.filter(user=alice()).delete()
        with pytest.raises(Refused):
            advice.make_change(alice(), job, "gpus-2")
        job.refresh_from_db()
        assert job.state == JobState.QUEUED

    @pytest.mark.parametrize("key", ["", "gpus-4", "gpus-0", "gpus-9", "time-1", "environment-none", "x" * 80])
    def test_only_what_is_offered_can_be_asked_for(self, key: str) -> None:
        job = self.waiting()
        with pytest.raises(Refused, match="not available for the job"):
            advice.make_change(alice(), job, key)

    def test_what_has_started_meanwhile_is_left_alone(self) -> None:
        job = self.waiting()
        run_agents(finish=True)
        turn()
        with pytest.raises(Refused, match="left the queue"):
            advice.make_change(alice(), job, "gpus-2")
        assert gpus_of(job) == 4

    def test_what_has_run_before_keeps_its_checkpoints(self) -> None:
        job = self.waiting()
        Attempt.objects.create(job=job, number=1, ended_at=timezone.now(), outcome="preempted", secret="s")
        assert not advice.may_change(alice(), job)
        with pytest.raises(Refused, match="checkpoints"):
            advice.make_change(alice(), job, "gpus-2")

    def test_when_the_copy_is_refused_the_job_goes_on_waiting(self) -> None:
        job = self.waiting()
        Environment.objects.update(retired=True)
        with pytest.raises(Refused, match="no longer offered"):
            advice.make_change(alice(), job, "gpus-2")
        job.refresh_from_db()
        assert (job.state, job.intent) == (JobState.QUEUED, Job.Intent.RUN)

    def test_a_full_queue_does_not_keep_it_from_changing(self) -> None:
        job = self.waiting()
        group = Group.objects.create(name="all")
        group.user_set.add(alice())
        Limit.objects.create(group=group, max_queued=1)
        assert gpus_of(do(job, "gpus-2")) == 2


class TestPagesAndApi:
    def browser(self, user: User) -> Client:
        client = Client()
        client.force_login(user)
        return client

    def test_a_member_reads_takes_the_change_and_the_job_starts(self) -> None:
        switch_policy(None, "fifo", {})
        half_free()
        job = queue(4, launcher="command")
        turn()
        client = self.browser(alice())
        part = fetch_part(client, f"/jobs/{job.pk}/help")
        text = part.content.decode()
        assert "With 2 CPU slots instead of 4 it starts now." in text and "<html" not in text
        assert fetch_part(client, f"/jobs/{job.pk}/help", part["Edition"]).status_code == 204
        assert "<html" in client.get(f"/jobs/{job.pk}/help").content.decode()
        answer = client.post(f"/jobs/{job.pk}/change", {"change": "gpus-2"}, follow=True)
        changed = Job.objects.get(copied_from=job)
        assert answer.redirect_chain == [(f"/jobs/{changed.pk}/", 302)]
        assert f"Job {job.pk} is cancelled" in answer.content.decode()
        turn()
        assert gpus_of(changed) == 2

    def test_a_refused_change_gives_the_reason_on_the_jobs_page(self) -> None:
        half_free()
        job = queue(4, launcher="command")
        answer = self.browser(alice()).post(f"/jobs/{job.pk}/change", {"change": "nonsense"}, follow=True)
        assert "This change is not available" in answer.content.decode()

    def test_a_viewer_reads_it_without_buttons(self) -> None:
        switch_policy(None, "fifo", {})
        half_free()
        job = queue(4, launcher="command")
        victor = make_user("victor")
        Membership.objects.create(project=job.project, user=victor, role=Membership.Role.VIEWER)
        text = self.browser(victor).get(f"/jobs/{job.pk}/help").content.decode()
        assert "With 2 CPU slots instead of 4 it starts now." in text
        assert "Change and requeue" not in text and "Duplicate" not in text

    def test_duplicate_and_edit_begins_with_the_change(self) -> None:
        switch_policy(None, "fifo", {})
        half_free()
        job = queue(4, launcher="command", time_limit_seconds=7200)
        client = self.browser(alice())
        form = keys(job)["gpus-2"].form
        assert form == "min_gpus=2&max_gpus=2"
        shown = client.get(f"/jobs/new?copy={job.pk}&{form}&entry=evil.py").context["form"]
        assert [shown[name].value() for name in ("min_gpus", "max_gpus", "time_amount")] == ["2", "2", 2]
        assert shown["command"].value() == job.entry

    def test_scripts_can_ask_and_change(self) -> None:
        switch_policy(None, "fifo", {})
        half_free()
        job = queue(4, launcher="command")
        client = self.browser(alice())
        address = f"/api/v1/jobs/{job.pk}/forecast/changes/"
        found = client.get(address).json()
        assert {"change", "sentence", "starts_now", "low_seconds", "high_seconds", "differs"} == set(found["advice"][0])
        made = client.post(address, {"change": "gpus-2"}, content_type="application/json")
        assert made.status_code == 201 and made.json()["min_gpus"] == 2
        assert client.post(address, {"change": "gpus-2"}, content_type="application/json").status_code == 409
        wrong = client.post(
            f"/api/v1/jobs/{made.json()['id']}/forecast/changes/", {"change": "gpus-7"}, content_type="application/json"
        )
        assert wrong.status_code == 400 and "change" in wrong.json()["error"]["fields"]

    def test_the_answer_is_kept_until_the_world_changes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        switch_policy(None, "fifo", {})
        half_free()
        job = queue(4, launcher="command")
        asked = []
        real = advice.find_helpful_changes

        def counted(*args: Any) -> Any:
            asked.append(1)
            return real(*args)

        monkeypatch.setattr(advice, "find_helpful_changes", counted)
        for _ in range(3):
            assert "gpus-2" in keys(job)
        assert len(asked) == 1
        queue(1, priority=1)
        turn()  # which starts it, and so is recorded
        assert "gpus-1" in keys(job)
        assert len(asked) == 2


def test_a_ready_environment_of_a_closed_node_does_not_help() -> None:
    half_free(gpus=2)
    node = ready_node("b", 2, environments=("jax",), cordoned=True)
    job = queue(2, launcher="command")
    assert "environment-jax" not in keys(job)
    assert NodeEnvironment.objects.filter(node=node, environment=make_environment("jax")).exists()
    assert project_of().jobs.count() == 2
