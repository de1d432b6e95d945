"""Forms of the machines' pages."""

from typing import Any

from django import forms
from django.contrib.auth.models import Group
from django.db.models import Count

from portal.accounts.models import User
from portal.cluster.models import LIVE_NODE, Node, usable_gpu

LOCAL = "%Y-%m-%dT%H:%M"


class NodeField(forms.ModelChoiceField):
    def label_from_instance(self, node: Any) -> str:
        return f"{node.name} ({node.usable} GPU{'s' * (node.usable != 1)})"


class ReservationForm(forms.Form):
    """Times are the server's time zone, which the page names."""

    name = forms.CharField(max_length=80, label="What for", help_text="Everybody sees it in the calendar.")
    node = NodeField(Node.objects.none(), empty_label=None)
    gpus = forms.IntegerField(min_value=1, max_value=1000, initial=1, label="GPUs")
    start = forms.DateTimeField(
        label="From", input_formats=[LOCAL], widget=forms.DateTimeInput(attrs={"type": "datetime-local"}, format=LOCAL)
    )
    end = forms.DateTimeField(
        label="Until", input_formats=[LOCAL], widget=forms.DateTimeInput(attrs={"type": "datetime-local"}, format=LOCAL)
    )
    users = forms.CharField(
        required=False, label="People", help_text="User names, separated by spaces. Only their jobs may use these GPUs."
    )
    groups = forms.ModelMultipleChoiceField(Group.objects.none(), required=False, label="Groups")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        fields: Any = self.fields
        fields["node"].queryset = (
            Node.objects.filter(LIVE_NODE, approved_at__isnull=False)
            .annotate(usable=Count("gpus", filter=usable_gpu("gpus__")))
            .order_by("name")
        )
        fields["groups"].queryset = Group.objects.order_by("name")

    def clean_users(self) -> list[User]:
        names = set(self.cleaned_data["users"].replace(",", " ").split())
        found = list(User.objects.filter(username__in=names, is_active=True))
        if unknown := names - {user.username for user in found}:
            raise forms.ValidationError(f"Nobody is called {', '.join(sorted(unknown))}.")
        return found
