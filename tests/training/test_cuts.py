"""A model's parameters are cut into parts of about equal size, through its tensors or between them."""

import pytest
from hypothesis import given
from hypothesis import strategies as some

from runners.training.schedulearn_train.cuts import SHARD_BYTES, Piece, cut, cut_between_tensors, pieces, shard_count

LENGTHS = some.lists(some.integers(1, 1000), min_size=1, max_size=30)


@given(LENGTHS, some.data())
def test_the_pieces_of_all_shards_are_the_tensors(lengths: list[int], data: some.DataObject) -> None:
    parts = cut(lengths, data.draw(some.integers(1, min(40, sum(lengths)))))
    found = [piece for part in parts for piece in pieces(lengths, part)]
    elements = [(piece.tensor, place) for piece in found for place in range(piece.start, piece.stop)]
    assert elements == [(tensor, place) for tensor, length in enumerate(lengths) for place in range(length)]
    sizes = [part.stop - part.start for part in parts]
    assert min(sizes) > 0 and max(sizes) - min(sizes) <= 1


@given(LENGTHS, some.data())
def test_between_tensors_each_is_whole_in_one_shard_and_no_shard_is_empty(
    lengths: list[int], data: some.DataObject
) -> None:
    parts = cut_between_tensors(lengths, data.draw(some.integers(1, len(lengths))))
    found = [list(pieces(lengths, part)) for part in parts]
    assert all(found)
    assert [piece for each in found for piece in each] == [
        Piece(tensor, 0, length) for tensor, length in enumerate(lengths)
    ]


@given(some.integers(1, 1000), some.integers(1, 30), some.integers(1, 30))
def test_tensors_of_one_size_are_dealt_out_evenly(length: int, tensors: int, count: int) -> None:
    sizes = [part.stop - part.start for part in cut_between_tensors([length] * tensors, min(count, tensors))]
    assert max(sizes) - min(sizes) <= length


def test_a_large_tensor_lies_alone_where_it_is_not_cut() -> None:
    assert cut_between_tensors([1000, 5, 5, 5], 2) == [slice(0, 1000), slice(1000, 1015)]
    assert cut_between_tensors([5, 5, 1000], 3) == [slice(0, 5), slice(5, 10), slice(10, 1010)]
    assert cut([1000, 5, 5, 6], 2) == [slice(0, 508), slice(508, 1016)]


def test_a_tensor_without_elements_is_in_no_shard() -> None:
    assert list(pieces([2, 0, 2], slice(0, 4))) == [Piece(0, 0, 2), Piece(2, 0, 2)]


def test_more_shards_than_there_is_to_cut_are_refused() -> None:
    with pytest.raises(ValueError, match="2 tensors cannot be cut into 3 shards"):
        cut_between_tensors([1, 2], 3)
    with pytest.raises(ValueError, match="3 elements cannot be cut into 4 shards"):
        cut([1, 2], 4)


def test_a_small_model_has_one_shard_and_a_large_one_a_shard_on_each_rank() -> None:
    assert shard_count(SHARD_BYTES, 50, ranks=8) == 1
    assert shard_count(3 * SHARD_BYTES + 1, 50, ranks=8) == 4
    assert shard_count(30 * SHARD_BYTES, 50, ranks=8) == 8
    assert shard_count(1000, 2, ranks=8, asked=3) == 2
