"""Durations that are estimates, the names of policies in sentences, and code in them."""

import re
from pathlib import Path

import pytest

from portal.sentences.words import policy_words, requested_gpus
from portal.ui import roughly
from scheduling import registry

ROOT = Path(__file__).resolve().parents[2]


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
        is_readable = "_" not in words and (words != key or key == "goodput")
        assert is_readable, f"Add the word {key!r} as people write it to POLICY_WORDS in portal/sentences/words.py."


def test_code_in_sentences_can_be_copied() -> None:
    """``os.environ[“NAME”]`` is no Python."""
    files = [path for folder in ("portal", "runners", "templates") for path in (ROOT / folder).rglob("*.*")]
    sources = [path for path in files if path.suffix in (".py", ".html")]
    found = [str(path) for path in sources if re.search(r"\w[\[(]“", path.read_text())]
    assert len(sources) > 300 and not found


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ((16384, ["A100", "V100"], True, 2), "A100 or V100 GPUs with at least 16 GiB, all of one model"),
        ((16384, ["A100"], True, 1), "A100 GPU with at least 16 GiB"),
        ((0, [], True, 4), "GPUs all of one model"),
        ((0, ["A100"], False, 1), "A100 GPU"),
    ],
)
def test_which_gpus_a_job_accepts_agrees_with_their_number(asked: tuple[int, list[str], bool, int], words: str) -> None:
    assert requested_gpus(*asked) == words
