"""Jobs, their attempts, and the containers and GPUs of these. Only ``lifecycle`` writes states."""

import shlex
import uuid
from datetime import datetime

from django.conf import settings
from django.contrib.auth.models import Group
from django.db import models
from django.db.models import F, Q
from django.utils import timezone

from portal.cluster.models import Gpu, Node
from portal.environments.models import Environment
from portal.jobs.dataset_use import JobDataset as JobDataset
from portal.jobs.idempotency import IdempotencyKey as IdempotencyKey
from portal.jobs.network_use import NetworkUse as NetworkUse
from portal.jobs.querysets import JobQuerySet as JobQuerySet
from portal.jobs.resize_timeline.models import RankGroup as RankGroup
from portal.jobs.retention.models import RetentionRule as RetentionRule
from portal.jobs.states import FINISHED_STATES as FINISHED_STATES
from portal.jobs.states import RESTART_LIMIT_VARIABLE as RESTART_LIMIT_VARIABLE
from portal.jobs.states import UNFINISHED_STATES as UNFINISHED_STATES
from portal.jobs.states import WAITING_STATES as WAITING_STATES
from portal.jobs.states import ContainerState as ContainerState
from portal.jobs.states import JobState as JobState
from portal.jobs.states import Outcome as Outcome
from portal.jobs.states import StopReason as StopReason
from portal.jobs.time_extensions.models import TimeExtension as TimeExtension
from portal.jobs.training_reports import MetricPoint as MetricPoint
from portal.jobs.training_reports import Progress as Progress
from portal.jobs.training_reports import StepStat as StepStat
from portal.jobs.word_lists import WordsField
from portal.message_field import MessageField
from portal.projects.inspecting.entries import python_arguments
from portal.projects.models import CodeVersion, Project
from portal.search import SearchTextField
from portal.sentences import explain_cause, sentence_of

MAX_ENTRY_LENGTH = 4000
"""Of a plain command this is the whole line, with all arguments."""


