"""Banned words do not come back, and the list of places that still contain one only shrinks."""

from tests.architecture.words import ALLOWED, BANNED, listed, places, sources, words_in


def test_identifiers_are_split_into_words() -> None:
    assert list(words_in("agent_told toldYou RingLog GPUCount HTTPServer x2")) == [
        *("agent", "told", "told", "you", "ring", "log", "gpu", "count", "http", "server", "x")
    ]


def test_no_file_has_a_banned_word_beyond_the_list() -> None:
    known = listed()
    more = {
        f"{name}: {word} {known.get(name, {}).get(word, 0)} -> {count}; write: {BANNED[word]}"
        for name, words in places().items()
        for word, count in words.items()
        if count > known.get(name, {}).get(word, 0)
    }
    assert not more


def test_the_list_names_no_place_that_has_been_replaced() -> None:
    found = places()
    gone = {
        f"{name}: {word}"
        for name, words in listed().items()
        for word, count in words.items()
        if count > found.get(name, {}).get(word, 0)
    }
    assert not gone, "run python -m tests.architecture.words"


def test_what_is_allowed_has_a_reason_and_is_there() -> None:
    texts = {str(path): path.read_text() for path in sources()}
    for name, words in ALLOWED.items():
        text = next(text for path, text in texts.items() if path.endswith(name))
        for word, reason in words.items():
            assert word in set(words_in(text)) and len(reason.split()) > 2
