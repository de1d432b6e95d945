"""The fairness ledger: examples with a few people, and its law on thousands of histories."""

from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from portal.usage.ledger import (
    Account,
    Day,
    Facts,
    HeldSpan,
    JobSpan,
    LedgerLine,
    decayed_balance,
    share_out,
    sums_by_span,
)
from tests.examples import examples

ALICE: Account = (None, 1)
BOB: Account = (None, 2)


def job(id: int, account: Account, max_gpus: int, since: int, until: int, **fields: object) -> JobSpan:
    return JobSpan(id, account, 1, max_gpus, bool(fields.pop("elastic", False)), since, until, **fields)  # type: ignore[arg-type]


def held(job: int, gpus: range, since: int, until: int, ran: int | None = 0, lost: str = "") -> list[HeldSpan]:
    return [HeldSpan(gpu, job, since, until, ran, lost) for gpu in gpus]


def lab(gpus: int, length: int, jobs: list[JobSpan], holds: list[list[HeldSpan]], **fields: object) -> Day:
    facts = Facts([(gpu, 0, length) for gpu in range(gpus)], jobs, [one for hold in holds for one in hold], **fields)  # type: ignore[arg-type]
    return sums_by_span(facts, [0, length])[0]


def test_who_uses_more_than_their_share_borrows_from_those_who_wait() -> None:
    # 4 GPUs, 10 moments: alice holds all, bob waits for 2
    day = lab(4, 10, [job(1, ALICE, 4, 0, 10), job(2, BOB, 2, 0, 10)], [held(1, range(4), 0, 10)])
    assert day.lines == {ALICE: LedgerLine(20, 40, 0, 20, 0), BOB: LedgerLine(20, 0, 20, 0, 0)}
    assert (day.capacity, day.unclaimed, day.idle) == (40, 0, 0)


def test_who_asks_for_less_than_their_share_lends_nothing() -> None:
    # bob wants one GPU and has it: what he does not want is alice's by right
    day = lab(
        4, 10, [job(1, ALICE, 3, 0, 10), job(2, BOB, 1, 0, 10)], [held(1, range(3), 0, 10), held(2, range(3, 4), 0, 10)]
    )
    assert day.lines == {ALICE: LedgerLine(30, 30), BOB: LedgerLine(10, 10)}


def test_gpus_that_no_job_asks_for_are_unclaimed() -> None:
    day = lab(4, 10, [job(1, ALICE, 1, 0, 5)], [held(1, range(1), 0, 5)])
    assert day.lines == {ALICE: LedgerLine(5, 5)} and day.unclaimed == day.idle == 35


def test_gpus_that_stay_idle_while_a_job_waits_are_spare() -> None:
    # alice waits for 2 at once, one of two is bob's
    day = lab(2, 10, [job(1, ALICE, 2, 0, 10), job(2, BOB, 1, 0, 10)], [held(2, range(1), 0, 10)])
    assert day.lines[ALICE] == LedgerLine(10, 0, 0, 0, 10) and day.idle == 10 and day.unclaimed == 0


def test_weights_count_between_groups_first_then_within_them() -> None:
    # group 7 of weight 2 beside bob: 8 of 12 GPUs; in it alice (weight 3) beside carol
    alice, carol = (7, 1), (7, 3)
    day = lab(
        12,
        1,
        [job(1, alice, 12, 0, 1), job(2, carol, 12, 0, 1), job(3, BOB, 12, 0, 1)],
        [],
        weights=[(0, 7, 2.0), (0, (None, 1), 3.0)],
    )
    assert {who: line.entitled for who, line in day.lines.items()} == {alice: 6, carol: 2, BOB: 4}


def test_a_weight_counts_from_when_it_was_set() -> None:
    jobs = [job(1, ALICE, 4, 0, 10), job(2, BOB, 4, 0, 10)]
    day = lab(4, 10, jobs, [], weights=[(5, (None, 1), 3.0)])
    assert day.lines[ALICE].entitled == 5 * 2 + 5 * 3


def test_a_job_on_hold_asks_for_nothing() -> None:
    day = lab(2, 10, [job(1, ALICE, 2, 0, 10, paused=((2, 6),))], [])
    assert day.lines[ALICE].entitled == 12 and day.unclaimed == 8


def test_an_elastic_job_asks_for_its_most_while_it_runs_and_any_other_for_what_it_has() -> None:
    for elastic, entitled in ((True, 30), (False, 20)):
        day = lab(4, 10, [job(1, ALICE, 3, 0, 10, elastic=elastic), job(2, BOB, 1, 0, 10)], [held(1, range(2), 0, 10)])
        assert day.lines[ALICE].entitled == entitled


def test_a_gpu_held_while_off_offer_counts_as_capacity() -> None:
    facts = Facts([(0, 0, 4)], [job(1, ALICE, 1, 0, 10)], held(1, range(1), 2, 10))
    day = sums_by_span(facts, [0, 10])[0]
    assert day.capacity == 10 and day.lines[ALICE].used == 8


def test_waste_is_lost_work_and_time_before_the_start() -> None:
    day = lab(1, 100, [job(1, ALICE, 1, 0, 90)], [held(1, range(1), 10, 90, ran=15, lost="failed")])
    spent = day.spent[ALICE, 1]
    assert (spent.allocated, spent.starting, spent.failed, spent.useful) == (80, 5, 75, 0)


def test_waiting_leaves_out_the_time_on_hold() -> None:
    second = 1_000_000
    waited = job(1, ALICE, 1, 0, 90 * second, paused=((10 * second, 30 * second),), started=50 * second)
    (spent,) = lab(1, 100 * second, [waited], []).spent.values()
    assert spent.waits == [30.0] and spent.submitted == 1


