"""API representations of nodes and GPUs. The job on a GPU is shown only to users who may see it."""

from dataclasses import asdict
from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from portal.cluster.findings import confinement
from portal.cluster.models import Gpu, Node
from portal.cluster.services import is_online
from portal.environments.models import NodeEnvironment
from portal.jobs.occupancy import holder
from portal.sentences import sentence_of
from portal.sentences.problems import FORMER_FIX


class GpuSerializer(serializers.ModelSerializer[Gpu]):
    in_use_outside = serializers.SerializerMethodField(help_text="It is used outside the portal.")
    problem = serializers.SerializerMethodField()
    quarantine_reason = serializers.SerializerMethodField()
    busy = serializers.SerializerMethodField()
    job = serializers.SerializerMethodField(help_text="The job that runs on it, if you may see it.")

    class Meta:
        model = Gpu
        fields = (
            "index",
            "uuid",
            "kind",
            "model",
            "memory_mib",
            "healthy",
            "problem",
            "links",
            "in_use_outside",
            "quarantined_at",
            "quarantine_reason",
            "utilisation_percent",
            "memory_used_mib",
            "temperature_celsius",
            "busy",
            "job",
        )
        read_only_fields = fields

    def get_in_use_outside(self, gpu: Gpu) -> bool:
        return bool(gpu.outside)

    def get_problem(self, gpu: Gpu) -> str:
        return sentence_of(gpu.problem)

    def get_quarantine_reason(self, gpu: Gpu) -> str:
        return sentence_of(gpu.quarantine_reason)

    def get_busy(self, gpu: Gpu) -> bool:
        return holder(gpu) is not None

    def get_job(self, gpu: Gpu) -> int | None:
        job = holder(gpu)
        return job.pk if job is not None and job.pk in self.context["known_jobs"] else None


class NodeEnvironmentSerializer(serializers.Serializer[Any]):
    key = serializers.CharField(source="environment.key")
    state = serializers.CharField()
    progress_percent = serializers.IntegerField()
    detail = serializers.SerializerMethodField()

    def get_detail(self, row: NodeEnvironment) -> str:
        return sentence_of(row.detail)


class NodeProblemSerializer(serializers.Serializer[Any]):
    """What is unfit about a machine."""

    code = serializers.CharField(help_text="Identifies the problem.")
    text = serializers.CharField()
    fix = serializers.CharField(help_text="What to do about it; empty when there is nothing to do.")
    blocking = serializers.BooleanField(help_text="The node accepts no jobs until then.")

    def get_fields(self) -> dict[str, Any]:
        return super().get_fields() | {FORMER_FIX: serializers.CharField(help_text="The former name of `fix`.")}


class NodeSerializer(serializers.ModelSerializer[Node]):
    online = serializers.SerializerMethodField(help_text="It has reported within the last seconds.")
    approved = serializers.SerializerMethodField()
    confinement = serializers.SerializerMethodField(
        help_text="For runtime `process`: how its jobs are confined, in words. Empty otherwise."
    )
    problems = serializers.SerializerMethodField(help_text="What is unfit about the machine.")
    gpus = GpuSerializer(many=True, read_only=True)
    environments = NodeEnvironmentSerializer(many=True, read_only=True)

    class Meta:
        model = Node
        fields = (
            "id",
            "name",
            "runtime",
            "online",
            "last_seen_at",
            "approved",
            "cordoned",
            "draining",
            "problems",
            "confinement",
            "gpus",
            "environments",
        )
        read_only_fields = fields

    def get_online(self, node: Node) -> bool:
        return is_online(node)

    def get_approved(self, node: Node) -> bool:
        return node.approved_at is not None

    @extend_schema_field(NodeProblemSerializer(many=True))
    def get_problems(self, node: Node) -> list[dict[str, Any]]:
        return [asdict(each) | {FORMER_FIX: each.fix} for each in node.shown_problems]

    def get_confinement(self, node: Node) -> str:
        return confinement(node.facts)
