"""Responses of the API about forecasts."""

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from portal.jobs.serializers import request_field
from portal.jobs.spec import FIELDS


class MeasuredSerializer(serializers.Serializer[Any]):
    """How reliable the first ranges shown were, over all jobs of the lab whose forecasts were of the same kind."""

    days = serializers.IntegerField()
    ranges = serializers.IntegerField(help_text="Jobs that started in these days after a range was shown for them.")
    held = serializers.IntegerField(help_text="Of those, the ones that started within it.")
    percent = serializers.IntegerField(allow_null=True, help_text="Null while there are too few ranges.")
    sentence = serializers.CharField()


class ForecastSerializer(serializers.Serializer[Any]):
    state = serializers.CharField()
    waiting_reason = serializers.CharField(allow_blank=True, help_text="Why the job waits, as the scheduler decided.")
    queue_position = serializers.IntegerField(allow_null=True)
    sentence = serializers.CharField(
        help_text="When the job starts, in words. Clock times are in the portal's time zone."
    )
    low = serializers.DateTimeField(
        allow_null=True,
        help_text="The job starts between low and high in 80 % of the simulated futures. Null: not before until.",
    )
    high = serializers.DateTimeField(allow_null=True, help_text="Null: perhaps not before until.")
    lengths_known = serializers.BooleanField(
        help_text="False: the start depends on jobs of unknown length. Low is then the start if these end at once, and "
        "high the one if they reach their time limits."
    )
    until = serializers.DateTimeField(allow_null=True, help_text="How far the future was simulated.")
    snapshot_at = serializers.DateTimeField(
        allow_null=True, help_text="The time of the snapshot that the forecast starts from."
    )
    made_at = serializers.DateTimeField(allow_null=True)
    gpu_models = serializers.ListField(
        child=serializers.CharField(),
        help_text="The models of GPUs on which it starts, the most likely one first; empty in a lab that has only one.",
    )
    futures = serializers.IntegerField(help_text="How many futures were simulated; 0 when there is no range.")
    measured = MeasuredSerializer()


class DifferentFieldsSerializer(serializers.Serializer[Any]):
    """Some of the fields of POST /jobs/."""

    def get_fields(self) -> dict[str, Any]:
        return {name: request_field(name) for name in FIELDS}


@extend_schema_field(DifferentFieldsSerializer)
class DifferentFields(serializers.DictField):
    """The fields in which a changed job differs, with their values."""


class AdviceSerializer(serializers.Serializer[Any]):
    change = serializers.CharField(help_text='Its name. To make it: POST {"change": ...} to this address.')
    sentence = serializers.CharField()
    starts_now = serializers.BooleanField(help_text="The next scheduling cycle would start the job.")
    low_seconds = serializers.FloatField(
        allow_null=True,
        help_text="The least seconds until the job starts, in the simulated futures. Null: it starts sooner, and the "
        "lengths of the jobs ahead are not known.",
    )
    high_seconds = serializers.FloatField(allow_null=True, help_text="The most seconds until the job starts.")
    differs = DifferentFields(help_text="What the job asks for instead, with the fields of POST /jobs/.")


class CounselSerializer(serializers.Serializer[Any]):
    advice = AdviceSerializer(many=True)
    about_to_start = serializers.BooleanField()
    sentence = serializers.CharField(allow_blank=True, help_text="Why there is no advice; empty when there is some.")


class ChosenChangeSerializer(serializers.Serializer[Any]):
    change = serializers.CharField(max_length=80)
