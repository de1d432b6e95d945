"""Form fields that several apps use."""

from typing import Any

from django import forms

from portal.refused import Refused


class LinesField(forms.CharField):
    """A text of several lines. A line end counts as one character, as in the browser, which sends two."""

    widget = forms.Textarea

    def to_python(self, value: Any) -> Any:
        text = super().to_python(value)
        return text.replace("\r\n", "\n").replace("\r", "\n") if isinstance(text, str) else text


class RefusableForm(forms.Form):
    """A form for values that a service may refuse."""

    def refuse(self, refusal: Refused) -> None:
        """Show a refusal at the field that it is about."""
        name = self.field_of(refusal)
        self.add_error(name if name in self.fields else None, refusal.message)

    def field_of(self, refusal: Refused) -> str | None:
        """Return the name of the form's field that a refusal is about, if it has one."""
        return refusal.field
