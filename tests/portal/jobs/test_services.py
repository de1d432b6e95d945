"""The actions of users on jobs, and the messages when these are refused."""

from datetime import UTC, datetime, timedelta
from typing import Any, get_args
from unittest import mock

import pytest
from django.contrib.auth.models import Group
from django.utils import timezone

from portal.accounts.models import Limit, User
from portal.cluster.models import Gpu
from portal.jobs import lifecycle, permissions, services
from portal.jobs.models import IdempotencyKey, Job
from portal.jobs.services import MODES_WITHOUT_SERVER, cancel, hold, release, retry, submit
from portal.jobs.spec import Submission
from portal.projects.inspecting.program import PARAMETER_SERVER_MODES
from portal.projects.models import Membership, Project
from portal.refused import Refused
from runners.training.schedulearn_train.server import Mode
from tests.portal.jobs_world import (
    exit,
    make_code,
    make_environment,
    make_job,
    make_node,
    make_project,
    make_user,
    place,
    run,
)

pytestmark = [pytest.mark.django_db, pytest.mark.both_databases]


@pytest.fixture
def alice() -> User:
    return make_user("alice")


@pytest.fixture
def project(alice: User) -> Project:
    return make_project(alice)


def asked(project: Project, **fields: Any) -> Submission:
    code = project.code_versions.first() or make_code(project)
    values = {"code": code, "environment": make_environment(), "launcher": "horovod", "entry": "train.py", **fields}
    return Submission(**values)


def member(project: Project, name: str, role: str) -> User:
    user = make_user(name)
    Membership.objects.create(project=project, user=user, role=role)
    return user


def test_it_queues_a_job_and_records_who_submitted_it(alice: User, project: Project) -> None:
    variables = {"EPOCHS": "3", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "50", "SCHEDULEARN_RING_RETRIES": "18"}
    job = submit(alice, project, asked(project, env_vars=variables, arguments=("--lr", "0.1")))
    assert (job.state, job.name, job.arguments, job.env_vars) == (
        "QUEUED",
        "train.py --lr 0.1",
        ["--lr", "0.1"],
        variables,
    )
    event = job.events.get()
    assert (event.kind, event.actor) == ("submitted", alice)


