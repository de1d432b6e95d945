"""What the benches read inside the portal they measure, by ``manage.py shell``: one line of JSON."""

import json
from datetime import datetime

from portal.jobs import logs
from portal.jobs.models import Allocation, Attempt, LogStream


def print_allocations() -> None:
    """Who held a GPU when: ``[job, container, held since, asked back, free]``, Unix seconds, null for what was not."""
    rows = Allocation.objects.order_by("pk").values_list(
        "attempt__job", "container__name", "allocated_at", "requested_back_at", "released_at"
    )
    print(json.dumps([[job, name, *map(_seconds, moments)] for job, name, *moments in rows]))


def print_starts() -> None:
    """Of each job, when its first attempt got on: ``{job: {what: Unix seconds}}``."""
    found: dict[int, dict[str, float]] = {}
    for attempt in Attempt.objects.filter(number=1):
        moments = found[attempt.job_id] = {"decided": attempt.created_at.timestamp()}
        for stream in LogStream.objects.filter(container__attempt=attempt).select_related("container"):
            marks, said = logs.read_marks(stream), logs.read(stream, 0, stream.size)
            written = marks[0][1] / 1000
            if stream.name == "setup":
                moments[f"{stream.container.index} speaks"] = written
                if (at := said.find(b"The job now has")) >= 0:
                    moments["ring formed"] = max(moment for offset, moment in marks if offset <= at) / 1000
            elif stream.label == "rank 0" and stream.first_at:
                moments |= {"line written": written, "line stored": stream.first_at.timestamp()}
    print(json.dumps(found))


def _seconds(moment: datetime | None) -> float | None:
    return None if moment is None else moment.timestamp()
