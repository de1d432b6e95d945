"""Lists of numbers and names in sentences, and sentences about jobs."""

from collections.abc import Sequence

from django.db.models import QuerySet
from django.utils.text import get_text_list

from portal.jobs.models import Job

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


def about_jobs(numbers: Sequence[int], count: int, one: str, many: str) -> str:
    """Return what holds for ``count`` jobs, of which these are the first: ``jobs 3 and 4 have not ended``."""
    return f"{jobs_listed(numbers, count)} {one if count == 1 else many}"


def first_of(rows: QuerySet[Job]) -> tuple[list[int], int]:
    """Return the numbers of the jobs that a sentence names, and how many there are."""
    return list(rows.order_by("pk").values_list("pk", flat=True)[:MAX_NAMED]), rows.count()


def sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."
