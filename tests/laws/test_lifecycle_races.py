"""Real connections at once, on PostgreSQL: one terminal state, one live attempt, one place under a limit, one event each."""

import random
import threading
from collections.abc import Callable

import pytest
from django.db import connection

from portal.accounts.models import Limit
from portal.cluster.models import Gpu
from portal.jobs import lifecycle, logs, services
from portal.jobs.models import Allocation, Attempt, Container, Job, JobEvent, JobState
from portal.jobs.spec import Submission
from portal.refused import Refused
from tests.portal.jobs_world import (
    add_host,
    make_code,
    make_environment,
    make_job,
    make_node,
    make_project,
    make_user,
    place,
    run,
)

pytestmark = [pytest.mark.postgres, pytest.mark.django_db(transaction=True)]


def at_once(*acts: Callable[[], object]) -> list[object]:
    """Run all in threads that start together; return the result or exception of each."""
    barrier = threading.Barrier(len(acts))
    results: list[object] = [None] * len(acts)

    def go(number: int, act: Callable[[], object]) -> None:
        barrier.wait()
        try:
            results[number] = act()
        except Exception as error:  # noqa: BLE001  the test looks at it
            results[number] = error
        finally:
            connection.close()

    threads = [threading.Thread(target=go, args=(number, act)) for number, act in enumerate(acts)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return results


def unexpected(results: list[object], *allowed: type[Exception]) -> list[object]:
    return [result for result in results if isinstance(result, Exception) and not isinstance(result, allowed)]


def test_cancel_racing_finish_gives_one_end() -> None:
    project = make_project(make_user("alice"))
    node = make_node(gpus=1)
    dice = random.Random(7)
    ends = []
    for _ in range(25):
        job = make_job(project, launcher="command")
        attempt = place(job, list(Gpu.objects.select_related("node").filter(node=node)))
        part = attempt.containers.get()
        run(part)
        acts: list[Callable[[], object]] = [
            lambda part=part: lifecycle.advance(Container.objects.get(pk=part.pk), "EXITED", exit_code=0),  # type: ignore[misc]
            lambda job=job: services.cancel(project.created_by, Job.objects.get(pk=job.pk)),  # type: ignore[misc]
            lambda: lifecycle.sweep(),
        ]
        dice.shuffle(acts)
        results = at_once(*acts)
        assert not unexpected(results, Refused)
        job.refresh_from_db()
        refused = any(isinstance(result, Refused) for result in results)
        assert job.state == ("SUCCEEDED" if refused else "CANCELLED")
        assert not Allocation.objects.filter(released_at=None).exists()
        assert JobEvent.objects.filter(job=job, kind="ended").count() == 1
        ends.append(job.state)
    assert set(ends) <= {"SUCCEEDED", "CANCELLED"}


def test_a_job_is_placed_once_whoever_tries() -> None:
    project = make_project(make_user("alice"))
    make_node(gpus=4)
    gpus = list(Gpu.objects.select_related("node"))

    def place_on(job: Job, gpu: Gpu) -> Attempt:
        return place(Job.objects.get(pk=job.pk), [gpu])

    for _ in range(10):
        job = make_job(project)
        results = at_once(*(lambda job=job, gpu=gpu: place_on(job, gpu) for gpu in gpus))
        assert not unexpected(results, lifecycle.JobChangedError)
        assert Attempt.objects.filter(job=job).count() == 1
        attempt = Attempt.objects.get(job=job)
        lifecycle.advance(attempt.containers.get(), "EXITED", exit_code=0)


def test_the_parts_of_an_attempt_may_end_at_once() -> None:
    project = make_project(make_user("alice"))
    node = make_node(gpus=4)
    gpus = list(Gpu.objects.filter(node=node).select_related("node"))
    for _ in range(10):
        job = make_job(project, launcher="torchrun")
        attempt = lifecycle.start_attempt(job, "test v1")
        parts = [add_host(attempt, index, node, [gpu]) for index, gpu in enumerate(gpus)]
        results = at_once(
            *(
                lambda part=part: lifecycle.advance(Container.objects.get(pk=part.pk), "EXITED", exit_code=0)
                for part in parts
            )
        )
        assert results == [True] * 4
        job.refresh_from_db()
        assert job.state == JobState.SUCCEEDED
        seqs = list(job.events.order_by("seq").values_list("seq", flat=True))
        assert seqs == list(range(1, len(seqs) + 1))


def test_a_limit_is_not_overstepped_by_submitting_at_once() -> None:
    alice = make_user("alice")
    project = make_project(alice)
    Limit.objects.create(user=alice, max_queued=3)
    asked = Submission(code=make_code(project), environment=make_environment(), launcher="horovod", entry="train.py")
    results = at_once(*(lambda: services.submit(alice, project, asked) for _ in range(8)))
    assert not unexpected(results, Refused)
    assert Job.objects.count() == 3


def test_a_key_used_at_once_makes_one_job() -> None:
    alice = make_user("alice")
    project = make_project(alice)
    asked = Submission(code=make_code(project), environment=make_environment(), launcher="horovod", entry="train.py")
    results = at_once(*(lambda: services.submit(alice, project, asked, idempotency_key="k") for _ in range(8)))
    assert not unexpected(results)
    assert Job.objects.count() == 1 and len({result.pk for result in results}) == 1  # type: ignore[attr-defined]


def test_a_log_sent_by_two_at_once_is_stored_once() -> None:
    job = make_job(make_project(make_user("alice")))
    part = place(job, list(Gpu.objects.filter(node=make_node(gpus=1)).select_related("node"))).containers.get()
    source = b"".join(b"line %d\n" % number for number in range(500))

    def send() -> None:
        stream = logs.open_stream(part, "0")
        for offset in range(0, len(source), 97):
            logs.append(stream, offset, source[offset : offset + 97])

    results = at_once(send, send, send)
    assert not unexpected(results)
    stream = logs.open_stream(part, "0")
    assert logs.read(stream, 0, 10**6) == source == logs.path_of(stream).read_bytes()
