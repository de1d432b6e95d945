"""Counts to nodes: one node if possible, the tightest fit, the fewest moves."""

from hypothesis import given
from hypothesis import strategies as st

from scheduling.toolkit.placement import node_to_grow_on, node_to_shrink_on, place, total

NODES = st.dictionaries(st.sampled_from("abcde"), st.integers(0, 6))


def test_the_tightest_node_that_has_room_is_chosen() -> None:
    assert place({"a": 4, "b": 3, "c": 2}, 3, spread=True) == {"b": 3}


def test_equal_nodes_go_by_name_however_they_are_listed() -> None:
    assert place({"b": 2, "a": 2}, 2, spread=True) == place({"a": 2, "b": 2}, 2, spread=True) == {"a": 2}


def test_spreading_takes_the_emptiest_nodes_and_fits_the_rest_tightly() -> None:
    assert place({"a": 4, "b": 2, "c": 1}, 5, spread=True) == {"a": 4, "c": 1}


def test_a_split_job_is_given_no_gpu_twice() -> None:
    """Voda's best fit assigned the whole job again after a split: {A: 5, B: 2} on two nodes of 4 gave A nine."""
    first = place({"a": 4, "b": 4}, 5, spread=True)
    assert first == {"a": 4, "b": 1}
    assert place({"a": 0, "b": 3}, 2, spread=True) == {"b": 2}


@given(free=NODES, count=st.integers(1, 20), spread=st.booleans())
def test_a_placement_is_whole_within_what_is_free_and_missing_only_when_it_must_be(
    free: dict[str, int], count: int, spread: bool
) -> None:
    where = place(free, count, spread=spread)
    if where is None:
        assert (sum(free.values()) if spread else max(free.values(), default=0)) < count
    else:
        assert total(where) == count
        assert all(0 < gpus <= free[node] for node, gpus in where.items())
        assert spread or len(where) == 1


def test_growing_stays_at_home_while_it_can() -> None:
    assert node_to_grow_on({"a": 1, "b": 2}, {"a": 1, "b": 1, "c": 9}, spread=True) == "b"
    assert node_to_grow_on({"a": 1}, {"a": 0, "b": 2, "c": 1}, spread=True) == "c"
    assert node_to_grow_on({"a": 1}, {"a": 0, "b": 2}, spread=False) is None


def test_shrinking_draws_together_and_spares_the_base() -> None:
    assert node_to_shrink_on({"a": 2, "b": 1, "c": 2}, {"a": 1}) == "b"
    assert node_to_shrink_on({"a": 2, "c": 3}, {"a": 1}) == "c"
    assert node_to_shrink_on({"a": 2}, {"a": 1}) == "a"
    assert node_to_shrink_on({"a": 1}, {"a": 1}) is None
    assert node_to_shrink_on({"a": 2, "b": 1}, {"a": 1}, "a") == "a"
