"""Sends the rank groups that the drivers on this node report (``launch/group_log.py``) to the portal."""

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from runners.agent.portal_client import PortalRefusedError, PortalUnavailableError
from runners.host.node_files import NodeFiles, read_json_beneath
from runners.spec import RunSpec

RANK_GROUPS_SECONDS = 2.0
UNAVAILABLE_RETRY_SECONDS = 5.0
MAX_RANK_GROUPS = 50
"""The maximum number that the portal accepts in one request."""


class RankGroupPortal(Protocol):
    def report_rank_groups(self, container: str, groups: list[Any]) -> None: ...


class RankGroupReports:
    """The rank groups of this node's drivers. ``listed`` returns the containers that the portal expects here."""

    def __init__(self, files: NodeFiles, portal: RankGroupPortal, listed: Callable[[], Iterable[RunSpec]]) -> None:
        self._files = files
        self._portal = portal
        self._listed = listed
        self._sent: dict[str, list[Any]] = {}

    def send(self) -> float | None:
        """Report the changed rank groups of all drivers; return how long to rest if it is not the usual time."""
        drivers = [spec.name for spec in self._listed() if spec.role == "driver"]
        self._sent = {name: self._sent[name] for name in drivers if name in self._sent}
        for name in drivers:
            groups = read_json_beneath(self._files.scribe(name), "status.json").get("rings")
            if not isinstance(groups, list) or not groups or groups == self._sent.get(name):
                continue
            try:
                self._portal.report_rank_groups(name, groups[-MAX_RANK_GROUPS:])
            except PortalUnavailableError:
                return UNAVAILABLE_RETRY_SECONDS
            except PortalRefusedError:
                pass  # the portal cannot read them; sending them again would not help
            self._sent[name] = groups
        return None
