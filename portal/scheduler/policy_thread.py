"""Asks a policy for its plan, in a thread that may be left behind: a policy can fail, or take too long."""

import logging
import threading

from portal.scheduler.failures import PolicyStillBusy, PolicyTooSlow
from scheduling.decide import decide
from scheduling.failures import PolicyFailed
from scheduling.messages import Message
from scheduling.types import Plan, Policy, Snapshot

logger = logging.getLogger(__name__)


class NoPlanError(Exception):
    """The policy made no plan that may be applied; ``why`` has the reason."""

    def __init__(self, why: Message) -> None:
        super().__init__(why)
        self.why = why


class PolicyThread:
    """The threads in which this process asks policies. While one that took too long still runs, no other is asked."""

    def __init__(self) -> None:
        self.left_behind: list[threading.Thread] = []
        """Those that took too long: they cannot be ended."""

    def plan(self, policy: Policy, snapshot: Snapshot, seconds: float) -> Plan:
        """Return the policy's plan. Raises NoPlanError when it fails or takes longer, or an earlier one is still busy."""
        if any(thread.is_alive() for thread in self.left_behind):
            raise NoPlanError(PolicyStillBusy())
        answer: list[Plan] = []
        failures: list[Exception] = []

        def ask() -> None:
            try:
                answer.append(decide(policy, snapshot))
            except Exception as error:
                logger.exception("the policy failed")
                failures.append(error)

        thread = threading.Thread(target=ask, name="policy", daemon=True)
        thread.start()
        thread.join(seconds)
        if failures:
            raise NoPlanError(PolicyFailed.from_error(failures[0]))
        if not answer:
            self.left_behind.append(thread)
            raise NoPlanError(PolicyTooSlow(seconds))
        return answer[0]


policy_thread = PolicyThread()
"""That of this process."""
