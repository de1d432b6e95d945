"""What password guessing may cost: few are checked at a time, and an address is blocked whatever the names."""

import threading

import pytest
from django.core.cache import cache
from django.test import Client

from portal.accounts import guessing
from portal.accounts.guessing import MAX_FAILURES, BusyError, HashingSlots, is_blocked, record_failure
from tests.portal import jobs_world as world


@pytest.fixture(autouse=True)
def no_failures_yet() -> None:
    cache.clear()


def sign_in(name: str, password: str, address: str = "203.0.113.7") -> int:
    asked = {"username": name, "password": password}
    return Client().post("/accounts/sign-in/", asked, REMOTE_ADDR=address).status_code


@pytest.mark.django_db
def test_an_address_that_tries_many_names_rests_and_others_go_on() -> None:
    user = world.make_user("alice")
    user.set_password("correct horse battery")
    user.save()
    assert [sign_in(f"guest{number}", "x") for number in range(MAX_FAILURES)] == [200] * MAX_FAILURES
    assert sign_in("alice", "correct horse battery") == 429
    assert sign_in("alice", "correct horse battery", "203.0.113.8") == 302


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("203.0.113.7", "203.0.113.8", False),
        ("2001:db8::1", "2001:db8::ffff:2", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("", "not an address", True),
    ],
)
def test_who_counts_as_one(one: str, other: str, same: bool) -> None:
    for _ in range(MAX_FAILURES):
        record_failure(one)
    assert is_blocked(one) and is_blocked(other) == same


@pytest.mark.django_db
def test_while_too_many_wait_nothing_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guessing, "slots", HashingSlots(1, 0))
    with guessing.slots.hold():
        assert sign_in("alice", "x") == 503
    assert sign_in("alice", "x") == 200


def test_few_at_once_few_waiting_and_none_for_ever() -> None:
    slots, inside, leave, ended = HashingSlots(2, 1), threading.Barrier(3), threading.Event(), []

    def look() -> None:
        with slots.hold(60):
            inside.wait(60)
            leave.wait(60)
        ended.append(True)

    threads = [threading.Thread(target=look) for _ in range(2)]
    for thread in threads:
        thread.start()
    inside.wait(60)
    with pytest.raises(BusyError), slots.hold(0.01):
        pass
    leave.set()
    for thread in threads:
        thread.join()
    with slots.hold(0):
        assert len(ended) == 2
