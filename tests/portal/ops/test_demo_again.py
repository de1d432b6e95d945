"""A demo lab is the same each time it is made at the same hour of the same day of the week."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import transaction

from portal.jobs.models import Allocation, LogStream, MetricPoint
from portal.ops.demo import month
from portal.ops.demo.rows import MonthRows
from portal.ops.demo.workload import LabSize

NOW = datetime(2026, 11, 26, 15, 20, tzinfo=UTC)


@pytest.mark.thorough
def test_the_same_start_of_another_week_gives_the_same_month(db: None, tmp_path: Path, settings: Any) -> None:
    def facts(written: MonthRows) -> list[object]:
        start = written.start
        jobs = [
            (
                job.name,
                job.submitted_by.username,
                job.state,
                job.submitted_at - start,
                job.started_at and job.started_at - start,
            )
            for job in written.jobs
        ]
        held = [
            (row.gpu.uuid, row.allocated_at - start, row.released_at and row.released_at - start)
            for row in Allocation.objects.select_related("gpu").order_by("gpu__uuid", "allocated_at")
        ]
        values = list(MetricPoint.objects.order_by("pk").values_list("name", "step", "value"))
        sizes = list(LogStream.objects.order_by("pk").values_list("name", "size", "marks"))
        reasons = [job.why_waiting for job in written.jobs]
        return [*jobs, *held, *values, *sizes, *reasons]

    months = []
    for number, now in enumerate((NOW, NOW + timedelta(days=7))):
        settings.HOME = tmp_path / str(number)
        settings.HOME.mkdir()
        with transaction.atomic():
            months.append(facts(month.fill(now, LabSize(2, 2), "http://127.0.0.1:1")))
            transaction.set_rollback(True)
    assert months[0] == months[1]
