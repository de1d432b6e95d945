"""API representations of environments, their locks and builds."""

from collections.abc import Iterable
from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from portal.environments.builds import message_in
from portal.environments.models import Build, Environment, ImageSettings, Registry
from portal.environments.package_input import PackageInput
from portal.environments.services import PYTHON_VERSIONS
from portal.environments.summary import STATES
from portal.projects.models import Project
from portal.projects.package_lists.model import PackageList
from portal.projects.package_lists.typed import MAX_CHARACTERS, read_typed
from portal.sentences import sentence_of
from portal.strict_fields import IdField, TextField

MAX_ITEMS = 500


class LockSerializer(serializers.Serializer[Build]):
    """The packages that were built for a kind of node."""

    digest = serializers.CharField(source="lock.digest")
    kind = serializers.CharField(
        help_text="Python, processor, C library and CUDA of these nodes, and a hash of their base."
    )
    size_bytes = serializers.IntegerField(
        source="lock.unpacked_bytes", help_text="Of the files, in addition to the base."
    )
    created_at = serializers.DateTimeField(source="lock.created_at")
    image = serializers.CharField(
        read_only=True, help_text="Of an environment that is an image: its name with the digest."
    )


class EnvironmentSerializer(serializers.ModelSerializer[Environment]):
    packages = serializers.ListField(
        child=serializers.CharField(), read_only=True, help_text="Names of the modules that code can import."
    )
    ready_on = serializers.SerializerMethodField(help_text="Names of the nodes where jobs can use it at once.")
    project = serializers.IntegerField(
        source="project_id", read_only=True, allow_null=True, help_text="Only its jobs can use it; null: all jobs can."
    )
    base = serializers.CharField(
        source="base.key",
        read_only=True,
        allow_null=True,
        default=None,
        help_text="The environment to which `lines` are added; null for one of the release, and for a full one.",
    )
    lines = serializers.ListField(
        child=serializers.CharField(), read_only=True, help_text="Its own packages, as in a requirements.txt."
    )
    constraints = serializers.ListField(child=serializers.CharField(), read_only=True)
    indexes = serializers.ListField(child=serializers.CharField(), read_only=True)
    created_by = serializers.SlugRelatedField[Any](slug_field="username", read_only=True, allow_null=True)
    image = serializers.CharField(
        read_only=True, help_text="The image of a registry that it is, instead of packages; else empty."
    )
    state = serializers.SerializerMethodField(
        help_text="`ready` on a node at least, `building`, `failed`, `requested` (the next node builds it), `not_built` "
        "(a node builds it when a job needs it) or `removed`."
    )
    size_bytes = serializers.SerializerMethodField(help_text="Of the newest build; null before the first.")
    locks = serializers.SerializerMethodField(help_text="The newest for each kind of node.")

    class Meta:
        model = Environment
        fields = (
            "key",
            "title",
            "description",
            "packages",
            "ready_on",
            "project",
            "base",
            "image",
            "lines",
            "constraints",
            "indexes",
            "python",
            "horovod",
            "source_builds",
            "created_by",
            "created_at",
            "state",
            "size_bytes",
            "locks",
        )
        read_only_fields = fields

    def _standing(self, environment: Environment) -> Any:
        return self.context["standings"][environment.pk]

    def get_ready_on(self, environment: Environment) -> list[str]:
        return list(self._standing(environment).ready_on)

    @extend_schema_field(serializers.ChoiceField(STATES))
    def get_state(self, environment: Environment) -> str:
        return str(self._standing(environment).state)

    @extend_schema_field(serializers.IntegerField(allow_null=True))
    def get_size_bytes(self, environment: Environment) -> int | None:
        lock = self._standing(environment).lock
        return None if lock is None else lock.unpacked_bytes

    @extend_schema_field(LockSerializer(many=True))
    def get_locks(self, environment: Environment) -> Any:
        return LockSerializer(self.context["locks"].get(environment.recipe, ()), many=True).data


