"""The parameters of all policies, from the registry."""

from portal.ops.reference import cell
from scheduling import registry
from scheduling.params import Param

INTRODUCTION = """# Parameters of the policies

Everything that can be set for a policy, with its default. Set it on **Admin > Scheduling policy**, with `PUT /api/v1/policy/`
(`{"policy": "fifo", "params": {"strict": false}}`), or with `--set strict=no` of `simulate`. A parameter that is left out has its
default. [Which policy for which lab](index.md) helps to choose one.
"""


def page() -> str:
    """Return the page: one section for each policy."""
    return "\n".join([INTRODUCTION, *(_section(policy) for policy in registry.describe_all())])


def _section(policy: registry.Description) -> str:
    rows = [
        f"| `{param.name}` | {cell(param.label)} | {_default(param)} | {_values(param)} | {cell(param.help)} |"
        for param in policy.params
    ]
    lines = [
        f"## `{policy.key}`",
        "",
        f"**{policy.title}**{' (experimental)' if policy.experimental else ''}. {policy.explanation}",
        "",
        f"Good for: {policy.good_for}. Needs: {policy.needs}.",
        "",
        "| parameter | label | default | values | meaning |",
        "|---|---|---|---|---|",
        *rows,
        "",
    ]
    return "\n".join(lines)


def _default(param: Param) -> str:
    return f"`{_written(param.default)}`"


def _written(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) and value < 1e6 else str(value)


def _values(param: Param) -> str:
    if param.kind is bool:
        return "yes, no"
    if param.choices:
        return "; ".join(f"`{value}`: {cell(label)}" for value, label in param.choices)
    return (
        f"{param.minimum:,.10g} to {param.maximum:,.10g}"
        if param.minimum is not None and param.maximum is not None
        else ""
    )
