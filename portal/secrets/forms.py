"""Forms for secrets. What was entered as a value is in no page that comes back, also not when it was refused."""

from typing import Any

from django import forms

from portal.form_fields import LinesField, RefusableForm
from portal.refused import Refused
from portal.secrets.models import Secret
from portal.secrets.services import MAX_FILE_BYTES, check_value

MONO = {"spellcheck": "false", "autocapitalize": "none", "autocomplete": "off", "class": "mono"}
NEVER_SHOWN = "It is never shown again, also not after an error on this page."


class UnshownTextarea(forms.Textarea):
    """A text of several lines that comes back empty, like a password."""

    render_value = False

    def format_value(self, value: Any) -> str:
        return ""


class ValueForm(RefusableForm):
    """A value for a secret of one kind."""

    kind: Secret.Kind

    def text(self) -> str:
        """Return the value that was entered."""
        return str(self.cleaned_data["value"])

    def clean(self) -> dict[str, Any] | None:
        """Check the value together with the other fields: what is wrong is reported at once, since the value is entered again."""
        if not self.errors:
            try:
                check_value(self.kind, self.text())
            except Refused as refusal:
                self.refuse(refusal)
        return self.cleaned_data


class VariableValueForm(ValueForm):
    kind = Secret.Kind.VARIABLE
    value = forms.CharField(
        strip=False, help_text=NEVER_SHOWN, widget=forms.PasswordInput(attrs={"autocomplete": "new-password"})
    )


class FileValueForm(ValueForm):
    """The content of a file, typed or uploaded."""

    kind = Secret.Kind.FILE
    value = LinesField(
        label="Content",
        strip=False,
        required=False,
        help_text=NEVER_SHOWN,
        widget=UnshownTextarea(attrs={"rows": 4, **MONO}),
    )
    upload = forms.FileField(
        label="Or choose the file",
        required=False,
        allow_empty_file=True,
        help_text=f"Text of at most {MAX_FILE_BYTES // 1024} KiB.",
    )

    def clean(self) -> dict[str, Any] | None:
        typed, upload = self.cleaned_data.get("value"), self.cleaned_data.get("upload")
        if bool(typed) == (upload is not None):
            self.add_error("value", "Enter the content or choose a file, one of both.")
        elif upload is not None:
            self.cleaned_data["value"] = self._text_of(upload)
        return super().clean()

    def _text_of(self, upload: Any) -> str:
        if upload.size > MAX_FILE_BYTES:
            self.add_error("upload", f"A file has at most {MAX_FILE_BYTES // 1024} KiB.")
            return ""
        try:
            return str(upload.read().decode())
        except UnicodeDecodeError:
            self.add_error("upload", "The file is not text in UTF-8. Encode it, for example with base64.")
            return ""

    def field_of(self, refusal: Refused) -> str | None:
        is_upload = refusal.field == "value" and self.cleaned_data.get("upload") is not None
        return "upload" if is_upload else refusal.field


class NewVariableForm(VariableValueForm):
    field_order = ("name", "value")
    name = forms.CharField(
        max_length=100, help_text="Such as HF_TOKEN: programs read it by this name.", widget=forms.TextInput(attrs=MONO)
    )


class NewFileForm(FileValueForm):
    field_order = ("name", "value", "upload")
    name = forms.CharField(
        max_length=100,
        help_text="Such as kaggle.json: the name of the file in the folder of secrets.",
        widget=forms.TextInput(attrs=MONO),
    )


NEW_FORMS: dict[str, type[NewVariableForm | NewFileForm]] = {
    Secret.Kind.VARIABLE: NewVariableForm,
    Secret.Kind.FILE: NewFileForm,
}
VALUE_FORMS: dict[str, type[ValueForm]] = {
    Secret.Kind.VARIABLE: VariableValueForm,
    Secret.Kind.FILE: FileValueForm,
}
