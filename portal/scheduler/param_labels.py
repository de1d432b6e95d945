"""The parameters of a policy as pages show them: with their labels, in words."""

from collections.abc import Mapping
from typing import Any

from scheduling import registry
from scheduling.params import Param


def labelled_params(key: str, params: Mapping[str, Any]) -> list[tuple[str, object]]:
    """Return the label and the value of each parameter; those that the policy no longer has keep their names."""
    known = {item.name: item for item in registry.describe(key).params} if key in registry.POLICIES else {}
    return [
        (known[name].label if name in known else plain_label(name), _value_text(value, known.get(name)))
        for name, value in params.items()
    ]


def plain_label(name: str) -> str:
    return name.replace("_", " ").strip().capitalize()


def _value_text(value: object, param: Param | None) -> object:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    return dict(param.choices).get(str(value), value) if param else value
