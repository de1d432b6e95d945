"""Keeps the networks of attempts that run on several nodes as the last reply of the portal wants them."""

import logging
from collections.abc import Mapping
from typing import Any

from runners.agent.journal import ContainerJournal
from runners.agent.reconcile import DesiredContainer, networks_to_join
from runners.messages import Message
from runners.messages.problems import NetworksFailed
from runners.runtime import AttemptNetwork, ContainerRuntime, RunError

logger = logging.getLogger(__name__)


class Networks:
    def __init__(self, runtime: ContainerRuntime, journal: ContainerJournal) -> None:
        self._runtime = runtime
        self._journal = journal
        self._joined: list[AttemptNetwork] | None = None
        """The networks that the runtime last set up; None when they are not known."""
        self._error: Message | None = None

    def join(self, desired: Mapping[str, DesiredContainer]) -> None:
        """Set up the wanted networks. May be called again and again, as other programs may have changed what we made."""
        wanted = networks_to_join(desired, self._journal.entries(desired))
        if not wanted and self._joined == wanted:
            return
        self._joined = None
        try:
            self._runtime.connect(wanted)
        except RunError as error:
            if error.message != self._error:
                logger.warning("%s", error)
            self._error = error.message
        else:
            self._joined, self._error = wanted, None

    def problems(self) -> list[dict[str, Any]]:
        return [NetworksFailed(self._error).to_json()] if self._error else []
