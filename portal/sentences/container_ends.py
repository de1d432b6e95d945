"""How the portal itself ended a container."""

from typing import Any

from portal.sentences.registry import nested_sentence, sentence


@sentence
def held_failed_gpu(fault: Any) -> str:
    return f"A GPU of it has failed: {nested_sentence(fault)}."


@sentence
def did_not_stop() -> str:
    return "It did not stop in time; its lease has run out."


@sentence
def node_was_silent(node: str) -> str:
    return f"{node} was silent for too long."
