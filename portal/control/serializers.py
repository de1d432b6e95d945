"""What the API says and hears about scheduling policies."""

from typing import Any

from rest_framework import serializers

from portal.control.models import SchedulerConfig
from scheduling.params import KINDS, Param


class ParamSerializer(serializers.Serializer[Param]):
    name = serializers.CharField()
    kind = serializers.SerializerMethodField()
    default = serializers.JSONField()
    label = serializers.CharField()  # type: ignore[assignment]  # a field of this name, not DRF's option
    help = serializers.CharField()
    least = serializers.FloatField(allow_null=True)
    most = serializers.FloatField(allow_null=True)
    choices = serializers.SerializerMethodField(help_text="Values it may have; empty: any.")

    def get_kind(self, param: Param) -> str:
        return KINDS[param.kind]

    def get_choices(self, param: Param) -> list[str]:
        return [value for value, _ in param.choices]


class PolicySerializer(serializers.Serializer[Any]):
    key = serializers.CharField()
    title = serializers.CharField()
    explanation = serializers.CharField()
    params = ParamSerializer(many=True)


class ConfigSerializer(serializers.ModelSerializer[SchedulerConfig]):
    created_by = serializers.SlugRelatedField[Any](slug_field="username", read_only=True, allow_null=True)

    class Meta:
        model = SchedulerConfig
        fields = ("policy", "params", "created_by", "created_at")
        read_only_fields = fields


class SwitchSerializer(serializers.Serializer[Any]):
    policy = serializers.CharField(max_length=40)
    params = serializers.DictField(required=False, help_text="Those left out get their defaults.")
