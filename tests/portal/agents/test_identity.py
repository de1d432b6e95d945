"""A number that a restored backup gives out again leads to no file, log or report of the job that had it before."""

import hashlib
import importlib
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.conf import LazySettings
from django.db import connection
from django.utils import timezone

from portal.cluster.installation import installation_id
from portal.cluster.models import Gpu, Installation
from portal.jobs import checkpoints, lifecycle, logs, outputs
from portal.jobs.models import Allocation, Attempt, CheckpointSet, Container, Job, LogStream, Output
from portal.scheduler import run_specs
from runners.spec import JobIdentity, RunSpec, group_name
from tests.portal.agents_world import Agent, about
from tests.portal.jobs_world import make_job, make_project, make_user
from tests.portal.upgrades import upgrade_from

pytestmark = [pytest.mark.django_db, pytest.mark.both_databases]
SECRET = b"weights of another member"
DIGEST = hashlib.sha256(SECRET).hexdigest()


@pytest.fixture
def agent(settings: LazySettings, tmp_path: Path) -> Agent:
    settings.HOME = tmp_path
    agent = Agent("one")
    agent.sync()
    return agent


def start(job: Job, agent: Agent, **ids: int) -> Container:
    """The one container of a new attempt, as the scheduler makes it, with these numbers."""
    if ids:
        attempt = Attempt.objects.create(pk=ids["attempt"], job=job, number=1, secret="s" * 64)
    else:
        attempt = lifecycle.start_attempt(job, "fifo v1")
    gpu = Gpu.objects.filter(node=agent.node).first()
    assert gpu is not None
    spec = run_specs.host_spec(attempt, 0, run_specs.ContainerPlacement(agent.node, (gpu,)), 1, 2, 1)
    more = {"pk": ids["container"]} if ids else {}
    part = Container.objects.create(
        **more, attempt=attempt, node=agent.node, index=0, role="host", name=spec.name, spec=spec.to_json()
    )
    Allocation.objects.create(gpu=gpu, attempt=attempt, container=part)
    return part


def put(agent: Agent, part: str, path: str, body: bytes, method: str = "put") -> int:
    send: Any = getattr(agent.http, method)
    headers = agent.headers
    return int(
        send(f"/agent/v1/containers/{part}/{path}", body, "application/octet-stream", headers=headers).status_code
    )


def leave_files(agent: Agent, part: Container) -> None:
    agent.sync(about(part, "RUNNING"))
    assert put(agent, part.name, "outputs/model.pt", SECRET) == 201
    assert put(agent, part.name, "logs/0?offset=0", SECRET, "post") == 200
    assert put(agent, part.name, f"checkpoints/{DIGEST}", SECRET) == 201
    change = {"changed": {"model.pt": [len(SECRET), 1, [DIGEST]]}, "deleted": {}}
    assert agent.post(f"containers/{part.name}/checkpoints", change).status_code == 200


def lose(job: Job) -> None:
    """Forget the job, as when an older backup is restored."""
    Allocation.objects.filter(attempt__job=job).delete()
    with connection.cursor() as cursor:
        for table in ("jobs_output", "jobs_checkpointset"):
            cursor.execute(f"DELETE FROM {table} WHERE job_id = %s", [job.pk])
    LogStream.objects.all().delete()
    Container.objects.filter(attempt__job=job).delete()
    Attempt.objects.filter(job=job).delete()
    Job.objects.filter(pk=job.pk)._raw_delete(Job.objects.db)


@pytest.fixture
def pair(agent: Agent) -> Iterator[tuple[Container, Container]]:
    """A lost container and one of another member's job with all of its numbers."""
    lost = start(make_job(make_project(make_user("alice")), launcher="command"), agent)
    leave_files(agent, lost)
    job, attempt = lost.attempt.job, lost.attempt
    lose(job)
    again = make_job(make_project(make_user("bob"), "other"), launcher="command", pk=job.pk)
    yield lost, start(again, agent, attempt=attempt.pk, container=lost.pk)


