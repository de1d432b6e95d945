"""Policies and their parameters on a command line: ``--policy tiresias --set threshold=3600``."""

import argparse
from collections.abc import Sequence
from typing import Any

from scheduling import registry
from scheduling.types import Policy

WORDS = {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}


class PolicyAction(argparse.Action):
    """``--policy`` begins a choice, each ``--set`` after it adds a parameter."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        chosen: list[tuple[str, dict[str, str]]] = getattr(namespace, self.dest) or []
        text = str(values)
        if option_string == "--policy":
            chosen = [*chosen, (text, {})]
        elif not chosen:
            parser.error("--set must follow the --policy that it is for")
        else:
            name, sign, value = text.partition("=")
            if not sign:
                parser.error(f"--set needs NAME=VALUE, not {text!r}")
            chosen[-1][1][name.strip()] = value.strip()
        setattr(namespace, self.dest, chosen)


def add_arguments(parser: argparse.ArgumentParser, *, several: bool = False) -> None:
    comparison = " Several are compared side by side." if several else ""
    parser.add_argument(
        "--policy", action=PolicyAction, dest="policies", required=True, metavar="NAME",
        help=f"One of {', '.join(registry.POLICIES)}.{comparison}",
    )  # fmt: skip
    parser.add_argument(
        "--set", action=PolicyAction, dest="policies", metavar="NAME=VALUE", help="A parameter of the policy before it."
    )


def build(key: str, given: dict[str, str]) -> tuple[Policy, dict[str, Any]]:
    """Return the policy and all its parameters. Raises ValueError with a plain sentence."""
    kinds = {item.name: item.kind for item in registry.describe(key).params}
    params = {name: _value(name, text, kinds.get(name, str)) for name, text in given.items()}
    return registry.build(key, params), registry.complete(key, params)


def _value(name: str, text: str, kind: type) -> Any:
    if kind is bool:
        if text.lower() not in WORDS:
            raise ValueError(f"{name} must be yes or no, not {text!r}.")
        return WORDS[text.lower()]
    try:
        return kind(text)
    except ValueError:
        wanted = "a whole number" if kind is int else "a number"
        raise ValueError(f"{name} must be {wanted}, not {text!r}.") from None
