"""Counts, amounts and durations in words, for the portal's sentences and for policies of a lab that give sentences as reasons."""


def gpus(count: int) -> str:
    return "1 GPU" if count == 1 else f"{count} GPUs"


def amount(resource: str, count: int) -> str:
    """Return an amount of a resource: ``48 GiB of memory`` for MiB, ``1.5 processors`` for thousandths of a processor.

    Amounts are rounded down, so that what is left never looks like enough when it is not.
    """
    if resource == "memory":
        return f"{gibibytes(count)} of memory"
    whole, part = divmod(count, 1000)
    number = f"{whole}.{part:03}".rstrip("0").rstrip(".")
    return f"{number} processor{'' if number == '1' else 's'}"


def gibibytes(mebibytes: int) -> str:
    """Return MiB as GiB with one decimal at most, rounded down; less than one GiB in MiB."""
    if mebibytes < 1024:
        return f"{mebibytes} MiB"
    whole, tenth = divmod(mebibytes * 10 // 1024, 10)
    return f"{whole}.{tenth} GiB" if tenth else f"{whole} GiB"


def jobs_are(count: int) -> str:
    return "1 job is" if count == 1 else f"{count} jobs are"


def duration(seconds: float) -> str:
    """Return a duration in its largest unit of which it has at least two: ``90 minutes``, ``3 days``."""
    for unit, size in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}s"
    return f"{seconds:.0f} seconds"
