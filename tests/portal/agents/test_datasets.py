"""The agents' API about datasets: a node reads those of its own containers while they have not ended, and no others."""

import hashlib
from pathlib import Path
from typing import Any

import pytest
from django.conf import LazySettings

from portal.cluster.models import Gpu
from portal.jobs.models import Container, JobDataset
from portal.storage import services
from portal.storage.blobs import store
from portal.storage.models import DatasetVersion
from tests.portal.agents_world import Agent
from tests.portal.jobs_world import exit, make_job, make_project, make_user, place, run
from tests.portal.storage_world import make_dataset, uploaded

pytestmark = [pytest.mark.django_db, pytest.mark.both_databases]
FILES = {"a.txt": b"one", "b/empty": b"", "b/large": bytes(range(256)) * 4000, "c": b"last"}


@pytest.fixture(autouse=True)
def home(settings: LazySettings, tmp_path: Path) -> None:
    settings.HOME = tmp_path


class Lab:
    def __init__(self) -> None:
        self.one, self.two = Agent("one"), Agent("two")
        self.one.sync()
        self.two.sync()
        alice = make_user("alice")
        self.dataset = make_dataset(alice, "digits")
        self.version = uploaded(alice, self.dataset, FILES)
        self.other = uploaded(alice, self.dataset, {"other": b"version"})
        self.job = make_job(make_project(alice), launcher="command")
        JobDataset.objects.create(job=self.job, version=self.version, name="digits")
        gpu = Gpu.objects.filter(node=self.one.node).first()
        self.part = place(self.job, [gpu]).containers.select_related("attempt").get()  # type: ignore[list-item]


def ask(agent: Agent, part: Container, version: DatasetVersion, what: str, **query: Any) -> Any:
    address = f"/agent/v1/containers/{part.name}/datasets/{version.sha256}/{what}"
    return agent.http.get(address, query, headers=agent.headers)


def body_of(answer: Any) -> bytes:
    assert answer.status_code == 200, answer.content
    content = b"".join(answer.streaming_content)
    assert int(answer["Content-Length"]) == len(content)
    return content


def test_a_node_reads_the_manifest_and_consecutive_files_from_any_offset() -> None:
    lab = Lab()
    manifest = body_of(ask(lab.one, lab.part, lab.version, "manifest"))
    assert hashlib.sha256(manifest).hexdigest() == lab.version.sha256
    assert body_of(ask(lab.one, lab.part, lab.version, "manifest", offset=70)) == manifest[70:]
    assert body_of(ask(lab.one, lab.part, lab.version, "contents", line=0, count=1000)) == b"".join(FILES.values())
    second = manifest.index(b"\n") + 1
    assert body_of(ask(lab.one, lab.part, lab.version, "contents", line=second, count=2)) == FILES["b/large"]
    third = manifest.index(b"\n", second) + 1
    rest = body_of(ask(lab.one, lab.part, lab.version, "contents", line=third, count=2, offset=1000))
    assert rest == FILES["b/large"][1000:] + b"last"


@pytest.mark.parametrize(
    ("what", "query"),
    [
        ("manifest", {"offset": "-1"}),
        ("manifest", {"offset": "99999"}),
        ("contents", {"line": "1"}),
        ("contents", {"line": "x"}),
        ("contents", {"line": "99999999999999999999"}),
        ("contents", {"count": "1001"}),
        ("contents", {"count": "0"}),
        ("contents", {"offset": "4"}),
    ],
)
def test_what_is_asked_wrongly_is_refused(what: str, query: dict[str, str]) -> None:
    lab = Lab()
    assert ask(lab.one, lab.part, lab.version, what, **query).status_code == 400


@pytest.mark.parametrize("what", ["manifest", "contents"])
def test_no_other_node_no_other_version_none_without_a_token_and_none_after_the_end(what: str) -> None:
    lab = Lab()
    assert ask(lab.two, lab.part, lab.version, what).status_code == 404
    assert ask(lab.one, lab.part, lab.other, what).status_code == 404
    address = f"/agent/v1/containers/{lab.part.name}/datasets/{lab.version.sha256}/{what}"
    assert lab.one.http.get(address).status_code == 401
    assert lab.one.http.get(address.replace(lab.version.sha256, "../x"), headers=lab.one.headers).status_code == 404
    run(lab.part)
    exit(lab.part)
    assert ask(lab.one, lab.part, lab.version, what).status_code == 404


def test_one_that_is_archived_or_hidden_since_is_refused_with_its_name() -> None:
    lab = Lab()
    services.archive(lab.dataset.owner, lab.dataset)
    answer = ask(lab.one, lab.part, lab.version, "manifest")
    assert answer.status_code == 403 and "“digits” was archived" in answer.json()["error"]["message"]
    services.restore(lab.dataset.owner, lab.dataset)
    type(lab.dataset).objects.update(owner=make_user("bob"))
    answer = ask(lab.one, lab.part, lab.version, "manifest")
    assert answer.status_code == 403 and "alice may not use the dataset" in answer.json()["error"]["message"]


def test_contents_that_are_lost_are_named() -> None:
    lab = Lab()
    store().delete(hashlib.sha256(FILES["c"]).hexdigest())
    answer = ask(lab.one, lab.part, lab.version, "contents", count=4)
    assert answer.status_code == 404
    assert answer.json()["error"]["reason"] == {"code": "portal.dataset_lost", "name": "digits", "path": "c"}
