"""Differences from a baseline in words: as a percentage where that is meaningful, otherwise as the difference itself.

A percentage of next to nothing is noise: a job that waited 0.2 s instead of 0.3 s did not wait "33 % less".
"""

from portal import charts

MIN_BASE: dict[str, float] = {charts.SECONDS: 60.0, "GPU-hours": 1.0, "%": 2.0, "": 10.0}
"""The smallest baseline for which percentages are given, by unit."""
MIN_RATIO = 0.1
"""The same for ratios, such as fairness, which are usually near 1."""


def percentage(value: float, base: float, *, min_base: float) -> int | None:
    """Return how much larger than ``base`` a value is, in whole percent; None where that is meaningless.

    A value above zero is never reported as 100 % less.
    """
    if base < min_base or base <= 0:
        return None
    percent = round(100 * (value / base - 1))
    return max(percent, -99) if value > 0 else percent


def difference(value: float, base: float, unit: str, *, min_base: float) -> str:
    """Return the difference in words: ``+12 %``, ``+35 s``, ``−1``, or ``the same``."""
    percent = percentage(value, base, min_base=min_base)
    if percent is not None:
        return _with_minus_sign(f"{percent:+,d} %") if percent else "the same"
    size = abs(value - base)
    amount = f"{size:.0f} points" if unit == "%" else charts.format_value(size, unit)
    if not any(digit in amount for digit in "123456789"):
        return "the same"
    return f"{'+' if value > base else '−'}{amount}"


def _with_minus_sign(text: str) -> str:
    return text.replace("-", "−")
