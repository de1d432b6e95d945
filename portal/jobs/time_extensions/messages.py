"""What people are notified of about more time, as data; ``portal/sentences/notices.py`` has the words."""

from dataclasses import dataclass
from typing import ClassVar

from scheduling.messages import Message


@dataclass(frozen=True)
class TimeExtensionAsked(Message):
    """For admins."""

    code: ClassVar[str] = "notice_more_time_asked"
    job: int
    name: str
    project: str
    user: str
    seconds: int
    reason: str


@dataclass(frozen=True)
class TimeExtensionDecided(Message):
    """For the user who asked."""

    code: ClassVar[str] = "notice_more_time_decided"
    job: int
    name: str
    project: str
    user: str
    """The admin."""
    seconds: int
    granted: bool
    answer: str
