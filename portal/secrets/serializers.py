"""Serializers for secrets. Values go in and never come out."""

from typing import Any

from rest_framework import serializers

from portal.secrets.models import Secret
from portal.secrets.services import MAX_FILE_BYTES, MAX_VARIABLE_CHARACTERS, StoredSecret, is_unreadable
from portal.strict_fields import TextField

VALUE_HELP = (
    f"Text: at most {MAX_VARIABLE_CHARACTERS:,} characters for a variable, {MAX_FILE_BYTES // 1024} KiB for a file. It is "
    "stored encrypted and never sent."
)


class SecretSerializer(serializers.ModelSerializer[Secret]):
    """A secret without its value."""

    reference = serializers.CharField(read_only=True, help_text="The name by which jobs choose it.")
    changed_by = serializers.SlugRelatedField[Any](slug_field="username", read_only=True)
    readable = serializers.SerializerMethodField(
        help_text="False if the key that encrypted it is lost: enter the value again."
    )

    class Meta:
        model = Secret
        fields: tuple[str, ...] = (
            "name",
            "reference",
            "kind",
            "created_at",
            "changed_at",
            "changed_by",
            "used_at",
            "readable",
        )
        read_only_fields = fields
        extra_kwargs = {
            "changed_at": {"help_text": "When its value was last replaced."},
            "used_at": {"help_text": "When a node last fetched it for a job."},
        }

    def get_readable(self, row: Secret) -> bool:
        return not is_unreadable(row)


class StoredSecretSerializer(SecretSerializer):
    """A secret that was stored now, with what whoever did it should know."""

    notices = serializers.SerializerMethodField(
        help_text="Sentences, such as that a short value is not masked in logs."
    )

    class Meta(SecretSerializer.Meta):
        fields = (*SecretSerializer.Meta.fields, "notices")
        read_only_fields = fields

    def get_notices(self, row: Secret) -> list[str]:
        return list(self.context["notices"])

    @classmethod
    def of(cls, stored: StoredSecret) -> Any:
        """Return the answer about a secret that was stored."""
        return cls(stored.row, context={"notices": stored.notices}).data


class SecretValueSerializer(serializers.Serializer[Any]):
    value = TextField(max_length=MAX_FILE_BYTES, write_only=True, trim_whitespace=False, help_text=VALUE_HELP)


class NewSecretSerializer(SecretValueSerializer):
    """A secret to be added."""

    name = TextField(max_length=100, help_text="Of the environment variable, or of the file in the folder of secrets.")
    kind = serializers.ChoiceField(choices=Secret.Kind.choices, default=Secret.Kind.VARIABLE)
