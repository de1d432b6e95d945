"""Forms for environments that are images, and for what admins decide about them."""

from typing import Any

from django import forms

from portal.environments.forms import PlaceForm
from portal.environments.image_names import ImageNameError, full_name, registry_host
from portal.environments.images import MAX_TOKEN_CHARACTERS, ImageRequest, RegistryRequest, checked_prefixes
from portal.environments.models import ImageSettings
from portal.form_fields import LinesField, RefusableForm
from portal.refused import Refused

MONO = {"spellcheck": "false", "autocapitalize": "none", "class": "mono"}


class NewImageForm(PlaceForm):
    """A new environment that is an image of a registry."""

    image = forms.CharField(
        max_length=300,
        help_text="REGISTRY/NAME:TAG, such as ghcr.io/lab/train:1.2.",
        widget=forms.TextInput(attrs=MONO),
    )
    title = forms.CharField(max_length=120, required=False, help_text="Left empty, it is the image's name and tag.")

    def clean_image(self) -> str:
        try:
            return full_name(self.cleaned_data["image"])
        except ImageNameError as error:
            raise forms.ValidationError(str(error)) from None

    def request(self) -> ImageRequest:
        return ImageRequest(self.cleaned_data["image"], self.cleaned_data["title"])


class ImageSettingsForm(forms.Form):
    """Which images are allowed, and when the portal keeps them."""

    allowed = LinesField(
        label="Allowed images",
        max_length=20_000,
        required=False,
        help_text="A registry or the beginning of names on each line: ghcr.io/lab/, docker.io/pytorch/pytorch, or ubuntu. "
        "Without any, there are no environments of images.",
        widget=forms.Textarea(attrs={"rows": 4, **MONO}),
    )
    archives = forms.ChoiceField(
        label="Keep images in the portal", choices=ImageSettings.Archives.choices, widget=forms.RadioSelect
    )

    @classmethod
    def of(cls, row: ImageSettings, data: Any = None) -> "ImageSettingsForm":
        return cls(data, initial={"allowed": "\n".join(row.allowed), "archives": row.archives})

    def clean_allowed(self) -> str:
        """Return the beginnings in full, each once."""
        try:
            return "\n".join(checked_prefixes(self.cleaned_data["allowed"].splitlines()))
        except Refused as refusal:
            raise forms.ValidationError(refusal.message) from None


class RegistryForm(RefusableForm):
    """How nodes use a registry. A stored token is never shown again."""

    host = forms.CharField(
        label="Registry",
        max_length=255,
        help_text="Such as ghcr.io or registry.example.org:5000.",
        widget=forms.TextInput(attrs=MONO),
    )
    user = forms.CharField(
        max_length=200, required=False, widget=forms.TextInput(attrs={"autocomplete": "off", **MONO})
    )
    token = forms.CharField(
        label="Password or token",
        max_length=MAX_TOKEN_CHARACTERS,
        required=False,
        strip=False,
        help_text="One that may only read. It is stored encrypted and never shown.",
        widget=forms.PasswordInput(attrs={"autocomplete": "new-password"}),
    )
    insecure = forms.BooleanField(
        label="Without encryption or a valid certificate",
        required=False,
        help_text="Anyone in between can then change what jobs run. Each node's Docker Engine has to allow it as well.",
    )

    def clean_host(self) -> str:
        try:
            return registry_host(self.cleaned_data["host"])
        except ImageNameError as error:
            raise forms.ValidationError(str(error)) from None

    def request(self) -> RegistryRequest:
        data = self.cleaned_data
        return RegistryRequest(data["host"], data["user"], data["token"], data["insecure"])