class Job(models.Model):
    """What a user submitted. The specification never changes; users set ``intent``, and ``state`` is computed."""

    class Launcher(models.TextChoices):
        HOROVOD = "horovod", "Horovod"
        TORCHRUN = "torchrun", "torchrun"
        COMMAND = "command", "plain command"

    class Tier(models.TextChoices):
        PREMIUM = "premium", "premium"
        STANDARD = "standard", "standard"
        BASIC = "basic", "basic"

    class Mode(models.TextChoices):
        """How the ranks of a job that uses ``schedulearn_train`` make updates (docs/training/unequal-workers.md)."""

        BSP = "bsp", "wait for all ranks"
        BSP_BALANCED = "bsp_balanced", "wait for all ranks, faster ones get more samples"
        KSYNC = "ksync", "use the first k gradients of each step (k-sync)"
        ADAPTIVE_KSYNC = "adaptive_ksync", "use the first k gradients, with k chosen while it trains (adaptive k-sync)"
        KASYNC = "kasync", "use any k gradients, also late ones (k-async)"
        ADAPTIVE_KASYNC = "adaptive_kasync", "use any k gradients, with k chosen while it trains (adaptive k-async)"
        ASP = "asp", "update after each gradient (asynchronous)"

    class Intent(models.TextChoices):
        RUN = "run", "run"
        HOLD = "hold", "hold"
        CANCEL = "cancel", "cancel"

    uid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    """Unique for ever. The number of a job is not: after a backup is restored, later numbers are used again."""
    numbered_folder = models.BooleanField(default=False, editable=False)
    """The job was submitted before jobs had a uid: only its number names its folders on the portal's disk."""
    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="jobs")
    code = models.ForeignKey(CodeVersion, on_delete=models.PROTECT, related_name="jobs")
    environment = models.ForeignKey(Environment, on_delete=models.PROTECT, related_name="jobs")
    submitted_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="jobs")
    submitted_at = models.DateTimeField(default=timezone.now)
    copied_from = models.ForeignKey("self", null=True, blank=True, on_delete=models.SET_NULL, related_name="copies")

    name = models.CharField(max_length=80)
    tags = WordsField()
    description = models.TextField(blank=True)
    launcher = models.CharField(max_length=10, choices=Launcher.choices)
    elastic = models.BooleanField(default=False)
    """The number of its GPUs may change while it runs: Horovod with ``hvd.elastic``, torchrun with snapshots."""
    entry = models.CharField(max_length=MAX_ENTRY_LENGTH)
    """The Python file that each rank runs, or ``-m`` and a module; for a plain command, the whole line for a shell."""
    arguments = models.JSONField(default=list)
    env_vars = models.JSONField(default=dict)
    secrets = models.JSONField(default=list)
    """Names of secrets, as ``portal.secrets.services.find`` reads them."""
    min_gpus = models.PositiveSmallIntegerField(default=1)
    max_gpus = models.PositiveSmallIntegerField(default=1)
    time_limit_seconds = models.PositiveIntegerField()
    retries = models.PositiveSmallIntegerField(default=0)
    priority = models.SmallIntegerField(default=0)
    resumable = models.BooleanField(default=False)
    """It restarts from /checkpoints after a stop, so it may be stopped to make room."""
    tier = models.CharField(max_length=8, choices=Tier.choices, default=Tier.STANDARD)
    opportunistic = models.BooleanField(default=False)
    """It is preemptible: it uses idle GPUs only, and is the first to be stopped when others need them."""
    deadline = models.DateTimeField(null=True, blank=True)
    mode = models.CharField(max_length=16, choices=Mode.choices, blank=True)
    """How its ranks make updates; empty leaves that to the code."""
    restarts_without_progress = models.PositiveSmallIntegerField(null=True, blank=True)
    """Restarts in a row of its ranks without a commit after which an attempt fails; null: the lab's setting."""
    silent_rank_minutes = models.PositiveSmallIntegerField(null=True, blank=True)
    """Time without output after which its owner gets a notice, 0 for none; null: the lab's setting."""
    cpus_per_gpu = models.PositiveSmallIntegerField(null=True, blank=True)
    """Processors for each of its GPUs; null: the share of a GPU of its node."""
    memory_mib_per_gpu = models.PositiveIntegerField(null=True, blank=True)
    """The same for memory."""
    shm_mib = models.PositiveIntegerField(null=True, blank=True)
    """The size of /dev/shm in each container; null: a quarter of its memory."""
    scratch_mib = models.PositiveIntegerField(null=True, blank=True)
    """Space for files of each container, without checkpoints; null: the usual limits."""
    gpu_memory_mib = models.PositiveIntegerField(null=True, blank=True)
    """The least memory of each of its GPUs; null for any."""
    gpu_models = models.JSONField(default=list)
    """The models of GPUs that it accepts, as agents report them; empty for any."""
    same_gpu_model = models.BooleanField(default=False)
    """All its GPUs must be of one model."""
    after = models.ForeignKey("self", null=True, blank=True, on_delete=models.RESTRICT, related_name="dependents")
    """The job that must have succeeded before this one may start: ``dependencies``."""
    use_outputs = models.BooleanField(default=False)
    """It finds the outputs of that job in a folder of its own."""
    group = models.ForeignKey(Group, null=True, blank=True, on_delete=models.SET_NULL, related_name="+")
    """Whose share it uses; fixed when it is submitted (``services.accounted_group``)."""
    search_text = SearchTextField()

    # written by trash
    kept = models.BooleanField(default=False)
    """It is not deleted, and no rule cleans it up, until someone who may act on it decides otherwise."""
    deleted_at = models.DateTimeField(null=True, blank=True)
    """Since when it is in the trash, where only those who may act on it see it."""
    deleted_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    erase_at = models.DateTimeField(null=True, blank=True)
    """When it leaves the trash for good."""
    erased_at = models.DateTimeField(null=True, blank=True)
    """When its files and texts were erased. The row stays: GPU time and the history of the scheduler refer to it."""

    # set by users
    intent = models.CharField(max_length=6, choices=Intent.choices, default=Intent.RUN)

    # written by lifecycle
    state = models.CharField(max_length=10, choices=JobState.choices, default=JobState.QUEUED)
    started_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)

    # written by the scheduler
    ready_at = models.DateTimeField(null=True, blank=True)
    """When the job ``after`` which it starts had succeeded; null while it still waits for that, and without one."""
    waiting_reason = MessageField(blank=True)
    """Empty for a job that does not wait; ``why_waiting`` has the sentence."""
    queue_position = models.PositiveIntegerField(null=True, blank=True)

    objects = JobQuerySet.as_manager()

    class Meta:
        ordering = ["-id"]
        indexes = [
            models.Index(fields=["state", "-id"], name="job_state"),
            models.Index(fields=["project", "-id"], name="job_project"),
            models.Index(fields=["submitted_by", "-id"], name="job_submitter"),
            models.Index(fields=["finished_at"], name="job_finished"),
            models.Index(fields=["submitted_at", "id"], name="job_submitted"),
            models.Index(fields=["submitted_by", "-finished_at"], name="job_submitter_finished"),
            models.Index(fields=["erase_at"], name="job_erased_later", condition=Q(erase_at__isnull=False)),
        ]
        constraints = [
            models.CheckConstraint(
                condition=Q(min_gpus__gte=1, max_gpus__gte=F("min_gpus")), name="job_gpus_from_min_to_max"
            ),
            models.CheckConstraint(
                condition=Q(state__in=FINISHED_STATES, finished_at__isnull=False)
                | (~Q(state__in=FINISHED_STATES) & Q(finished_at__isnull=True)),
                name="job_finished_at_when_finished",
            ),
            models.CheckConstraint(
                condition=Q(deleted_at__isnull=True) | Q(state__in=FINISHED_STATES, kept=False, erase_at__isnull=False),
                name="job_deleted_when_finished_and_not_kept",
            ),
        ]

    @property
    def queued_at(self) -> datetime:
        """Since when it has waited for GPUs: its place among jobs of the same priority."""
        return self.ready_at or self.submitted_at

    @property
    def why_waiting(self) -> str:
        """The reason of a waiting job as a sentence; empty when it does not wait, or was not considered yet."""
        return sentence_of(self.waiting_reason)

    @property
    def command_line(self) -> str:
        """What each rank runs, as a shell reads it; a plain command exactly as it was typed, then its arguments."""
        if self.launcher == self.Launcher.COMMAND:
            return f"{self.entry} {shlex.join(self.arguments)}".strip()
        return shlex.join(["python", *python_arguments(self.entry), *self.arguments])

    @property
    def searched_text(self) -> str:
        """What a search of jobs looks into: never the variables, which may be secrets."""
        return "\n".join((self.name, self.entry, " ".join(self.arguments), self.description))

    @property
    def restart_limit(self) -> int:
        """The number of restarts in a row without a commit after which an attempt fails: the job's own limit or the lab's."""
        own = self.restarts_without_progress or self.env_vars.get(RESTART_LIMIT_VARIABLE)
        return int(own or settings.RESTARTS_WITHOUT_PROGRESS)

    @property
    def folder(self) -> str:
        """The name of its folders under ``HOME/outputs`` and ``HOME/checkpoints``."""
        return str(self.pk) if self.numbered_folder else f"{self.pk}-{self.uid.hex}"