def test_its_folders_on_the_portals_disk_are_new(pair: tuple[Container, Container]) -> None:
    lost, part = pair
    assert (part.pk, part.attempt_id, part.attempt.job_id) == (lost.pk, lost.attempt_id, lost.attempt.job_id)
    job = part.attempt.job
    assert not outputs.folder_of(job).exists() and not checkpoints.folder_of(job).exists()
    assert not checkpoints.has_piece(job, DIGEST)
    assert not logs.path_of(logs.open_stream(part, "0")).exists()


def test_what_it_writes_replaces_nothing_of_the_lost_job(agent: Agent, pair: tuple[Container, Container]) -> None:
    """A later backup, restored after all, has its own bytes."""
    lost, part = pair
    row = LogStream(container_id=lost.pk, name="0", size=len(SECRET), folder=lost.name)
    agent.sync(about(part, "RUNNING"))
    assert put(agent, part.name, "logs/0?offset=0", b"x" * len(SECRET), "post") == 200
    assert put(agent, part.name, "outputs/model.pt", b"x") == 201
    assert logs.read(row, 0, 1000) == SECRET
    with outputs.open_output(Output(job=lost.attempt.job, path="model.pt", sha256=DIGEST)) as file:
        assert file.read() == SECRET
    assert list(checkpoints.read_file(lost.attempt.job, [len(SECRET), 1, [DIGEST]])) == [SECRET]


def test_what_its_node_sends_of_the_lost_job_is_refused(agent: Agent, pair: tuple[Container, Container]) -> None:
    lost, part = pair
    agent.sync(about(part, "RUNNING"))
    agent.sync(about(lost, "EXITED", exit_code=7, exit_reason="exited", collected=True))
    part.refresh_from_db()
    assert part.state == "RUNNING" and part.exit_code is None
    change = {"changed": {"model.pt": [len(SECRET), 1, [DIGEST]]}, "deleted": {}}
    answers = [
        put(agent, lost.name, "outputs/model.pt", SECRET),
        put(agent, lost.name, "logs/0?offset=0", SECRET, "post"),
        put(agent, lost.name, f"checkpoints/{DIGEST}", SECRET),
        agent.post(f"containers/{lost.name}/checkpoints", change).status_code,
        agent.http.get(f"/agent/v1/containers/{lost.name}/checkpoints", headers=agent.headers).status_code,
        agent.http.get(f"/agent/v1/containers/{lost.name}/identity", headers=agent.headers).status_code,
    ]
    assert answers == [404] * 6
    assert not Output.objects.exists() and not LogStream.objects.exists() and not CheckpointSet.objects.exists()


def test_checkpoints_of_unknown_jobs_are_kept_for_a_month(
    agent: Agent, pair: tuple[Container, Container], monkeypatch: pytest.MonkeyPatch
) -> None:
    lost, _ = pair
    folder, now = checkpoints.folder_of(lost.attempt.job), checkpoints.time.time()
    for days, kept in ((2, True), (31, False)):
        monkeypatch.setattr(checkpoints.time, "time", lambda days=days: now + days * 24 * 3600)
        checkpoints.delete_orphan_pieces()
        assert folder.exists() == kept, f"after {days} days"


def test_a_reply_names_the_job_beside_a_spec_that_earlier_agents_understand(agent: Agent) -> None:
    installation_id.cache_clear()  # other tests have databases of their own
    part = start(make_job(make_project(make_user("alice")), launcher="command"), agent)
    (entry,) = agent.sync()["containers"]
    job = JobIdentity.from_json(entry["identity"])
    assert job == JobIdentity(installation_id(), part.attempt.job.uid.hex)
    assert set(entry["spec"]) == set(RunSpec.from_json(entry["spec"]).to_json()), "a key that they do not know"
    assert job.installation == Installation.objects.get().uid.hex


