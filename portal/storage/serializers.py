"""Representations of datasets in the API."""

from typing import Any

from rest_framework import serializers

from portal.storage.models import Dataset, DatasetVersion, Upload
from portal.storage.services import MAX_DESCRIPTION

MAX_ID = 2**53


class DatasetSerializer(serializers.ModelSerializer[Dataset]):
    owner = serializers.SlugRelatedField[Any](slug_field="username", read_only=True)
    archived = serializers.SerializerMethodField()
    version = serializers.IntegerField(
        source="newest", read_only=True, allow_null=True, default=None, help_text="Number of the newest ready version."
    )
    size = serializers.IntegerField(
        source="newest_size", read_only=True, allow_null=True, default=None, help_text="Its bytes."
    )
    files = serializers.IntegerField(
        source="newest_files", read_only=True, allow_null=True, default=None, help_text="Its number of files."
    )

    class Meta:
        model = Dataset
        fields = (
            "id",
            "name",
            "title",
            "description",
            "licence",
            "owner",
            "project",
            "visibility",
            "created_at",
            "archived",
            "version",
            "size",
            "files",
        )
        read_only_fields = fields

    def get_archived(self, row: Dataset) -> bool:
        return row.archived_at is not None


class NewDatasetSerializer(serializers.Serializer[Any]):
    name = serializers.CharField(
        max_length=63, help_text="A part of paths: lower-case letters, digits, dots, hyphens and underscores."
    )
    title = serializers.CharField(max_length=100, required=False, allow_blank=True)
    description = serializers.CharField(
        max_length=MAX_DESCRIPTION, required=False, allow_blank=True, help_text="Markdown."
    )
    licence = serializers.CharField(
        max_length=100, required=False, allow_blank=True, help_text="For example CC-BY-4.0, or who may use it for what."
    )
    project = serializers.IntegerField(
        min_value=1,
        max_value=MAX_ID,
        required=False,
        allow_null=True,
        help_text="The project whose members may add versions.",
    )
    visibility = serializers.ChoiceField(Dataset.Visibility.choices, required=False)


class EditDatasetSerializer(NewDatasetSerializer):
    """The values to change; those that are left out stay."""

    def get_fields(self) -> dict[str, Any]:
        fields = super().get_fields()
        for field in fields.values():
            field.required = False
        return fields


class DatasetVersionSerializer(serializers.ModelSerializer[DatasetVersion]):
    created_by = serializers.SlugRelatedField[Any](slug_field="username", read_only=True)
    sha256 = serializers.CharField(
        read_only=True, help_text="SHA-256 of the manifest, the same for equal files; empty until it is ready."
    )
    done_bytes = serializers.IntegerField(
        read_only=True, help_text="While it is checked: bytes read or unpacked so far."
    )
    total_bytes = serializers.IntegerField(read_only=True, help_text="Of done_bytes in the end, as far as is known.")
    why_refused = serializers.CharField(
        read_only=True, help_text="If the state is uploading: why the check ended. Finish the version again then."
    )
    notes = serializers.ListField(
        child=serializers.CharField(), read_only=True, help_text="What unpacking left out or renamed."
    )

    class Meta:
        model = DatasetVersion
        fields = (
            "number",
            "state",
            "source",
            "note",
            "created_by",
            "created_at",
            "done_bytes",
            "total_bytes",
            "why_refused",
            "sha256",
            "files",
            "size",
            "notes",
            "ready_at",
        )
        read_only_fields = fields


class NewVersionSerializer(serializers.Serializer[Any]):
    note = serializers.CharField(max_length=200, required=False, allow_blank=True, default="")


class UploadSerializer(serializers.ModelSerializer[Upload]):
    owner = serializers.SlugRelatedField[Any](slug_field="username", read_only=True)
    offset = serializers.IntegerField(read_only=True, help_text="Bytes that the portal has.")
    length = serializers.IntegerField(read_only=True, help_text="Bytes of the whole file.")
    expires_at = serializers.DateTimeField(read_only=True, help_text="Without progress until then it is deleted.")

    class Meta:
        model = Upload
        fields = ("id", "path", "unpack", "length", "offset", "owner", "created_at", "expires_at")
        read_only_fields = fields


class FolderItemSerializer(serializers.Serializer[Any]):
    name = serializers.CharField()
    is_folder = serializers.SerializerMethodField()
    size = serializers.IntegerField(source="entry.size", allow_null=True, default=None, help_text="Null for folders.")
    sha256 = serializers.CharField(source="entry.sha256", allow_null=True, default=None)
    executable = serializers.BooleanField(source="entry.executable", allow_null=True, default=None)

    def get_is_folder(self, item: Any) -> bool:
        return item.entry is None


class FolderSerializer(serializers.Serializer[Any]):
    items = FolderItemSerializer(many=True)
    after = serializers.CharField(allow_blank=True, help_text="For the next page; empty on the last one.")
