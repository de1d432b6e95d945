"""Lists of numbers and names in sentences."""

from collections.abc import Sequence

from django.utils.text import get_text_list

MAX_NAMED = 5


def listed(names: Sequence[object], count: int | None = None) -> str:
    """Return names as one reads them: ``3, 4 and 2 others``. ``count`` is how many there are, if not all of them are given."""
    shown, total = [str(name) for name in names[:MAX_NAMED]], len(names) if count is None else count
    if more := total - len(shown):
        shown.append("1 other" if more == 1 else f"{more:,} others")
    return get_text_list(shown, "and")


def jobs_listed(numbers: Sequence[int], count: int | None = None) -> str:
    """Return ``job 3``, or ``jobs 3, 4 and 2 others``."""
    total = len(numbers) if count is None else count
    return f"{'job' if total == 1 else 'jobs'} {listed(numbers, total)}"


def sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."
