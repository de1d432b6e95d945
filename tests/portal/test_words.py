"""Durations that are estimates, and the names of policies in sentences."""

import pytest

from portal.sentences.words import policy_words
from portal.ui import roughly
from scheduling import registry


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "5 s"),
        (42, "40 s"),
        (59.9, "1 min"),
        (61, "1 min"),
        (793, "13 min"),
        (3_599, "1 h"),
        (3_661, "1 h"),
        (7_900, "2 h 10 min"),
        (40_000, "11 h"),
        (86_399, "1 d"),
        (200_000, "2 d 7 h"),
    ],
)
def test_an_estimate_has_no_more_digits_than_it_deserves(seconds: float, words: str) -> None:
    assert roughly(seconds) == words


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("elastic_fifo v3", "elastic FIFO"),
        ("fair_share v12", "fair share"),
        ("pdors", "PD-ORS"),
        ("our_own v2 v1", "our own v2"),
        ("", ""),
    ],
)
def test_a_recorded_policy_in_words(name: str, words: str) -> None:
    assert policy_words(name) == words


def test_every_policy_has_words_without_a_key() -> None:
    for key in registry.POLICIES:
        words = policy_words(f"{key} v1")
        assert "_" not in words and (words != key or key in ("goodput",))
