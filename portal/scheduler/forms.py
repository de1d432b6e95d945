"""A policy's parameters as a form, built from the policy's own description."""

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlencode

from django import forms

from scheduling.params import Param
from scheduling.registry import Description


def field_for(param: Param) -> forms.Field:
    """Return the form field of a parameter. It has the parameter's bounds, so browser, form and registry agree."""
    about: dict[str, Any] = {"label": param.label, "help_text": param.help}
    if param.kind is bool:
        return forms.BooleanField(required=False, **about)
    if param.choices:
        return forms.ChoiceField(choices=param.choices, **about)
    if param.kind is str:
        return forms.CharField(required=False, **about)
    kind = forms.IntegerField if param.kind is int else forms.FloatField
    return kind(min_value=param.minimum, max_value=param.maximum, **about)  # type: ignore[arg-type]  # whole for whole numbers


class PolicyForm(forms.Form):
    """The parameters of one policy, filled with the values in force or with its defaults."""

    def __init__(self, policy: Description, data: Any = None, in_force: Mapping[str, Any] | None = None) -> None:
        super().__init__(
            data, initial={item.name: item.default for item in policy.params} | dict(in_force or {}), prefix="p"
        )
        self.fields.update({item.name: field_for(item) for item in policy.params})
        self.policy = policy

    def groups(self) -> Iterator[tuple[str, list[forms.BoundField]]]:
        """Yield the parameters by heading, those without a heading first."""
        headings = dict.fromkeys(["", *(item.group for item in self.policy.params)])
        for heading in headings:
            if fields := [self[item.name] for item in self.policy.params if item.group == heading]:
                yield heading, fields


def form_query(policy: str, params: Mapping[str, Any]) -> str:
    """Return the query of a link that fills the form with these values; an unticked box is left out, as in browsers."""
    values = {
        f"p-{name}": "on" if value is True else value for name, value in sorted(params.items()) if value is not False
    }
    return urlencode({"policy": policy, "set": 1, **values})
