"""Representations of jobs in the API. Only users who may submit to the project see values of environment variables."""

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from portal.jobs import silence
from portal.jobs.dataset_use import MAX_DATASET_PATH
from portal.jobs.editing import EDITABLE
from portal.jobs.logs import label_of
from portal.jobs.models import (
    MAX_ENTRY_LENGTH,
    Attempt,
    Container,
    Job,
    JobEvent,
    JobState,
    LogStream,
    Outcome,
    Output,
    StopReason,
)
from portal.jobs.spec import FIELDS, MAX_ARGUMENT_LENGTH, MAX_ENV_VALUE_LENGTH, MAX_NAME_LENGTH, Kind, field_value
from portal.jobs.word_lists import MAX_WORD_LENGTH, WordsField
from portal.names import is_unstorable
from portal.sentences import sentence_of

MAX_ID = 2**53
"""No job has a larger number, and every database and JSON parser can hold it."""
MAX_REFERENCE_LENGTH = 240
"""Of ``owner/name``."""
IN_LISTS = tuple(name for name, about in FIELDS.items() if about.in_lists)
IN_DETAILS = tuple(name for name, about in FIELDS.items() if not about.in_lists)


class Words(serializers.ListField):
    """The words of a ``WordsField`` in an answer."""

    child = serializers.CharField()


class JobSerializer(serializers.ModelSerializer[Job]):
    serializer_field_mapping = serializers.ModelSerializer.serializer_field_mapping | {WordsField: Words}
    project_name = serializers.CharField(source="project.name", read_only=True)
    code = serializers.IntegerField(source="code.number", read_only=True, help_text="Number of its code version.")
    environment = serializers.SlugRelatedField[Any](slug_field="key", read_only=True)
    submitted_by = serializers.SlugRelatedField[Any](slug_field="username", read_only=True)
    mode = serializers.CharField(read_only=True, help_text="How ranks make updates; empty leaves that to the code.")
    waiting_reason = serializers.CharField(
        source="why_waiting", read_only=True, help_text="Why it waits, as a sentence; empty when it does not."
    )
    group = serializers.SlugRelatedField[Any](
        slug_field="name", read_only=True, allow_null=True, help_text="Whose share it uses."
    )

    class Meta:
        model = Job
        fields: tuple[str, ...] = (
            "id",
            "project",
            "project_name",
            "code",
            "environment",
            "launcher",
            *IN_LISTS,
            "group",
            "submitted_by",
            "submitted_at",
            "started_at",
            "finished_at",
            "intent",
            "state",
            "waiting_reason",
            "queue_position",
        )
        read_only_fields = fields


@extend_schema_field({"oneOf": [{"type": "integer"}, {"type": "string", "maxLength": MAX_REFERENCE_LENGTH}]})
class DatasetReference(serializers.Field[Any, Any, Any, Any]):
    """The number of a dataset, or ``owner/name``."""

    def to_internal_value(self, data: Any) -> int | str:
        if isinstance(data, int) and not isinstance(data, bool) and 0 < data < MAX_ID:
            return data
        if not isinstance(data, str) or not data or len(data) > MAX_REFERENCE_LENGTH or is_unstorable(data):
            raise serializers.ValidationError("Send the number of a dataset, or owner/name.")
        return int(data) if data.isascii() and data.isdecimal() and int(data) < MAX_ID else data

    def to_representation(self, value: Any) -> Any:
        return value


class JobDatasetSerializer(serializers.Serializer[Any]):
    """A dataset that a job reads."""

    dataset = DatasetReference(
        help_text="Its number, or owner/name; a name alone is one of your own. Of a job that was submitted, its number."
    )
    version = serializers.IntegerField(
        min_value=1,
        max_value=2**31 - 1,
        required=False,
        allow_null=True,
        default=None,
        help_text="Null for the newest that is ready; a job that was submitted keeps that one.",
    )
    path = serializers.CharField(
        max_length=MAX_DATASET_PATH,
        required=False,
        allow_blank=True,
        default="",
        help_text="Where the job finds it as well, from the folder of its code, such as data or ../data.",
    )
    writable = serializers.BooleanField(
        required=False,
        default=False,
        help_text="Whether the job may write at that path, to a copy that is deleted when it ends.",
    )


class CauseSerializer(serializers.Serializer[Any]):
    """Why an attempt did not succeed, or a hint about one that did."""

    code = serializers.CharField(required=False)
    title = serializers.CharField(required=False)
    detail = serializers.CharField(required=False)
    advice = serializers.CharField(required=False)


class SilenceSerializer(serializers.Serializer[Any]):
    since = serializers.DateTimeField()
    ranks = serializers.ListField(
        child=serializers.CharField(), help_text="Those that are silent while others print; empty for all of them."
    )
    text = serializers.CharField()


