"""What policies know as a node: a machine, or its GPUs of one model where it has several."""

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

from django.utils import timezone

from portal.cluster.pools import (
    GpuCount,
    Pool,
    ReservedGpus,
    is_part_of_gpu,
    model_of,
    node_of,
    pool_id,
    pools_of,
    pools_on,
    reserved_by_pool,
)

NOW = timezone.now()
HOUR = timedelta(hours=1)
POOLS = pools_of([GpuCount(7, "T4", 4, 15_360), GpuCount(7, "A100", 2, 40_960), GpuCount(8, "T4", 2, 15_360)])


def test_a_machine_with_one_model_is_one_node_with_its_old_id() -> None:
    assert POOLS[8] == [Pool("8", 8, "T4", 2, 15_360, is_part=False)]


def test_a_machine_with_two_models_is_two_nodes() -> None:
    assert [pool.id for pool in POOLS[7]] == ["7:A100", "7:T4"] and all(pool.is_part for pool in POOLS[7])
    assert (node_of("7:A100"), model_of("7:A100"), node_of("8"), model_of("8")) == (7, "A100", 8, "")
    assert pools_on([7, 8, 9], POOLS) == {"7:A100", "7:T4", "8", "9"}


def test_a_gpu_belongs_to_the_whole_machine_or_to_the_part_of_its_model() -> None:
    known = pools_on([7, 8], POOLS)
    assert (pool_id(7, "T4", known), pool_id(8, "T4", known)) == ("7:T4", "8")


def test_a_model_may_contain_the_separator() -> None:
    assert (node_of("7:X:Y"), model_of("7:X:Y")) == (7, "X:Y")


def test_mig_instances_are_known_by_their_model() -> None:
    assert is_part_of_gpu("NVIDIA A100-SXM4-40GB MIG 1g.5gb") and not is_part_of_gpu("NVIDIA MIGHTY")


def reservation(pk: int, gpus: int, model: str = "", node: int = 7, start: Any = NOW, hours: int = 1) -> Any:
    return SimpleNamespace(pk=pk, node_id=node, gpus=gpus, gpu_model=model, start=start, end=start + hours * HOUR)


def shares(*rows: Any) -> dict[int, dict[str, int]]:
    found: dict[int, dict[str, int]] = {}
    for each in reserved_by_pool(rows, POOLS):
        assert isinstance(each, ReservedGpus)
        found.setdefault(each.reservation.pk, {})[each.pool] = each.gpus
    return found


def test_a_reservation_of_any_gpus_takes_the_model_with_most_then_others() -> None:
    assert shares(reservation(1, 3)) == {1: {"7:T4": 3}}
    assert shares(reservation(1, 6)) == {1: {"7:T4": 4, "7:A100": 2}}
    assert shares(reservation(1, 2, node=8)) == {1: {"8": 2}}


def test_it_leaves_what_is_reserved_by_model_at_that_time() -> None:
    assert shares(reservation(1, 2), reservation(2, 4, "T4")) == {2: {"7:T4": 4}, 1: {"7:A100": 2}}
    later = reservation(2, 4, "T4", start=NOW + 2 * HOUR)
    assert shares(reservation(1, 2), later)[1] == {"7:T4": 2}


def test_a_reservation_of_a_model_that_is_gone_takes_no_other() -> None:
    assert shares(reservation(1, 2, "V100", node=8)) == shares(reservation(1, 2, "V100")) == {}


def test_more_than_there_is_now_reserves_all_of_the_model() -> None:
    assert shares(reservation(1, 3, "A100")) == {1: {"7:A100": 2}}
