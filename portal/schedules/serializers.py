"""Representations of schedules in the API."""

from typing import Any

from rest_framework import serializers

from portal.schedules.models import Schedule, ScheduleRun
from portal.schedules.services import MAX_LATE_HOURS

MAX_ID = 2**53


class WeekdaysField(serializers.ListField):
    """Days of the week as numbers, 0 for Monday."""

    child = serializers.IntegerField(min_value=0, max_value=6)

    def __init__(self, **options: Any) -> None:
        super().__init__(min_length=1, max_length=7, **options)

    def to_representation(self, value: Any) -> list[int]:
        return [int(day) for day in value]


class ScheduleSerializer(serializers.ModelSerializer[Schedule]):
    owner = serializers.SlugRelatedField[Any](slug_field="username", read_only=True)
    weekdays = WeekdaysField(read_only=True, help_text="0 is Monday.")
    at = serializers.TimeField(format="%H:%M", read_only=True, help_text="By the clocks of the zone.")
    code = serializers.IntegerField(
        source="code.number",
        read_only=True,
        allow_null=True,
        default=None,
        help_text="Number of the code version; null: the newest each time.",
    )
    environment = serializers.SlugRelatedField[Any](slug_field="key", read_only=True)
    job = serializers.PrimaryKeyRelatedField[Any](
        source="copied_from", read_only=True, help_text="The job whose fields it submits; null if that is gone."
    )
    paused = serializers.SerializerMethodField()
    why_paused = serializers.CharField(
        read_only=True, help_text="Why it paused by itself; empty if it is not paused, or a person paused it."
    )

    class Meta:
        model = Schedule
        fields = (
            "id",
            "project",
            "owner",
            "name",
            "job",
            "code",
            "environment",
            "launcher",
            "entry",
            "at",
            "zone",
            "weekdays",
            "max_late_hours",
            "overlap",
            "created_at",
            "next_run_at",
            "failures",
            "paused",
            "paused_at",
            "why_paused",
        )
        read_only_fields = fields

    def get_paused(self, row: Schedule) -> bool:
        return row.paused_at is not None


class TimesSerializer(serializers.Serializer[Any]):
    """When a schedule runs."""

    name = serializers.CharField(max_length=80, required=False, help_text="Without one it is called as the job.")
    zone = serializers.CharField(max_length=64, help_text="An IANA time zone, such as Europe/Berlin.")
    at = serializers.TimeField(
        input_formats=["%H:%M"], help_text="A time of day by the clocks of the zone, such as 02:00."
    )
    weekdays = WeekdaysField(required=False, help_text="0 is Monday. All days by default.")
    newest_code = serializers.BooleanField(
        required=False,
        help_text="Submit the newest version of the project's code each time (the default), or that of the job.",
    )
    overlap = serializers.ChoiceField(
        Schedule.Overlap.choices, required=False, help_text="What happens while the job before has not ended."
    )
    max_late_hours = serializers.IntegerField(
        min_value=0,
        max_value=MAX_LATE_HOURS,
        required=False,
        help_text="A run that the portal missed while it was down is made up for within so many hours.",
    )


class NewScheduleSerializer(TimesSerializer):
    job = serializers.IntegerField(min_value=1, max_value=MAX_ID, help_text="The job whose fields it submits.")


class EditScheduleSerializer(TimesSerializer):
    """The values to change; those that are left out stay."""

    job = serializers.IntegerField(
        min_value=1,
        max_value=MAX_ID,
        required=False,
        help_text="Submit the fields of this job of the project from now on.",
    )

    def get_fields(self) -> dict[str, Any]:
        fields = super().get_fields()
        for field in fields.values():
            field.required = False
        return fields


class SubmittedSerializer(serializers.Serializer[Any]):
    job = serializers.IntegerField(help_text="The id of the job.")


class ScheduleRunSerializer(serializers.ModelSerializer[ScheduleRun]):
    result = serializers.CharField(read_only=True, help_text=", ".join(ScheduleRun.Result.values))
    why = serializers.CharField(read_only=True, help_text="Why the job was refused; else empty.")

    class Meta:
        model = ScheduleRun
        fields = ("date", "due_at", "at", "result", "job", "why")
        read_only_fields = fields
