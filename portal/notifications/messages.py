"""What notices say, as data; ``portal/sentences/notices.py`` has their words."""

from dataclasses import dataclass
from typing import Any, ClassVar

from scheduling.messages import Message


@dataclass(frozen=True)
class JobNotice:
    """The job of a notice."""

    job: int
    name: str
    project: str


@dataclass(frozen=True)
class JobSucceeded(JobNotice, Message):
    code: ClassVar[str] = "notice_job_succeeded"
    seconds: int
    """From its first start to its end."""


@dataclass(frozen=True)
class JobFailed(JobNotice, Message):
    code: ClassVar[str] = "notice_job_failed"
    cause: dict[str, Any] | None
    """As ``Attempt.cause`` has it, without its quotation of the log."""


@dataclass(frozen=True)
class JobCancelled(JobNotice, Message):
    code: ClassVar[str] = "notice_job_cancelled"
    user: str
    """Who cancelled it; empty if that is not known."""
    why: dict[str, Any] | None = None
    """The event with the reason, if no person cancelled it."""


@dataclass(frozen=True)
class JobStartedLate(JobNotice, Message):
    code: ClassVar[str] = "notice_job_started"
    seconds: int
    """How long it waited."""


@dataclass(frozen=True)
class JobEventNotice(JobNotice, Message):
    """A line of the job's history that is a notice as it is."""

    code: ClassVar[str] = "notice_job_event"
    event: dict[str, Any]


@dataclass(frozen=True)
class JobSilentNotice(JobNotice, Message):
    code: ClassVar[str] = "notice_job_silent"
    seconds: int
    ranks: list[list[str]]
    """As in the event of this silence."""
    gpus: dict[str, Any] | None
    """``silence.Utilisation`` of what they hold."""


@dataclass(frozen=True)
class ChannelPaused(Message):
    code: ClassVar[str] = "notice_channel_paused"
    channel: str
    error: str


@dataclass(frozen=True)
class WebhookWithoutOwner(Message):
    code: ClassVar[str] = "notice_webhook_without_owner"
    channel: str
    user: str
    """Who registered it."""
    project: str
    """Empty: a webhook of the lab."""


@dataclass(frozen=True)
class MailGaveUp(Message):
    code: ClassVar[str] = "notice_mail_gave_up"
    address: str
    title: str
    """Of what could not be mailed."""
    error: str


@dataclass(frozen=True)
class TestMessage(Message):
    __test__ = False  # no test of pytest
    code: ClassVar[str] = "notice_test"
    user: str
    """Who sent it."""
