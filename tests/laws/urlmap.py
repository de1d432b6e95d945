"""Every HTTP route of the portal, read from Django itself."""

from collections.abc import Iterator
from dataclasses import dataclass, field
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


def routes() -> list[Route]:
    return sorted(_walk(get_resolver().url_patterns), key=lambda route: route.address)


def _walk(patterns: Any, prefix: str = "", space: str = "") -> Iterator[Route]:
    for pattern in patterns:
        address = prefix + str(pattern.pattern).lstrip("^").removesuffix("$")
        if isinstance(pattern, URLResolver):
            yield from _walk(
                pattern.url_patterns, address, f"{space}{pattern.namespace}:" if pattern.namespace else space
            )
        elif isinstance(pattern, URLPattern):
            yield Route(address, space + (pattern.name or ""), pattern.callback)