def test_a_torchrun_job_may_be_elastic(alice: User, project: Project) -> None:
    assert submit(alice, project, asked(project, launcher="torchrun", elastic=True, max_gpus=2)).elastic


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"launcher": "mpirun"}, "launcher"),
        ({"entry": "missing.py"}, "entry"),
        ({"entry": "../train.py"}, "entry"),
        ({"entry": "train.txt"}, "entry"),
        ({"entry": ""}, "entry"),
        ({"launcher": "command", "entry": "echo 'unclosed"}, "entry"),
        ({"launcher": "command", "entry": "a\nb"}, "entry"),
        ({"launcher": "command", "entry": "''"}, "entry"),
        ({"min_gpus": 0}, "min_gpus"),
        ({"min_gpus": 2, "max_gpus": 1}, "max_gpus"),
        ({"max_gpus": 3}, "max_gpus"),
        ({"launcher": "command", "entry": "sleep 1", "elastic": True}, "elastic"),
        ({"time_limit_seconds": 1}, "time_limit_seconds"),
        ({"time_limit_seconds": 10**9}, "time_limit_seconds"),
        ({"retries": -1}, "retries"),
        ({"retries": 11}, "retries"),
        ({"priority": 11}, "priority"),
        ({"restarts_without_progress": 0}, "restarts_without_progress"),
        ({"restarts_without_progress": 19}, "restarts_without_progress"),
        ({"silent_rank_minutes": -1}, "silent_rank_minutes"),
        ({"silent_rank_minutes": 10_081}, "silent_rank_minutes"),
        ({"tier": "gold"}, "tier"),
        ({"tier": "premium"}, "tier"),
        ({"deadline": timezone.now()}, "deadline"),
        ({"deadline": datetime.max.replace(tzinfo=UTC)}, "deadline"),
        ({"mode": "k-sync"}, "mode"),
        ({"mode": "asp"}, "mode"),
        ({"name": "x" * 81}, "name"),
        ({"name": "nul\0"}, "name"),
        ({"description": "\ud800"}, "description"),
        ({"arguments": ("x" * 2001,)}, "arguments"),
        ({"env_vars": {"1X": "a"}}, "env_vars"),
        ({"env_vars": {"A B": "a"}}, "env_vars"),
        ({"env_vars": {"X": "a" * 5000}}, "env_vars"),
        ({"env_vars": {"X": "a\0"}}, "env_vars"),
        ({"env_vars": {"SCHEDULEARN_RING_RETRIES": "0"}}, "env_vars"),
        ({"env_vars": {"SCHEDULEARN_RING_RETRIES": "19"}}, "env_vars"),
        *(
            ({"env_vars": {name: "x"}}, "env_vars")
            for name in (
                "NVIDIA_VISIBLE_DEVICES",
                "nvidia_visible_devices",
                "CUDA_VISIBLE_DEVICES",
                "LD_PRELOAD",
                "PATH",
                "PYTHONHOME",
                "HOROVOD_GLOO_IFACE",
                "HOROVOD_RANK",
                "TORCHELASTIC_RUN_ID",
                "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",
                "SCHEDULEARN_RING_RETRIES",
                "SCHEDULEARN_JOB",
                "MASTER_ADDR",
            )
        ),
    ],
)
def test_it_refuses_what_could_not_run_or_may_not(
    alice: User, project: Project, fields: dict[str, Any], field: str
) -> None:
    make_node(gpus=2)
    with pytest.raises(Refused) as refused:
        submit(alice, project, asked(project, **fields))
    assert (refused.value.code, refused.value.field) == ("invalid", field)
    assert refused.value.message.endswith(".")
    assert not Job.objects.exists()


def test_code_of_another_project_and_a_retired_environment_are_refused(alice: User, project: Project) -> None:
    other = make_code(make_project(alice, "other"))
    with pytest.raises(Refused, match="does not belong to this project"):
        submit(alice, project, asked(project, code=other))
    environment = make_environment("old")
    environment.retired = True
    with pytest.raises(Refused, match="no longer offered"):
        submit(alice, project, asked(project, environment=environment))


def test_viewers_and_strangers_do_not_submit(project: Project) -> None:
    for user in (member(project, "viewer", "viewer"), make_user("charlie")):
        with pytest.raises(Refused) as refused:
            submit(user, project, asked(project))
        assert refused.value.code == "forbidden"


def test_the_same_key_and_body_give_the_same_job(alice: User, project: Project) -> None:
    first = submit(alice, project, asked(project), idempotency_key="k")
    assert submit(alice, project, asked(project), idempotency_key="k") == first
    with pytest.raises(Refused) as refused:
        submit(alice, project, asked(project, retries=1), idempotency_key="k")
    assert refused.value.code == "conflict"
    bob = member(project, "bob", "member")
    assert submit(bob, project, asked(project), idempotency_key="k") != first
    assert Job.objects.count() == 2


def test_the_same_key_at_the_same_moment_gives_the_same_job(alice: User, project: Project) -> None:
    """Both requests find no job; the second one to insert then returns the job of the first."""
    first = submit(alice, project, asked(project), idempotency_key="k", body=b"x")
    looked = services.submitted_before
    answers = iter([None])

    def blind_once(*args: Any) -> Job | None:
        return next(answers, None) or (looked(*args) if blind.call_count > 1 else None)

    with mock.patch.object(services, "submitted_before", side_effect=blind_once) as blind:
        assert submit(alice, project, asked(project), idempotency_key="k", body=b"x") == first
    assert Job.objects.count() == 1 and IdempotencyKey.objects.count() == 1