@extend_schema_field({"oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]})
class PackagesField(serializers.Field[PackageInput, Any, Any, Any]):
    """Packages as a person types them: a list with one in each item, or a text. Refused ones are errors, each with its place."""

    default_error_messages = {
        "kind": "Send a list of packages, such as ['rich', 'pandas>=2'], or a text with one on each line.",
        "many": f"At most {MAX_ITEMS} packages.",
        "none": "Name at least one package.",
    }

    def to_internal_value(self, data: Any) -> PackageInput:
        allowed = self.context["allowed_sources"]
        if isinstance(data, str):
            found = read_typed(data, allowed)
            self._refuse({line.line: f"Line {line.line}: {line.why}" for line in found.refused}.values())
            return self._some(found)
        if not isinstance(data, list) or not all(isinstance(each, str) for each in data):
            self.fail("kind")
        if len(data) > MAX_ITEMS:
            self.fail("many")
        if sum(map(len, data)) > MAX_CHARACTERS:
            self._refuse([f"At most {MAX_CHARACTERS:,} characters."])
        lists = [read_typed(each, allowed) for each in data]
        wrong = {number: [line.why for line in each.refused] for number, each in enumerate(lists) if each.refused}
        if wrong:
            raise serializers.ValidationError({str(number): whys for number, whys in wrong.items()})
        return self._some(*lists)

    def _refuse(self, sentences: Iterable[str]) -> None:
        if found := list(sentences):
            raise serializers.ValidationError(found)

    def _some(self, *lists: PackageList) -> PackageInput:
        understood = PackageInput(lists)
        if not understood.lines:
            self.fail("none")
        return understood

    def to_representation(self, value: Any) -> Any:
        return value


class NewEnvironmentSerializer(serializers.Serializer[Any]):
    project = IdField(
        queryset=Project.objects.none(),
        allow_null=True,
        help_text="Only jobs of this project can use it; null, which only admins may send: all jobs can.",
    )
    base = serializers.SlugRelatedField[Any](
        slug_field="key",
        queryset=Environment.objects.none(),
        allow_null=True,
        help_text="The environment of the release to which the packages are added; null: a full environment, which has "
        "nothing but these packages.",
    )
    packages = PackagesField(help_text="As in a requirements.txt, or as you would type them after `pip install`.")
    title = TextField(max_length=120, required=False, default="", allow_blank=True)
    python = serializers.CharField(
        max_length=10,
        required=False,
        default="",
        allow_blank=True,
        help_text=f"For a full environment only: {', '.join(PYTHON_VERSIONS)}; empty for the newest that fits.",
    )
    horovod = serializers.BooleanField(
        default=False, help_text="For a full environment whose packages have torch: Horovod, compiled for it."
    )
    source_builds = serializers.BooleanField(
        default=False, help_text="Packages without wheels may be built from source, if an admin allows that."
    )


class BuildSerializer(serializers.ModelSerializer[Build]):
    node = serializers.CharField(source="node_name", read_only=True)
    message = serializers.SerializerMethodField(help_text="The current step, or why it ended without success.")
    lock = serializers.CharField(
        source="lock.digest", read_only=True, allow_null=True, default=None, help_text="The digest of what was built."
    )

    class Meta:
        model = Build
        fields = ("id", "kind", "node", "state", "progress_percent", "message", "lock", "started_at", "ended_at")
        read_only_fields = fields

    def get_message(self, build: Build) -> str:
        message = message_in(build, self.context["view"].environment)
        return sentence_of(message) if message else ""


class BuildLogSerializer(serializers.Serializer[Any]):
    """A piece of the log of a build."""

    text = serializers.CharField(trim_whitespace=False)
    end = serializers.IntegerField(help_text="Send it as `offset` for what follows.")
    finished = serializers.BooleanField(help_text="The build has ended, and `text` has the end of its log.")


class NewImageSerializer(serializers.Serializer[Any]):
    """An environment that is an image, in the place of packages."""

    project = IdField(
        queryset=Project.objects.none(),
        allow_null=True,
        help_text="Only jobs of this project can use it; null, which only admins may send: all jobs can.",
    )
    image = TextField(max_length=300, help_text="`REGISTRY/NAME:TAG`, of those that an admin allowed.")
    title = TextField(max_length=120, required=False, default="", allow_blank=True)


class ImageSettingsSerializer(serializers.ModelSerializer[ImageSettings]):
    allowed = serializers.ListField(
        child=TextField(max_length=300, allow_blank=True),
        max_length=200,
        help_text="Registries, or beginnings of names by whole parts: `ghcr.io/lab`.",
    )
    archives = serializers.ChoiceField(
        ImageSettings.Archives.choices, help_text="When the portal keeps images for nodes that cannot pull them."
    )

    class Meta:
        model = ImageSettings
        fields = ("allowed", "archives")


class RegistrySerializer(serializers.ModelSerializer[Registry]):
    """How nodes use a registry. The token can be written, and is never sent."""

    host = TextField(max_length=255, help_text="With its port if it has one.")
    user = TextField(max_length=200, required=False, default="", allow_blank=True)
    token = TextField(
        write_only=True,
        max_length=10_000,
        required=False,
        allow_blank=True,
        trim_whitespace=False,
        help_text="A password or token. Left out: the stored one stays.",
    )
    signs_in = serializers.SerializerMethodField(help_text="Whether a token is stored.")
    insecure = serializers.BooleanField(
        default=False, help_text="It may be without encryption, if the nodes' engines allow that."
    )

    class Meta:
        model = Registry
        fields = ("id", "host", "user", "token", "signs_in", "insecure", "changed_at")
        read_only_fields = ("id", "changed_at")

    def get_signs_in(self, registry: Registry) -> bool:
        return bool(registry.sealed_token)
