"""The parameter server in a virtual clock: whose gradients count, what is computed for nothing, and that no sample is lost."""

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runners.training.schedulearn_train.sampler import Sampler
from runners.training.schedulearn_train.server import Mode, Server, Work

MODES: tuple[Mode, ...] = ("ksync", "adaptive_ksync", "kasync", "adaptive_kasync", "asp")


@dataclass
class World:
    """Workers that take so many seconds for a sample; a gradient counts each of its samples once, as a mean."""

    speeds: list[float]
    mode: Mode
    samples: int = 120
    batch: int = 24
    epochs: int = 2
    options: dict[str, Any] = field(default_factory=dict)
    slower: Callable[[int, np.ndarray], float] = lambda worker, indices: 1.0
    come: list[float] = field(default_factory=list)
    """When each worker asks for the first time; at once without."""

    def __post_init__(self) -> None:
        self.seen = np.zeros(self.samples)
        self.now = 0.0
        self.steps: list[float] = []
        self.means: list[np.ndarray] = []
        self.server = Server(
            Sampler(self.samples, seed=1), self.apply, mode=self.mode, batch=self.batch, workers=len(self.speeds),
            epochs=self.epochs, **self.options,
        )  # fmt: skip

    def apply(self, mean: np.ndarray, scale: float) -> None:
        self.means.append(mean)
        self.steps.append(self.now)

    def gradient(self, work: Work) -> np.ndarray:
        found = np.zeros(self.samples)
        found[work.indices] = 1 / len(work.indices)
        return found

    def run(self, most: int = 100_000) -> "World":
        events: list[tuple[float, int, Work | None]] = []

        def start(given: Any) -> None:
            for worker, work in given.items():
                takes = self.speeds[worker] * len(work.indices) * self.slower(worker, work.indices)
                heapq.heappush(events, (self.now + takes, worker, work))
                started[worker] = self.now

        started: dict[int, float] = {}
        for worker in range(len(self.speeds)):
            heapq.heappush(events, (self.come[worker] if self.come else 0.0, worker, None))
        for _ in range(most):
            if not events:
                break
            self.now, worker, work = heapq.heappop(events)
            if work is None:
                start(self.server.register(worker))
                continue
            start(self.server.receive(worker, self.gradient(work), self.now - started[worker]))
        return self


speeds = st.lists(st.floats(0.5, 8.0), min_size=1, max_size=6)


@settings(deadline=None)
@given(
    speeds, st.sampled_from(MODES), st.integers(1, 6), st.booleans(), st.lists(st.floats(0, 99), min_size=6, max_size=6)
)
def test_every_sample_is_used_once_per_epoch_whatever_the_mode(
    speeds: list[float], mode: Mode, k: int, balanced: bool, come: list[float]
) -> None:
    """And whenever workers come."""
    world = World(speeds, mode, samples=70, options={"k": k, "balanced": balanced}, come=come).run()
    assert world.server.done
    assert world.server.counts.used == 2 * 70


def test_a_server_that_waits_for_all_waits_for_those_that_have_not_registered_yet() -> None:
    """Ranks import their libraries, some longer than others compute their first part of a batch."""
    world = World([1.0, 1.0, 1.0], "ksync", samples=24, epochs=1, options={"k": 3}, come=[0.0, 0.0, 50.0]).run()
    assert world.steps == [58.0]


@settings(deadline=None)
@given(speeds, st.sampled_from(("ksync", "adaptive_ksync", "asp")))
def test_an_update_is_a_mean_over_its_samples(speeds: list[float], mode: Mode) -> None:
    world = World(speeds, mode).run()
    for mean in world.means:
        used = mean[mean > 0]
        assert mean.sum() == pytest.approx(1.0)
        assert np.allclose(used, 1 / len(used))


def test_ksync_of_three_does_not_wait_for_the_slow_one_and_wastes_what_it_computes() -> None:
    three = World([1, 1, 1, 4], "ksync", samples=2400, options={"k": 3}).run()
    all_of_them = World([1, 1, 1, 4], "ksync", samples=2400, options={"k": 4}).run()
    assert three.now < 0.5 * all_of_them.now
    assert three.server.counts.wasted > 0 and all_of_them.server.counts.wasted == 0
    assert set(three.server.counts.staleness) == {0}


def test_adaptive_ksync_finds_out_that_one_is_slow_and_that_none_is() -> None:
    unequal = World([1, 1, 1, 4], "adaptive_ksync", samples=2400).run()
    equal = World([1, 1, 1, 1], "adaptive_ksync", samples=2400).run()
    assert unequal.server.k == 3
    assert equal.server.k == 4
    assert equal.server.counts.wasted == 0  # it begins with all of them


@given(st.integers(1, 6), st.integers(24, 400), st.integers(1, 30))
def test_workers_that_are_all_waited_for_return_to_lockstep_in_the_middle_of_an_epoch(
    workers: int, samples: int, rounds: int
) -> None:
    options = {"rounds_until_lockstep": rounds}
    world = World([1.0] * workers, "adaptive_ksync", samples, batch=12, epochs=50, options=options).run()
    server = world.server
    assert server.returns_to_lockstep and not server.done and server.sampler.left
    assert server.sampler_state() == server.sampler.state_dict()  # no worker has any samples
    assert server.counts.updates >= rounds
    assert server.counts.used == server.sampler.epoch * samples + samples - server.sampler.left


