"""API representations of projects, their members and their code."""

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from portal.projects.git.models import VersionCommit
from portal.projects.models import CodeVersion, Membership, Project


class ProjectSerializer(serializers.ModelSerializer[Project]):
    created_by = serializers.SlugRelatedField[Any](slug_field="username", read_only=True)
    role = serializers.CharField(read_only=True, help_text="Your role: viewer, member or owner.")
    archived = serializers.SerializerMethodField()

    class Meta:
        model = Project
        fields = ("id", "name", "description", "role", "created_by", "created_at", "archived")
        read_only_fields = ("id", "role", "created_by", "created_at", "archived")
        extra_kwargs = {"description": {"max_length": 10_000}}

    def get_archived(self, project: Project) -> bool:
        return project.archived_at is not None


class MemberSerializer(serializers.ModelSerializer[Membership]):
    username = serializers.CharField(source="user.username", read_only=True)

    class Meta:
        model = Membership
        fields = ("username", "role", "since")
        read_only_fields = ("username", "since")


class NewMemberSerializer(serializers.Serializer[Any]):
    username = serializers.CharField(max_length=254, help_text="User name or e-mail address.")
    role = serializers.ChoiceField(Membership.Role.choices, default=Membership.Role.MEMBER)


class RoleSerializer(serializers.Serializer[Any]):
    role = serializers.ChoiceField(Membership.Role.choices)


class FileSerializer(serializers.Serializer[Any]):
    path = serializers.CharField()
    size = serializers.IntegerField()
    sha256 = serializers.CharField()


class VersionCommitSerializer(serializers.ModelSerializer[VersionCommit]):
    """The commit that a code version was made from."""

    class Meta:
        model = VersionCommit
        fields = ("commit", "repository", "branch", "author", "subject", "committed_at", "url", "rewritten")
        read_only_fields = fields
        extra_kwargs = {
            "url": {"help_text": "The page of the commit, where the software of the host is known."},
            "rewritten": {"help_text": "The commit before was no longer in the history of the branch."},
        }


class CodeVersionSerializer(serializers.ModelSerializer[CodeVersion]):
    commit = serializers.SerializerMethodField(help_text="Null for an upload.")
    created_by = serializers.SlugRelatedField[Any](slug_field="username", read_only=True)

    class Meta:
        model = CodeVersion
        fields: tuple[str, ...] = (
            "id",
            "number",
            "sha256",
            "size",
            "upload_name",
            "note",
            "commit",
            "created_by",
            "created_at",
        )
        read_only_fields = fields

    @extend_schema_field(VersionCommitSerializer(allow_null=True))
    def get_commit(self, version: CodeVersion) -> Any:
        origin = getattr(version, "origin", None)
        return VersionCommitSerializer(origin).data if origin is not None else None


@extend_schema_field({"oneOf": [{"type": "string"}, {"type": "integer"}]})
class ImportPlace(serializers.JSONField):
    """A path, or a line."""


class CodeWarningSerializer(serializers.Serializer[Any]):
    """Something in the code that probably does not do what is meant."""

    code = serializers.CharField(help_text="Identifies the kind of warning.")
    path = serializers.CharField()
    line = serializers.IntegerField()
    text = serializers.CharField()


class RefusedLineSerializer(serializers.Serializer[Any]):
    """A line of a package list that is not taken."""

    line = serializers.IntegerField(help_text="From 1; 0 where no single line is meant.")
    text = serializers.CharField(allow_blank=True)
    why = serializers.CharField(help_text="Why it is not taken, and what to do.")
    path = serializers.CharField(allow_blank=True)


class ListNoteSerializer(serializers.Serializer[Any]):
    """Something in a package list that was changed or left out."""

    text = serializers.CharField()
    line = serializers.IntegerField(help_text="From 1; 0 is the whole file.")
    path = serializers.CharField(allow_blank=True)


class PackageListSerializer(serializers.Serializer[Any]):
    """The packages that a file of the code asks for."""

    path = serializers.CharField()
    kind = serializers.CharField(help_text="requirements, pyproject or conda")
    lines = serializers.ListField(
        child=serializers.CharField(), help_text="The accepted requirements, in the form that pip reads."
    )
    constraints = serializers.ListField(child=serializers.CharField())
    refused = RefusedLineSerializer(many=True)
    notes = ListNoteSerializer(many=True)
    python = serializers.CharField(allow_blank=True, help_text="The version of Python, if exactly one is asked for.")
    indexes = serializers.ListField(child=serializers.CharField(), help_text="Allowed package indexes.")


