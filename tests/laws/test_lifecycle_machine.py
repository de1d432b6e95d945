"""A lab in miniature under every order of events: reports late, repeated or of old attempts, nodes lost, users cancelling.

``World`` is what really happens on the nodes: a container there runs until it ends, is stopped, or its fence falls
because the portal no longer renews its lease. The invariants are those of a scheduler one can trust: no GPU twice, one
live attempt, two tries of a job never at work at once, a finish is for good, every job ends once the faults do.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from unittest import mock

import pytest
from django.db import connection, transaction
from django.utils import timezone
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from portal.cluster.models import Gpu, Node
from portal.jobs import lifecycle, services
from portal.jobs.models import FINISHED_STATES, Allocation, Attempt, Container, Job, JobEvent, JobState
from portal.jobs.rules import STOP_SECONDS
from portal.refused import Refused
from runners.launch.fence import T_FENCE_SECONDS
from tests.examples import HUNT, examples
from tests.portal.jobs_world import add_driver, add_host, make_job, make_node, make_project, make_user

FENCE = timedelta(seconds=T_FENCE_SECONDS)
ENDINGS = [
    ("exited", 0),
    ("exited", 0),
    ("exited", 1),
    ("oom", 137),
    ("launch_error", None),
    ("create_error", None),
    ("stopped", None),
]


@dataclass
class Real:
    """A container as it really is on its node."""

    name: str
    job: int
    attempt: int
    number: int
    driver: bool
    leased_at: datetime
    began: datetime
    ended: datetime | None = None
    stubborn: bool = False
    """A container that does not stop when asked to; only the fence ends it."""
    reason: str = ""
    code: int | None = None


@dataclass
class World:
    now: datetime
    containers: dict[str, Real] = field(default_factory=dict)
    cut_off: set[int] = field(default_factory=set)
    """The nodes that cannot reach the portal."""
    sent: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    """Reports that are delayed or repeated."""

    def fences(self) -> None:
        for real in self.containers.values():
            if real.ended is None and self.now - real.leased_at > FENCE:
                real.ended, real.reason = real.leased_at + FENCE, "fenced"


class Lab(RuleBasedStateMachine):
    jobs = Bundle("jobs")

    def __init__(self) -> None:
        super().__init__()
        self.atomic = transaction.atomic()
        self.atomic.__enter__()
        self.world = World(timezone.now())
        self.clock = mock.patch.object(timezone, "now", lambda: self.world.now)
        self.clock.start()
        self.alice = make_user("alice")
        self.project = make_project(self.alice)
        self.nodes = [make_node(gpus=2), make_node(gpus=2)]
        self.finished: dict[int, tuple[str, datetime | None]] = {}
        self.cancelled: set[int] = set()

    def teardown(self) -> None:
        try:
            self.all_ends_well()
        finally:
            self.clock.stop()
            transaction.set_rollback(True)
            self.atomic.__exit__(None, None, None)

    # -- what people do

    @initialize(target=jobs, launcher=st.sampled_from(["horovod", "torchrun"]))
    def begin(self, launcher: str) -> int:
        return self.submit_one(launcher, False, 1, 1)

    @rule(
        target=jobs,
        elastic=st.booleans(),
        launcher=st.sampled_from(["horovod", "torchrun"]),
        retries=st.integers(0, 1),
        count=st.sampled_from([1, 1, 2, 0]),
    )
    def submit(self, elastic: bool, launcher: str, retries: int, count: int) -> int:
        return self.submit_one(launcher, elastic and launcher == "horovod", retries, count)

    def submit_one(self, launcher: str, elastic: bool, retries: int, count: int) -> int:
        """Submit a job and place it on ``count`` GPUs at once, so that most steps are about running jobs."""
        limit = {"max_gpus": 3, "time_limit_seconds": 600}
        job = make_job(self.project, launcher=launcher, elastic=elastic, retries=retries, **limit)
        if count:
            self.place_one(job.pk, count, True)
        return job.pk

    @rule(job=jobs, act=st.sampled_from([services.cancel, services.hold, services.release]))
    def wish(self, job: int, act: Any) -> None:
        before = Job.objects.get(pk=job)
        try:
            act(self.alice, before)
        except Refused as refused:
            assert refused.code == "conflict"
        else:
            if act is services.cancel:
                self.cancelled.add(job)

    # -- what the control loop does

    @rule(job=jobs, count=st.integers(1, 2), begin=st.booleans())
    def place(self, job: int, count: int, begin: bool) -> None:
        self.place_one(job, count, begin)

    def place_one(self, job: int, count: int, begin: bool) -> None:
        """Place a job; with ``begin``, its nodes receive it at once."""
        row = Job.objects.get(pk=job)
        free = Gpu.objects.exclude(allocations__released_at=None, allocations__isnull=False).select_related("node")
        live = [gpu for gpu in free.order_by("id") if gpu.node_id not in self.world.cut_off and not gpu.node.draining][
            :count
        ]
        if len(live) < count:
            return
        try:
            attempt = lifecycle.start_attempt(row, "test v1")
        except lifecycle.JobChangedError:
            return
        by_node: dict[Node, list[Gpu]] = defaultdict(list)
        for gpu in live:
            by_node[gpu.node].append(gpu)
        for index, (node, gpus) in enumerate(by_node.items()):
            add_host(attempt, index, node, gpus)
        if row.launcher == "horovod":
            add_driver(attempt, len(by_node), live[0].node)
        if begin:
            for number in range(len(self.nodes)):
                self.sync_one(number)
                self.sync_one(number)

    @rule(job=jobs)
    def grow(self, job: int) -> None:
        attempt = Attempt.objects.filter(job=job, ended_at=None, wanted="run", job__elastic=True).first()
        gpu = Gpu.objects.exclude(allocations__released_at=None, allocations__isnull=False).order_by("id").first()
        if attempt and gpu and gpu.node_id not in self.world.cut_off:
            add_host(attempt, attempt.containers.count(), gpu.node, [gpu])

    @rule(job=jobs)
    def shrink(self, job: int) -> None:
        hosts = Container.objects.filter(
            attempt__job=job, attempt__job__elastic=True, role="host", attempt__ended_at=None
        )
        for part in hosts.filter(index__gt=0).order_by("-index")[:1]:
            lifecycle.stop_container(part, "preempted")

    @rule(job=jobs)
    def preempt(self, job: int) -> None:
        self.preempt_one(job)

    def preempt_one(self, job: int) -> None:
        for attempt in Attempt.objects.filter(job=job, ended_at=None):
            lifecycle.stop_attempt(attempt, "preempted")

    @rule(seconds=st.sampled_from([1, 20, 40, 46, 200, 700]), busy=st.booleans())
    def time_passes(self, seconds: int, busy: bool) -> None:
        self.pass_time(seconds, busy)

    def pass_time(self, seconds: int, busy: bool) -> None:
        """Sweep; if ``busy``, the scheduler at once places jobs that the sweep has queued again."""
        for _ in range(0, seconds, 20):
            self.world.now += timedelta(seconds=min(20, seconds))
            self.heartbeats()
        lifecycle.sweep(self.world.now)
        if busy:
            for job in Job.objects.filter(state=JobState.QUEUED).order_by("id"):
                self.place_one(job.pk, 1, True)

    @rule(node=st.integers(0, 1), draining=st.booleans())
    def drain(self, node: int, draining: bool) -> None:
        Node.objects.filter(pk=self.nodes[node].pk).update(draining=draining)

    # -- what nodes do

    @rule(data=st.data(), seconds=st.sampled_from([1, 20, 40, 46]))
    def cut(self, data: st.DataObject, seconds: int) -> None:
        """A node at work, if one is, is cut off for a while, and the scheduler continues."""
        live = [self.node_of(name) for name, real in self.world.containers.items() if real.ended is None]
        self.world.cut_off.add(data.draw(st.sampled_from(live or [self.nodes[0].pk])))
        self.pass_time(seconds, True)

    @rule(data=st.data(), seconds=st.sampled_from([1, 80, 140, 180]))
    def hang(self, data: st.DataObject, seconds: int) -> None:
        """A container no longer obeys, its job is preempted, and the scheduler continues."""
        live = [real for real in self.world.containers.values() if real.ended is None]
        if live:
            real = data.draw(st.sampled_from(live))
            real.stubborn = True
            self.preempt_one(real.job)
            self.pass_time(seconds, True)

    @rule(node=st.integers(0, 1))
    def heal(self, node: int) -> None:
        self.world.cut_off.discard(self.nodes[node].pk)

    @rule(data=st.data(), ending=st.sampled_from(ENDINGS))
    def end(self, data: st.DataObject, ending: tuple[str, int | None]) -> None:
        live = [name for name, real in self.world.containers.items() if real.ended is None]
        if live:
            real = self.world.containers[data.draw(st.sampled_from(live))]
            real.ended, (real.reason, real.code) = self.world.now, ending

    @rule(node=st.integers(0, 1))
    def sync(self, node: int) -> None:
        self.sync_one(node)

    def sync_one(self, node: int) -> None:
        """An agent reports, hears what is desired, and does it."""
        node_id = self.nodes[node].pk
        self.world.fences()
        if node_id in self.world.cut_off:
            return
        for report in self.reports(node_id):
            self.world.sent.append((node_id, report))
            self.deliver(node_id, report)
        Node.objects.filter(pk=node_id).update(last_seen_at=self.world.now)
        listed = Container.objects.filter(node=node_id).exclude(state="EXITED").select_related("attempt")
        wanted = {row.name: row for row in listed if not self.given_up(row)}
        for name, row in wanted.items():
            real = self.world.containers.get(name)
            if real is None and row.wanted == "run":
                self.world.containers[name] = Real(
                    name,
                    row.attempt.job_id,
                    row.attempt_id,
                    row.attempt.number,
                    row.role == "driver",
                    self.world.now,
                    self.world.now,
                )
            elif real is None:
                self.deliver(
                    node_id,
                    {"name": name, "epoch": row.attempt.number, "state": "EXITED", "reason": "stopped", "code": None},
                )
            elif real.ended is None and row.wanted == "stop" and not real.stubborn:
                real.ended, real.reason = self.world.now, "stopped"
            else:
                real.leased_at = self.world.now
        for name, real in self.world.containers.items():
            if name not in wanted and real.ended is None and not real.stubborn and self.node_of(name) == node_id:
                real.ended, real.reason = self.world.now, "stopped"

    @precondition(lambda self: self.world.sent)
    @rule(data=st.data())
    def a_late_report_comes_again(self, data: st.DataObject) -> None:
        node_id, report = data.draw(st.sampled_from(self.world.sent))
        self.deliver(node_id, report)

    @precondition(lambda self: self.world.sent)
    @rule(data=st.data())
    def a_report_of_another_epoch_comes(self, data: st.DataObject) -> None:
        node_id, report = data.draw(st.sampled_from(self.world.sent))
        before = list(Container.objects.order_by("id").values_list("id", "state"))
        self.deliver(node_id, {**report, "epoch": report["epoch"] + 1})
        assert list(Container.objects.order_by("id").values_list("id", "state")) == before

    # -- helpers

    def given_up(self, row: Container) -> bool:
        asked = row.stop_requested_at
        return asked is not None and self.world.now - asked >= timedelta(seconds=STOP_SECONDS)

    def node_of(self, name: str) -> int:
        return Container.objects.values_list("node_id", flat=True).get(name=name)

    def heartbeats(self) -> None:
        """Let nodes that reach the portal report, as every few seconds; the leases of their containers are renewed."""
        self.world.fences()
        reachable = [node.pk for node in self.nodes if node.pk not in self.world.cut_off]
        Node.objects.filter(pk__in=reachable).update(last_seen_at=self.world.now)
        listed = Container.objects.filter(node__in=reachable).exclude(state="EXITED")
        for row in listed:
            real = self.world.containers.get(row.name)
            if real is not None and real.ended is None and not self.given_up(row):
                real.leased_at = self.world.now

    def reports(self, node_id: int) -> list[dict[str, Any]]:
        mine = [real for real in self.world.containers.values() if self.node_of(real.name) == node_id]
        return [
            {
                "name": real.name,
                "epoch": real.number,
                "state": "RUNNING" if real.ended is None else "EXITED",
                "reason": real.reason,
                "code": real.code,
            }
            for real in mine
        ]

    def deliver(self, node_id: int, report: dict[str, Any]) -> None:
        row = Container.objects.select_related("attempt").filter(node=node_id, name=report["name"]).first()
        if row is not None and row.attempt.number == report["epoch"]:
            lifecycle.advance(row, report["state"], exit_code=report.get("code"), exit_reason=report.get("reason", ""))

    # -- what must always hold

    @invariant()
    def a_gpu_is_held_once_and_only_by_the_living(self) -> None:
        held = Allocation.objects.filter(released_at=None).select_related("container", "attempt")
        assert all(count == 1 for count in Counter(row.gpu_id for row in held).values())
        for row in held:
            assert row.container.state != "EXITED" and row.attempt.ended_at is None

    @invariant()
    def running_means_one_live_attempt(self) -> None:
        live = Counter(Attempt.objects.filter(ended_at=None).values_list("job", flat=True))
        for job in Job.objects.all():
            assert live[job.pk] == (1 if job.state == JobState.RUNNING else 0), (job.state, live)

    @invariant()
    def a_finish_is_for_good(self) -> None:
        for job in Job.objects.all():
            if job.pk in self.finished:
                assert self.finished[job.pk] == (job.state, job.finished_at)
            elif job.state in FINISHED_STATES:
                self.finished[job.pk] = (job.state, job.finished_at)
                if job.pk in self.cancelled:
                    assert job.state == JobState.CANCELLED

    @invariant()
    def numbers_have_no_gaps(self) -> None:
        for job in Job.objects.all():
            numbers = list(job.attempts.order_by("number").values_list("number", flat=True))
            assert numbers == list(range(1, len(numbers) + 1))
            seqs = list(JobEvent.objects.filter(job=job).order_by("seq").values_list("seq", flat=True))
            assert seqs == list(range(1, len(seqs) + 1))

    @invariant()
    def two_tries_never_work_at_once(self) -> None:
        self.world.fences()
        at_work: dict[int, set[int]] = defaultdict(set)
        for real in self.world.containers.values():
            if real.ended is None:
                at_work[real.job].add(real.attempt)
        assert all(len(attempts) == 1 for attempts in at_work.values()), at_work

    def all_ends_well(self) -> None:
        """The faults stop: every job that was answered for reaches an end, and nothing stays held."""
        self.world.cut_off.clear()
        Node.objects.update(draining=False)
        for job in Job.objects.exclude(state__in=FINISHED_STATES):
            if job.state == JobState.HELD or job.intent == Job.Intent.HOLD:
                services.release(self.alice, job)
        for _ in range(60):
            for job in Job.objects.filter(state=JobState.QUEUED):
                self.place_one(job.pk, 1, False)
            for number in range(len(self.nodes)):
                self.sync_one(number)
            for real in self.world.containers.values():
                if real.ended is None:
                    real.ended, real.reason, real.code = self.world.now, "exited", 0
            self.pass_time(20, False)
            for check in (
                self.a_gpu_is_held_once_and_only_by_the_living,
                self.running_means_one_live_attempt,
                self.a_finish_is_for_good,
            ):
                check()
            if not Job.objects.exclude(state__in=FINISHED_STATES).exists():
                break
        assert not Job.objects.exclude(state__in=FINISHED_STATES).exists()
        assert not Allocation.objects.filter(released_at=None).exists()


@pytest.mark.django_db
@pytest.mark.both_databases
@pytest.mark.timeout(300)
def test_the_lab_keeps_its_laws() -> None:
    connection.ensure_connection()
    run_state_machine_as_test(
        Lab,
        settings=settings(
            max_examples=examples(40, 8),
            stateful_step_count=25,
            deadline=None,
            derandomize=not HUNT,
            suppress_health_check=list(HealthCheck),
        ),
    )
