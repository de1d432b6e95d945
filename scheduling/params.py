"""A policy's parameters: dataclass fields that know how to explain themselves and what they refuse."""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, get_type_hints

KINDS: dict[type, str] = {bool: "yes or no", int: "a whole number", float: "a number", str: "a text"}


@dataclass(frozen=True, slots=True)
class Param:
    """What a form needs to ask for one parameter."""

    name: str
    kind: type
    default: Any
    label: str
    help: str
    least: float | None = None
    most: float | None = None
    choices: tuple[tuple[str, str], ...] = ()
    group: str = ""
    """The heading it stands under in a form; empty for the first, nameless group."""


def param(
    default: Any,
    label: str,
    help: str,  # noqa: A002 - the word every form uses
    *,
    least: float | None = None,
    most: float | None = None,
    choices: Sequence[tuple[str, str]] = (),
    group: str = "",
) -> Any:
    """A field of a policy. ``choices`` are (value, label); ``least`` and ``most`` bound a number.

    ``group`` is the heading under which a form shows it; parameters of one group stand together.
    """
    bounds: dict[str, Any] = {"least": least, "most": most, "choices": tuple(choices)}
    return field(default=default, metadata={"label": label, "help": help, "group": group, **bounds})


def describe(policy: type) -> tuple[Param, ...]:
    hints = get_type_hints(policy)
    return tuple(_describe(item, hints[item.name]) for item in fields(policy))


def _describe(item: "Field[Any]", kind: type) -> Param:
    if item.default is MISSING or kind not in KINDS or "label" not in item.metadata:
        raise TypeError(f"{item.name} is no parameter: declare it with param() and one of bool, int, float, str")
    return Param(item.name, kind, item.default, **item.metadata)


def validate(policy: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """Every parameter with its value. Raises ValueError with one sentence for each thing that is wrong."""
    known = {item.name: item for item in describe(policy)}
    wrong = [
        f"There is no parameter {name}; this policy has {', '.join(known) or 'none'}."
        for name in sorted(set(given) - set(known))
    ]
    values: dict[str, Any] = {}
    for name, item in known.items():
        try:
            values[name] = _value(item, given.get(name, item.default))
        except ValueError as error:
            wrong.append(str(error))
    if wrong:
        raise ValueError(" ".join(wrong))
    return values


def _value(item: Param, value: Any) -> Any:
    kind: Any = item.kind
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind or value != value:
        raise ValueError(f"{item.label} must be {KINDS[item.kind]}, not {value!r}.")
    if item.choices and value not in dict(item.choices):
        raise ValueError(f"{item.label} must be one of {', '.join(dict(item.choices))}, not {value!r}.")
    if item.least is not None and value < item.least:
        raise ValueError(f"{item.label} must be at least {item.least:g}, not {value!r}.")
    if item.most is not None and value > item.most:
        raise ValueError(f"{item.label} must be at most {item.most:g}, not {value!r}.")
    return value
