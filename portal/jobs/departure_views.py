"""The page on which an admin deactivates a user."""

from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.views.decorators.http import require_http_methods

from portal.accounts.models import User
from portal.accounts.people import find_person
from portal.accounts.permissions import admin_required, signed_in
from portal.accounts.services import active_people, require_may_deactivate
from portal.jobs import departures
from portal.projects.models import Project
from portal.refused import Refused
from portal.ui import counted

MAX_SHOWN = 100
"""Maximum number of jobs of each kind that the page names."""
MAX_SUGGESTED = 500
"""Maximum number of names that the search fields suggest; all others can be typed."""


class PersonField(forms.CharField):
    """An active user, by name or e-mail address."""

    def __init__(self, **more: Any) -> None:
        widget = forms.TextInput(attrs={"list": "people", "autocomplete": "off", "spellcheck": "false"})
        super().__init__(required=False, max_length=254, widget=widget, **more)

    def clean(self, value: Any) -> User | None:
        name = super().clean(value)
        if not name:
            return None
        try:
            return find_person(name, User.objects.filter(pk__in=active_people()))
        except Refused as refusal:
            raise forms.ValidationError(refusal.message) from None


class DepartureForm(forms.Form):
    cancel_waiting = forms.BooleanField(required=False, initial=True, label="Cancel the waiting jobs")
    cancel_running = forms.BooleanField(required=False, label="Cancel the running jobs")
    reservations = forms.ChoiceField(
        choices=[("end", "End them"), ("hand_over", "Hand them over"), ("keep", "Leave them")],
        initial="end",
        required=False,
    )
    reservations_to = PersonField(label="Hand reservations over to")

    def __init__(self, user: User, projects: list[Project], data: Any = None) -> None:
        super().__init__(data)
        self.user = user
        for project in projects:
            self.fields[f"owner_{project.pk}"] = PersonField(label=f"New owner of {project.name}")

    def owner_fields(self) -> list[forms.BoundField]:
        return [self[name] for name in self.fields if name.startswith("owner_")]

    def clean(self) -> dict[str, Any]:
        given = self.cleaned_data
        if given.get("reservations") == "hand_over" and not given.get("reservations_to") and not self.errors:
            self.add_error("reservations_to", "Name the user who gets the reservations.")
        for name, chosen in list(given.items()):
            if isinstance(chosen, User) and chosen.pk == self.user.pk:
                self.add_error(name, f"{chosen} is the user who is being deactivated. Choose another.")
        return given

    def choices(self) -> departures.Choices:
        given = self.cleaned_data
        owners = {
            int(name.removeprefix("owner_")): person
            for name, person in given.items()
            if name.startswith("owner_") and person
        }
        return departures.Choices(
            cancel_waiting=given["cancel_waiting"],
            cancel_running=given["cancel_running"],
            owners=owners,
            end_reservations=given["reservations"] == "end",
            reservations_to=given["reservations_to"] if given["reservations"] == "hand_over" else None,
        )


@admin_required
@require_http_methods(["GET", "HEAD", "POST"])
def deactivate(request: HttpRequest, pk: int) -> HttpResponse:
    """Show what a user has, and end their access with what was chosen for it."""
    actor, person = signed_in(request), get_object_or_404(active_people(), pk=pk)
    try:
        require_may_deactivate(actor, person)
    except Refused as refusal:
        messages.error(request, refusal.message)
        return redirect("accounts:users")
    has = departures.belongings_of(person, timezone.now())
    form = DepartureForm(person, list(has.owned_alone), request.POST if request.method == "POST" else None)
    if request.method == "POST" and form.is_valid():
        try:
            choices = form.choices()
            done = departures.deactivate(actor, person, choices)
        except Refused as refusal:
            form.add_error(None, refusal.message)
        else:
            messages.success(request, summary(person, choices, done))
            return redirect("accounts:users")
    about = {
        "person": person,
        "has": has,
        "form": form,
        "waiting": has.waiting[:MAX_SHOWN],
        "running": has.running[:MAX_SHOWN],
        "suggested": active_people().exclude(pk=person.pk).order_by("username")[:MAX_SUGGESTED],
    }
    return render(request, "jobs/deactivate.html", about, status=400 if form.errors else 200)


def summary(person: User, choices: departures.Choices, done: departures.Departure) -> str:
    """Return what was done, with numbers."""
    handed = choices.reservations_to
    parts = [
        (done.tokens, "API token,API tokens", "revoked"),
        (done.waiting, "waiting job,waiting jobs", "cancelled"),
        (done.running, "running job,running jobs", "being stopped"),
        (done.projects, "project,projects", "handed over"),
        (done.reservations, "reservation,reservations", f"handed over to {handed}" if handed else "ended for them"),
    ]
    acts = "; ".join(f"{counted(number, words)} {what}" for number, words, what in parts if number)
    return f"{person} is deactivated and signed out everywhere.{f' Also: {acts}.' if acts else ''}"
