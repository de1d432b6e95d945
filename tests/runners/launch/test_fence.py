from pathlib import Path

import pytest

from runners.launch.fence import T_FENCE_SECONDS, Fence, lease_content
from tests.runners.launching import attempt, local_group, until

TICKS = "import time\nwhile True: print('tick'); time.sleep(0.1)"


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_only_a_changed_lease_counts_as_renewed(tmp_path: Path) -> None:
    clock, lease = Clock(), tmp_path / "lease"
    fence = Fence(lease, 30, clock)
    lease.write_text('{"renewal": 1}')
    clock.now += 29
    assert not fence.has_expired()
    clock.now += 29
    lease.write_text('{"renewal": 1}')  # written again, but not renewed
    assert not fence.has_expired()
    clock.now += 2
    assert fence.has_expired()


def test_a_short_partition_changes_nothing(tmp_path: Path) -> None:
    clock, lease = Clock(), tmp_path / "lease"
    fence = Fence(lease, 30, clock)
    for renewal in range(10):
        lease.write_text(f'{{"renewal": {renewal}}}')
        assert not fence.has_expired()
        clock.now += 29.9
        assert not fence.has_expired()


@pytest.fixture
def boot_id(tmp_path: Path) -> Path:
    file = tmp_path / "boot_id"
    file.write_text("6d1c\n")
    return file


def test_a_late_reply_renews_for_the_time_that_is_left(tmp_path: Path, boot_id: Path) -> None:
    clock, lease = Clock(), tmp_path / "lease"
    fence = Fence(lease, 30, clock, boot_id)
    for renewal in range(5):
        sent_at = clock.now
        clock.now += 12  # the portal takes that long to answer
        lease.write_bytes(lease_content(renewal, sent_at, boot_id))
        assert not fence.has_expired()
        clock.now += 18
        assert not fence.has_expired()
    clock.now += 1
    assert fence.has_expired()


def test_an_older_report_answered_after_a_newer_one_takes_nothing_back(tmp_path: Path, boot_id: Path) -> None:
    clock, lease = Clock(), tmp_path / "lease"
    fence = Fence(lease, 30, clock, boot_id)
    lease.write_bytes(lease_content(1, 1000, boot_id))
    assert not fence.has_expired()
    lease.write_bytes(lease_content(2, 900, boot_id))
    clock.now += 29
    assert not fence.has_expired()


@pytest.mark.parametrize(
    "text",
    ['{"renewal": 2, "sent_at": 0, "boot": "other"}', '{"renewal": 2}', "2", "[[", '{"sent_at": [], "boot": "6d1c"}'],
)
def test_a_lease_of_another_clock_or_agent_counts_from_when_it_is_seen(
    tmp_path: Path, boot_id: Path, text: str
) -> None:
    clock, lease = Clock(), tmp_path / "lease"
    fence = Fence(lease, 30, clock, boot_id)
    clock.now += 29
    lease.write_text(text)
    assert not fence.has_expired()
    clock.now += 29
    assert not fence.has_expired()


def test_a_report_from_the_future_counts_from_now(tmp_path: Path, boot_id: Path) -> None:
    clock, lease = Clock(), tmp_path / "lease"
    fence = Fence(lease, 30, clock, boot_id)
    lease.write_bytes(lease_content(1, 5000, boot_id))
    assert not fence.has_expired()
    clock.now += 31
    assert fence.has_expired()


@pytest.mark.parametrize("trouble", ["absent", "folder"])
def test_a_lease_that_cannot_be_read_is_not_renewed(tmp_path: Path, trouble: str) -> None:
    clock, lease = Clock(), tmp_path / "lease"
    if trouble == "folder":
        lease.mkdir()
    fence = Fence(lease, 30, clock)
    clock.now += 31
    assert fence.has_expired()


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("", T_FENCE_SECONDS),
        ("1.5", 1.5),
        ("junk", T_FENCE_SECONDS),
        ("nan", T_FENCE_SECONDS),
        ("9999", T_FENCE_SECONDS),
    ],
)
def test_the_fence_can_be_shortened_but_not_lengthened(tmp_path: Path, value: str, seconds: float) -> None:
    fence = Fence.from_env(tmp_path / "lease", {"SCHEDULEARN_FENCE_SECONDS": value})
    assert fence._seconds == seconds


def test_a_host_without_a_fresh_lease_ends_its_ranks(tmp_path: Path) -> None:
    with attempt(tmp_path) as made:
        host = made.container(("python", "-c", TICKS)).start(SCHEDULEARN_FENCE_SECONDS="1.5")
        until(lambda: host.log().count("tick") > 16)  # for longer than the fence, but renewed
        host.stop_renewing()
        exit = host.wait(30)
    assert (exit["reason"], exit["code"]) == ("fenced", 143)
    assert "lost contact with the portal" in host.log("setup")


def test_a_driver_without_a_fresh_lease_ends_too(tmp_path: Path) -> None:
    with attempt(tmp_path) as made:
        group = local_group(1, 1)
        driver = made.container((), "horovod", role="driver", hostname="driver", slots=0, group=group)
        driver.start(renew=False, SCHEDULEARN_FENCE_SECONDS="0.3")
        assert driver.wait(30)["reason"] == "fenced"
