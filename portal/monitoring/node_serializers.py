"""API representations of nodes and GPUs. The job on a GPU is shown only to users who may see it."""

from typing import Any

from rest_framework import serializers

from portal.cluster.models import Gpu, Node
from portal.cluster.services import is_online
from portal.jobs.occupancy import holder


class GpuSerializer(serializers.ModelSerializer[Gpu]):
    in_use_outside = serializers.SerializerMethodField(help_text="It is used outside the portal.")
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

    def get_busy(self, gpu: Gpu) -> bool:
        return holder(gpu) is not None

    def get_job(self, gpu: Gpu) -> int | None:
        job = holder(gpu)
        return job.pk if job is not None and job.pk in self.context["known_jobs"] else None


class NodeEnvironmentSerializer(serializers.Serializer[Any]):
    key = serializers.CharField(source="environment.key")
    state = serializers.CharField()
    progress_percent = serializers.IntegerField()
    detail = serializers.CharField()


class NodeSerializer(serializers.ModelSerializer[Node]):
    online = serializers.SerializerMethodField(help_text="It has reported within the last seconds.")
    approved = serializers.SerializerMethodField()
    confinement = serializers.SerializerMethodField(
        help_text="For runtime `process`: how its jobs are confined, in words. Empty otherwise."
    )
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

    def get_confinement(self, node: Node) -> str:
        return str(node.facts.get("confinement", ""))[:200]
