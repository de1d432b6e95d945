"""Which node builds what: ready, build or wait, and what becomes of builds that end in another way."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import connection, transaction
from django.utils import timezone

from portal import incoming
from portal.cluster.models import Node
from portal.environments import archives, build_log, builds, services
from portal.environments.builds import BuildEndedError, Claim
from portal.environments.models import Build, Environment, Lock
from portal.environments.summary import summary_of
from portal.refused import Refused
from portal.sentences import sentence_of
from tests.portal import environments_world as made
from tests.portal import jobs_world as world

pytestmark = [pytest.mark.django_db, pytest.mark.both_databases]


@pytest.fixture(autouse=True)
def home(settings: Any, tmp_path: Path) -> Path:
    settings.HOME = tmp_path
    return tmp_path


@pytest.fixture
def environment() -> Environment:
    alice = world.make_user("alice")
    return made.make_environment(alice, world.make_project(alice))


@pytest.fixture
def nodes() -> list[Node]:
    return [world.make_node(f"node{number}") for number in range(4)]


def state_of(claim: Claim) -> str:
    return str(claim.to_json()["state"])


def ask(node: Node, environment: Environment, kind: str = made.KIND) -> str:
    return state_of(builds.claim(node, Environment.objects.get(pk=environment.pk), kind))


def age(build: Build, seconds: float) -> None:
    Build.objects.filter(pk=build.pk).update(renewed_at=timezone.now() - timedelta(seconds=seconds))


def again(environment: Environment) -> None:
    assert environment.created_by is not None
    services.build_again(environment.created_by, environment)


# --- who builds --------------------------------------------------------------------------------------------------


def test_one_node_builds_and_the_others_wait_and_fetch(environment: Environment, nodes: list[Node]) -> None:
    answer = builds.claim(nodes[0], environment, made.KIND).to_json()
    assert (answer["state"], answer["fresh"]) == ("build", False)
    assert (answer["recipe"]["base"], answer["recipe"]["lines"]) == ("pytorch", ["rich"])
    build = environment.builds.get()
    builds.record_progress(build, 30, "", 0, b"")
    waits = builds.claim(nodes[1], environment, made.KIND).to_json()
    assert waits["state"] == "wait"
    assert sentence_of(waits["message"]) == "being built by node0: 30 %"
    lock = made.finish(build)
    for node in nodes:
        ready = builds.claim(node, environment, made.KIND).to_json()
        assert (ready["state"], ready["digest"], ready["bytes"]) == ("ready", lock.digest, len(made.CONTENT))
    assert ask(nodes[2], environment, "cp312-linux_aarch64-glibc2.39-cpu-0") == "build"


def test_environments_with_the_same_packages_share_their_builds(environment: Environment, nodes: list[Node]) -> None:
    bob = world.make_user("bob")
    twin = made.make_environment(bob, world.make_project(bob, "other"))
    lock = made.build(nodes[0], environment)
    assert builds.claim(nodes[1], twin, made.KIND).lock == lock
    twin.refresh_from_db()
    assert twin.packages == ["torch", "numpy", "markdown_it", "rich"]


def test_an_agent_that_was_restarted_begins_its_build_again(environment: Environment, nodes: list[Node]) -> None:
    build = made.start(nodes[0], environment)
    builds.record_progress(build, 50, "", 0, b"half\n")
    archives.append(build.pk, 0, [b"half"])
    assert builds.claim(nodes[0], environment, made.KIND).build == build
    build.refresh_from_db()
    assert build.progress_percent == 0
    assert builds.record_progress(build, 1, "", 0, b"new\n") == 4
    assert builds.log_path(build).read_bytes() == b"new\n"
    assert made.finish(build).archive_bytes == len(made.CONTENT)


def test_a_build_whose_node_is_silent_is_given_to_the_next(environment: Environment, nodes: list[Node]) -> None:
    first = made.start(nodes[0], environment)
    age(first, builds.LEASE.total_seconds() - 10)
    assert ask(nodes[1], environment) == "wait"
    age(first, builds.LEASE.total_seconds() + 1)
    second = builds.claim(nodes[1], environment, made.KIND).build
    first.refresh_from_db()
    assert first.state == Build.State.LOST
    assert second is not None
    assert second.node == nodes[1]
    for act in (
        lambda: builds.record_progress(first, 9, "", 0, b""),
        lambda: builds.fail(first, ""),
        lambda: made.finish(first),
        lambda: builds.running_build(nodes[0], first.pk),
    ):
        with pytest.raises(BuildEndedError):
            act()
    with pytest.raises(BuildEndedError):
        builds.running_build(nodes[0], second.pk)


def test_a_build_whose_node_is_gone_is_not_shown_and_can_be_built_again(
    environment: Environment, nodes: list[Node]
) -> None:
    build = made.start(nodes[0], environment)
    assert summary_of(environment).running == build
    with pytest.raises(Refused, match="being built now"):
        again(environment)
    age(build, builds.LEASE.total_seconds() + 1)
    assert summary_of(environment).running is None and summary_of(environment).state != "building"
    again(environment)
    build.refresh_from_db()
    assert build.state == Build.State.LOST
    assert ask(nodes[1], environment) == "build"


def test_three_losses_end_the_attempts_until_someone_asks_again(environment: Environment, nodes: list[Node]) -> None:
    for node in nodes[:3]:
        age(made.start(node, environment), builds.LEASE.total_seconds() + 1)
    answer = builds.claim(nodes[3], environment, made.KIND).to_json()
    assert answer["state"] == "failed"
    assert "stopped 3 times, the last time node2" in sentence_of(answer["message"])
    again(environment)
    assert ask(nodes[3], environment) == "build"


def test_a_failed_build_stays_failed_until_someone_asks_again(environment: Environment, nodes: list[Node]) -> None:
    builds.fail(made.start(nodes[0], environment), made.failure())
    for node in nodes:
        assert ask(node, environment) == "failed"
    again(environment)
    answer = builds.claim(nodes[1], Environment.objects.get(pk=environment.pk), made.KIND).to_json()
    assert (answer["state"], answer["fresh"]) == ("build", True)


def test_a_cancelled_build_is_not_begun_by_the_next_node(environment: Environment, nodes: list[Node]) -> None:
    build = made.start(nodes[0], environment)
    archives.append(build.pk, 0, [b"half"])
    assert environment.created_by is not None
    services.cancel_build(environment.created_by, build)
    assert not list(archives.folder().glob(".incoming-*"))
    assert ask(nodes[1], environment) == "failed"
    with pytest.raises(Refused, match="ended already"):
        services.cancel_build(environment.created_by, Build.objects.get(pk=build.pk))


def test_the_older_layer_is_used_while_a_newer_is_built_and_after_it_failed(
    environment: Environment, nodes: list[Node]
) -> None:
    old = made.build(nodes[0], environment)
    again(environment)
    newer = made.start(nodes[0], Environment.objects.get(pk=environment.pk))
    environment.refresh_from_db()
    assert builds.claim(nodes[1], environment, made.KIND).lock == old
    builds.fail(newer, made.failure())
    assert builds.claim(nodes[1], environment, made.KIND).lock == old
    again(environment)
    environment.refresh_from_db()
    lock = made.finish(made.start(nodes[2], environment))
    assert lock != old
    assert builds.claim(nodes[1], environment, made.KIND).lock == lock


def test_a_deleted_layer_is_built_again(environment: Environment, nodes: list[Node]) -> None:
    made.build(nodes[0], environment)
    Lock.objects.update(archive_sha256="", archive_bytes=0)
    assert ask(nodes[1], environment) == "build"


def test_a_node_that_asks_between_two_steps_of_another_waits(
    environment: Environment, nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    inner: list[str] = []

    def atomic() -> Any:
        monkeypatch.undo()
        inner.append(ask(nodes[1], environment))
        return transaction.atomic()

    monkeypatch.setattr(builds, "transaction", SimpleNamespace(atomic=atomic))
    assert ask(nodes[0], environment) == "wait"
    assert inner == ["build"]
    assert environment.builds.get().node == nodes[1]


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
def test_nodes_that_ask_at_the_same_moment_build_it_once(environment: Environment, nodes: list[Node]) -> None:
    barrier, states = threading.Barrier(len(nodes)), []

    def go(node: Node) -> None:
        barrier.wait()
        try:
            states.append(ask(node, environment))
        finally:
            connection.close()

    threads = [threading.Thread(target=go, args=(node,)) for node in nodes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(states) == ["build", "wait", "wait", "wait"]
    assert environment.builds.count() == 1


# --- logs and archives -------------------------------------------------------------------------------------------


def test_the_end_of_a_long_log_is_kept(environment: Environment, nodes: list[Node]) -> None:
    build = made.start(nodes[0], environment)
    piece, sent = b"compiling a file\n" * 20_000, 0
    while sent < 8 * 1024 * 1024:
        sent = builds.record_progress(build, 1, "", sent, piece)
    assert builds.record_progress(build, 1, "", sent, b"error: the cause\n") == sent + 17
    assert builds.log_path(build).stat().st_size < 5 * 1024 * 1024
    page = build_log.end_of_log(build)
    assert page.text.endswith("compiling a file\nerror: the cause\n") and page.is_cut and page.end == sent + 17
    assert build_log.log_from(build, sent).text == "error: the cause\n"


def test_pieces_of_an_archive_follow_one_another(environment: Environment, nodes: list[Node]) -> None:
    build = made.start(nodes[0], environment)
    assert archives.append(build.pk, 0, [b"ab", b"c"]) == 3
    with pytest.raises(incoming.OffsetMismatchError) as error:
        archives.append(build.pk, 9, [b"x"])
    assert error.value.size == 3
    assert archives.append(build.pk, 3, [b"de"]) == 5
    assert archives.append(build.pk, 0, [b"new"]) == 3


def test_a_full_disk_is_named(environment: Environment, nodes: list[Node], monkeypatch: pytest.MonkeyPatch) -> None:
    build = made.start(nodes[0], environment)
    usage = incoming.shutil.disk_usage(archives.folder())
    monkeypatch.setattr(incoming.shutil, "disk_usage", lambda path: usage._replace(free=5 << 20))
    with pytest.raises(Refused, match="disk of the portal is full .5 MiB are free.. Ask an admin to make room"):
        archives.append(build.pk, 0, [b"x"])
    monkeypatch.undo()
    monkeypatch.setattr(archives, "MAX_ARCHIVE_BYTES", 2)
    with pytest.raises(Refused, match="The archive takes more than"):
        archives.append(build.pk, 0, [b"xxx"])


def test_a_damaged_archive_is_not_kept(environment: Environment, nodes: list[Node]) -> None:
    build = made.start(nodes[0], environment)
    layer = made.send(build)
    archives.append(build.pk, len(made.CONTENT), [b"more"])
    with pytest.raises(Refused, match="arrived damaged"):
        builds.finish(build, layer)
    with pytest.raises(Refused, match="has not arrived"):
        builds.finish(build, layer)
    assert not Lock.objects.exists()
    assert not list(archives.folder().iterdir())
    assert made.finish(build).archive_bytes == len(made.CONTENT)


def test_the_first_archive_of_a_lock_stays(environment: Environment, nodes: list[Node]) -> None:
    first = made.finish(made.start(nodes[0], environment))
    again(environment)
    environment.refresh_from_db()
    second = made.start(nodes[1], environment)
    layer = replace(made.send(second, b"compiled again"), digest=first.digest)
    assert builds.finish(second, layer).archive_sha256 == first.archive_sha256
    assert archives.path_of(first.digest).read_bytes() == made.CONTENT
    assert not list(archives.folder().glob(".incoming-*"))
    archives.path_of(first.digest).unlink()
    again(environment)
    environment.refresh_from_db()
    third = made.start(nodes[1], environment)
    builds.finish(third, replace(made.send(third, b"compiled again"), digest=first.digest))
    assert archives.path_of(first.digest).read_bytes() == b"compiled again"


def test_a_piece_that_is_sent_twice_at_once_counts_once(environment: Environment, nodes: list[Node]) -> None:
    """A node asks again after a timeout, while the portal still receives its first request."""
    build = made.start(nodes[0], environment)
    archives.append(build.pk, 0, [b"ab"])

    def slow() -> Iterator[bytes]:
        yield b"c"
        assert archives.append(build.pk, 2, [b"cd"]) == 4
        yield b"d"

    assert archives.append(build.pk, 2, slow()) == 4
    file = archives.folder() / f".incoming-{build.pk}"
    assert file.read_bytes() == b"abcd"


def test_a_piece_that_arrives_while_the_build_ends_leaves_no_file(environment: Environment, nodes: list[Node]) -> None:
    build = made.start(nodes[0], environment)

    def pieces() -> Iterator[bytes]:
        yield b"a"
        builds.fail(build, made.failure())
        yield b"b"

    with pytest.raises(builds.BuildEndedError):
        builds.append_archive(build, 0, pieces())
    assert not list(archives.folder().glob(".incoming-*"))


def test_the_lease_is_renewed_while_the_archive_is_read(
    environment: Environment, nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(incoming, "READ_BYTES", 1)
    monkeypatch.setattr(incoming, "TICK_BYTES", 2)
    build = made.start(nodes[0], environment)
    layer = made.send(build)
    age(build, builds.LEASE.total_seconds() - 5)
    builds.finish(build, layer)
    build.refresh_from_db()
    assert build.renewed_at > timezone.now() - timedelta(seconds=60)


def test_names_of_archives_are_only_digests() -> None:
    for name in ("", "..", "a/b", "A" * 24, "a" * 23, "../" + "a" * 24, "a" * 24 + "\n"):
        with pytest.raises(ValueError, match="hexadecimal"):
            archives.path_of(name)