def test_limits_of_users_and_groups_hold(alice: User, project: Project) -> None:
    Limit.objects.create(user=alice, max_queued=2, max_gpus=1)
    submit(alice, project, asked(project))
    job = submit(alice, project, asked(project))
    with pytest.raises(Refused) as refused:
        submit(alice, project, asked(project))
    assert refused.value.code == "limit" and "2" in refused.value.message
    hold(alice, job)
    with pytest.raises(Refused):
        submit(alice, project, asked(project))
    cancel(alice, job)
    submit(alice, project, asked(project))
    with pytest.raises(Refused, match="at most 1 (GPU|CPU slot) at once"):
        submit(alice, project, asked(project, min_gpus=2, max_gpus=2))


def test_no_user_fills_the_queue_alone_unless_a_limit_allows_it(alice: User, project: Project, settings: Any) -> None:
    settings.MAX_WAITING_JOBS = 2
    submit(alice, project, asked(project))
    submit(alice, project, asked(project))
    with pytest.raises(Refused, match="You may have at most 2 jobs waiting, and 2 are") as refused:
        submit(alice, project, asked(project))
    assert refused.value.code == "limit"
    submit(member(project, "bob", "member"), project, asked(project))
    Limit.objects.create(user=alice, max_queued=3)
    submit(alice, project, asked(project))
    with pytest.raises(Refused, match="at most 3 jobs waiting"):
        submit(alice, project, asked(project))


def test_holding_and_releasing_a_waiting_job(alice: User, project: Project) -> None:
    job = submit(alice, project, asked(project))
    assert hold(alice, job).state == "HELD"
    with pytest.raises(lifecycle.JobChangedError):
        lifecycle.start_attempt(job, "fifo v1")
    assert release(alice, job).state == "QUEUED"
    with pytest.raises(Refused):
        release(alice, job)


def test_holding_a_running_job_stops_it_and_keeps_its_retries(alice: User, project: Project) -> None:
    job = make_job(project)
    attempt = place(job, list(Gpu.objects.filter(node=make_node(gpus=1))))
    part = attempt.containers.get()
    run(part)
    assert hold(alice, job).state == "RUNNING"
    part.refresh_from_db()
    assert (part.wanted, part.stop_reason) == ("stop", "held")
    exit(part, None, "stopped")
    attempt.refresh_from_db()
    assert (attempt.outcome, Job.objects.get(pk=job.pk).state) == ("held", "HELD")
    assert release(alice, job).state == "QUEUED"


def test_a_finish_wins_over_a_later_cancel(alice: User, project: Project) -> None:
    job = make_job(project)
    attempt = place(job, list(Gpu.objects.filter(node=make_node(gpus=1))), driver=True)
    host, driver = attempt.containers.order_by("index")
    exit(driver, 0)
    with pytest.raises(Refused, match="just finished"):
        cancel(alice, job)
    exit(host, None, "stopped")
    assert Job.objects.get(pk=job.pk).state == "SUCCEEDED"
    for act in (cancel, hold, release):
        with pytest.raises(Refused) as refused:
            act(alice, job)
        assert refused.value.code == "conflict"


def test_cancelling_twice_is_cancelling_once(alice: User, project: Project) -> None:
    job = make_job(project)
    place(job, list(Gpu.objects.filter(node=make_node(gpus=1))))
    cancel(alice, job)
    cancel(alice, job)
    assert job.events.filter(kind="cancel_asked").count() == 1


def test_retry_submits_a_copy_of_a_finished_job(alice: User, project: Project) -> None:
    job = submit(alice, project, asked(project, arguments=("-x",), priority=3))
    with pytest.raises(Refused, match="not finished"):
        retry(alice, job)
    cancel(alice, job)
    job.refresh_from_db()
    copy = retry(alice, job)
    assert (copy.copied_from, copy.arguments, copy.priority, copy.state) == (job, ["-x"], 3, "QUEUED")
    job.refresh_from_db()
    assert job.state == "CANCELLED"


