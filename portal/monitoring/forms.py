"""The parameters of pages and endpoints about GPUs. Invalid values are ignored."""

from collections.abc import Mapping
from dataclasses import dataclass

from portal.lists import quote
from portal.monitoring.series import WINDOWS, Window
from portal.monitoring.visibility import STATES

MAX_SEARCH_CHARACTERS = 80


@dataclass(frozen=True, slots=True)
class GpuQuery:
    """What a page or endpoint shows: a search, filters, and a window of time."""

    words: str = ""
    state: str = ""
    node: int | None = None
    window: Window = WINDOWS["hour"]

    @property
    def is_filtered(self) -> bool:
        return bool(self.words or self.state or self.node)


def problems_of(query: Mapping[str, str]) -> list[str]:
    """Return a sentence for a filter of the list that means nothing."""
    state = query.get("state", "")
    return (
        [f"There is no state “{quote(state)}”: that part of the filter is left out."]
        if state not in {"", *STATES}
        else []
    )


def parse_query(query: Mapping[str, str], default_window: str = "hour") -> GpuQuery:
    state, node = query.get("state", ""), query.get("node", "")
    return GpuQuery(
        words=query.get("q", "").replace("\0", "").strip()[:MAX_SEARCH_CHARACTERS],
        state=state if state in STATES else "",
        node=int(node) if node.isascii() and node.isdecimal() and len(node) <= 18 else None,
        window=WINDOWS.get(query.get("window", ""), WINDOWS[default_window]),
    )
