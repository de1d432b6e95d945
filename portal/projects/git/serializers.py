"""Serializers for the repository of a project, its fetches, and the hosts that admins allow. Tokens and keys never come out."""

from typing import Any

from rest_framework import serializers

from portal.host_names import MAX_TYPED
from portal.projects.git import keys
from portal.projects.git.addresses import MAX_ADDRESS, MAX_BRANCH
from portal.projects.git.hosts import MAX_NOTE
from portal.projects.git.models import GitFetch, GitHost, GitSource
from portal.projects.git.sources import MAX_TOKEN
from portal.sentences import sentence_of
from portal.strict_fields import TextField


class GitSourceSerializer(serializers.ModelSerializer[GitSource]):
    """What a project is bound to."""

    has_token = serializers.SerializerMethodField(help_text="A token is stored. It is never shown.")
    public_key = serializers.CharField(
        read_only=True, help_text="The deploy key of an ssh address, to be added at the host. Empty for https."
    )
    host_key_fingerprint = serializers.SerializerMethodField(help_text="Of the confirmed key of an ssh host; or empty.")
    offered_fingerprint = serializers.SerializerMethodField(
        help_text="Of the key that the host had at the last fetch, if it is to be confirmed; or empty."
    )
    has_webhook = serializers.SerializerMethodField(help_text="Pushes make code versions.")
    bound_by = serializers.SlugRelatedField[Any](slug_field="username", read_only=True)

    class Meta:
        model = GitSource
        fields = (
            "address",
            "branch",
            "user",
            "has_token",
            "extras",
            "public_key",
            "host_key_fingerprint",
            "offered_fingerprint",
            "has_webhook",
            "bound_by",
            "changed_at",
        )
        read_only_fields = fields
        extra_kwargs = {"extras": {"help_text": "Submodules and files of Git LFS are fetched too."}}

    def get_has_token(self, row: GitSource) -> bool:
        return bool(row.sealed_token)

    def get_host_key_fingerprint(self, row: GitSource) -> str:
        return keys.fingerprint(row.host_key)

    def get_offered_fingerprint(self, row: GitSource) -> str:
        return keys.fingerprint(row.offered_host_key)

    def get_has_webhook(self, row: GitSource) -> bool:
        return bool(row.sealed_secret)


class BindSerializer(serializers.Serializer[Any]):
    """What to bind a project to."""

    address = TextField(max_length=MAX_ADDRESS, help_text="With https or ssh, on a host that an admin allowed.")
    branch = TextField(max_length=MAX_BRANCH)
    user = TextField(max_length=200, allow_blank=True, default="")
    token = TextField(
        max_length=MAX_TOKEN,
        allow_blank=True,
        required=False,
        write_only=True,
        trim_whitespace=False,
        help_text="For https. Left out, the stored one stays, if the host is the same; empty removes it.",
    )
    extras = serializers.BooleanField(default=False, help_text="Fetch submodules and files of Git LFS, too.")


class FingerprintSerializer(serializers.Serializer[Any]):
    fingerprint = TextField(max_length=100, help_text="`offered_fingerprint`, after you compared it.")


class GitWebhookSerializer(serializers.Serializer[Any]):
    """Where a host sends pushes, and with which secret it signs them."""

    url = serializers.CharField()
    secret = serializers.CharField(help_text="It is shown this one time.")


class GitFetchSerializer(serializers.ModelSerializer[GitFetch]):
    requested_by = serializers.SlugRelatedField[Any](slug_field="username", read_only=True)
    node = serializers.CharField(source="node_name", read_only=True)
    message = serializers.SerializerMethodField(help_text="The current step, or how it ended.")
    version = serializers.IntegerField(
        source="version.number",
        read_only=True,
        allow_null=True,
        default=None,
        help_text="The number of its code version.",
    )

    class Meta:
        model = GitFetch
        fields = (
            "id",
            "address",
            "branch",
            "cause",
            "requested_by",
            "state",
            "node",
            "progress_percent",
            "message",
            "commit",
            "version",
            "requested_at",
            "started_at",
            "ended_at",
        )
        read_only_fields = fields

    def get_message(self, fetch: GitFetch) -> str:
        return sentence_of(fetch.message) if fetch.message else ""


class FetchLogSerializer(serializers.Serializer[Any]):
    """A piece of the log of a fetch."""

    text = serializers.CharField(trim_whitespace=False)
    end = serializers.IntegerField(help_text="Send it as `offset` for what follows.")
    finished = serializers.BooleanField(help_text="The fetch has ended, and `text` has the end of its log.")


class GitHostSerializer(serializers.ModelSerializer[GitHost]):
    created_by = serializers.SlugRelatedField[Any](slug_field="username", read_only=True, allow_null=True)

    class Meta:
        model = GitHost
        fields = ("id", "host", "internal", "extras", "kind", "note", "created_by", "created_at")
        read_only_fields = fields
        extra_kwargs = {
            "internal": {"help_text": "It may have an address of the local network."},
            "extras": {"help_text": "Submodules and files of Git LFS may come from it."},
            "kind": {"help_text": "Its software, for links to the pages of commits."},
        }


class NewGitHostSerializer(serializers.Serializer[Any]):
    host = TextField(
        max_length=MAX_TYPED,
        help_text="A name, `*.` and a name for all names below it, or an IPv4 address; with `:PORT` for other ports than 443 "
        "and 22.",
    )
    internal = serializers.BooleanField(default=False, help_text="Confirms that it is in the local network.")
    extras = serializers.BooleanField(default=False, help_text="Allow submodules and files of Git LFS from it.")
    kind = serializers.ChoiceField(choices=GitHost.Kind.choices, default=GitHost.Kind.OTHER)
    note = TextField(max_length=MAX_NOTE, allow_blank=True, default="")