class Attempt(models.Model):
    """One execution of a job, numbered from 1. At most one per job is live at a time."""

    class Wanted(models.TextChoices):
        RUN = "run", "run"
        STOP = "stop", "stop"

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="attempts")
    number = models.PositiveIntegerField()
    uid = models.UUIDField(default=uuid.uuid4, null=True, editable=False)
    """Part of its containers' names, so that these stay unique after a backup is restored; null in older rows."""
    created_at = models.DateTimeField(default=timezone.now)
    started_at = models.DateTimeField(null=True, blank=True)
    """The first moment when one of its containers ran."""
    ended_at = models.DateTimeField(null=True, blank=True)
    wanted = models.CharField(max_length=4, choices=Wanted.choices, default=Wanted.RUN)
    stop_reason = models.CharField(max_length=12, choices=StopReason.choices, blank=True)
    outcome = models.CharField(max_length=10, choices=Outcome.choices, blank=True)
    cause = models.JSONField(default=dict)
    """For an attempt that did not succeed, and as a hint for some that did: a ``causes.Cause``; ``explanation`` has the words."""
    secret = models.CharField(max_length=64)
    """The key that signs the messages between its containers."""
    counted_seconds = models.PositiveIntegerField(default=0)
    """Seconds that earlier attempts, from whose checkpoints this one restarts, used of the job's time limit."""
    share_factor = models.PositiveSmallIntegerField(default=1)
    """How often its GPU time counts in the shares of its owner and group; fixed by the priority with which it was placed."""
    policy = models.CharField(max_length=40, blank=True)
    """The policy that placed it, with its version, e.g. ``elastic_fifo v3``."""
    allowed_hosts = models.JSONField(default=list)
    """The hosts that its containers may reach, as agents read them; fixed when it was placed."""
    overlay_network = models.PositiveIntegerField(null=True, blank=True, db_column="ring")
    """The number of the network between its nodes; null for an attempt that stays on one node."""
    peak_gpu_memory_mib = models.PositiveIntegerField(null=True, blank=True)
    """The most memory that was used on one of its GPUs, written after its end; 0 where none was reported."""

    class Meta:
        ordering = ["job", "number"]
        constraints = [
            models.UniqueConstraint(fields=["job", "number"], name="attempt_number_once"),
            models.UniqueConstraint(
                fields=["job"], condition=Q(ended_at__isnull=True), name="one_live_attempt_per_job"
            ),
            models.UniqueConstraint(
                fields=["overlay_network"], condition=Q(ended_at__isnull=True), name="one_live_attempt_per_ring"
            ),
            models.CheckConstraint(
                condition=Q(ended_at__isnull=True, outcome="") | (Q(ended_at__isnull=False) & ~Q(outcome="")),
                name="attempt_outcome_when_ended",
            ),
            models.CheckConstraint(
                condition=Q(wanted="run", stop_reason="") | (Q(wanted="stop") & ~Q(stop_reason="")),
                name="attempt_stop_has_reason",
            ),
        ]

    @property
    def explanation(self) -> dict[str, str]:
        """The cause for a reader: code, title, detail and advice; empty without one."""
        return explain_cause(self.cause)