class GuessSerializer(serializers.Serializer[Any]):
    """How the code is started, as far as inspection can tell. Versions of earlier releases lack some fields."""

    entry = serializers.CharField(required=False, help_text="The Python file to run; empty if there is none.")
    module = serializers.CharField(required=False, allow_null=True)
    command = serializers.CharField(required=False)
    candidates = serializers.ListField(child=serializers.CharField(), required=False)
    launcher = serializers.CharField(required=False)
    elastic = serializers.BooleanField(required=False)
    one_gpu = serializers.BooleanField(required=False)
    imports = serializers.DictField(
        child=serializers.ListField(child=ImportPlace()),
        required=False,
        help_text="The modules that an environment must provide, each with the file and line of its import.",
    )
    in_functions = serializers.ListField(
        child=serializers.CharField(), required=False, help_text="The imports that stand only inside functions."
    )
    requirements = serializers.ListField(child=serializers.CharField(), required=False)
    package_lists = PackageListSerializer(many=True, required=False)
    warnings = CodeWarningSerializer(many=True, required=False)
    notes = serializers.ListField(child=serializers.CharField(), required=False, help_text="What unpacking changed.")


@extend_schema_field(GuessSerializer)
class StoredGuess(serializers.JSONField):
    """A guess as it was stored, perhaps by an earlier release."""


class CodeVersionDetailSerializer(CodeVersionSerializer):
    guess = StoredGuess(read_only=True, help_text="The result of inspection.")
    files = FileSerializer(many=True, read_only=True)

    class Meta(CodeVersionSerializer.Meta):
        fields = (*CodeVersionSerializer.Meta.fields, "guess", "files")
        read_only_fields = fields


class UploadedVersionSerializer(CodeVersionDetailSerializer):
    is_new = serializers.BooleanField(
        read_only=True, help_text="False if the files equal the newest version, which is returned instead of another."
    )

    class Meta(CodeVersionDetailSerializer.Meta):
        fields = (*CodeVersionDetailSerializer.Meta.fields, "is_new")
        read_only_fields = fields


class UploadSerializer(serializers.Serializer[Any]):
    """An upload, for the schema only: the view reads the files from the request."""

    file = serializers.ListField(
        child=serializers.FileField(), help_text="One archive, script or notebook; or the files of a folder."
    )
    paths = serializers.ListField(
        child=serializers.CharField(),
        required=False,
        help_text="The paths of the files in the folder, in the same order.",
    )
    note = serializers.CharField(max_length=200, required=False, allow_blank=True)
    keep_others = serializers.BooleanField(
        required=False, help_text="Put single files into the newest version and keep its other files; by default false."
    )
    gitignore = serializers.BooleanField(
        required=False, help_text="Leave out what the .gitignore of an archive or folder names; by default false."
    )


class LineSerializer(serializers.Serializer[Any]):
    kind = serializers.CharField(help_text="added, removed, same or place")
    text = serializers.CharField()


class FileChangeSerializer(serializers.Serializer[Any]):
    path = serializers.CharField()
    kind = serializers.CharField(help_text="added, removed or changed")
    remark = serializers.CharField()
    added = serializers.IntegerField()
    removed = serializers.IntegerField()
    lines = LineSerializer(many=True)


class ExampleSerializer(serializers.Serializer[Any]):
    key = serializers.CharField()
    title = serializers.CharField()
    description = serializers.CharField()
    teaches = serializers.ListField(child=serializers.CharField())
    launcher = serializers.CharField()
    entry = serializers.CharField()
    arguments = serializers.ListField(child=serializers.CharField())
    environment = serializers.CharField()
    elastic = serializers.BooleanField()
    min_gpus = serializers.IntegerField()
    max_gpus = serializers.IntegerField()
    time_limit_seconds = serializers.IntegerField()


class UseExampleSerializer(serializers.Serializer[Any]):
    project = serializers.IntegerField(
        min_value=1, required=False, allow_null=True, help_text="Empty: your own project for examples."
    )


class UsedExampleSerializer(CodeVersionSerializer):
    project = serializers.IntegerField(source="project_id", read_only=True)

    class Meta(CodeVersionSerializer.Meta):
        fields = (*CodeVersionSerializer.Meta.fields, "project")
        read_only_fields = fields