def test_workers_of_which_one_is_left_out_do_not_return_to_lockstep() -> None:
    world = World([1, 1, 1, 4], "adaptive_ksync", samples=2400, options={"rounds_until_lockstep": 5}).run()
    assert world.server.done and not world.server.returns_to_lockstep


@pytest.mark.parametrize("mode", ["ksync", "adaptive_ksync"])
def test_the_rest_of_an_epoch_is_shared_by_all(mode: Mode) -> None:
    """56 samples in batches of 32: eight for each worker, then six."""
    world = World([1, 1, 1, 1], mode, samples=56, batch=32, epochs=1, options={"k": 4}).run()
    assert world.steps == [8.0, 14.0]


def test_with_balanced_parts_all_are_ready_at_once_and_nothing_is_wasted_for_long() -> None:
    world = World([1, 1, 1, 4], "adaptive_ksync", samples=4800, batch=130, options={"balanced": True}).run()
    assert world.server.parts == (40, 40, 40, 10)
    assert world.server.counts.wasted < 0.05 * world.server.counts.used


def test_asp_uses_each_gradient_at_once_and_a_slow_one_is_old() -> None:
    world = World([1, 1, 1, 4], "asp", samples=2400).run()
    assert world.server.counts.wasted == 0
    assert max(world.server.counts.staleness) >= 9


def test_kasync_bounds_how_old_a_gradient_may_be() -> None:
    world = World([1, 1, 1, 60], "kasync", samples=2400, options={"k": 1, "staleness": 4.0}).run()
    assert max(world.server.counts.staleness) <= 8
    assert world.server.counts.wasted > 0


def test_adaptive_kasync_keeps_the_slowest_about_as_old_as_wanted() -> None:
    world = World([1, 1, 1, 8], "adaptive_kasync", samples=4800, options={"staleness": 6.0}).run()
    late = world.server.counts.staleness[len(world.server.counts.staleness) // 2 :]
    assert max(late) <= 8
    assert world.server.k == 4


def test_no_worker_gets_further_ahead_than_allowed() -> None:
    world = World([1, 1, 1, 4], "asp", samples=2400, options={"lead": 3})
    ahead = 0
    made = world.server._made
    apply = world.apply

    def watched(mean: np.ndarray, scale: float) -> None:
        nonlocal ahead
        ahead = max(ahead, max(made) - min(made))
        apply(mean, scale)

    world.server.apply = watched
    world.run()
    assert 0 < ahead <= 4  # it may be sent out at a lead of three


def test_a_batch_without_a_sample_for_each_is_refused() -> None:
    with pytest.raises(ValueError, match="a batch of 3 leaves nothing for some of 4 workers"):
        Server(Sampler(10), lambda mean, scale: None, mode="asp", batch=3, workers=4, epochs=1)


def inclusion(slower: Callable[[int, np.ndarray], float], options: dict[str, Any], updates: int = 400) -> float:
    """Of long samples (the second half), the part among those used in the first updates of many epochs; half is fair."""
    found = []
    for seed in range(updates):
        world = World([1.0] * 4, "ksync", samples=96, batch=24, epochs=1, options=options, slower=slower)
        world.server.sampler = Sampler(96, seed=seed)
        world.run(most=12)
        found.append(world.means[0][48:].sum())
    return float(np.mean(found))


def length(_: int, indices: np.ndarray) -> float:
    return 1 + 3 * float(np.mean(np.asarray(indices) >= 48))


def test_dropping_the_late_is_biased_towards_short_samples_and_giving_back_evens_it_out_by_the_end_of_an_epoch() -> (
    None
):
    assert inclusion(length, {"k": 2}) < 0.45  # the first update: those with short samples were ready first
    assert inclusion(length, {"k": 4}) == pytest.approx(0.5, abs=0.02)  # the remedy for a single update: wait for all
    world = World([1.0] * 4, "ksync", samples=96, batch=24, epochs=1, options={"k": 2}, slower=length).run()
    used = np.sum([mean > 0 for mean in world.means], axis=0)
    assert (used == 1).all()  # the remedy for an epoch: every sample counts once


def first_update(mode: Mode, seed: int, values: np.ndarray, options: dict[str, Any]) -> float:
    """The mean value of the samples that make the first update, with workers of unequal speed and unequal parts."""
    world = World([1.0, 1.3, 1.7, 5.0], mode, samples=len(values), batch=24, epochs=1, options=options)
    world.server.sampler = Sampler(len(values), seed=seed)
    world.server.parts = (9, 7, 5, 3)
    world.run(most=8)  # four come, four gradients
    return float(world.means[0] @ values)


@pytest.mark.parametrize("mode", MODES)
def test_the_expected_update_is_the_whole_gradient_under_a_global_shuffle(mode: Mode) -> None:
    values = np.random.default_rng(2).exponential(1.0, 60)
    found = [first_update(mode, seed, values, {"k": 2}) for seed in range(2000)]
    assert abs(np.mean(found) - values.mean()) < 3 * np.std(found) / len(found) ** 0.5


def test_the_mean_of_means_over_fixed_shards_is_not() -> None:
    """The classical mistake: each worker draws from its own part of unequal data, and all means count alike."""
    values = np.sort(np.random.default_rng(2).exponential(1.0, 60))
    shards = (values[:30], values[30:50], values[50:])
    chance = np.random.default_rng(3)
    found = [np.mean([chance.choice(shard, 5, replace=False).mean() for shard in shards]) for _ in range(2000)]
    assert abs(np.mean(found) - values.mean()) > 30 * np.std(found) / len(found) ** 0.5
