"""Requests and responses of the API about simulations."""

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from portal.scheduler.serializers import PolicyParams
from portal.sentences import sentence_of
from portal.whatif import progress
from portal.whatif.models import Simulation
from portal.whatif.services import MAX_POLICIES, WINDOWS


class WantedPolicySerializer(serializers.Serializer[Any]):
    policy = serializers.CharField(max_length=40)
    params = PolicyParams(required=False, help_text="Parameters that are left out get their defaults.")


class NewSimulationSerializer(serializers.Serializer[Any]):
    days = serializers.ChoiceField(
        choices=WINDOWS, default=14, help_text="How many days of recent history to simulate."
    )
    policies = serializers.ListField(
        child=WantedPolicySerializer(),
        allow_empty=False,
        max_length=MAX_POLICIES,
        help_text="The policies to compare. The policy in force is always simulated too, and counts towards the maximum.",
    )


class SimulationSerializer(serializers.ModelSerializer[Simulation]):
    seconds_left = serializers.SerializerMethodField(
        help_text="Until it is done, while it runs and as far as this is known; else null. It is unknown until every policy "
        "that was never simulated before has begun."
    )
    created_by = serializers.SlugRelatedField[Any](slug_field="username", read_only=True)
    policies = WantedPolicySerializer(many=True, read_only=True, help_text="The one in force first.")
    error = serializers.CharField(source="why_failed", read_only=True, help_text="Why it failed, as a sentence.")

    class Meta:
        model = Simulation
        fields = (
            "id",
            "days",
            "start",
            "end",
            "policies",
            "status",
            "progress",
            "seconds_left",
            "created_by",
            "created_at",
            "begun_at",
            "over_at",
            "error",
        )
        read_only_fields = fields
        extra_kwargs = {"progress": {"help_text": "From 0 to 1."}}

    def get_seconds_left(self, row: Simulation) -> float | None:
        if row.status != Simulation.State.RUNNING:
            return None
        seconds, sure = progress.remaining_seconds(progress.steps(row, [each["policy"] for each in row.policies]))
        return round(seconds, 1) if sure else None


class SpreadSerializer(serializers.Serializer[Any]):
    mean = serializers.FloatField()
    p50 = serializers.FloatField()
    p95 = serializers.FloatField()
    max = serializers.FloatField()


class JobFiguresSerializer(serializers.Serializer[Any]):
    """The figures of some jobs. Those on time are of the ``compared`` jobs, amounts are of all."""

    jobs = serializers.IntegerField()
    compared = serializers.IntegerField()
    unended = serializers.IntegerField()
    turnaround = SpreadSerializer()
    waiting = SpreadSerializer()
    fairness = SpreadSerializer()
    unfair = serializers.FloatField()
    gpu_hours = serializers.FloatField()
    lost_gpu_hours = serializers.FloatField()
    preemptions = serializers.IntegerField()
    restarts = serializers.IntegerField()
    resizes = serializers.IntegerField()
    utilisation = serializers.FloatField(required=False, help_text="In totals only.")


@extend_schema_field(JobFiguresSerializer)
class StoredFigures(serializers.DictField):
    """Figures as they were computed and stored, perhaps by an earlier release."""


@extend_schema_field(serializers.DictField(child=JobFiguresSerializer()))
class StoredFiguresByName(serializers.DictField):
    """The same by name."""


class FiguresSerializer(serializers.Serializer[Any]):
    """The figures of one policy or of what really happened. Times are in seconds, amounts in GPU-hours."""

    total = StoredFigures()
    people = StoredFiguresByName(help_text="The same by user name.")
    groups = StoredFiguresByName(help_text="The same by group.")
    daily = serializers.ListField(
        child=serializers.FloatField(allow_null=True),
        default=list,
        help_text="The mean wait of the jobs that were submitted within each 24 hours; null without jobs.",
    )


class StartsSerializer(serializers.Serializer[Any]):
    """How many jobs start sooner, later or at about the same time as under the first policy."""

    sooner = serializers.IntegerField()
    later = serializers.IntegerField()
    same = serializers.IntegerField()


class SimulatedSerializer(FiguresSerializer):
    """The figures of one policy; all of them are missing where it could not decide."""

    starts = StartsSerializer(required=False, help_text="Missing for the first policy.")
    wrong = serializers.CharField(required=False, help_text="Why the policy could not decide.")

    def get_fields(self) -> dict[str, Any]:
        fields = super().get_fields()
        for field in fields.values():
            field.required = False
        return fields


class ResultSerializer(serializers.Serializer[Any]):
    really = FiguresSerializer(help_text="What really happened.")
    simulated = serializers.SerializerMethodField(
        help_text='For each of the policies the same figures, or {"wrong": "why it could not decide"}. All but the first have '
        '"starts": how many jobs start sooner, later or at about the same time as under the first.',
    )
    gpu_hours_offered = serializers.FloatField()
    nodes = serializers.IntegerField()

    @extend_schema_field(SimulatedSerializer(many=True))
    def get_simulated(self, result: dict[str, Any]) -> list[dict[str, Any]]:
        return [
            each | {"wrong": sentence_of(each["wrong"])} if "wrong" in each else each for each in result["simulated"]
        ]


class SimulationDetailSerializer(SimulationSerializer):
    result = ResultSerializer(allow_null=True, read_only=True, help_text="Null until it is done.")

    class Meta(SimulationSerializer.Meta):
        fields = (*SimulationSerializer.Meta.fields, "result")  # type: ignore[assignment]  # one more
        read_only_fields = fields  # type: ignore[assignment]
