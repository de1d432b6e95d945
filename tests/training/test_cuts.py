"""A model's parameters are cut between tensors, into parts of about equal size."""

import pytest
from hypothesis import given
from hypothesis import strategies as some

from runners.training.schedulearn_train.cuts import SHARD_BYTES, count_of, cut


@given(some.lists(some.integers(1, 1000), min_size=1, max_size=30), some.data())
def test_every_tensor_is_in_one_shard_and_no_shard_is_empty(lengths: list[int], data: some.DataObject) -> None:
    parts = cut(lengths, data.draw(some.integers(1, len(lengths))))
    assert [length for part in parts for length in lengths[part]] == lengths
    assert all(lengths[part] for part in parts)


@given(some.lists(some.integers(1, 1000), min_size=1, max_size=30), some.integers(1, 30))
def test_a_shard_is_no_larger_than_its_share_and_the_largest_tensors(lengths: list[int], count: int) -> None:
    count = min(count, len(lengths))
    parts = cut([max(lengths)] * len(lengths), count)
    sizes = [part.stop - part.start for part in parts]
    assert max(sizes) - min(sizes) <= 1


def test_a_large_tensor_lies_alone() -> None:
    assert cut([1000, 5, 5, 5], 2) == [slice(0, 1), slice(1, 4)]
    assert cut([5, 5, 1000], 3) == [slice(0, 1), slice(1, 2), slice(2, 3)]


def test_more_shards_than_tensors_are_refused() -> None:
    with pytest.raises(ValueError, match="2 tensors cannot be cut into 3 shards"):
        cut([1, 2], 3)


def test_a_model_of_usual_size_has_one_shard_and_a_large_one_several() -> None:
    assert count_of(SHARD_BYTES, 50, ranks=8) == 1
    assert count_of(3 * SHARD_BYTES + 1, 50, ranks=8) == 4
    assert count_of(30 * SHARD_BYTES, 50, ranks=8) == 8
    assert count_of(1000, 2, ranks=8, asked=3) == 2
