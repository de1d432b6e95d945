"""Counts and durations in words."""

import re

GPUS = re.compile(r"\bGPU(s?)\b(?!-)")


def gpus(count: int) -> str:
    return "1 GPU" if count == 1 else f"{count} GPUs"


def jobs_are(count: int) -> str:
    return "1 job is" if count == 1 else f"{count} jobs are"


def are(count: int) -> str:
    return "is" if count == 1 else "are"


def duration(seconds: float) -> str:
    """Return a duration in its largest unit of which it has at least two: ``90 minutes``, ``3 days``."""
    for unit, size in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}s"
    return f"{seconds:.0f} seconds"


def minutes(count: int) -> str:
    """Return minutes, from two hours on as hours, and from two days on as days."""
    if count < 120:
        return "1 minute" if count == 1 else f"{count} minutes"
    hours = round(count / 60)
    return f"{hours} hours" if hours < 48 else f"{round(hours / 24)} days"


def clause(sentence: str) -> str:
    """Return a sentence without its full stop, to be continued."""
    return sentence.removesuffix(".")


def capitalised(clause: str) -> str:
    """Return a clause as a sentence."""
    return f"{clause[0].upper()}{clause[1:]}."


def in_cpu_slots(sentence: str) -> str:
    """Replace GPUs by CPU slots in a sentence."""
    return GPUS.sub(r"CPU slot\1", sentence)
