"""Forms for projects. Services have the rules; the forms have the labels and show refusals."""

from typing import Any

from django import forms

from portal.form_fields import LinesField, RefusableForm
from portal.projects.models import Membership, Project


class ProjectForm(RefusableForm):
    name = forms.CharField(max_length=80, help_text="For example the paper, the course or the model.")
    description = LinesField(max_length=10_000, required=False, widget=forms.Textarea(attrs={"rows": 3}))

    @classmethod
    def of(cls, project: Project, data: Any = None) -> "ProjectForm":
        return cls(data, initial={"name": project.name, "description": project.description})


class ShareForm(RefusableForm):
    username = forms.CharField(
        max_length=254,
        label="User name or e-mail address",
        widget=forms.TextInput(attrs={"autocomplete": "off", "spellcheck": "false", "autocapitalize": "none"}),
    )
    role = forms.ChoiceField(
        choices=[
            (Membership.Role.MEMBER, "Member: uploads and submits"),
            (Membership.Role.VIEWER, "Viewer: reads only"),
            (Membership.Role.OWNER, "Owner: also shares and archives"),
        ],
        initial=Membership.Role.MEMBER,
    )
