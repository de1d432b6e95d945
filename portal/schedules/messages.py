"""Why a schedule was paused, and its notices, as data. ``portal/sentences`` has the words."""

from dataclasses import dataclass
from typing import ClassVar

from scheduling.messages import Message


@dataclass(frozen=True)
class OwnerInactive(Message):
    code: ClassVar[str] = "schedule_owner_inactive"
    owner: str


@dataclass(frozen=True)
class OwnerWithoutAccess(Message):
    """The owner may no longer submit jobs to the project, or it is archived."""

    code: ClassVar[str] = "schedule_owner_without_access"
    owner: str


@dataclass(frozen=True)
class ZoneUnknown(Message):
    """The time zone database of the portal's machine does not have its zone, or no longer."""

    code: ClassVar[str] = "schedule_zone_unknown"
    zone: str


@dataclass(frozen=True)
class RefusedAgain(Message):
    code: ClassVar[str] = "schedule_refused_again"
    times: int
    why: str


@dataclass(frozen=True)
class ScheduleRefused(Message):
    """A notice: the job of a day was refused. It is tried again on the next day."""

    code: ClassVar[str] = "notice_schedule_refused"
    schedule: str
    project: str
    why: str


@dataclass(frozen=True)
class SchedulePaused(Message):
    """A notice."""

    code: ClassVar[str] = "notice_schedule_paused"
    schedule: str
    project: str
    why: Message


@dataclass(frozen=True)
class FromSchedule(Message):
    """A line in the history of a job."""

    code: ClassVar[str] = "job_from_schedule"
    kind: ClassVar[str] = "scheduled"
    schedule: int
    name: str
