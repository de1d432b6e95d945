"""The parameters of a policy: dataclass fields with a label, a help text and bounds."""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, get_type_hints

from scheduling.renamed import warn

KINDS: dict[type, str] = {bool: "yes or no", int: "a whole number", float: "a number", str: "a text"}


@dataclass(frozen=True, slots=True)
class Param:
    """What a form needs to ask for one parameter."""

    name: str
    kind: type
    default: Any
    label: str
    help: str
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[tuple[str, str], ...] = ()
    group: str = ""
    """The heading above it in a form; empty for the first group, which has no name."""


def param(
    default: Any,
    label: str,
    help: str,  # noqa: A002 - the word every form uses
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    choices: Sequence[tuple[str, str]] = (),
    group: str = "",
    least: float | None = None,
    most: float | None = None,
) -> Any:
    """Declare a parameter of a policy, as a field of its dataclass.

    ``choices`` are (value, label); ``minimum`` and ``maximum`` bound a number. ``group`` is the heading under which a
    form shows the parameter; parameters of one group stand together. ``least`` and ``most`` are the old names of the
    bounds, which are accepted for one release.
    """
    if least is not None or most is not None:
        warn("param(least, most)", "param(minimum, maximum)")
        minimum, maximum = least if minimum is None else minimum, most if maximum is None else maximum
    bounds: dict[str, Any] = {"minimum": minimum, "maximum": maximum, "choices": tuple(choices)}
    return field(default=default, metadata={"label": label, "help": help, "group": group, **bounds})


def describe(policy: type) -> tuple[Param, ...]:
    """Return the parameters of a policy in the order of its fields."""
    hints = get_type_hints(policy)
    return tuple(_describe(item, hints[item.name]) for item in fields(policy))


def _describe(item: "Field[Any]", kind: type) -> Param:
    if item.default is MISSING or kind not in KINDS or "label" not in item.metadata:
        raise TypeError(f"{item.name} is not a parameter: declare it with param() and one of bool, int, float, str")
    return Param(item.name, kind, item.default, **item.metadata)


def validate(policy: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return every parameter with its value. Raises ValueError with one sentence for each thing that is wrong."""
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
        try:
            value = float(value)
        except OverflowError:
            raise ValueError(f"{item.label} is too large a number.") from None
    if type(value) is not kind or value != value:
        raise ValueError(f"{item.label} must be {KINDS[item.kind]}, not {value!r}.")
    if item.choices and value not in dict(item.choices):
        raise ValueError(f"{item.label} must be one of {', '.join(dict(item.choices))}, not {value!r}.")
    if item.minimum is not None and value < item.minimum:
        raise ValueError(f"{item.label} must be at least {item.minimum:g}, not {value!r}.")
    if item.maximum is not None and value > item.maximum:
        raise ValueError(f"{item.label} must be at most {item.maximum:g}, not {value!r}.")
    return value