class JobDetailSerializer(JobSerializer):
    arguments = Words(read_only=True)
    gpu_models = Words(read_only=True)
    secrets = Words(read_only=True)
    datasets = serializers.SerializerMethodField()
    env_vars = serializers.SerializerMethodField(
        help_text="Names and values; the values are null for users who may only view the project."
    )
    cause = serializers.SerializerMethodField(
        help_text="Why its last attempt did not succeed, or a hint about one that did; else null."
    )
    silence = serializers.SerializerMethodField(
        help_text="When it runs without output for longer than its limit; else null. A job is never stopped for this."
    )
    may_act = serializers.SerializerMethodField(help_text="Whether you may cancel, hold or release it.")

    class Meta(JobSerializer.Meta):
        fields = (
            *JobSerializer.Meta.fields,
            "entry",
            *IN_DETAILS,
            "copied_from",
            "ready_at",
            "cause",
            "silence",
            "kept",
            "may_act",
        )
        read_only_fields = fields

    def get_env_vars(self, job: Job) -> dict[str, str | None]:
        return dict(self.context.get("env_vars", dict.fromkeys(job.env_vars)))

    @extend_schema_field(JobDatasetSerializer(many=True))
    def get_datasets(self, job: Job) -> list[Any]:
        return list(field_value(job, "datasets"))

    @extend_schema_field(CauseSerializer(allow_null=True))
    def get_cause(self, job: Job) -> dict[str, Any] | None:
        last = job.attempts.order_by("-number").first()
        return last.explanation or None if last else None

    @extend_schema_field(SilenceSerializer(allow_null=True))
    def get_silence(self, job: Job) -> dict[str, Any] | None:
        found = silence.job_silence(job) if job.state == JobState.RUNNING else None
        return {"since": found.since, "ranks": list(map(str, found.ranks)), "text": found.text()} if found else None

    def get_may_act(self, job: Job) -> bool:
        return bool(self.context.get("may_act", False))


class SubmitSerializer(serializers.Serializer[Any]):
    """A job to submit. Fields that are left out are guessed from the code, as on the page."""

    project = serializers.IntegerField(min_value=1)
    code = serializers.IntegerField(
        min_value=1, required=False, help_text="Number of the code version; the newest by default."
    )
    environment = serializers.SlugField(
        required=False, help_text="One of /environments/; by default the one that fits the code best."
    )
    launcher = serializers.ChoiceField(Job.Launcher.choices, required=False)
    entry = serializers.CharField(
        max_length=MAX_ENTRY_LENGTH,
        required=False,
        help_text="Python file, or a module as -m package.train; of a plain command the whole line, which a shell reads. With another "
        "launcher, a line such as torchrun --nproc_per_node 4 train.py is translated, and the job's history has the notes.",
    )

    def get_fields(self) -> dict[str, Any]:
        """Return the fields above and those that ``spec`` declares."""
        return {**super().get_fields(), **{name: request_field(name) for name in FIELDS}}


class EditSerializer(serializers.Serializer[Any]):
    """The fields of a job to change; those that are left out stay."""

    def get_fields(self) -> dict[str, Any]:
        return {name: request_field(name) for name in EDITABLE}


def request_field(name: str) -> serializers.Field[Any, Any, Any, Any]:
    """Return the field of a request for a declared field of a job."""
    about = FIELDS[name]
    low, high = about.limits or (None, None)
    common: dict[str, Any] = {"required": False, "help_text": about.api_help or about.help}
    match about.kind:
        case Kind.INTEGER:
            return serializers.IntegerField(min_value=low, max_value=high, allow_null=about.optional, **common)
        case Kind.JOB:
            return serializers.IntegerField(min_value=1, max_value=MAX_ID, allow_null=True, **common)
        case Kind.FLAG:
            return serializers.BooleanField(**common)
        case Kind.CHOICE:
            choices = about.choices.choices if about.choices else []
            return serializers.ChoiceField(choices, allow_blank=bool(about.empty_choice), **common)
        case Kind.MOMENT:
            return serializers.DateTimeField(allow_null=about.optional, **common)
        case Kind.ARGUMENTS:
            argument = serializers.CharField(allow_blank=True, trim_whitespace=False, max_length=MAX_ARGUMENT_LENGTH)
            return serializers.ListField(child=argument, max_length=high, **common)
        case Kind.WORDS:
            word = serializers.CharField(max_length=MAX_WORD_LENGTH)
            return serializers.ListField(child=word, max_length=high, **common)
        case Kind.NAMES:
            name_field = serializers.CharField(max_length=MAX_NAME_LENGTH)
            return serializers.ListField(child=name_field, max_length=high, **common)
        case Kind.DATASETS:
            return JobDatasetSerializer(many=True, max_length=high, **common)  # type: ignore[call-arg]  # of its list
        case Kind.VARIABLES:
            value = serializers.CharField(allow_blank=True, trim_whitespace=False, max_length=MAX_ENV_VALUE_LENGTH)
            return serializers.DictField(child=value, **common)
        case _:
            return serializers.CharField(max_length=high, allow_blank=True, **common)


