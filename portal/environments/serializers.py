"""API representations of environments."""

from rest_framework import serializers

from portal.environments.models import Environment


class EnvironmentSerializer(serializers.ModelSerializer[Environment]):
    packages = serializers.ListField(child=serializers.CharField(), read_only=True)
    ready_on = serializers.SerializerMethodField(help_text="Names of the nodes where jobs can use it at once.")

    class Meta:
        model = Environment
        fields = ("key", "title", "description", "packages", "ready_on")
        read_only_fields = fields

    def get_ready_on(self, environment: Environment) -> list[str]:
        return sorted(row.node.name for row in environment.on_nodes.all())
