"""What the API says of forecasts."""

from typing import Any

from rest_framework import serializers


class MeasuredSerializer(serializers.Serializer[Any]):
    """How good the first ranges shown were, over all jobs of the lab."""

    days = serializers.IntegerField()
    ranges = serializers.IntegerField(help_text="Jobs that started in these days after a range was shown for them.")
    held = serializers.IntegerField(help_text="Of those, the ones that started within it.")
    percent = serializers.IntegerField(allow_null=True, help_text="Null while there are too few to say.")
    sentence = serializers.CharField()


class ForecastSerializer(serializers.Serializer[Any]):
    state = serializers.CharField()
    waiting_reason = serializers.CharField(allow_blank=True, help_text="Why it waits, from the decision itself.")
    queue_position = serializers.IntegerField(allow_null=True)
    sentence = serializers.CharField(help_text="When it starts, in words. Clock times are of the portal's time zone.")
    low = serializers.DateTimeField(
        allow_null=True, help_text="It starts between low and high in 80 % of the futures. Null: not before until."
    )
    high = serializers.DateTimeField(allow_null=True, help_text="Null: perhaps not before until.")
    until = serializers.DateTimeField(allow_null=True, help_text="As far as was looked.")
    snapshot_at = serializers.DateTimeField(allow_null=True, help_text="When the world was as the forecast supposes.")
    made_at = serializers.DateTimeField(allow_null=True)
    futures = serializers.IntegerField(help_text="How many were lived through; 0 when there is no range.")
    measured = MeasuredSerializer()


class AdviceSerializer(serializers.Serializer[Any]):
    change = serializers.CharField(help_text='Its name, to do it: POST {"change": ...} to this address.')
    sentence = serializers.CharField()
    starts_now = serializers.BooleanField(help_text="The scheduler's next turn would start it.")
    low_seconds = serializers.FloatField(help_text="Until it starts, in the futures tried: at least,")
    high_seconds = serializers.FloatField(help_text="and at most.")
    differs = serializers.DictField(help_text="What it asks for instead, in the words of POST /jobs/.")


class CounselSerializer(serializers.Serializer[Any]):
    advice = AdviceSerializer(many=True)
    about_to_start = serializers.BooleanField()
    sentence = serializers.CharField(allow_blank=True, help_text="When there is nothing to advise: why.")


class ChosenChangeSerializer(serializers.Serializer[Any]):
    change = serializers.CharField(max_length=80)