class EventSerializer(serializers.ModelSerializer[JobEvent]):
    text = serializers.CharField(source="sentence", read_only=True)
    actor = serializers.SlugRelatedField[Any](slug_field="username", read_only=True, allow_null=True)

    class Meta:
        model = JobEvent
        fields = ("seq", "at", "kind", "text", "actor")
        read_only_fields = fields


class StreamSerializer(serializers.ModelSerializer[LogStream]):
    label = serializers.SerializerMethodField()  # type: ignore[assignment]  # a field of this name, not DRF's option
    attempt = serializers.IntegerField(source="container.attempt.number", read_only=True)

    class Meta:
        model = LogStream
        fields = ("id", "attempt", "label", "size", "closed")
        read_only_fields = fields

    def get_label(self, stream: LogStream) -> str:
        return label_of(stream)


class ContainerSerializer(serializers.ModelSerializer[Container]):
    node = serializers.SlugRelatedField[Any](slug_field="name", read_only=True)
    gpus = serializers.SerializerMethodField(help_text="Indices of its GPUs on the node.")
    detail = serializers.SerializerMethodField(help_text="What it does now, or how it ended.")
    layer = serializers.CharField(
        read_only=True,
        allow_null=True,
        help_text="Digest of the lock of its environment, with the exact packages; null for one without a list of packages.",
    )

    class Meta:
        model = Container
        fields = (
            "name",
            "layer",
            "role",
            "node",
            "gpus",
            "state",
            "state_since",
            "running_at",
            "exited_at",
            "exit_code",
            "exit_reason",
            "detail",
        )
        read_only_fields = fields

    def get_detail(self, container: Container) -> str:
        return sentence_of(container.detail)

    def get_gpus(self, container: Container) -> list[int]:
        return sorted(allocation.gpu.index for allocation in container.allocations.all())


class AttemptSerializer(serializers.ModelSerializer[Attempt]):
    outcome = serializers.CharField(
        read_only=True, help_text=f"Empty while it is live; then {', '.join(Outcome.values)}."
    )
    stop_reason = serializers.CharField(
        read_only=True, help_text=f"Empty unless it was asked to stop: {', '.join(StopReason.values)}."
    )
    cause = serializers.SerializerMethodField(
        help_text="Why it did not succeed, or a hint about one that did. Empty for most."
    )
    containers = ContainerSerializer(many=True, read_only=True)

    class Meta:
        model = Attempt
        fields = (
            "number",
            "created_at",
            "started_at",
            "ended_at",
            "outcome",
            "stop_reason",
            "cause",
            "policy",
            "containers",
        )
        read_only_fields = fields

    @extend_schema_field(CauseSerializer)
    def get_cause(self, attempt: Attempt) -> dict[str, str]:
        return attempt.explanation


class OutputSerializer(serializers.ModelSerializer[Output]):
    attempt = serializers.IntegerField(source="attempt.number", read_only=True)

    class Meta:
        model = Output
        fields = ("path", "size", "sha256", "attempt", "stored_at")
        read_only_fields = fields


class CheckpointSerializer(serializers.Serializer[Any]):
    path = serializers.CharField()
    size = serializers.IntegerField()
    modified_at = serializers.DateTimeField(help_text="By the clock of the node that wrote it.")


class CheckpointsSerializer(serializers.Serializer[Any]):
    """The latest complete content of /checkpoints, from which the next attempt restarts."""

    taken_at = serializers.DateTimeField(help_text="When its newest file was written.")
    stored_at = serializers.DateTimeField(help_text="When it was complete in the portal.")
    attempt = serializers.IntegerField(help_text="Number of the attempt that wrote it.")
    size = serializers.IntegerField()
    files = CheckpointSerializer(many=True)


class LogPieceSerializer(serializers.Serializer[Any]):
    """Output of one stream."""

    stream = serializers.IntegerField(help_text="Id of the stream.")
    attempt = serializers.IntegerField()
    label = serializers.CharField(help_text="The rank, or the part that set up the container.")  # type: ignore[assignment]  # a field of this name, not DRF's option
    start = serializers.IntegerField(help_text="Position of its first byte in the stream.")
    text = serializers.CharField()


class LogUpdateSerializer(serializers.Serializer[Any]):
    """One response when following a log."""

    cursor = serializers.CharField(help_text="Send it with the next request.")
    pieces = LogPieceSerializer(many=True)
    finished = serializers.BooleanField(help_text="True when no more output will come.")
