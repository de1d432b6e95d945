"""What a page shows about a cause, and the register of the functions that explain the codes."""

from collections.abc import Callable
from typing import NamedTuple


class Explanation(NamedTuple):
    title: str
    advice: str = ""


CAUSES: dict[str, Callable[..., Explanation]] = {}


def cause(function: Callable[..., Explanation]) -> Callable[..., Explanation]:
    """Register the function that explains the causes with its name as their code."""
    CAUSES[function.__name__] = function
    return function
