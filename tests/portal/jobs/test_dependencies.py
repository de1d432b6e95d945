"""Jobs that start after another one: who waits, who is queued, who is cancelled, and what each reader sees."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.conf import LazySettings
from django.test import Client
from django.utils import timezone

from portal.accounts.models import User
from portal.forecast import services as forecasts
from portal.forecast.models import Forecast
from portal.jobs import dependencies, lifecycle, services
from portal.jobs.models import Container, Job, JobEvent, JobState
from portal.jobs.queue import lab_queue
from portal.jobs.spec import submission_of
from portal.notifications.expansion import expand
from portal.notifications.models import Notice
from portal.projects.models import Membership
from portal.refused import Refused
from portal.scheduler import snapshot
from portal.scheduler.availability import AgentsWithoutInputs
from portal.scheduler.run_specs import InputsUnknownError, has_inputs_on
from portal.sentences import sentence_of
from portal.sentences.notices import notice_text
from runners.spec import RunSpec
from tests.portal import control_world as control
from tests.portal.jobs_world import exit, make_job, make_project, make_user, place, run

pytestmark = [pytest.mark.django_db, pytest.mark.both_databases]
ABLE = {"job_inputs": True}


def child_of(parent: Job, **fields: Any) -> Job:
    return control.queue(after=parent, **fields)


def finish(job: Job, code: int = 0, *, collected: bool = True) -> Container:
    """Let an attempt of a job run to its end."""
    node = control.ready_node(f"node-of-{job.pk}", facts=ABLE)
    attempt = place(job, list(node.gpus.all()[:1]))
    (part,) = attempt.containers.all()
    run(part)
    exit(part, code)
    if collected:
        lifecycle.record_collected(part)
    return part


def state_of(job: Job) -> str:
    job.refresh_from_db()
    return str(job.state)


def last_event(job: Job) -> str:
    rows = JobEvent.objects.filter(job=job, kind__in=("cancel_asked", "ready")).order_by("seq")
    return [row.sentence for row in rows][-1]


class TestSubmit:
    @pytest.fixture
    def alice(self) -> User:
        return make_user("alice")

    @pytest.fixture
    def parent(self, alice: User) -> Job:
        return make_job(make_project(alice), launcher="command", entry="true")

    def submit(self, parent: Job, user: User, project: Any = None, **fields: Any) -> Job:
        asked = submission_of(parent)
        code = (project or parent.project).code_versions.first()
        asked = type(asked)(**{name: getattr(asked, name) for name in asked.__slots__} | {"code": code} | fields)
        return services.submit(user, project or parent.project, asked)

    def test_a_job_waits_for_the_one_that_it_names(self, alice: User, parent: Job) -> None:
        job = self.submit(parent, alice, after=parent.pk, use_outputs=True)
        assert job.after == parent and job.use_outputs and job.ready_at is None
        again = services.submit(alice, parent.project, submission_of(job))
        assert again.after == parent and again.use_outputs, "a copy waits too"

    def test_outputs_of_no_job_are_refused(self, alice: User, parent: Job) -> None:
        with pytest.raises(Refused, match="Choose the job whose outputs") as refusal:
            self.submit(parent, alice, use_outputs=True)
        assert refusal.value.field == "use_outputs"

    def test_jobs_of_others_and_unknown_ones_are_refused_alike(self, alice: User, parent: Job) -> None:
        other = make_job(make_project(make_user("charlie"), "private"))
        messages = []
        for number in (other.pk, 10**9):
            with pytest.raises(Refused) as refusal:
                self.submit(parent, alice, after=number)
            assert refusal.value.field == "after"
            messages.append(refusal.value.message.replace(str(number), "N"))
        assert messages[0] == messages[1]

    def test_jobs_of_ones_own_in_other_projects_can_be_named_and_those_of_colleagues_there_not(
        self, alice: User, parent: Job
    ) -> None:
        bob = make_user("bob")
        shared = make_project(bob, "shared")
        Membership.objects.create(project=shared, user=alice, role=Membership.Role.MEMBER)
        own, foreign = make_job(shared, submitted_by=alice), make_job(shared)
        assert self.submit(parent, alice, after=own.pk).after == own
        with pytest.raises(Refused, match="no other of yours"):
            self.submit(parent, alice, after=foreign.pk)

    @pytest.mark.parametrize(("state", "words"), [("FAILED", "failed"), ("CANCELLED", "was cancelled")])
    def test_a_job_that_has_not_succeeded_is_refused(self, alice: User, parent: Job, state: str, words: str) -> None:
        Job.objects.filter(pk=parent.pk).update(state=state, finished_at=timezone.now())
        with pytest.raises(Refused, match=f"Job {parent.pk} {words}"):
            self.submit(parent, alice, after=parent.pk)


class TestLifecycle:
    def test_a_child_is_unknown_to_policies_until_its_parent_has_succeeded(self) -> None:
        parent = control.queue()
        child = child_of(parent, use_outputs=True)
        control.lead()
        control.turn()
        assert [job.id for job in snapshot.take().jobs] == [str(parent.pk)]
        child.refresh_from_db()
        assert child.why_waiting == f"It waits until job {parent.pk} has succeeded, which still waits."
        assert child.queue_position is None
        with pytest.raises(lifecycle.JobChangedError):
            lifecycle.start_attempt(child, "fifo v1")
        finish(parent)
        Job.objects.filter(pk=child.pk).update(submitted_at=timezone.now() - timedelta(days=3))
        before = timezone.now()
        control.turn()
        child.refresh_from_db()
        assert child.ready_at and child.ready_at >= before and child.state != JobState.CANCELLED
        assert last_event(child) == f"Job {parent.pk} has succeeded, so this one is queued now."
        assert JobEvent.objects.filter(job=child, kind="ready").count() == 1
        control.turn()
        assert JobEvent.objects.filter(job=child, kind="ready").count() == 1, "a repeated cycle changes nothing"

    def test_its_place_counts_from_when_it_was_ready(self) -> None:
        now = timezone.now()
        late = control.queue(submitted_at=now - timedelta(hours=2))
        parent = control.queue()
        Job.objects.filter(pk=parent.pk).update(state="SUCCEEDED", finished_at=now - timedelta(hours=1))
        child = child_of(parent, submitted_at=now - timedelta(days=2))
        dependencies.settle(now)
        seen = {job.id: job.submitted_at for job in snapshot.take(now).jobs}
        assert seen[str(child.pk)] == now.timestamp() > seen[str(late.pk)]
        order = [row.job.pk for row in lab_queue(child.submitted_by)]
        assert order.index(late.pk) < order.index(child.pk)

    @pytest.mark.parametrize(("retries", "state"), [(0, "CANCELLED"), (2, "QUEUED")])
    def test_a_failure_cancels_it_unless_a_retry_will_come(self, retries: int, state: str) -> None:
        parent = control.queue(retries=retries)
        child = child_of(parent)
        grandchild = child_of(child)
        finish(parent, 1)
        dependencies.settle()
        dependencies.settle()
        assert state_of(child) == state_of(grandchild) == state
        if state == "CANCELLED":
            assert f"job {parent.pk}, after which it was to start, has failed" in last_event(child)
            assert f"job {child.pk}, after which it was to start, was cancelled" in last_event(grandchild)

    def test_cancelling_the_parent_cancels_the_child_and_its_owner_is_notified(self) -> None:
        parent = control.queue()
        child = child_of(parent)
        services.cancel(parent.submitted_by, parent)
        dependencies.settle()
        assert state_of(child) == "CANCELLED"
        expand()
        notice = Notice.objects.get(job=child, event="job.cancelled")
        text = notice_text(notice.content)
        assert notice.shown and f"Run job {parent.pk} again" in text.text
        assert not Notice.objects.get(job=parent, event="job.cancelled").shown, "who cancels a job knows it"

    def test_a_child_on_hold_becomes_ready_and_stays_on_hold(self) -> None:
        parent = control.queue()
        child = child_of(parent)
        services.hold(child.submitted_by, child)
        finish(parent)
        dependencies.settle()
        child.refresh_from_db()
        assert child.ready_at is not None and child.state == JobState.HELD

    def test_it_waits_for_outputs_that_are_still_coming(self) -> None:
        parent = control.queue()
        child, plain = child_of(parent, use_outputs=True), child_of(parent)
        part = finish(parent, collected=False)
        dependencies.settle()
        child.refresh_from_db()
        plain.refresh_from_db()
        assert child.ready_at is None and plain.ready_at is not None, "one without inputs need not wait for them"
        why = dependencies.reasons()[child.pk]
        assert sentence_of(why.data()) == (
            f"Job {parent.pk} has succeeded, and it waits for the outputs of that job, which node {part.node.name} still has to send."
        )
        lifecycle.record_collected(part)
        dependencies.settle()
        child.refresh_from_db()
        assert child.ready_at is not None

    def test_a_parent_in_another_project_is_known_by_its_number_alone(self) -> None:
        project = make_project(make_user("owner"), "private")
        parent = make_job(project, launcher="command")
        child, failing = child_of(parent, use_outputs=True), child_of(make_job(project, launcher="command"))
        why = {pk: sentence_of(each.data()) for pk, each in dependencies.reasons().items()}
        assert why[child.pk] == f"It waits until job {parent.pk} has succeeded."
        part = finish(parent, collected=False)
        sentence = sentence_of(dependencies.reasons()[child.pk].data())
        assert "which a node still has to send" in sentence and part.node.name not in sentence
        assert failing.after is not None
        finish(failing.after, 1)
        Membership.objects.create(project=project, user=failing.submitted_by, role="viewer")
        dependencies.settle()
        assert state_of(failing) == JobState.CANCELLED
        assert f"because job {failing.after_id}, after which it was to start, has not succeeded." in last_event(failing)

    def test_outputs_that_were_lost_with_their_node_cancel_it(self) -> None:
        parent = control.queue()
        child = child_of(parent, use_outputs=True)
        part = finish(parent, collected=False)
        type(part.node).objects.filter(pk=part.node_id).update(removed_at=timezone.now())
        dependencies.settle()
        assert state_of(child) == "CANCELLED" and "were lost with their node" in last_event(child)

    @pytest.mark.parametrize("ready", [False, True])
    def test_who_loses_access_to_the_parent_loses_the_child_and_reads_no_number(self, ready: bool) -> None:
        parent = make_job(make_project(make_user("owner"), "private"), launcher="command")
        child = child_of(parent, use_outputs=True)
        member = Membership.objects.create(project=parent.project, user=child.submitted_by, role="member")
        if ready:
            finish(parent)
        dependencies.settle()
        assert state_of(child) == "QUEUED"
        member.delete()
        dependencies.settle()
        assert state_of(child) == "CANCELLED"
        assert str(parent.pk) not in last_event(child).replace(str(child.pk), "")

    def test_an_admin_needs_no_membership(self) -> None:
        admin = make_user("ada", is_staff=True)
        parent = make_job(make_project(make_user("owner"), "private"), submitted_by=admin)
        child = make_job(make_project(admin, "own"), after=parent)
        dependencies.settle()
        assert state_of(child) == "QUEUED"

    def test_more_than_a_cycle_settles_are_settled_by_the_next(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(dependencies, "MAX_SETTLED", 2)
        parent = control.queue()
        children = [child_of(parent) for _ in range(3)]
        Job.objects.filter(pk=parent.pk).update(state="SUCCEEDED", finished_at=timezone.now())
        assert [dependencies.settle() for _ in range(3)] == [2, 1, 0]
        assert all(Job.objects.get(pk=child.pk).ready_at for child in children)

    def test_a_job_of_the_previous_release_waits_for_none(self) -> None:
        old = control.queue()
        assert old.after is None and old.ready_at is None and old.queued_at == old.submitted_at
        assert [job.id for job in snapshot.take().jobs] == [str(old.pk)]

    def test_a_copy_that_replaces_a_waiting_parent_takes_over_its_children(self) -> None:
        parent = control.queue()
        child = child_of(parent)
        copy = control.queue()
        dependencies.move_children(parent, copy)
        services.cancel(parent.submitted_by, parent)
        dependencies.settle()
        child.refresh_from_db()
        assert child.after == copy and child.state == JobState.QUEUED

    def test_the_forecast_states_on_which_job_it_depends(self) -> None:
        control.ready_node("one")
        parent = control.queue()
        child = child_of(parent)
        forecasts.refresh()
        note = Forecast.objects.get(job=child).note
        assert sentence_of(note).startswith(f"It depends on job {parent.pk}")


class TestAgents:
    def test_agents_of_an_earlier_release_get_no_job_with_inputs(self) -> None:
        old = control.ready_node("old")
        parent = control.queue()
        Job.objects.filter(pk=parent.pk).update(state="SUCCEEDED", finished_at=timezone.now())
        child = child_of(parent, use_outputs=True)
        control.lead()
        control.turn()
        child.refresh_from_db()
        assert child.ready_at and not Container.objects.filter(attempt__job=child).exists()
        assert AgentsWithoutInputs.code in str(child.waiting_reason) and "of old is too old" in child.why_waiting
        with pytest.raises(InputsUnknownError):
            has_inputs_on(old, child)
        control.ready_node("new", facts=ABLE)
        control.turn()
        (host,) = Container.objects.filter(attempt__job=child, role="host")
        assert host.node.name == "new" and RunSpec.from_json(host.spec).inputs

    def test_specs_of_other_jobs_have_no_key_that_old_agents_refuse(self) -> None:
        control.ready_node("old")
        job = control.queue()
        control.lead()
        control.turn()
        assert "inputs" not in Container.objects.filter(attempt__job=job).first().spec  # type: ignore[union-attr]


class TestPages:
    @pytest.fixture(autouse=True)
    def home(self, settings: LazySettings, tmp_path: Path) -> None:
        settings.HOME = tmp_path

    def page(self, user: User, job: Job) -> str:
        client = Client()
        client.force_login(user)
        response = client.get(f"/jobs/{job.pk}/")
        assert response.status_code == 200
        return " ".join(response.content.decode().split())

    def test_each_page_names_the_other_job(self) -> None:
        parent = control.queue(name="prepare")
        child = child_of(parent, name="fit", use_outputs=True)
        assert f"job {child.pk} “fit”" in self.page(parent.submitted_by, parent)
        shown = self.page(parent.submitted_by, child)
        assert f"job {parent.pk} “prepare”" in shown and "with its outputs as input" in shown
        assert f"?code={parent.code_id}&amp;after={parent.pk}" in self.page(parent.submitted_by, parent)

    def test_a_reader_sees_only_the_number_of_a_private_parent(self) -> None:
        parent = make_job(make_project(make_user("owner"), "private"), name="secret")
        child = child_of(parent)
        bob = make_user("bob")
        Membership.objects.create(project=child.project, user=bob, role="viewer")
        shown = self.page(bob, child)
        assert f"job {parent.pk}" in shown and "secret" not in shown and f"/jobs/{parent.pk}/" not in shown

    def test_the_queue_hides_the_number_from_those_who_may_not_see_the_child(self) -> None:
        parent = control.queue()
        child = child_of(parent)
        control.lead()
        control.turn()
        charlie = make_user("charlie")
        (row,) = [row for row in lab_queue(charlie) if row.job.pk == child.pk]
        assert row.why == "It waits until another job has succeeded, which still waits."
