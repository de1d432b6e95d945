"""Filters of ledger and usage: the days, the grouping, and whose usage."""

from datetime import date, timedelta
from typing import Any

from django import forms
from django.contrib.auth.models import Group

from portal.accounts.models import User
from portal.projects.models import Project
from portal.usage.reports import GROUPINGS, UsageFilter

DEFAULT_DAYS = 30
MAX_DAYS = 3660
EARLIEST, LATEST = date(2000, 1, 1), date(2200, 1, 1)
"""No lab has data outside; days near the limits of the calendar have no midnight in some time zones."""


class DayField(forms.DateField):
    """A day within the years that a report may be about."""

    widget = forms.DateInput(attrs={"type": "date", "min": EARLIEST, "max": LATEST}, format="%Y-%m-%d")

    def clean(self, value: Any) -> Any:
        """Read the day. Raises ValidationError for one that no report may be about."""
        day = super().clean(value)
        if day is not None and not EARLIEST <= day <= LATEST:
            raise forms.ValidationError(f"Choose a day from {EARLIEST} to {LATEST}.")
        return day


class WindowForm(forms.Form):
    """Whole days, both included. The default is the last thirty days."""

    since = DayField(required=False, label="From")
    until = DayField(required=False, label="To")

    def __init__(self, data: Any, *, today: date) -> None:
        self.today = today
        super().__init__(data)

    def clean(self) -> dict[str, Any]:
        data = super().clean() or {}
        if self.errors:
            return data
        data["until"] = min(data.get("until") or self.today, self.today)
        data["since"] = data.get("since") or data["until"] - timedelta(days=DEFAULT_DAYS - 1)
        if data["since"] > data["until"]:
            self.add_error("since", "The first day must not be after the last one, and not after today.")
        elif (data["until"] - data["since"]).days > MAX_DAYS:
            self.add_error("since", f"Choose at most {MAX_DAYS} days at once.")
        return data

    @property
    def window(self) -> tuple[date, date]:
        """The chosen days, or the default when they are invalid."""
        if self.is_valid():
            return self.cleaned_data["since"], self.cleaned_data["until"]
        return self.today - timedelta(days=DEFAULT_DAYS - 1), self.today


class UsageForm(WindowForm):
    by = forms.ChoiceField(choices=list(GROUPINGS.items()), required=False, label="By")
    user = forms.ModelChoiceField(User.objects.none(), required=False, label="Person", empty_label="Any person")
    group = forms.ModelChoiceField(Group.objects.none(), required=False, label="Group", empty_label="Any group")
    project = forms.ModelChoiceField(Project.objects.none(), required=False, label="Project", empty_label="Any project")

    def __init__(self, data: Any, *, user: User, today: date) -> None:
        super().__init__(data, today=today)
        visible: dict[str, Any] = {
            "user": User.objects.order_by("username") if user.is_admin else User.objects.filter(pk=user.pk),
            "group": Group.objects.order_by("name") if user.is_admin else user.groups.order_by("name"),
            "project": Project.objects.visible_to(user).order_by("name"),
        }
        for name, queryset in visible.items():
            self.fields[name].queryset = queryset  # type: ignore[attr-defined]

    @property
    def grouping(self) -> str:
        return (self.cleaned_data.get("by") if self.is_valid() else None) or "user"

    @property
    def usage_filter(self) -> UsageFilter:
        chosen = self.cleaned_data if self.is_valid() else {}
        return UsageFilter(**{name: chosen[name].pk for name in ("user", "group", "project") if chosen.get(name)})
