"""Requests and responses of the API about scheduling policies."""

from typing import Any, get_args

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from portal.scheduler.models import Cycle, SchedulerConfig
from portal.sentences import sentence_of
from scheduling import changes
from scheduling.params import KINDS, Param
from scheduling.types import Knows

KNOWLEDGE = list(get_args(Knows))


@extend_schema_field({"oneOf": [{"type": "number"}, {"type": "boolean"}, {"type": "string"}]})
class ParamValue(serializers.JSONField):
    """The value of a parameter. The policy decides whether it fits (``scheduling.params``)."""


class PolicyParams(serializers.DictField):
    """The parameters of a policy, by name."""

    child = ParamValue()


class ParamSerializer(serializers.Serializer[Param]):
    name = serializers.CharField()
    kind = serializers.SerializerMethodField()
    default = ParamValue()
    label = serializers.CharField()  # type: ignore[assignment]  # a field of this name, not DRF's option
    help = serializers.CharField()
    least = serializers.FloatField(source="minimum", allow_null=True)
    most = serializers.FloatField(source="maximum", allow_null=True)
    choices = serializers.SerializerMethodField(help_text="The values it may have; empty for any.")
    group = serializers.CharField(help_text="The heading of its group; empty for none.")

    def get_kind(self, param: Param) -> str:
        return KINDS[param.kind]

    def get_choices(self, param: Param) -> list[str]:
        return [value for value, _ in param.choices]


class PolicySerializer(serializers.Serializer[Any]):
    key = serializers.CharField()
    title = serializers.CharField()
    explanation = serializers.CharField()
    good_for = serializers.CharField()
    needs = serializers.CharField(help_text="What it needs to know about the jobs.")
    knows = serializers.ChoiceField(
        choices=KNOWLEDGE,
        help_text="What it uses about jobs: nothing, their speeds on more GPUs, or also their lengths.",
    )
    experimental = serializers.BooleanField()
    params = ParamSerializer(many=True)


class ConfigSerializer(serializers.ModelSerializer[SchedulerConfig]):
    id = serializers.IntegerField(
        read_only=True, allow_null=True, help_text="Null until a policy was chosen: the default decides."
    )
    params = PolicyParams(read_only=True)
    created_by = serializers.SlugRelatedField[Any](slug_field="username", read_only=True, allow_null=True)

    class Meta:
        model = SchedulerConfig
        fields = ("id", "policy", "params", "version", "undoes", "created_by", "created_at")
        read_only_fields = fields
        extra_kwargs = {
            "version": {"help_text": "The version of the policy's code when it was chosen."},
            "undoes": {"help_text": "The configuration that this one undid."},
        }


class AskedSerializer(serializers.Serializer[Any]):
    policy = serializers.CharField(max_length=40)
    params = PolicyParams(required=False, help_text="Parameters that are left out get their defaults.")


class SwitchSerializer(AskedSerializer):
    ticket = serializers.CharField(
        required=False,
        max_length=4000,
        help_text="The ticket of a preview: the switch is refused with 409 when other running jobs would be stopped or "
        "resized than it showed, or another configuration is in force. Without a ticket nothing is checked.",
    )


class UndoSerializer(serializers.Serializer[Any]):
    config = serializers.IntegerField(
        required=False, help_text="The configuration to undo; refused with 409 when it is not in force."
    )


class EtaSerializer(serializers.Serializer[Any]):
    starts = serializers.FloatField(allow_null=True, help_text="Seconds since 1970; null when unknown.")
    ends = serializers.FloatField(allow_null=True)


class PlannedChangeSerializer(serializers.Serializer[Any]):
    """A planned change. The context has the preview that it belongs to, as ``preview``."""

    job = serializers.IntegerField()
    kind = serializers.ChoiceField(choices=changes.KINDS)
    present = serializers.SerializerMethodField(help_text="What the policy in force would do with the job now.")
    before = serializers.DictField(child=serializers.IntegerField(), help_text="GPUs it holds now, by node.")
    after = serializers.DictField(child=serializers.IntegerField())
    reason = serializers.SerializerMethodField(help_text="Why the job waits; empty when it does not.")
    eta_before = serializers.SerializerMethodField()
    eta_after = serializers.SerializerMethodField()

    def get_reason(self, change: Any) -> str:
        return sentence_of(change.reason)

    def get_present(self, change: Any) -> str:
        return str(self.context["preview"].present.get(change.job, ""))

    @extend_schema_field(EtaSerializer(allow_null=True))
    def get_eta_before(self, change: Any) -> Any:
        return _eta(self.context["preview"].before.get(change.job))

    @extend_schema_field(EtaSerializer(allow_null=True))
    def get_eta_after(self, change: Any) -> Any:
        return _eta(self.context["preview"].after.get(change.job))


def _eta(eta: Any) -> Any:
    return None if eta is None else EtaSerializer(eta).data


class PreviewSerializer(serializers.Serializer[Any]):
    """A preview without its changes, which are paged beside it."""

    policy = serializers.CharField()
    params = PolicyParams()
    config = serializers.IntegerField(help_text="The configuration in force.")
    snapshot_sha256 = serializers.CharField(source="sha256")
    counts = serializers.DictField(
        child=serializers.IntegerField(), help_text="The number of jobs by what happens to them."
    )
    wrong = serializers.CharField(help_text="Why the policy cannot decide; empty when it can.")
    ticket = serializers.CharField(help_text="For PUT policy/, valid for an hour.")


class PreviewAnswerSerializer(serializers.Serializer[Any]):
    count = serializers.IntegerField()
    next = serializers.URLField(allow_null=True)
    previous = serializers.URLField(allow_null=True)
    results = PlannedChangeSerializer(many=True)
    preview = PreviewSerializer()


class DroppedStepSerializer(serializers.Serializer[Any]):
    job = serializers.IntegerField()
    why = serializers.CharField(help_text="Why it was not carried out.")


class CycleSerializer(serializers.ModelSerializer[Cycle]):
    policy = serializers.CharField(source="config.policy", allow_null=True, default=None)
    recorded = serializers.BooleanField(
        help_text="Its snapshot and plan are kept: manage.py replay can decide it again."
    )
    dropped = DroppedStepSerializer(
        source="steps_dropped", many=True, read_only=True, help_text="Steps of the plan that no longer fitted."
    )
    error = serializers.SerializerMethodField()

    class Meta:
        model = Cycle
        fields = (
            "id",
            "at",
            "config",
            "policy",
            "version",
            "epoch",
            "snapshot_sha256",
            "duration_ms",
            "plan_ms",
            "jobs_seen",
            "started",
            "resized",
            "stopped",
            "waiting",
            "dropped",
            "error",
            "recorded",
        )
        read_only_fields = fields

    def get_error(self, cycle: Cycle) -> str:
        return sentence_of(cycle.error)