class Container(models.Model):
    """A container of an attempt on one node: a *host*, which has ranks, or the driver."""

    class Role(models.TextChoices):
        DRIVER = "driver", "driver"
        HOST = "host", "host"

    class Wanted(models.TextChoices):
        RUN = "run", "run"
        STOP = "stop", "stop"

    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="containers")
    node = models.ForeignKey(Node, on_delete=models.PROTECT, related_name="containers")
    index = models.PositiveSmallIntegerField()
    role = models.CharField(max_length=6, choices=Role.choices)
    name = models.CharField(max_length=80, unique=True)
    spec = models.JSONField()
    """The frozen RunSpec its agent carries out."""
    assigned_at = models.DateTimeField(default=timezone.now)

    # written by the control loop
    wanted = models.CharField(max_length=4, choices=Wanted.choices, default=Wanted.RUN)
    stop_reason = models.CharField(max_length=12, choices=StopReason.choices, blank=True)
    stop_requested_at = models.DateTimeField(null=True, blank=True)

    # written from the agent's reports, through lifecycle.advance(); detail: what it does now, or what went wrong
    state = models.CharField(max_length=9, choices=ContainerState.choices, default=ContainerState.ASSIGNED)
    state_since = models.DateTimeField(default=timezone.now)
    running_at = models.DateTimeField(null=True, blank=True)
    exited_at = models.DateTimeField(null=True, blank=True)
    exit_code = models.IntegerField(null=True, blank=True)
    exit_reason = models.CharField(max_length=20, blank=True)
    """exited, stopped, fenced, launch_error, oom, disk, lost, or create_error."""
    detail = MessageField(blank=True)
    collected_at = models.DateTimeField(null=True, blank=True)
    """When its log and outputs were complete in the portal; the node may forget the container."""

    class Meta:
        ordering = ["attempt", "index"]
        constraints = [
            models.UniqueConstraint(fields=["attempt", "index"], name="container_index_once"),
            models.CheckConstraint(
                condition=Q(state="EXITED", exited_at__isnull=False) | (~Q(state="EXITED") & Q(exited_at__isnull=True)),
                name="container_exited_at_when_exited",
            ),
        ]

    @property
    def slots(self) -> int:
        """The number of ranks that it runs, one for each of its GPUs; 0 for a driver."""
        return int((self.spec or {}).get("slots", 1))


