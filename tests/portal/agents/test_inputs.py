"""The agents' API about inputs: a node gets the outputs of the earlier job for its own containers, and nothing else."""

import hashlib
from pathlib import Path
from typing import Any

import pytest
from django.conf import LazySettings
from django.utils import timezone

from portal.cluster.models import Gpu
from portal.jobs import outputs
from portal.jobs.models import Attempt, Container, Job, Output
from tests.portal.agents_world import Agent
from tests.portal.jobs_world import exit, make_job, make_project, make_user, place, run

pytestmark = [pytest.mark.django_db, pytest.mark.both_databases]
CONTENT = b"weights"
DIGEST = hashlib.sha256(CONTENT).hexdigest()


class Lab:
    """A job that has succeeded with an output on one node, and one that runs after it on another."""

    def __init__(self, **fields: Any) -> None:
        self.one, self.two = Agent("one"), Agent("two")
        self.one.sync()
        self.two.sync()
        self.parent = make_job(make_project(make_user("alice")), launcher="command")
        first = self.placed(self.parent, self.one)
        run(first)
        outputs.store(first.attempt, "run/model.pt", [CONTENT])
        exit(first)
        self.child = make_job(
            self.parent.project,
            launcher="command",
            after=Job.objects.get(pk=self.parent.pk),
            ready_at=timezone.now(),
            **{"use_outputs": True, **fields},
        )
        self.part = self.placed(self.child, self.two)

    def placed(self, job: Job, agent: Agent) -> Container:
        gpu = Gpu.objects.filter(node=agent.node).first()
        return place(job, [gpu]).containers.select_related("attempt").get()  # type: ignore[list-item]


@pytest.fixture(autouse=True)
def home(settings: LazySettings, tmp_path: Path) -> None:
    settings.HOME = tmp_path


def ask(agent: Agent, part: Container, sha256: str = "") -> Any:
    path = f"/agent/v1/containers/{part.name}/inputs"
    return agent.http.get(f"{path}/{sha256}" if sha256 else path, headers=agent.headers)


def test_a_node_gets_the_outputs_of_the_earlier_job() -> None:
    lab = Lab()
    assert ask(lab.two, lab.part).json() == {
        "files": [{"path": "run/model.pt", "size": len(CONTENT), "sha256": DIGEST}]
    }
    assert b"".join(ask(lab.two, lab.part, DIGEST)) == CONTENT


def test_no_other_node_no_other_file_and_none_after_the_end() -> None:
    lab = Lab()
    assert ask(lab.one, lab.part).status_code == 404
    assert ask(lab.two, lab.part, "0" * 64).status_code == 404
    assert lab.two.http.get(f"/agent/v1/containers/{lab.part.name}/inputs").status_code == 401
    run(lab.part)
    exit(lab.part)
    assert ask(lab.two, lab.part).status_code == ask(lab.two, lab.part, DIGEST).status_code == 404


def test_of_outputs_that_contradict_each_other_it_gets_the_newest() -> None:
    lab = Lab()
    first = Container.objects.get(attempt__job=lab.parent).attempt
    for path in ("run", "run/model.pt/weights", "Run/a", "log"):  # as an earlier release stored them
        Output.objects.create(job=lab.parent, attempt=first, path=path, size=1, sha256=f"{len(path):064}")
    assert [file["path"] for file in ask(lab.two, lab.part).json()["files"]] == ["Run/a", "log", "run/model.pt/weights"]


def test_an_output_replaces_those_that_contradict_it_and_no_other() -> None:
    lab = Lab()
    first = Container.objects.get(attempt__job=lab.parent).attempt
    for path in ("table", "runs/a", "Table/part-0", "run/model.pt/weights/layer-1"):
        assert outputs.store(first, path, [path.encode()])
    paths = {"table", "runs/a", "Table/part-0", "run/model.pt/weights/layer-1"}
    assert set(lab.parent.outputs.values_list("path", flat=True)) == paths
    second = Attempt.objects.create(job=lab.parent, number=first.number + 1)
    assert outputs.store(second, "table/part-0", [b"new"]) and outputs.store(second, "run", [b"new"])
    assert outputs.store(first, "table", [b"late"]) is None and outputs.store(first, "run/model.pt", [b"late"]) is None
    assert set(lab.parent.outputs.values_list("path", flat=True)) == {"table/part-0", "Table/part-0", "runs/a", "run"}


def test_a_job_that_uses_no_outputs_gets_none() -> None:
    lab = Lab(use_outputs=False)
    assert ask(lab.two, lab.part).status_code == 404


def test_content_that_is_gone_is_named(settings: LazySettings) -> None:
    lab = Lab()
    (outputs.folder_of(lab.parent) / DIGEST).unlink()
    answer = ask(lab.two, lab.part, DIGEST)
    assert answer.status_code == 404
    assert answer.json()["error"]["reason"] == {
        "code": "portal.input_lost",
        "job": lab.parent.pk,
        "path": "run/model.pt",
    }
