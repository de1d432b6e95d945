"""How often ranks look up together: about once a second, which all of them reckon alike from the same sums."""

LOOK_SECONDS = 1.0
MOST_STEPS = 1000


def steps_between(step_seconds: float) -> int:
    """Steps from one look to the next, where one takes so long."""
    return max(1, min(MOST_STEPS, round(LOOK_SECONDS / max(step_seconds, 1e-6))))
