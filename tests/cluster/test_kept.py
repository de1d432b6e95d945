"""An interrupted run of the fault matrix goes on where it stopped."""

from pathlib import Path

from tests.cluster import kept
from tests.cluster.__main__ import time_for
from tests.cluster.faults import FAULTS
from tests.cluster.matrix import Row


def test_rows_come_back_as_they_were(tmp_path: Path) -> None:
    rows = [
        Row(FAULTS[0], 17_000, injections=10, jobs=30, runs=31, restarted=1, seconds=80.5, starved=0.2),
        Row(FAULTS[3], 17_030, injections=10, jobs=28, complaints=["a job is lost"], slow=["later than the bound"]),
    ]
    kept.save(tmp_path / "folder" / "rows.json", 17, rows)
    assert kept.load(tmp_path / "folder" / "rows.json", FAULTS) == (17, rows)


def test_rows_of_faults_that_are_not_wanted_are_left_out(tmp_path: Path) -> None:
    kept.save(tmp_path / "rows.json", 17, [Row(FAULTS[0], 1), Row(FAULTS[1], 2)])
    assert kept.load(tmp_path / "rows.json", FAULTS[1:])[1] == [Row(FAULTS[1], 2)]


def test_a_slow_machine_is_expected_to_stay_slow() -> None:
    first, other = FAULTS[0], FAULTS[1]
    supposed = time_for([other], 10, [])
    twice = Row(first, 1, injections=10, seconds=2 * kept.seconds_of(first, 10))
    assert time_for([other], 10, [twice]) == 2 * supposed


def test_every_fault_has_its_own_number_and_ten_injections() -> None:
    keys = [fault.key for fault in FAULTS]
    assert len(keys) == len(set(keys))
    assert all(fault.times >= 10 for fault in FAULTS if fault.key != "away")
