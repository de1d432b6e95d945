"""Forms of the pages of nodes and reservations."""

from typing import Any

from django import forms
from django.contrib.auth.models import Group
from django.db.models import Count, Q

from portal.accounts.forms import NamesField
from portal.accounts.models import User
from portal.accounts.people import people_called
from portal.cluster.models import LIVE_NODE, Gpu, Node, usable_gpu
from portal.cluster.pools import models_of_mixed_nodes
from portal.cluster.slots import counted, lab_noun
from portal.generics import ModelChoiceField
from portal.refused import Refused
from portal.zones import MomentField


class NodeField(ModelChoiceField[Node]):
    def label_from_instance(self, node: Any) -> str:
        return f"{node.name} ({counted(node.usable, 'GPU' if node.usable_gpus else 'CPU slot')})"


class ReservationForm(forms.Form):
    """A new reservation."""

    name = forms.CharField(max_length=80, label="Purpose", help_text="All users see it in the calendar.")
    node = NodeField(Node.objects.none(), empty_label=None)
    gpus = forms.IntegerField(min_value=1, max_value=1000, initial=1)
    gpu_model = forms.ChoiceField(
        required=False, label="Model", help_text="Only for a node with GPUs of several models."
    )
    start = MomentField(label="From")
    end = MomentField(label="Until")
    users = NamesField(required=False, label="People", widget=forms.TextInput)
    groups = forms.ModelMultipleChoiceField(Group.objects.none(), required=False, label="Groups")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        fields: Any = self.fields
        word = f"{lab_noun()}s"
        fields["gpus"].label = word
        fields["users"].help_text = f"User names, separated by spaces. Only their jobs may use these {word}."
        fields["node"].queryset = (
            Node.objects.filter(LIVE_NODE, approved_at__isnull=False)
            .annotate(
                usable=Count("gpus", filter=usable_gpu("gpus__")),
                usable_gpus=Count("gpus", filter=usable_gpu("gpus__") & Q(gpus__kind=Gpu.Kind.CUDA)),
            )
            .order_by("name")
        )
        models = models_of_mixed_nodes()
        fields["gpu_model"].choices = [("", "any"), *((model, model) for model in models)]
        self.offers_models = bool(models)
        fields["groups"].queryset = Group.objects.order_by("name")

    def clean_users(self) -> list[User]:
        try:
            return people_called(self.cleaned_data["users"].split(), User.objects.filter(is_active=True))
        except Refused as refusal:
            raise forms.ValidationError(refusal.message) from None
