"""How much of its owner's share a job uses, by its priority: defined here alone, for the scheduler and the simulator.

A priority above the normal one lets a job go first, so it is paid for: each GPU-second of such a job counts more than once in
the usage of its owner and group, and each GPU that it holds counts so in a division by shares.
"""

NORMAL_PRIORITY = 0


def share_factor(priority: int) -> int:
    """Return how often a GPU-second of a job counts: once up to the normal priority, and once more for each step above it.

    A whole number, so that counts of GPUs stay counts: 2 at priority 1, 3 at priority 2, 11 at priority 10. Below the normal
    priority nothing is saved: otherwise who has the lab alone would use it at a discount.
    """
    return 1 + max(0, priority - NORMAL_PRIORITY)
