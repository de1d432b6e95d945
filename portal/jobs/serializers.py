"""What the API says and hears about jobs. Values of environment variables go only to who may submit here."""

from typing import Any

from rest_framework import serializers

from portal.jobs import silence
from portal.jobs.logs import label_of
from portal.jobs.models import Attempt, Container, Job, JobEvent, JobState, LogStream, Outcome, Output, StopReason
from portal.jobs.services import PROGRESS_LIMITS

RESTARTS, SILENCE = PROGRESS_LIMITS["restarts_without_progress"], PROGRESS_LIMITS["silent_rank_minutes"]


class JobSerializer(serializers.ModelSerializer[Job]):
    project_name = serializers.CharField(source="project.name", read_only=True)
    code = serializers.IntegerField(source="code.number", read_only=True, help_text="Number of its code version.")
    environment = serializers.SlugRelatedField[Any](slug_field="key", read_only=True)
    submitted_by = serializers.SlugRelatedField[Any](slug_field="username", read_only=True)
    mode = serializers.CharField(
        read_only=True, help_text="How ranks make updates together; empty leaves that to the code."
    )
    group = serializers.SlugRelatedField[Any](
        slug_field="name", read_only=True, allow_null=True, help_text="Whose share it uses."
    )

    class Meta:
        model = Job
        fields: tuple[str, ...] = (
            "id",
            "name",
            "project",
            "project_name",
            "code",
            "environment",
            "launcher",
            "elastic",
            "min_gpus",
            "max_gpus",
            "priority",
            "tier",
            "opportunistic",
            "resumable",
            "deadline",
            "mode",
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


class JobDetailSerializer(JobSerializer):
    env_vars = serializers.SerializerMethodField(
        help_text="Names and values; the values are null for who may only look at the project."
    )
    cause = serializers.SerializerMethodField(
        help_text="Why its last attempt did not succeed, or a hint about one that did: code, title, detail, advice."
    )
    silence = serializers.SerializerMethodField(
        help_text="When it runs without output for longer than its limit: since, ranks (those that are silent while others "
        "print; empty for all of them) and text; else null. A job is never stopped for it."
    )
    may_act = serializers.SerializerMethodField(help_text="May you cancel, hold or release it.")

    class Meta(JobSerializer.Meta):
        fields = (
            *JobSerializer.Meta.fields,
            "description",
            "entry",
            "arguments",
            "env_vars",
            "time_limit_seconds",
            "retries",
            "restarts_without_progress",
            "silent_rank_minutes",
            "copied_from",
            "cause",
            "silence",
            "may_act",
        )
        read_only_fields = fields

    def get_env_vars(self, job: Job) -> dict[str, str | None]:
        return dict(self.context.get("env_vars", dict.fromkeys(job.env_vars)))

    def get_cause(self, job: Job) -> dict[str, Any] | None:
        last = job.attempts.order_by("-number").first()
        return last.cause or None if last else None

    def get_silence(self, job: Job) -> dict[str, Any] | None:
        found = silence.of_job(job) if job.state == JobState.RUNNING else None
        return {"since": found.since, "ranks": list(found.ranks), "text": found.text()} if found else None

    def get_may_act(self, job: Job) -> bool:
        return bool(self.context.get("may_act", False))


class SubmitSerializer(serializers.Serializer[Any]):
    """What is left out is guessed from the code, as on the page."""

    project = serializers.IntegerField(min_value=1)
    code = serializers.IntegerField(
        min_value=1, required=False, help_text="Number of the code version; the newest by default."
    )
    environment = serializers.SlugField(
        required=False, help_text="One of /environments/; by default the one that fits the code best."
    )
    launcher = serializers.ChoiceField(Job.Launcher.choices, required=False)
    entry = serializers.CharField(max_length=255, required=False, help_text="Python file, or the whole command line.")
    name = serializers.CharField(max_length=80, required=False, allow_blank=True)
    description = serializers.CharField(max_length=10_000, required=False, allow_blank=True)
    arguments = serializers.ListField(
        child=serializers.CharField(allow_blank=True, trim_whitespace=False, max_length=2000),
        required=False,
        max_length=200,
    )
    env_vars = serializers.DictField(
        child=serializers.CharField(allow_blank=True, trim_whitespace=False, max_length=4096), required=False
    )
    min_gpus = serializers.IntegerField(min_value=1, max_value=4096, required=False)
    max_gpus = serializers.IntegerField(min_value=1, max_value=4096, required=False)
    elastic = serializers.BooleanField(required=False)
    time_limit_seconds = serializers.IntegerField(min_value=1, max_value=10_000_000, required=False)
    retries = serializers.IntegerField(min_value=0, max_value=100, required=False)
    priority = serializers.IntegerField(min_value=-100, max_value=100, required=False)
    resumable = serializers.BooleanField(
        required=False, help_text="It goes on from /checkpoints after a stop, so it may be stopped to make room."
    )
    tier = serializers.ChoiceField(
        Job.Tier.choices, required=False, help_text="premium needs an admin's permission; basic makes way first."
    )
    opportunistic = serializers.BooleanField(
        required=False, help_text="It runs only on GPUs that nobody else wants, and is the first to go."
    )
    deadline = serializers.DateTimeField(
        required=False, allow_null=True, help_text="When the result must be there. Only some policies look at it."
    )
    mode = serializers.ChoiceField(
        Job.Mode.choices,
        required=False,
        allow_blank=True,
        help_text="How ranks make updates together, for code that uses schedulearn_train; empty leaves that to the code.",
    )
    restarts_without_progress = serializers.IntegerField(
        min_value=RESTARTS[0],
        max_value=RESTARTS[1],
        required=False,
        allow_null=True,
        help_text="For elastic Horovod jobs: restarts in a row without a commit after which the job fails. "
        "By default the lab's setting.",
    )
    silent_rank_minutes = serializers.IntegerField(
        min_value=SILENCE[0],
        max_value=SILENCE[1],
        required=False,
        allow_null=True,
        help_text="Minutes without output after which its owner gets a notice, 0 for none. By default the lab's setting.",
    )


class EventSerializer(serializers.ModelSerializer[JobEvent]):
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

    class Meta:
        model = Container
        fields = (
            "name",
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

    def get_gpus(self, container: Container) -> list[int]:
        return sorted(allocation.gpu.index for allocation in container.allocations.all())


class AttemptSerializer(serializers.ModelSerializer[Attempt]):
    outcome = serializers.CharField(
        read_only=True, help_text=f"Empty while it lives; then {', '.join(Outcome.values)}."
    )
    stop_reason = serializers.CharField(
        read_only=True, help_text=f"Empty unless it was told to stop: {', '.join(StopReason.values)}."
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
    """What /checkpoints last held as a whole, and the next attempt goes on from."""

    taken_at = serializers.DateTimeField(help_text="When its newest file was written.")
    stored_at = serializers.DateTimeField(help_text="When it was complete in the portal.")
    attempt = serializers.IntegerField(help_text="Number of the attempt that wrote it.")
    size = serializers.IntegerField()
    files = CheckpointSerializer(many=True)


class NewsSerializer(serializers.Serializer[Any]):
    """One answer to following a log."""

    cursor = serializers.CharField(help_text="Send it with the next request.")
    pieces = serializers.ListField(child=serializers.DictField(), help_text="[{stream, attempt, label, start, text}]")
    finished = serializers.BooleanField(help_text="True when there will be no more.")
