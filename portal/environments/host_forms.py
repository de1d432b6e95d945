"""The form for a host that jobs may reach."""

from typing import Any

from django import forms

from portal.environments.hosts import MAX_NOTE
from portal.environments.models import Environment
from portal.form_fields import RefusableForm
from portal.host_names import MAX_TYPED
from portal.projects.models import Project

LAB = "lab"
PROJECT, ENVIRONMENT = "project:", "environment:"
MAX_MENU = 500
Choices = list[tuple[str, str]]


class AllowedHostForm(RefusableForm):
    host = forms.CharField(
        label="Host",
        max_length=MAX_TYPED,
        help_text="huggingface.co, *.example.org for all names below it, or mlflow.example.org:5000 for another port than 80 and 443.",
        widget=forms.TextInput(attrs={"spellcheck": "false", "autocapitalize": "none", "class": "mono"}),
    )
    place = forms.ChoiceField(label="For")
    internal = forms.BooleanField(
        label="It is in the local network",
        required=False,
        help_text="Without this, jobs do not reach a name whose address is a private one: it could be any machine of the lab.",
    )
    note = forms.CharField(
        max_length=MAX_NOTE,
        required=False,
        help_text="Why, and who asked. Members see it on the pages of their projects.",
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        fields: Any = self.fields
        fields["place"].choices = _places()

    def target(self) -> tuple[Project | None, Environment | None]:
        """Return the project or the environment of a valid form; neither for the whole lab."""
        chosen: str = self.cleaned_data["place"]
        if chosen.startswith(PROJECT):
            return Project.objects.get(pk=int(chosen.removeprefix(PROJECT))), None
        if chosen.startswith(ENVIRONMENT):
            return None, Environment.objects.get(key=chosen.removeprefix(ENVIRONMENT))
        return None, None


def _places() -> list[tuple[str, str | Choices]]:
    projects = Project.objects.filter(archived_at=None).order_by("name").values_list("pk", "name")[:MAX_MENU]
    environments = Environment.objects.filter(retired=False).values_list("key", "title")[:MAX_MENU]
    return [
        (LAB, "All jobs of the lab"),
        ("Jobs of a project", [(f"{PROJECT}{pk}", name) for pk, name in projects]),
        ("Jobs with an environment", [(f"{ENVIRONMENT}{key}", title) for key, title in environments]),
    ]


def initial_values(host: str, project: str, environment: str) -> dict[str, str]:
    """Return the first values of the form for a link that names a host and where it is asked for."""
    place = f"{PROJECT}{project}" if project else f"{ENVIRONMENT}{environment}" if environment else ""
    known = {key for _, group in _places() if isinstance(group, list) for key, _ in group}
    return {"host": host[:MAX_TYPED], "place": place if place in known else LAB}
