"""Passes on what the drivers on this node tell of their rings (``launch/group_log.py``), when it has changed."""

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from runners.agent.portal_client import PortalAwayError, PortalRefusedError
from runners.host.node_files import NodeFiles, read_json_beneath
from runners.spec import RunSpec

RINGS_SECONDS = 2.0
AWAY_SECONDS = 5.0
MOST_RINGS = 50
"""That the portal takes at once."""


class RingPortal(Protocol):
    def tell_rings(self, container: str, rings: list[Any]) -> None: ...


class RingReports:
    """``listed``: the containers that the portal expects here."""

    def __init__(self, files: NodeFiles, portal: RingPortal, listed: Callable[[], Iterable[RunSpec]]) -> None:
        self._files = files
        self._portal = portal
        self._listed = listed
        self._told: dict[str, list[Any]] = {}

    def turn(self) -> float | None:
        """One look at all; how long to rest when it is not the usual time."""
        drivers = [spec.name for spec in self._listed() if spec.role == "driver"]
        self._told = {name: self._told[name] for name in drivers if name in self._told}
        for name in drivers:
            rings = read_json_beneath(self._files.scribe(name), "status.json").get("rings")
            if not isinstance(rings, list) or not rings or rings == self._told.get(name):
                continue
            try:
                self._portal.tell_rings(name, rings[-MOST_RINGS:])
            except PortalAwayError:
                return AWAY_SECONDS
            except PortalRefusedError:
                pass  # nothing that the portal can read; asking again would not help
            self._told[name] = rings
        return None
