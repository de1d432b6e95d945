"""What the benches read inside the portal that they measure, with ``manage.py shell``: one line of JSON."""

import json
import re
from datetime import datetime

from portal.jobs import logs
from portal.jobs.models import Allocation, Attempt, LogStream

CONNECTED = re.compile(rb"The (?:ring|job now) has \d+ rank")
"""The line of a driver whose ranks have connected."""


def print_allocations() -> None:
    """Print the holders of GPUs: ``[job, container, held since, asked back, free]`` in Unix seconds, null if not yet."""
    rows = Allocation.objects.order_by("pk").values_list(
        "attempt__job", "container__name", "allocated_at", "requested_back_at", "released_at"
    )
    print(json.dumps([[job, name, *map(_seconds, moments)] for job, name, *moments in rows]))


def print_starts() -> None:
    """Print the progress of the first attempt of each job: ``{job: {event: Unix seconds}}``."""
    found: dict[int, dict[str, float]] = {}
    for attempt in Attempt.objects.filter(number=1):
        moments = found[attempt.job_id] = {"decided": attempt.created_at.timestamp()}
        for stream in LogStream.objects.filter(container__attempt=attempt).select_related("container"):
            marks, text = logs.read_marks(stream), logs.read(stream, 0, stream.size)
            written = marks[0][1] / 1000
            if stream.name == "setup":
                moments[f"{stream.container.index} first output"] = written
                if found_at := CONNECTED.search(text):
                    moments["ranks connected"] = max(at for offset, at in marks if offset <= found_at.start()) / 1000
            elif stream.label == "rank 0" and stream.first_at:
                moments |= {"line written": written, "line stored": stream.first_at.timestamp()}
    print(json.dumps(found))


def _seconds(moment: datetime | None) -> float | None:
    return None if moment is None else moment.timestamp()
