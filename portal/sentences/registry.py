"""Collects the functions of this package that return sentences, by code."""

from collections.abc import Callable
from typing import Any

Sentence = Callable[..., str]
SENTENCES: dict[str, Sentence] = {}


def sentence(function: Sentence) -> Sentence:
    """Register a function as the one that returns the sentence for messages with its name as their code."""
    if function.__name__ in SENTENCES:
        raise ValueError(f"there are two functions for the code {function.__name__!r}")
    SENTENCES[function.__name__] = function
    return function


def nested_sentence(content: Any) -> str:
    """Return the sentence for a message that is a parameter of another one."""
    from portal.sentences import sentence_of  # noqa: PLC0415  # it imports this module

    return sentence_of(content)
