"""Attempts over several nodes: numbers, addresses, and what each node learns about the others."""

from ipaddress import IPv4Network
from typing import Any

import pytest

from portal.agents import sync
from portal.cluster.models import Node
from portal.jobs import lifecycle
from portal.jobs.models import Attempt, Container
from portal.scheduler import apply as applying
from portal.scheduler import overlay_networks, snapshot
from portal.scheduler.apply import StepDropped
from runners.spec import RunSpec
from scheduling.types import Plan
from tests.portal.control_world import gpus_of, queue, ready_node, run_agents, turn

pytestmark = pytest.mark.django_db


def two_nodes(gpus: int = 2) -> None:
    for number, name in enumerate(("a", "b"), start=1):
        ready_node(name, gpus, runtime="docker", facts={"ring_address": f"10.1.0.{number}"})


def specs() -> dict[str, RunSpec]:
    return {part.spec["hostname"]: RunSpec.from_json(part.spec) for part in Container.objects.order_by("index")}


def test_a_rank_group_over_two_nodes_has_a_network_with_fixed_addresses() -> None:
    two_nodes()
    queue(3)
    turn()
    groups = {name: spec.collective for name, spec in specs().items()}
    assert all(group and (group.number, group.subnet) == (7_000_000, "10.192.0.0/22") for group in groups.values())
    assert {name: group and group.address for name, group in groups.items()} == {
        "driver": "10.192.0.2",
        "h1": "10.192.0.3",
        "h2": "10.192.0.4",
    }
    assert {group and group.driver_host for group in groups.values()} == {"10.192.0.2"}
    assert Container.objects.filter(role="host").values("node").distinct().count() == 2


def test_torchrun_over_two_nodes_meets_at_its_first_host() -> None:
    two_nodes()
    queue(3, launcher="torchrun")
    turn()
    groups = [spec.collective for spec in specs().values()]
    assert [group and (group.driver_host, group.address) for group in groups] == [
        ("10.192.0.2", "10.192.0.2"),
        ("10.192.0.2", "10.192.0.3"),
    ]


def test_what_stays_on_one_node_takes_no_number() -> None:
    two_nodes()
    queue(2)
    queue(1, launcher="torchrun")
    turn()
    assert list(Attempt.objects.values_list("overlay_network", flat=True)) == [None, None]


def test_live_rank_groups_have_different_numbers_and_a_number_is_not_reused_at_once() -> None:
    two_nodes()
    first, second = queue(1, 2), queue(1, 2)
    turn()
    assert {first.attempts.get().overlay_network, second.attempts.get().overlay_network} == {0, 1}
    run_agents()
    run_agents(finish=True)
    third = queue(1, 2)
    turn()
    assert third.attempts.get().overlay_network == 2


def test_when_no_network_is_free_jobs_stay_on_one_node(settings: Any) -> None:
    settings.RING_NETWORK = IPv4Network("10.192.0.0/22")
    two_nodes()
    elastic, other, wide = queue(1, 2), queue(1, 2), queue(3)
    seen = snapshot.take()
    a, b = (node.id for node in seen.nodes)
    wish = Plan({str(elastic.pk): {a: 1}, str(other.pk): {a: 1}})
    applying.apply(seen, wish, "t")
    assert {elastic.attempts.get().overlay_network, other.attempts.get().overlay_network} == {0, None}
    seen = snapshot.take()
    other_way = applying.apply(seen, Plan({str(wide.pk): {a: 1, b: 2}}), "t").dropped
    assert other_way == {wide.pk: StepDropped("too_few_left", "a", 1)}
    assert overlay_networks.next_free_number() is None


def test_a_gang_over_two_nodes_waits_for_a_free_network(settings: Any) -> None:
    settings.RING_NETWORK = IPv4Network("10.192.0.0/22")
    two_nodes()
    elastic, wide = queue(1, 2), queue(2)
    seen = snapshot.take()
    a, b = (node.id for node in seen.nodes)
    plan = Plan({str(elastic.pk): {a: 1}, str(wide.pk): {a: 1, b: 1}})
    reason = StepDropped("no_network")
    assert applying.apply(seen, plan, "t").dropped == {wide.pk: reason}


def test_what_began_without_a_network_does_not_grow_to_another_node() -> None:
    a = ready_node("a", 1, runtime="docker")
    job = queue(1, 2)
    turn()
    run_agents()
    Node.objects.filter(pk=a.pk).update(facts={"ring_address": "10.1.0.1"})
    ready_node("b", 1, runtime="docker", facts={"ring_address": "10.1.0.2"})
    turn()
    assert gpus_of(job) == 1
    seen = snapshot.take()
    wish = Plan({str(job.pk): {node.id: 1 for node in seen.nodes}})
    assert applying.apply(seen, wish, "t").dropped == {job.pk: StepDropped("out_of_reach", "b")}


def test_a_rank_group_grows_to_another_node_at_an_address_that_nothing_there_has() -> None:
    a = ready_node("a", 1, runtime="docker", facts={"ring_address": "10.1.0.1"})
    job = queue(1, 2)
    turn()
    run_agents()
    Container.objects.filter(role="host").update(index=overlay_networks.ADDRESS_COUNT - 1)  # as after a long life
    ready_node("b", 1, runtime="docker", facts={"ring_address": "10.1.0.2"})
    seen = snapshot.take()
    applying.apply(seen, Plan({str(job.pk): {node.id: 1 for node in seen.nodes}}), "t")
    assert gpus_of(job) == 2
    newest = Container.objects.latest("pk")
    assert newest.index == overlay_networks.ADDRESS_COUNT + 1  # the one before has the driver's address
    assert newest.spec["ring"]["address"] == "10.192.0.3" and newest.spec["ring"]["driver_host"] == "10.192.0.2"
    assert newest.node != a


# What nodes learn


def peers(node: Node) -> dict[str, tuple[str, list[str]]]:
    return {
        entry["spec"]["hostname"]: (entry["driver"], entry["peers"])
        for entry in sync.desired_state(node.token_digest)["containers"]
    }


def test_each_node_learns_of_the_others_and_of_the_driver() -> None:
    two_nodes()
    queue(3)
    turn()
    home = Container.objects.get(role="driver").node
    away = Node.objects.exclude(pk=home.pk).get()
    ours, theirs = home.facts["ring_address"], away.facts["ring_address"]
    assert peers(home) == {"driver": ("10.192.0.2", [theirs]), "h1": ("10.192.0.2", [theirs])}
    assert peers(away) == {"h2": ("10.192.0.2", [ours])}


def test_a_node_whose_part_has_ended_is_no_peer_any_more() -> None:
    two_nodes()
    queue(3)
    turn()
    run_agents()
    last = Container.objects.latest("index")
    home = Container.objects.get(role="driver").node
    lifecycle.stop_container(last, "drained")
    assert peers(home)["driver"] == (
        "10.192.0.2",
        [last.node.facts["ring_address"]],
    )  # it may still send its last messages
    lifecycle.advance(last, "EXITED", exit_reason="stopped")
    assert peers(home)["driver"] == ("10.192.0.2", [])
