"""Every sample exactly once per epoch, whatever happens to the workers."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runners.training.schedulearn_train.allocation import plan_passes, split_evenly
from runners.training.schedulearn_train.sampler import Sampler


@given(st.data())
def test_each_sample_once_across_resizes_uneven_parts_and_restarts(data: st.DataObject) -> None:
    length = data.draw(st.integers(1, 300))
    sampler, seen = Sampler(length, seed=3), list[int]()
    while sampler.left:
        if data.draw(st.booleans()):  # a restart on other ranks, from the last checkpoint
            saved, sampler = sampler.state_dict(), Sampler(length)
            sampler.load_state_dict(saved)
        ranks = data.draw(st.integers(1, 6))
        weights = data.draw(st.lists(st.integers(0, 9), min_size=ranks, max_size=ranks).filter(any))
        batch = sampler.take(data.draw(st.integers(1, 64)))
        most = data.draw(st.lists(st.integers(1, 64), min_size=ranks, max_size=ranks))
        plans = [plan_passes(len(batch), tuple(weights), tuple(most), rank) for rank in range(ranks)]
        for passes in zip(*plans, strict=True):
            owns = [batch[place].tolist() for place, _ in passes]
            assert [sum(map(len, owns))] * ranks == [together for _, together in passes]
            assert all(len(own) <= top for own, top in zip(owns, most, strict=True))
            seen += itertools.chain(*owns)
    assert sorted(seen) == list(range(length))


@given(st.data())
def test_what_is_given_back_comes_again_and_nothing_else_does(data: st.DataObject) -> None:
    length = data.draw(st.integers(1, 100))
    sampler, computed = Sampler(length), list[int]()
    for _ in range(1000):
        if not sampler.left:
            break
        batch = sampler.take(data.draw(st.integers(1, 20)))
        kept = data.draw(st.integers(0, len(batch))) if sampler.left else len(batch)
        computed += batch[:kept].tolist()
        sampler.give_back(batch[kept:])
    else:
        computed += sampler.take(sampler.left).tolist()
    assert sorted(computed) == list(range(length))


def test_each_epoch_has_an_order_of_its_own_which_the_seed_decides() -> None:
    one, again = Sampler(50, seed=1), Sampler(50, seed=1)
    first = one.take(50)
    one.next_epoch()
    assert not np.array_equal(first, one.take(50))
    assert np.array_equal(first, again.take(60))
    assert not np.array_equal(first, Sampler(50, seed=2).take(50))
    assert Sampler(5, shuffle=False).take(5).tolist() == [0, 1, 2, 3, 4]


def test_an_epoch_is_not_ended_before_its_samples() -> None:
    sampler = Sampler(10)
    sampler.take(7)
    with pytest.raises(RuntimeError, match="3 samples of epoch 0 are left"):
        sampler.next_epoch()


def test_a_checkpoint_replaces_all_that_the_sampler_knew() -> None:
    sampler, saved = Sampler(10, seed=1), Sampler(10, seed=2)
    saved.take(8)
    saved.give_back(saved.take(1))
    sampler.give_back(sampler.take(5))
    sampler.load_state_dict(saved.state_dict())
    assert sampler.state_dict() == saved.state_dict()
    assert sampler.take(10).tolist() == saved.take(10).tolist()


def test_a_checkpoint_of_other_data_is_refused() -> None:
    with pytest.raises(ValueError, match="of a data set with 10 samples, this one has 11"):
        Sampler(11).load_state_dict(Sampler(10).state_dict())


def test_parts_of_a_short_batch_cover_it() -> None:
    batch = Sampler(10, shuffle=False).take(3)
    plans = [plan_passes(len(batch), split_evenly(8, 4), (9,) * 4, rank) for rank in range(4)]
    assert [[batch[place].tolist() for place, _ in passes] for passes in plans] == [[[0]], [[1]], [[2]], [[]]]
