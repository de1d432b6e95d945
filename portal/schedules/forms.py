"""The form of a schedule: when it runs, and which version of the code."""

from collections.abc import Mapping
from typing import Any

from django import forms
from django.utils import timezone

from portal.form_fields import RefusableForm
from portal.schedules.models import WEEKDAYS, Schedule
from portal.schedules.services import MAX_LATE_HOURS
from portal.zones import known_zones


class ScheduleForm(RefusableForm):
    name = forms.CharField(max_length=80)
    at = forms.TimeField(
        label="Time of day",
        widget=forms.TimeInput(attrs={"type": "time"}, format="%H:%M"),
        help_text="A time that the clocks skip, because they are put forward, means the first moment after; of one that they show "
        "twice, the first counts.",
    )
    zone = forms.CharField(
        label="Time zone",
        max_length=64,
        widget=forms.TextInput(attrs={"list": "zones"}),
        help_text="The time of day is that of the clocks there, for example Europe/Berlin.",
    )
    weekdays = forms.TypedMultipleChoiceField(
        label="Days",
        choices=list(enumerate(WEEKDAYS)),
        coerce=int,
        widget=forms.CheckboxSelectMultiple,
        error_messages={"required": "Choose at least one day of the week."},
    )
    newest_code = forms.TypedChoiceField(
        label="Code",
        choices=[("yes", "the newest version of the project each time"), ("no", "always the version of this job")],
        coerce=lambda value: value == "yes",
        widget=forms.RadioSelect,
    )
    overlap = forms.ChoiceField(
        label="While the last job has not ended",
        choices=Schedule.Overlap.choices,
        widget=forms.RadioSelect,
    )
    max_late_hours = forms.IntegerField(
        label="Make up for a missed run within, in hours",
        min_value=0,
        max_value=MAX_LATE_HOURS,
        help_text="If the portal was down at that time. Several missed runs give one job at most.",
    )

    @classmethod
    def new(cls, job_name: str, data: Any = None) -> "ScheduleForm":
        """Return the form for a new schedule; the zone is that of the reader."""
        return cls(
            data,
            initial={
                "name": job_name,
                "at": "02:00",
                "zone": timezone.get_current_timezone_name(),
                "weekdays": list(range(7)),
                "newest_code": "yes",
                "overlap": Schedule.Overlap.SKIP,
                "max_late_hours": 6,
            },
        )

    @classmethod
    def of(cls, row: Schedule, data: Any = None) -> "ScheduleForm":
        return cls(
            data,
            initial={
                "name": row.name,
                "at": row.at,
                "zone": row.zone,
                "weekdays": list(map(int, row.weekdays)),
                "newest_code": "no" if row.code_id else "yes",
                "overlap": row.overlap,
                "max_late_hours": row.max_late_hours,
            },
        )

    @property
    def zones(self) -> list[str]:
        return sorted(known_zones())

    @property
    def values(self) -> Mapping[str, Any]:
        """What ``services`` take; the form must be valid."""
        return self.cleaned_data
