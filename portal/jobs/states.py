"""The states of jobs and containers, and how attempts end."""

from django.db import models


class JobState(models.TextChoices):
    QUEUED = "QUEUED", "queued"
    RUNNING = "RUNNING", "running"
    HELD = "HELD", "held"
    SUCCEEDED = "SUCCEEDED", "succeeded"
    FAILED = "FAILED", "failed"
    CANCELLED = "CANCELLED", "cancelled"


WAITING_STATES = (JobState.QUEUED, JobState.HELD)
UNFINISHED_STATES = (JobState.QUEUED, JobState.RUNNING, JobState.HELD)
FINISHED_STATES = (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)
RESTART_LIMIT_VARIABLE = "SCHEDULEARN_RING_RETRIES"
"""The environment variable with the limit of restarts, for drivers; in earlier releases, jobs set it themselves."""


class ContainerState(models.TextChoices):
    ASSIGNED = "ASSIGNED", "assigned"
    PREPARING = "PREPARING", "preparing"
    RUNNING = "RUNNING", "running"
    STOPPING = "STOPPING", "stopping"
    EXITED = "EXITED", "exited"


class Outcome(models.TextChoices):
    """How an attempt ended. *failed*: by the user's code; *lost* and *error*: by the lab, which uses up no retry."""

    SUCCEEDED = "succeeded", "succeeded"
    FAILED = "failed", "failed"
    PREEMPTED = "preempted", "preempted"
    CANCELLED = "cancelled", "cancelled"
    TIMED_OUT = "timed_out", "timed out"
    LOST = "lost", "lost"
    ERROR = "error", "error"
    HELD = "held", "put on hold"


class StopReason(models.TextChoices):
    PREEMPTED = "preempted"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"
    DRAINED = "drained"
    PEER_LOST = "peer_lost"
    DONE = "done"
    HELD = "held"
    STUCK = "stuck"
    GPU_FAULT = "gpu_fault"