def test_the_names_of_an_attempt_are_its_own(agent: Agent) -> None:
    job = make_job(make_project(make_user("alice")), launcher="command")
    attempts = [Attempt(pk=pk, job=job, number=1) for pk in (7, 7)]
    names = [[run_specs.new_name(attempt, index) for index in (0, 1, 1)] for attempt in attempts]
    every = [*names[0], *names[1]]
    assert all(re.fullmatch(rf"sl-{job.pk}-a1-[0-9a-f]{{12}}-[0-9a-f]{{6}}-[01]", name) for name in every)
    assert len(set(every)) == 6, "one that came after the backup and the next with its index have one name"
    groups = [{group_name(name) for name in each} for each in names]
    assert [len(group) for group in groups] == [1, 1] and groups[0] != groups[1]


def test_an_attempt_that_the_release_before_began_keeps_its_names(agent: Agent) -> None:
    """A job that grows after the upgrade must stay in its network."""
    job = make_job(make_project(make_user("alice")))
    name = run_specs.new_name(Attempt(job=job, number=3, uid=None), 2)
    assert name.endswith("-2") and group_name(name) == group_name(f"sl-{job.pk}-a3-0") == f"sl-{job.pk}-a3"


def test_a_node_can_ask_which_containers_a_job_had(agent: Agent) -> None:
    job = make_job(make_project(make_user("alice")), launcher="command")
    part = start(job, agent)
    path = f"/agent/v1/containers/{part.name}/identity"
    answer = agent.http.get(path, headers=agent.headers).json()
    assert answer == {"submitted_at": job.submitted_at.timestamp(), "containers": [part.name]}
    other = Agent("two")
    assert agent.http.get(path, headers=other.headers).status_code == 404
    assert agent.http.get(path).status_code == 401


def test_the_log_of_an_earlier_release_is_found_by_its_number(agent: Agent, settings: LazySettings) -> None:
    part = start(make_job(make_project(make_user("alice")), launcher="command"), agent)
    (settings.HOME / "logs" / str(part.pk)).mkdir(parents=True)
    (settings.HOME / "logs" / str(part.pk) / "0.log").write_bytes(b"one\n")
    row = LogStream.objects.create(container=part, name="0", size=4)
    assert logs.read(row, 0, 10) == b"one\n"
    logs.append(row, 4, b"two\n")
    row.refresh_from_db()
    assert logs.read(row, 0, 10) == b"one\ntwo\n"


def test_files_of_a_job_of_an_earlier_release_are_found_by_its_number(agent: Agent, settings: LazySettings) -> None:
    job = make_job(make_project(make_user("alice")), launcher="command", numbered_folder=True)
    part = start(job, agent)
    leave_files(agent, part)
    for top in ("outputs", "checkpoints"):
        assert (settings.HOME / top / str(job.pk) / DIGEST).read_bytes() == SECRET
    checkpoints.delete_orphan_pieces()
    assert checkpoints.has_piece(job, DIGEST)


class TestUpgrade:
    """Migrate from the tables of the previous release."""

    pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.thorough]

    def test_jobs_get_a_uid_that_each_restore_of_their_backup_gives_again(self) -> None:
        job = make_job(make_project(make_user("alice")), launcher="command")
        attempt = lifecycle.start_attempt(job, "fifo v1")
        other = timezone.now() + timedelta(microseconds=1)
        uids = []
        for _ in range(2):
            upgrade_from("jobs", "0012_total_samples")
            uids.append(Job.objects.get().uid)
        uid_of = importlib.import_module("portal.jobs.migrations.0013_job_uid").uid_of
        assert uids[0] == uids[1] == uid_of(job.pk, job.submitted_at) != uid_of(job.pk, other)
        kept = Job.objects.get()
        assert kept.numbered_folder and kept.folder == str(job.pk)
        assert Attempt.objects.get(pk=attempt.pk).uid is None
        new = make_job(kept.project, launcher="command")
        assert not new.numbered_folder and new.uid.version == 4 and new.folder == f"{new.pk}-{new.uid.hex}"

    def test_the_installation_keeps_its_id(self) -> None:
        user = make_user("alice")
        names = []
        for _ in range(2):
            upgrade_from("cluster", "0006_environment_on_demand")
            names.append(Installation.objects.get().uid)
        assert names[0] == names[1] and user.date_joined
