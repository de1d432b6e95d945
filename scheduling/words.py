"""Counts and durations in words, for the portal's sentences and for policies of a lab that give sentences as reasons."""


def gpus(count: int) -> str:
    return "1 GPU" if count == 1 else f"{count} GPUs"


def jobs_are(count: int) -> str:
    return "1 job is" if count == 1 else f"{count} jobs are"


def duration(seconds: float) -> str:
    """Return a duration in its largest unit of which it has at least two: ``90 minutes``, ``3 days``."""
    for unit, size in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}s"
    return f"{seconds:.0f} seconds"
