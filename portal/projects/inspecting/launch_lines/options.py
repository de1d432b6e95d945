"""Reads the options of a launcher by a table of those that it has. An option that is not in its table is refused."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from .shell_words import MARK
from .translation import LOGGED, NO_EFFECT, PLACED, Draft, UntranslatableError

Effect = Callable[[Draft, str, str], None]
"""Applies an option to a translation, given the option as it was typed and its value."""


@dataclass(frozen=True, slots=True)
class Option:
    values: int
    """How many words follow it."""
    effect: Effect


Table = Mapping[str, Option]
"""Options by their names, with dashes for underscores."""


def table(*parts: Mapping[str, Option]) -> dict[str, Option]:
    """Join parts of a table."""
    return {name: option for part in parts for name, option in part.items()}


def each(names: str, effect: Effect, values: int = 1) -> dict[str, Option]:
    """Return the part of a table for options with one effect; ``names`` has blanks between them."""
    return dict.fromkeys(names.split(), Option(values, effect))


def leave_out(reason: str) -> Effect:
    """Return the effect of an option that is left out."""
    return lambda draft, typed, value: draft.leave_out(typed, reason)


def remember(name: str) -> Effect:
    """Return the effect of an option whose value is needed when all are known."""
    return lambda draft, typed, value: draft.values.update({name: value or "true"})


def variable(name: str, convert: Callable[[str], str] = str) -> Effect:
    """Return the effect of an option for which the launcher sets an environment variable."""
    return lambda draft, typed, value: draft.env_vars.update({name: convert(value)})


def constant(name: str, value: str) -> Effect:
    """Return the effect of an option without a value for which the launcher sets an environment variable."""
    return variable(name, lambda _: value)


def refuse(why: str) -> Effect:
    """Return the effect of an option that has no counterpart; ``why`` is what follows its name in a sentence."""

    def effect(draft: Draft, typed: str, value: str) -> None:
        raise UntranslatableError(f"{typed.split(' ')[0]} {why}")

    return effect


def as_module(draft: Draft, typed: str, value: str) -> None:
    draft.is_module = True


place, log, ignore = leave_out(PLACED), leave_out(LOGGED), leave_out(NO_EFFECT)
no_python = refuse(
    "starts another program than Python, and ranks run a Python file or a module. Keep the plain command."
)


def read_options(draft: Draft, words: Sequence[str], known: Table, *, abbreviated: bool = False) -> list[str]:
    """Apply the options at the beginning of the words; return the words after them, the program and its arguments.

    ``abbreviated``: the launcher accepts the beginning of a long option, as argparse does.
    """
    at = 0
    while at < len(words) and words[at].startswith("-") and words[at] != "-":
        if words[at] == "--":
            return list(words[at + 1 :])
        name, values = _split(words[at], known, abbreviated)
        if name is None:
            raise UntranslatableError(
                f"Schedulearn does not know what {words[at][:100]} means to {draft.tool}. Remove the option, or keep the plain "
                "command, which runs on one node."
            )
        option, typed = known[name], words[at].partition("=")[0]
        at += 1
        while len(values) < option.values:
            if at == len(words):
                raise UntranslatableError(f"{name} needs a value. Add it, or remove the option.")
            values.append(words[at])
            at += 1
        option.effect(draft, " ".join([typed, *values]), " ".join(values))
    return list(words[at:])


def _split(word: str, known: Table, abbreviated: bool) -> tuple[str | None, list[str]]:
    """Return the name of an option in its table, and the values that are part of its word; None for an unknown one."""
    typed, sign, value = word.partition("=")
    values = [value] if sign else []
    name = typed.replace("_", "-")
    if name in known:
        return (name, values) if len(values) <= known[name].values else (None, [])
    if abbreviated and name.startswith("--"):
        longer = [each for each in known if each.startswith(name)]
        if len(longer) == 1:
            return longer[0], values
    short = word[:2]
    if not word.startswith("--") and len(word) > 2 and short in known and known[short].values == 1:
        return short, [word[2:].removeprefix("=")]
    return None, []


def whole_number(text: str, option: str) -> int:
    """Return a number that is an option's value. Raises UntranslatableError for other text."""
    if not (text.isascii() and text.isdecimal() and len(text) < 7):
        raise UntranslatableError(
            f"{option} is {text.replace(MARK, '')[:50]!r}, which is not a whole number. Correct it."
        )
    return int(text)


def product(*numbers: tuple[str, str]) -> int | None:
    """Return the product of the values of options, each with its name; None where a variable of the shell is one of them."""
    if any(MARK in text for text, _ in numbers):
        return None
    return math.prod(whole_number(text, option) for text, option in numbers)
