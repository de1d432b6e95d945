"""Schedules, and what became of each of their days."""

from zoneinfo import ZoneInfo

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils import timezone

from portal.accounts.models import User
from portal.environments.models import Environment
from portal.jobs.models import MAX_ENTRY_LENGTH, Job
from portal.message_field import MessageField
from portal.projects.models import CodeVersion, Project
from portal.schedules.days import Timetable
from portal.sentences import sentence_of
from portal.zones import known_zones

WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
EVERY_DAY = "0123456"


class ScheduleQuerySet(models.QuerySet["Schedule"]):
    def visible_to(self, user: User) -> "ScheduleQuerySet":
        """Return the schedules of the projects that a user may see."""
        rows = self.filter(project__deleted_at=None)
        return rows if user.is_admin else rows.filter(project__in=Project.objects.visible_to(user))


class Schedule(models.Model):
    """A job that is submitted again and again, on chosen days at a time of day by the clocks of a zone."""

    class Overlap(models.TextChoices):
        SKIP = "skip", "skip this day"
        QUEUE = "queue", "submit another job"

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="schedules")
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="schedules")
    """Its jobs are submitted as theirs, and count for their limits."""
    name = models.CharField(max_length=80)
    created_at = models.DateTimeField(default=timezone.now)

    # what is submitted
    code = models.ForeignKey(CodeVersion, null=True, blank=True, on_delete=models.PROTECT, related_name="+")
    """Null: the newest version at the time."""
    environment = models.ForeignKey(Environment, on_delete=models.PROTECT, related_name="+")
    launcher = models.CharField(max_length=10, choices=Job.Launcher.choices)
    entry = models.CharField(max_length=MAX_ENTRY_LENGTH)
    values = models.JSONField(default=dict)
    """The other fields of the job, by their names in ``portal.jobs.spec``."""
    copied_from = models.ForeignKey(Job, null=True, blank=True, on_delete=models.SET_NULL, related_name="+")
    """The job whose fields it has."""

    # when
    at = models.TimeField()
    weekdays = models.CharField(max_length=7, default=EVERY_DAY)
    """Digits in ascending order; 0 is Monday."""
    zone = models.CharField(max_length=64)
    max_late_hours = models.PositiveSmallIntegerField(default=6)
    """While the portal was down a run was missed: it is made up for within so many hours, else left out."""
    overlap = models.CharField(max_length=5, choices=Overlap.choices, default=Overlap.SKIP)
    """What happens while the job of the day before has not ended."""
    since = models.DateTimeField(default=timezone.now)
    """Moments before this do not count: it was created, changed or resumed then."""
    next_run_at = models.DateTimeField(null=True, blank=True)
    """For readers; ``running`` computes it again in each round. Null while it is paused."""

    failures = models.PositiveSmallIntegerField(default=0)
    """Refusals in a row."""
    paused_at = models.DateTimeField(null=True, blank=True)
    pause_reason = MessageField(blank=True)
    """Empty if a person paused it."""

    objects = ScheduleQuerySet.as_manager()

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.CheckConstraint(condition=~Q(weekdays=""), name="schedule_has_a_weekday"),
        ]

    @property
    def timetable(self) -> Timetable:
        return Timetable(self.at, frozenset(map(int, self.weekdays)), ZoneInfo(self.zone))

    @property
    def has_known_zone(self) -> bool:
        """Whether this machine's time zone database has the zone; ``timetable`` raises if not."""
        return self.zone in known_zones()

    @property
    def days(self) -> str:
        """The chosen days in words."""
        if self.weekdays == EVERY_DAY:
            return "every day"
        if self.weekdays == "01234":
            return "Monday to Friday"
        return ", ".join(WEEKDAYS[int(digit)] for digit in self.weekdays)

    @property
    def why_paused(self) -> str:
        return sentence_of(self.pause_reason)


class ScheduleRun(models.Model):
    """What became of a schedule on one day of its zone."""

    class Result(models.TextChoices):
        SUBMITTED = "submitted", "submitted"
        OVERLAP = "overlap", "skipped: the job before had not ended"
        MISSED = "missed", "missed"
        REFUSED = "refused", "refused"

    schedule = models.ForeignKey(Schedule, on_delete=models.CASCADE, related_name="runs")
    date = models.DateField()
    due_at = models.DateTimeField()
    at = models.DateTimeField(default=timezone.now)
    result = models.CharField(max_length=9, choices=Result.choices)
    job = models.ForeignKey(Job, null=True, blank=True, on_delete=models.SET_NULL, related_name="schedule_runs")
    why = models.TextField(blank=True)
    """The sentence of a refusal."""

    class Meta:
        ordering = ["-date"]
        constraints = [models.UniqueConstraint(fields=["schedule", "date"], name="schedule_runs_once_a_day")]
