"""Simulated futures of a snapshot: ranges of starts, as wide as the uncertainty."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest

from portal.forecast import changes, futures, messages, words
from portal.forecast.futures import simulate_futures
from portal.jobs.models import Job as JobRow
from portal.sentences import sentence_of
from portal.sentences.spans import nearest_duration, rough_range, wait_range
from scheduling.policies.elastic_fifo import ElasticFifo
from scheduling.policies.fifo import Fifo
from scheduling.simulate import Submission, assumed, simulate
from scheduling.types import Estimate, Job, Node, Plan, Policy, Reservation, Snapshot

NOW = 1_000_000.0


def running(id: str, gpus: int, work: float, error: float = 0.5, **fields: object) -> Job:
    facts = {"min_gpus": gpus, "max_gpus": gpus, "now_on": {"a": gpus}, "base": {"a": gpus}, "started_at": NOW - 60}
    return Job(id, "alice", NOW - 100, work=Estimate(work, error=error), **{**facts, **fields})  # type: ignore[arg-type]


def waiting(id: str, gpus: int, ago: float = 50.0, **fields: object) -> Job:
    return Job(id, "bob", NOW - ago, min_gpus=gpus, max_gpus=gpus, **fields)  # type: ignore[arg-type]


def world(*jobs: Job, gpus: int = 4) -> Snapshot:
    return Snapshot(NOW, (Node("a", "a", gpus, gpus - sum(job.gpus for job in jobs)),), jobs)


def minutes(snapshot: Snapshot, job: str, **options: float) -> tuple[float, float]:
    low, high = simulate_futures(Fifo(), snapshot, [job], **options).range_of(job)  # type: ignore[arg-type]
    return (low - NOW) / 60, (high - NOW) / 60


def test_a_job_starts_when_the_one_before_it_is_expected_to_end() -> None:
    # a: [1 1 1 1]   one hour of work on one GPU, done with four at 4 ** 0.9
    low, high = minutes(world(running("1", 4, 3600.0 * 4**0.9, error=0.0), waiting("2", 4)), "2")
    assert 50 < low < 60 < high < 70


def test_the_less_is_known_of_a_job_the_wider_the_range_behind_it() -> None:
    widths = []
    for error in (0.1, 0.5, 2.0):
        low, high = minutes(world(running("1", 4, 7200.0, error), waiting("2", 4)), "2")
        widths.append(high / low)
    assert widths[0] < widths[1] < widths[2]


def test_eight_of_ten_futures_lie_within_the_range() -> None:
    found = simulate_futures(Fifo(), world(running("1", 4, 7200.0), waiting("2", 4)), ["2"])
    low, high = found.range_of("2")
    assert sum(low <= at <= high for at in found.starts["2"]) >= 0.8 * found.draws
    assert low > min(found.starts["2"]) and high < max(found.starts["2"])


def test_equal_snapshots_have_equal_futures() -> None:
    snapshot = world(running("1", 4, 7200.0), waiting("2", 4), waiting("3", 2, ago=40))
    assert simulate_futures(Fifo(), snapshot, ["2", "3"]) == simulate_futures(Fifo(), snapshot, ["2", "3"])


def test_the_policy_decides_and_so_it_decides_the_forecast() -> None:
    snapshot = world(running("1", 4, 36000.0, min_gpus=1, elastic=True, base={"a": 1}), waiting("2", 2))
    slow, quick = (simulate_futures(policy, snapshot, ["2"]).range_of("2") for policy in (Fifo(), ElasticFifo()))
    assert quick[1] - NOW <= 60 < slow[0] - NOW


def test_what_does_not_start_within_the_horizon_is_not_promised() -> None:
    low, high = minutes(world(running("1", 4, 1e9), waiting("2", 4)), "2", horizon=3600)
    assert (low, high) == (math.inf, math.inf)


def test_whoever_is_stopped_by_a_limit_of_time_is_not_waited_for_longer() -> None:
    snapshot = world(running("1", 4, 1e9, longest_seconds=660.0), waiting("2", 4))
    assert minutes(snapshot, "2") == (10.0, 10.0)


LIMIT = 4 * 3600.0


def unknown(id: str, gpus: int, **fields: object) -> Job:
    """A running job of which no similar one has succeeded."""
    return replace(running(id, gpus, 0.0, longest_seconds=LIMIT, started_at=NOW, **fields), work=None)  # type: ignore[arg-type]


class TestUnknownLengths:
    """No similar job has succeeded: nothing is known but the time limit."""

    def bounds(self, snapshot: Snapshot, *jobs: str, **options: float) -> dict[str, tuple[float, float]]:
        found = simulate_futures(Fifo(), snapshot, jobs, **options)  # type: ignore[arg-type]
        return {job: (low - NOW, high - NOW) for job, (low, high) in found.bounds.items()}

    def test_the_start_lies_between_at_once_and_the_time_limit(self) -> None:
        found = self.bounds(world(unknown("1", 4), waiting("2", 4)), "2")
        assert found["2"][0] <= 60 and found["2"][1] == pytest.approx(LIMIT, abs=60)

    def test_a_job_further_back_waits_for_all_limits_before_it(self) -> None:
        line = [waiting(str(n), 4, ago=100 - n, longest_seconds=3600.0) for n in (2, 3, 4)]
        found = self.bounds(world(unknown("1", 4), *line), "2", "3", "4")
        assert [round(high / 3600) for _, high in found.values()] == [4, 5, 6]
        assert all(low < 300 for low, _ in found.values())

    def test_its_own_length_does_not_delay_a_job(self) -> None:
        snapshot = world(running("1", 4, 3600.0 * 4**0.9, error=0.1), waiting("2", 4, longest_seconds=LIMIT))
        assert not self.bounds(snapshot, "2")

    def test_one_small_unknown_job_among_known_ones_does_not_spoil_a_range(self) -> None:
        # a: [1 2 2 2]   3 waits for the three of job 2, whose length is known
        snapshot = world(unknown("1", 1), running("2", 3, 3600.0 * 3**0.9, error=0.2), waiting("3", 3))
        found = simulate_futures(Fifo(), snapshot, ["3"])
        assert not found.bounds
        low, high = found.range_of("3")
        assert low - NOW > 1800 and high - NOW < 7200

    def test_a_known_job_that_takes_longer_than_usual_is_expected_too(self) -> None:
        # a: [1 1 1 1] [2 2 2 2] [3 3 3 3]   job 2 may take several times its usual two hours
        known = waiting("2", 4, ago=80, work=Estimate(7200 * 4**0.9, error=3.0), longest_seconds=1e6)
        found = simulate_futures(Fifo(), world(unknown("1", 4), known, waiting("3", 4)), ["3"])
        low, high = found.range_of("3")
        assert found.bounds["3"][1] - NOW < LIMIT + 3 * 3600 and low <= found.bounds["3"][0]
        assert sum(at <= high for at in found.starts["3"]) >= 0.9 * found.draws

    def test_beyond_the_horizon_the_latest_start_stays_open(self) -> None:
        found = self.bounds(world(unknown("1", 4), waiting("2", 4)), "2", horizon=3600)
        assert found["2"][0] <= 60 and found["2"][1] == math.inf

    def test_with_known_lengths_nothing_more_is_simulated(self) -> None:
        clock = Turns()
        simulate_futures(clock, world(running("1", 4, 7200.0), waiting("2", 4, work=Estimate(60.0))), ["2"], draws=5)
        known = clock.decisions
        clock = Turns()
        simulate_futures(clock, world(unknown("1", 4), waiting("2", 4, work=Estimate(60.0))), ["2"], draws=5)
        assert clock.decisions > known

    @pytest.mark.parametrize("policy", [Fifo(), ElasticFifo()], ids=["fifo", "elastic_fifo"])
    def test_whatever_the_lengths_turn_out_to_be_the_start_is_within_the_bounds(self, policy: Policy) -> None:
        """Rigid jobs under FIFO never start later because another ends sooner; elastic ones nearly never."""
        held = total = 0
        for seed in range(15):
            dice = np.random.default_rng(seed)
            jobs = [unknown(str(n), 2, base={"a": 2}) for n in range(2)]
            jobs += [waiting(str(n), int(dice.integers(1, 4)), ago=90 - n, longest_seconds=LIMIT) for n in range(2, 8)]
            snapshot = world(*jobs)
            found = simulate_futures(policy, snapshot, [job.id for job in jobs[2:]], draws=5, horizon=48 * 3600)
            lengths = {job.id: float(dice.uniform(30, LIMIT)) for job in jobs}
            truths = [Submission(job, assumed(job, longer=lengths[job.id] / 3600)) for job in jobs]
            for row in simulate(policy, snapshot.nodes, truths, now=NOW).jobs:
                if row.id in found.bounds:
                    low, high = found.bounds[row.id]
                    held += row.first_started_at is not None and low - 60 <= row.first_started_at <= high + 60
                    total += 1
        assert total >= 60
        assert held >= 0.95 * total, (held, total)


@dataclass(slots=True)
class Turns:
    """First come, first served, and a clock that only its decisions move."""

    title: ClassVar[str] = "Turns"
    explanation: ClassVar[str] = "Counts its decisions."
    decisions: int = 0

    def plan(self, snapshot: Snapshot) -> Plan:
        self.decisions += 1
        return Fifo().plan(snapshot)

    def perf_counter(self) -> float:
        return float(self.decisions)


def test_without_time_for_all_futures_it_is_looked_less_far_and_nothing_beyond_is_claimed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    line = [waiting(str(number), 4, ago=100 - number, work=Estimate(3600.0)) for number in range(2, 40)]
    clock = Turns()
    monkeypatch.setattr(futures, "time", clock)
    found = simulate_futures(clock, world(running("1", 4, 3600.0), *line), [job.id for job in line], seconds=60.0)
    assert clock.decisions < 60 + 2 * 5
    assert found.draws == 5
    assert NOW < found.until < NOW + 24 * 3600
    assert all(at <= found.until or at == math.inf for row in found.starts.values() for at in row)
    assert found.starts["2"][0] < math.inf
    assert found.starts["39"] == (math.inf,) * 5


def test_the_fewer_turns_there_is_time_for_the_coarser() -> None:
    day = 24 * 3600.0
    found = [futures._window_part(count, day) for count in (1000, 530, 500, 220, 200, 5)]
    assert found == [0.02, 0.02, 0.05, 0.05, 0.1, 0.1]
    assert futures._window_part(100, 120.0) == 0.02  # not so far


@pytest.mark.thorough
def test_when_exact_futures_take_too_long_all_become_a_little_coarser() -> None:
    """Jobs end every minute: exact futures need a decision for each of them, coarse ones ever fewer."""
    line = [waiting(str(number), 1, ago=900 - number, work=Estimate(3600.0)) for number in range(100, 700)]
    jobs = [running(str(number), 1, 60.0 * number, now_on={"a": 1}, base={"a": 1}) for number in range(1, 64)]
    snapshot, last = world(*jobs, *line, gpus=64), line[300].id
    exact = simulate_futures(Fifo(), snapshot, [last], draws=5, seconds=1000.0)
    clock = Turns()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(futures, "time", clock)
        coarse = simulate_futures(clock, snapshot, [last], draws=5, seconds=5 * 150.0)
    assert clock.decisions < 5 * 150
    assert coarse.draws == 5 and coarse.until == exact.until
    for one, other in zip(coarse.starts[last], exact.starts[last], strict=True):
        assert one == pytest.approx(other, abs=0.05 * (other - NOW)) and one != other


@pytest.mark.parametrize("policy", [Fifo(), ElasticFifo()], ids=["fifo", "elastic_fifo"])
def test_when_lengths_are_as_uncertain_as_stated_about_eight_of_ten_ranges_hold(policy: Policy) -> None:
    """Each lab continues once for real, with lengths that were unknown; no job is submitted later."""
    held = total = 0
    for seed in range(12):
        dice = np.random.default_rng(seed)
        work = [Estimate(float(dice.uniform(1800, 14_400)), "history", 0.6) for _ in range(14)]
        jobs = [running(str(n), 2, work[n].value, work[n].error) for n in range(4)]
        sizes = [int(dice.integers(1, 5)) for _ in work]
        jobs += [
            replace(
                waiting(str(n), sizes[n], ago=100 - n, work=work[n]),
                elastic=n % 3 == 0,
                min_gpus=1 if n % 3 == 0 else sizes[n],
            )
            for n in range(4, 14)
        ]
        snapshot = world(*jobs, gpus=8)
        futures_found = simulate_futures(policy, snapshot, [job.id for job in jobs[4:]])
        sigma = math.sqrt(math.log(1 + 0.6**2))
        truths = [Submission(job, assumed(job, longer=math.exp(sigma * dice.standard_normal()))) for job in jobs]
        for row in simulate(policy, snapshot.nodes, truths, now=NOW).jobs:
            if row.id in futures_found.starts:
                low, high = futures_found.range_of(row.id)
                held += row.first_started_at is not None and low - 60 <= row.first_started_at <= high + 60
                total += 1
    assert total == 120
    assert 0.7 <= held / total <= 0.97, held / total


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (-5, 20, "within 1 minute"),
        (0, 290, "within 5 minutes"),
        (1200, 6000, "in 20 to 100 minutes"),
        (1200, 1200, "in 20 minutes"),
        (3000, 9000, "in 50 minutes to 3 hours"),
        (11_000, 25_000, "in 3 to 7 hours"),
        (30, 30_000, "within 9 hours"),
    ],
)
def test_spans_are_given_in_words_with_units(low: float, high: float, text: str) -> None:
    assert wait_range(low, high) == text


def test_a_list_has_room_for_less() -> None:
    assert words.abbreviate_units("starts in 50 minutes to 3 hours") == "starts in 50 min to 3 h"


@pytest.mark.parametrize(
    ("changed", "as_is", "sooner"),
    [
        ((0, 0, 0, 0, 0), (600, 700, 800, 900, 1000), True),
        ((500, 600, 700, 800, 900), (600, 700, 800, 900, 1000), False),  # a little
        ((0, 0, 0, 0, 0), (60, 70, 80, 90, 100), False),  # not worth a change
        ((0, 0, 0, 900, 1000), (600, 700, 800, 900, 1000), False),  # with luck only
        ((0, 0, 0, 0, math.inf), (600, 700, 800, 900, 1000), False),
    ],
)
def test_only_what_is_clearly_sooner_in_nearly_every_future_counts(
    changed: tuple[float, ...], as_is: tuple[float, ...], sooner: bool
) -> None:
    assert changes.clearly_sooner(changed, as_is) is sooner


def test_what_a_change_saves_is_a_difference_in_equal_futures() -> None:
    as_is, changed = (600.0, 1200.0, 2400.0, 3600.0, 7200.0), (590.0, 0.0, 600.0, 600.0, 1200.0)
    assert changes._saved_seconds(changed, as_is) == (1200.0, 6000.0)
    change = changes.ProposedChange("gpus-2", messages.FewerGpus(2, 4), {}, waiting("9", 2))
    helpful = changes.HelpfulChange(change, 0.0, 1200.0, (1200.0, 6000.0))
    texts = [sentence_of(helpful.message(lengths_known=known).data()) for known in (True, False)]
    assert texts == [
        "With 2 GPUs instead of 4 it probably starts 20 to 100 minutes sooner.",
        "With 2 GPUs instead of 4 it probably starts sooner.",
    ]
    beyond = replace(helpful, sooner=None)
    assert sentence_of(beyond.message(lengths_known=True).data()).endswith("it probably starts within 20 minutes.")


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (10, 20, "1 minute"),
        (1200, 6000, "20 to 100 minutes"),
        (3000, 9000, "50 minutes to 2 hours"),
        (10_800, 10_900, "3 hours"),
        (10_800, 40_000, "3 to 11 hours"),
    ],
)
def test_lengths_of_time_between_two_are_given_in_words(low: float, high: float, text: str) -> None:
    assert rough_range(low, high) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(20, "1 minute"), (3600, "60 minutes"), (9000 + 60, "3 hours"), (3.9 * 3600, "4 hours")]
)
def test_a_length_beside_a_time_of_day_is_the_nearest(seconds: float, text: str) -> None:
    assert nearest_duration(seconds) == text


def test_advice_does_not_simulate_bounds_that_it_does_not_use() -> None:
    snapshot = world(unknown("1", 4), waiting("2", 4, work=Estimate(60.0)))
    found = simulate_futures(Fifo(), snapshot, ["2"], draws=5, with_bounds=False)
    assert not found.bounds and found.starts["2"] == simulate_futures(Fifo(), snapshot, ["2"], draws=5).starts["2"]


def test_a_shorter_limit_fits_before_a_reservation() -> None:
    # a: [. . . .]   in an hour all four are kept for carol
    row = JobRow(time_limit_seconds=86_400, launcher="command", resumable=True, opportunistic=True)
    job = waiting("7", 4, longest_seconds=86_400.0)
    kept = Reservation("course", "a", 4, NOW + 3600, NOW + 7200, frozenset({"carol"}))
    snapshot = replace(world(job), reservations=(kept,))
    offered = list(changes._shorter_time_limits(row, replace(job, id="8")))
    answer = changes.find_helpful_changes(Fifo(), snapshot, job, offered)
    assert [sentence_of(each.message(lengths_known=True).data()) for each in answer.helpful] == [
        "With at most 60 minutes instead of 24 hours it starts now. It is stopped after that time."
    ]
    assert not answer.about_to_start
