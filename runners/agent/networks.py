"""Keeps the networks of attempts that are on several nodes as the portal's last word wants them."""

import logging
from collections.abc import Mapping
from typing import Any

from runners.agent.journal import Ledger
from runners.agent.reconcile import Desired, neighbours
from runners.runtime import ContainerRuntime, Neighbours, RunError

logger = logging.getLogger(__name__)

MEND = "See docs/nodes.md, “Jobs over several nodes”."


class Networks:
    def __init__(self, runtime: ContainerRuntime, ledger: Ledger) -> None:
        self._runtime = runtime
        self._ledger = ledger
        self._joined: list[Neighbours] | None = None
        """What the runtime last made so; None when that is not known."""
        self._error = ""

    def join(self, desired: Mapping[str, Desired]) -> None:
        """May be called again and again, since others may have touched what we made."""
        wanted = neighbours(desired, self._ledger.notes(desired))
        if not wanted and self._joined == wanted:
            return
        self._joined = None
        try:
            self._runtime.connect(wanted)
        except RunError as error:
            if str(error) != self._error:
                logger.warning("%s", error)
            self._error = str(error)
        else:
            self._joined, self._error = wanted, ""

    def problems(self) -> list[dict[str, Any]]:
        return [{"text": self._error, "mend": MEND, "blocking": False}] if self._error else []
