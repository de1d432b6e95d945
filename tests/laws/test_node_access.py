"""A node's token gives access to the work assigned to the node, and to nothing else."""

from hashlib import sha256
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from portal.accounts.models import digest
from portal.cluster.models import Node, new_token
from portal.jobs.models import LogStream, Output
from tests.laws.people import CANARY, World, make_world
from tests.laws.route_matrix import TABLE, names
from tests.laws.visits import Walk, client_of, go, rows, text_of

pytestmark = pytest.mark.django_db


@pytest.fixture
def world() -> World:
    return make_world()


class Machine(Client):
    """A client that sends its token with every request."""

    def __init__(self, token: str) -> None:
        super().__init__(headers={"Authorization": f"Bearer {token}"}, raise_request_exception=False)


def another() -> tuple[Node, Machine]:
    token = new_token()
    node = Node.objects.create(
        name="node-two", runtime="docker", token_digest=digest(token), approved_at=timezone.now(), ready=True
    )
    return node, Machine(token)


WORK = (
    ("GET", "/agent/v1/code/{sha256}", 200, b""),
    ("POST", "/agent/v1/containers/{container}/logs/0?offset={end}", 200, b"more\n"),
    ("PUT", "/agent/v1/containers/{container}/outputs/more.txt", 201, b"more"),
    ("POST", "/agent/v1/containers/{container}/outputs/more.txt?size=4", 200, b""),
    ("GET", "/agent/v1/containers/{container}/identity", 200, b""),
    ("GET", "/agent/v1/containers/{container}/checkpoints", 200, b""),
    ("POST", "/agent/v1/containers/{container}/checkpoints", 200, b"{}"),
    ("PUT", f"/agent/v1/containers/{{container}}/checkpoints/{sha256(b'more').hexdigest()}", 201, b"more"),
)


@pytest.mark.parametrize(("method", "address", "status", "body"), WORK)
def test_a_node_reaches_its_own_work_only(method: str, address: str, status: int, body: bytes, world: World) -> None:
    known = names(world) | {"end": LogStream.objects.get(container__attempt__job=world.running, name="0").size}
    place = address.format(**known)
    assert Machine(world.node_token).generic(method, place, body, "application/octet-stream").status_code == status
    _, stranger = another()
    before = rows()
    response = stranger.generic(method, place, body, "application/octet-stream")
    assert response.status_code == 404
    assert CANARY not in text_of(response)
    assert rows() == before


@pytest.mark.parametrize(("method", "address", "status", "body"), WORK)
def test_not_after_it_was_removed(method: str, address: str, status: int, body: bytes, world: World) -> None:
    known = names(world) | {"end": 0}
    Node.objects.update(removed_at=timezone.now())
    response = Machine(world.node_token).generic(method, address.format(**known), body, "application/octet-stream")
    assert response.status_code == 401


def test_it_cannot_ask_for_work_that_is_over(world: World) -> None:
    """The node can no longer fetch the code of a job that has ended."""
    machine = Machine(world.node_token)
    assert machine.get(f"/agent/v1/code/{world.code.sha256}").status_code == 200
    world.running.attempts.get().containers.update(state="EXITED", exited_at=timezone.now())
    assert machine.get(f"/agent/v1/code/{world.code.sha256}").status_code == 404


def test_its_token_is_no_key_to_pages_or_the_api(world: World) -> None:
    known, before, walk = names(world), rows(), Walk()
    for visit in (each for address in sorted(TABLE) if not address.startswith("agent/") for each in TABLE[address]):
        with walk.case(f"{visit.method} {visit.address}"):
            response = go(Machine(world.node_token), visit, known)
            refused = visit.address.startswith("/api/v1/") and "nothing" not in visit.address
            assert response.status_code == (401 if refused else int(visit.by_role["anonymous"]))
            assert CANARY not in text_of(response)
            assert rows() == before
    walk.report(at_least=200)


def test_a_hostile_report_changes_no_other_machines_work(world: World) -> None:
    node, machine = another()
    container = world.running.attempts.get().containers.get()
    lie = {
        "name": container.name,
        "epoch": 1,
        "state": "EXITED",
        "exit_code": 0,
        "exit_reason": "exited",
        "collected": True,
    }
    report: dict[str, Any] = {
        "boot": "b",
        "full_pass": True,
        "runtime": "docker",
        "facts": {},
        "problems": [],
        "gpus": [
            {"uuid": "GPU-0", "index": 0, "kind": "cuda", "model": "x", "memory_mib": 1, "healthy": True, "problem": ""}
        ],
        "environments": [],
        "containers": [lie],
    }
    response = machine.post("/agent/v1/sync", report, content_type="application/json")
    assert response.status_code == 200, response.content
    assert CANARY not in text_of(response)
    assert response.json()["containers"] == []
    container.refresh_from_db()
    assert container.state == "RUNNING"
    assert world.gpu.allocations.filter(released_at=None).count() == 1
    assert node.gpus.count() == 1 and world.node.gpus.count() == 2


@pytest.mark.parametrize("role", ["alice", "ada"])
def test_people_do_not_pass_for_machines(role: str, world: World) -> None:
    known, walk = names(world), Walk()
    for visit in (each for address in TABLE if address.startswith("agent/v1/") for each in TABLE[address]):
        with walk.case(f"{visit.method} {visit.address}"):
            assert go(client_of(world, role), visit, known).status_code in (401, 403)
            assert not Output.objects.filter(path="x.txt").exists()
    walk.report(at_least=10)
