"""Every HTTP route of the portal, read from Django itself."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from django.urls import URLPattern, URLResolver, get_resolver


@dataclass(frozen=True)
class Route:
    """A route; ``address`` is its pattern in the URL map."""

    address: str
    name: str
    view: Any = field(compare=False, hash=False)

    @property
    def actions(self) -> dict[str, str]:
        """The methods of a REST viewset with their functions; empty for other views. HEAD is handled like GET."""
        actions = getattr(self.view, "actions", None) or {}
        return {method: action for method, action in actions.items() if method != "head"}


DATA = re.compile(r"(admin/data/)[a-z]+/[a-z]+/")
LABELS = re.compile(r"(admin/data/\(\?P<app_label>)[a-z|]+")


def routes() -> list[Route]:
    """Return all routes. Those of the tables at /admin/data/ are made alike from each model, and count as one."""
    found = {_generated(route.address): route for route in _walk(get_resolver().url_patterns)}
    return [replace(found[address], address=address) for address in sorted(found)]


def _generated(address: str) -> str:
    return LABELS.sub(r"\1...", DATA.sub(r"\1<app>/<model>/", address))


def _walk(patterns: Any, prefix: str = "", space: str = "") -> Iterator[Route]:
    for pattern in patterns:
        address = prefix + str(pattern.pattern).lstrip("^").removesuffix("$")
        if isinstance(pattern, URLResolver):
            yield from _walk(
                pattern.url_patterns, address, f"{space}{pattern.namespace}:" if pattern.namespace else space
            )
        elif isinstance(pattern, URLPattern):
            yield Route(address, space + (pattern.name or ""), pattern.callback)