class Allocation(models.Model):
    """One GPU held by one attempt from ``allocated_at`` to ``released_at``."""

    gpu = models.ForeignKey(Gpu, on_delete=models.PROTECT, related_name="allocations")
    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="allocations")
    container = models.ForeignKey(Container, on_delete=models.CASCADE, related_name="allocations")
    allocated_at = models.DateTimeField(default=timezone.now)
    requested_back_at = models.DateTimeField(null=True, blank=True)
    released_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["id"]
        indexes = [models.Index(fields=["released_at"], name="allocation_released")]
        constraints = [
            models.UniqueConstraint(
                fields=["gpu"],
                condition=Q(released_at__isnull=True),
                name="gpu_in_one_live_allocation",
                violation_error_message="This GPU is already held by another attempt.",
            )
        ]


class JobEvent(models.Model):
    """One line of a job's history, never changed: a message (``events``); in rows of earlier releases, its text."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="events")
    seq = models.PositiveIntegerField()
    at = models.DateTimeField(default=timezone.now)
    kind = models.CharField(max_length=30)
    """submitted, placed, started, resized, stopping, ended, held, released, cancel_asked, state, ..."""
    text = models.CharField(max_length=300, blank=True)
    actor = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    data = models.JSONField(default=dict)

    class Meta:
        ordering = ["job", "seq"]
        constraints = [models.UniqueConstraint(fields=["job", "seq"], name="job_event_seq_once")]

    @property
    def sentence(self) -> str:
        """What happened, for a reader."""
        return self.text or sentence_of(self.data)


METRICS_STREAM = "metrics"


class PrintedStreams(models.Manager["LogStream"]):
    def get_queryset(self) -> models.QuerySet["LogStream"]:
        return super().get_queryset().exclude(name=METRICS_STREAM)


class LogStream(models.Model):
    """The output of one rank, or of a supervisor or driver itself (name ``setup``).

    The bytes are in a file, of which the first ``size`` bytes are valid. An append names its offset, so a repeated or
    late one is recognised, and neither a gap nor an overlap can be stored.
    """

    container = models.ForeignKey(Container, on_delete=models.CASCADE, related_name="streams")
    name = models.CharField(max_length=20)
    label = models.CharField(max_length=40, blank=True)
    folder = models.CharField(max_length=80, blank=True, default="")
    """The folder of its file under ``HOME/logs``: its container's name; empty in older rows: the container's id."""
    size = models.PositiveBigIntegerField(default=0)
    marks = models.PositiveIntegerField(default=0)
    """Records in its time index: 16 bytes each, offset and Unix milliseconds."""
    first_at = models.DateTimeField(null=True, blank=True)
    """When the portal received its first bytes."""
    last_at = models.DateTimeField(null=True, blank=True)
    """When the portal received its latest bytes; null if an earlier release stored them."""
    longest_gap_seconds = models.FloatField(null=True)
    """The longest time so far between two appends; null before the second one."""
    closed = models.BooleanField(default=False)
    """No more is expected."""
    cut = models.BooleanField(default=False)
    """The log of its container was full: a marker ends the stream, and later output was dropped."""

    objects = models.Manager()
    printed = PrintedStreams()
    """The streams for readers: all but the lines of JSON from which ``metrics`` makes curves."""

    class Meta:
        ordering = ["container", "name"]
        indexes = [models.Index(fields=["first_at"], name="log_stream_first")]
        constraints = [models.UniqueConstraint(fields=["container", "name"], name="log_stream_once")]


class Output(models.Model):
    """A file that a job left in /outputs, kept in the portal."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="outputs")
    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="outputs")
    path = models.CharField(max_length=500)
    size = models.PositiveBigIntegerField()
    sha256 = models.CharField(max_length=64)
    stored_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["path"]
        constraints = [models.UniqueConstraint(fields=["job", "path"], name="output_path_once_per_job")]


class CheckpointSet(models.Model):
    """The latest complete content of a job's /checkpoints, kept in the portal so that the job can restart on any node."""

    job = models.OneToOneField(Job, on_delete=models.CASCADE, related_name="checkpoint_set")
    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="+")
    """The attempt that sent it last."""
    version = models.PositiveIntegerField(default=0)
    """A number that grows with each change and with time, by which a node knows whether its copy is the newest."""
    files = models.JSONField(default=dict)
    """{path: [size, when it was modified in nanoseconds, [SHA-256 of each piece]]}"""
    size = models.PositiveBigIntegerField(default=0)
    taken_at = models.DateTimeField(default=timezone.now)
    """When its newest file was written, by the clock of its node."""
    stored_at = models.DateTimeField(default=timezone.now)
