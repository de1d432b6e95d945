"""Form fields that several apps use."""

from typing import Any

from django import forms


class LinesField(forms.CharField):
    """A text of several lines. A line end counts as one character, as in the browser, which sends two."""

    widget = forms.Textarea

    def to_python(self, value: Any) -> Any:
        text = super().to_python(value)
        return text.replace("\r\n", "\n").replace("\r", "\n") if isinstance(text, str) else text
