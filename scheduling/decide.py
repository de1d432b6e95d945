"""The one way to ask a policy: whatever it is, the lab's calendar and tiers hold around it.

The live loop, the simulator, the preview of a switch and "what would help" all come through here.
"""

from functools import partial

from scheduling import reserve, tiers
from scheduling.types import Plan, Policy, Snapshot


def decide(policy: Policy, snapshot: Snapshot) -> Plan:
    """Pure like the policy itself. In a lab without reservations and tiers it is the policy's own plan."""
    return reserve.around(partial(tiers.plan, policy), snapshot)