def test_old_balances_fade() -> None:
    assert decayed_balance({0: 8, 7: 8, 14: -8}, 7.0) == 8 + 4 - 2


# --- laws ---------------------------------------------------------------------------------------------------------

claims = st.lists(st.tuples(st.integers(1, 5000), st.integers(0, 10**9)), max_size=12)


@given(st.integers(0, 10**10), claims)
def test_sharing_out_gives_everything_that_is_claimed_and_nothing_more(
    total: int, claimed: list[tuple[int, int]]
) -> None:
    given_out = share_out(total, [(key, *claim) for key, claim in enumerate(claimed)])
    assert sum(given_out.values()) == min(total, sum(maximum for _, maximum in claimed))
    assert all(0 <= given_out[key] <= maximum for key, (_, maximum) in enumerate(claimed))
    # no one has less for their weight than another, except those who have all they claim, and for remainders
    slack = len(claimed) + 1
    for key, (weight, maximum) in enumerate(claimed):
        if given_out[key] < maximum:
            for other, (its, _) in enumerate(claimed):
                assert Fraction(given_out[key] + slack, weight) >= Fraction(given_out[other] - slack, its)


@st.composite
def histories(draw: st.DrawFn) -> tuple[Facts, list[int]]:
    """Generate any lab: GPUs come and go, jobs wait, run, pause and overrun their end; no GPU is held twice."""
    length = 1000
    moment = st.integers(-50, length + 50)
    accounts: list[Account] = [(None, 1), (None, 2), (7, 1), (7, 3), (8, 4)]
    jobs = []
    for id in range(draw(st.integers(0, 7))):
        since, until = sorted((draw(moment), draw(moment)))
        pauses = sorted(draw(st.lists(st.integers(since, until), max_size=4, unique=True)))
        jobs.append(
            JobSpan(
                id,
                draw(st.sampled_from(accounts)),
                draw(st.integers(1, 2)),
                draw(st.integers(1, 6)),
                draw(st.booleans()),
                since,
                until,
                tuple(zip(pauses[::2], pauses[1::2], strict=False)),
                draw(st.none() | st.integers(since, until)),
            )
        )
    holds = []
    for gpu in range(draw(st.integers(0, 5)) if jobs else 0):
        ends = sorted(draw(st.lists(moment, max_size=8, unique=True)))
        for since, until in zip(ends[::2], ends[1::2], strict=False):
            lost = draw(st.sampled_from(["", "failed", "interrupted"]))
            ran = draw(st.none() | st.integers(since, until))
            holds.append(HeldSpan(gpu, draw(st.sampled_from(jobs)).id, since, until, ran, lost))
    offers = []
    for gpu in range(6):
        ends = sorted(draw(st.lists(moment, max_size=4, unique=True)))
        offers += [(gpu, *span) for span in zip(ends[::2], ends[1::2], strict=False)]
    owners: list[Account | int] = [7, 8, (None, 1), (None, 3)]
    weights = draw(st.lists(st.tuples(moment, st.sampled_from(owners), st.floats(0.01, 1000)), max_size=4))
    bounds = sorted({0, length, *draw(st.lists(st.integers(1, length - 1), max_size=4))})
    return Facts(offers, jobs, holds, sorted(weights, key=lambda row: row[0])), bounds


@settings(max_examples=examples(300), deadline=None)
@given(histories())
def test_the_ledger_sums_to_capacity_times_time_exactly(history: tuple[Facts, list[int]]) -> None:
    facts, bounds = history
    days = sums_by_span(facts, bounds)
    for day, (start, end) in zip(days, zip(bounds, bounds[1:], strict=False), strict=True):
        lines = day.lines.values()
        covered = {
            (gpu, moment)
            for gpu, since, until in [*facts.offers, *((one.gpu, one.since, one.until) for one in facts.held)]
            for moment in range(max(since, start), min(until, end))
        }
        assert day.capacity == len(covered)
        assert sum(line.used for line in lines) + day.idle == day.capacity
        assert sum(line.entitled for line in lines) + day.unclaimed == day.capacity
        assert sum(line.lent for line in lines) == sum(line.borrowed for line in lines)
        for line in lines:
            assert line.used == line.entitled + line.borrowed - line.lent - line.spare
            assert min(line.entitled, line.used, line.lent, line.borrowed, line.spare) >= 0
        held_now = sum(max(0, min(one.until, end) - max(one.since, start)) for one in facts.held)
        assert sum(line.used for line in lines) == held_now
        assert sum(spent.allocated for spent in day.spent.values()) == held_now
        assert all(spent.useful >= 0 for spent in day.spent.values())


@settings(max_examples=examples(150), deadline=None)
@given(histories())
def test_days_sum_to_the_whole_time(history: tuple[Facts, list[int]]) -> None:
    facts, bounds = history
    days, (whole,) = sums_by_span(facts, bounds), sums_by_span(facts, [bounds[0], bounds[-1]])
    assert sum(day.capacity for day in days) == whole.capacity
    for account, line in whole.lines.items():
        parts = [day.lines[account] for day in days if account in day.lines]
        assert sum(part.used for part in parts) == line.used
        # A moment that a midnight cuts may be divided otherwise by what cannot be divided
        assert abs(sum(part.entitled for part in parts) - line.entitled) <= 2 * len(whole.lines) * len(days)
    for key, spent in whole.spent.items():
        daily = [day.spent[key] for day in days if key in day.spent]
        assert (sum(p.allocated for p in daily), sum(p.starting for p in daily), sum(p.submitted for p in daily)) == (
            spent.allocated,
            spent.starting,
            spent.submitted,
        )