def test_a_retry_drops_a_deadline_that_has_passed(alice: User, project: Project) -> None:
    job = submit(alice, project, asked(project, deadline=timezone.now() + timedelta(hours=1), resumable=True))
    cancel(alice, job)
    Job.objects.update(deadline=timezone.now() - timedelta(minutes=1))
    job.refresh_from_db()
    copy = retry(alice, job)
    assert (copy.deadline, copy.resumable) == (None, True)


def test_premium_jobs_are_for_admins_and_whom_they_let(project: Project) -> None:
    bob = member(project, "bob", "member")
    with pytest.raises(Refused, match="admin's permission"):
        submit(bob, project, asked(project, tier="premium"))
    Limit.objects.create(user=bob, premium=True)
    assert submit(bob, project, asked(project, tier="premium")).tier == "premium"
    assert submit(make_user("ada", is_staff=True), project, asked(project, tier="premium")).tier == "premium"
    with pytest.raises(Refused, match="idle GPUs"):
        submit(bob, project, asked(project, tier="premium", opportunistic=True))


def test_a_job_counts_for_its_owners_only_group(alice: User, project: Project) -> None:
    assert submit(alice, project, asked(project)).group is None
    vision = Group.objects.create(name="vision")
    alice.groups.add(vision)
    job = submit(alice, project, asked(project))
    alice.groups.clear()
    job.refresh_from_db()
    assert job.group == vision


def test_of_several_groups_it_counts_for_the_one_its_project_is_made_in(alice: User, project: Project) -> None:
    bob = member(project, "bob", "member")
    audio, speech, vision = (Group.objects.create(name=name) for name in ("audio", "speech", "vision"))
    bob.groups.add(vision, speech, audio)
    assert submit(bob, project, asked(project)).group == audio
    alice.groups.add(vision)
    assert submit(bob, project, asked(project)).group == vision


def test_who_may_act_on_a_job(alice: User, project: Project) -> None:
    bob, carol = member(project, "bob", "member"), member(project, "carol", "member")
    admin, viewer = make_user("admin", is_staff=True), member(project, "eve", "viewer")
    for user, may in (
        (bob, True),
        (carol, False),
        (alice, True),
        (admin, True),
        (viewer, False),
        (make_user("x"), False),
    ):
        job = submit(bob, project, asked(project))
        if may:
            assert cancel(user, job).state == "CANCELLED"
        else:
            with pytest.raises(Refused) as refused:
                cancel(user, job)
            assert refused.value.code == "forbidden"
    Membership.objects.filter(user=bob).update(role="viewer")
    with pytest.raises(Refused):
        cancel(bob, Job.objects.filter(state="QUEUED")[0])


def test_values_of_variables_are_for_those_who_may_submit_and_stay_so_in_the_archive(
    alice: User, project: Project
) -> None:
    job = make_job(project, env_vars={"A": "1"})
    viewer = member(project, "eve", "viewer")
    for archived_at in (None, timezone.now()):
        job.project.archived_at = archived_at
        assert permissions.env_vars_for(alice, job) == {"A": "1"}
        assert permissions.env_vars_for(viewer, job) == {"A": None}


def test_who_sees_a_job(alice: User, project: Project) -> None:
    job = make_job(project)
    viewer, admin = member(project, "eve", "viewer"), make_user("admin", is_staff=True)
    for user, sees in ((alice, True), (viewer, True), (admin, True), (make_user("x"), False)):
        assert Job.objects.visible_to(user).filter(pk=job.pk).exists() == sees


def test_the_modes_of_the_form_are_those_of_the_training_library() -> None:
    """Both sides define the names, since the portal imports nothing that runs in jobs."""
    served = set(get_args(Mode))
    assert set(Job.Mode.values) == {*MODES_WITHOUT_SERVER, *served}
    assert served == PARAMETER_SERVER_MODES
