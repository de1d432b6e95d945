"""What the benches read inside the portal they measure, by ``manage.py shell``: one line of JSON."""

import json
from datetime import datetime

from portal.jobs.models import Allocation


def print_allocations() -> None:
    """Who held a GPU when: ``[job, container, held since, asked back, free]``, Unix seconds, null for what was not."""
    rows = Allocation.objects.order_by("pk").values_list(
        "attempt__job", "container__name", "allocated_at", "requested_back_at", "released_at"
    )
    print(json.dumps([[job, name, *map(_seconds, moments)] for job, name, *moments in rows]))


def _seconds(moment: datetime | None) -> float | None:
    return None if moment is None else moment.timestamp()
