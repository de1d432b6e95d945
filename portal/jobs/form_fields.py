"""Fields of the job form, made from the declarations in ``spec``."""

import shlex
from collections.abc import Mapping
from typing import Any

from django import forms
from django.template.loader import render_to_string
from django.utils.safestring import SafeString

from portal.form_fields import LinesField
from portal.jobs.dataset_use import MAX_DATASET_PATH, DatasetChoice
from portal.jobs.spec import FIELDS, MAX_DATASETS, JobField, Kind, label_of
from portal.jobs.word_lists import COLUMN_LENGTH, words_in
from portal.zones import MomentField

MAX_ARGUMENTS_TEXT = 20_000
MAX_VARIABLES_TEXT = 100_000
MONOSPACE = {"class": "mono"}
EMPTY_ROWS = 2
"""For further datasets; a form that is shown again has more."""
WRITABLE = "writable"
MAX_REFERENCE = 260
MAX_VERSION_DIGITS = 10


class ArgumentsField(forms.CharField):
    """Arguments in one line, quoted as in a shell. The value is a tuple."""

    def clean(self, value: Any) -> Any:
        """Split the line. Raises ValidationError for quotes that do not match."""
        try:
            return tuple(shlex.split(super().clean(value)))
        except ValueError as error:
            raise forms.ValidationError(f"These arguments cannot be read: {error}. Check the quotes.") from error

    def prepare_value(self, value: Any) -> Any:
        return shlex.join(value) if isinstance(value, list | tuple) else value


class VariablesField(LinesField):
    """Environment variables, one NAME=value per line. The value is a dictionary."""

    def clean(self, value: Any) -> Any:
        """Read the lines. Raises ValidationError for those without an equals sign or with a name that was set before.

        Blanks around the equals sign, as in ``NAME = value``, are not part of the value. ``NAME= value`` keeps its blank.
        """
        found: dict[str, str] = {}
        lines: dict[str, int] = {}
        problems: list[str] = []
        for number, line in enumerate(super().clean(value).splitlines(), 1):
            if not line.strip():
                continue
            typed, sign, text = line.partition("=")
            name = typed.strip()
            if not sign:
                problems.append(f"Line {number} has no “=”. Write it as NAME=value.")
            elif not name:
                problems.append(f"Line {number} has no name before the “=”. Write it as NAME=value.")
            elif name in found:
                problems.append(f"Lines {lines[name]} and {number} both set {name[:100]}. Keep one of them.")
            else:
                lines[name] = number
                found[name] = text.lstrip() if typed != typed.rstrip() else text
        if problems:
            raise forms.ValidationError(problems)
        return found

    def prepare_value(self, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        return "\n".join(f"{name}={text}" for name, text in value.items() if text is not None)


class WordsField(forms.CharField):
    """Words between spaces or commas. The value is a tuple."""

    def clean(self, value: Any) -> Any:
        """Split the line. ``services.submit`` checks the words."""
        return words_in(super().clean(value))

    def prepare_value(self, value: Any) -> Any:
        return " ".join(value) if isinstance(value, list | tuple) else value


class NamesField(forms.MultipleChoiceField):
    """Some of several names. The value is a tuple."""

    widget = forms.CheckboxSelectMultiple

    def clean(self, value: Any) -> Any:
        return tuple(super().clean(value))


class DatasetsWidget(forms.Widget):
    """A row for each chosen dataset, and ``EMPTY_ROWS`` for more: its name, where it is as well, and whether it is writable."""

    template_name = "jobs/datasets_widget.html"
    use_fieldset = True

    def id_for_label(self, id_: str | None) -> str:
        return f"{id_}_0" if id_ else ""

    def get_context(self, name: str, value: Any, attrs: Any) -> dict[str, Any]:
        context = super().get_context(name, value, attrs)
        rows = [*(value or ())]
        rows += [{}] * min(EMPTY_ROWS, MAX_DATASETS - len(rows))
        context["widget"] |= {"rows": rows, "described": context["widget"]["attrs"].get("aria-describedby", "")}
        return context

    def render(self, name: str, value: Any, attrs: Any = None, renderer: Any = None) -> SafeString:
        """Render it with a template of ours, which Django's renderer of forms does not find."""
        return SafeString(render_to_string(self.template_name, self.get_context(name, value, attrs)))

    def value_from_datadict(self, data: Mapping[str, Any], files: Any, name: str) -> Any:
        """Return the rows that were typed. Each has a number, so that they survive where a form is copied as a dictionary."""
        rows = []
        for number in range(MAX_DATASETS + EMPTY_ROWS):
            typed, path, mode = (
                str(data.get(f"{name}-{number}{part}") or "").strip() for part in ("", "-path", "-mode")
            )
            if typed or path:
                rows.append({"reference": typed, "path": path, "writable": mode == WRITABLE})
        return rows

    def value_omitted_from_data(self, data: Mapping[str, Any], files: Any, name: str) -> bool:
        return f"{name}-0" not in data


class DatasetsField(forms.Field):
    """Datasets that a job reads. The value is a tuple of ``DatasetChoice``."""

    widget = DatasetsWidget

    def clean(self, value: Any) -> Any:
        """Read the rows: ``owner/name`` or ``owner/name:version``. ``job_datasets`` finds the datasets."""
        return tuple(self._choice(row) for row in value or ())

    def _choice(self, row: Mapping[str, Any]) -> DatasetChoice:
        typed, path = str(row["reference"]), str(row["path"])
        if not typed:
            raise forms.ValidationError(f"Name the dataset for “{path[:100]}”, or empty its path.")
        if len(typed) > MAX_REFERENCE or len(path) > MAX_DATASET_PATH or "\0" in typed + path:
            raise forms.ValidationError("Write a dataset as owner/name, and the folder where the program expects it.")
        reference, colon, number = typed.partition(":")
        if colon and not (number.isascii() and number.isdecimal() and len(number) < MAX_VERSION_DIGITS):
            raise forms.ValidationError(f"“{typed}” has no number after the colon. Write it as owner/name:3.")
        dataset = int(reference) if reference.isascii() and reference.isdecimal() else reference
        return DatasetChoice(
            dataset=dataset, version=int(number) if colon else None, path=path, writable=bool(row["writable"])
        )

    def has_changed(self, initial: Any, data: Any) -> bool:
        return list(initial or ()) != list(data or ())


def form_field(name: str) -> forms.Field:
    """Return the form's field for a declared field."""
    about = FIELDS[name]
    common: dict[str, Any] = {"label": label_of(name), "required": False, "help_text": about.help}
    low, high = about.limits or (None, None)
    match about.kind:
        case Kind.INTEGER:
            return forms.IntegerField(min_value=low, max_value=high, **(common | {"required": not about.optional}))
        case Kind.JOB:
            number = forms.NumberInput(attrs={"list": f"{name}-proposals"})
            return forms.IntegerField(min_value=1, max_value=2**53, widget=number, **common)
        case Kind.FLAG:
            return forms.BooleanField(**common)
        case Kind.CHOICE:
            return forms.ChoiceField(choices=_choices(about), **(common | {"required": not about.empty_choice}))
        case Kind.MOMENT:
            return MomentField(**common)
        case Kind.ARGUMENTS:
            line = forms.TextInput(attrs={**MONOSPACE, "placeholder": "--epochs 3 --lr 0.1"})
            return ArgumentsField(max_length=MAX_ARGUMENTS_TEXT, widget=line, **common)
        case Kind.DATASETS:
            return DatasetsField(**common)
        case Kind.VARIABLES:
            lines = forms.Textarea(attrs={**MONOSPACE, "rows": 3, "placeholder": "NAME=value"})
            return VariablesField(max_length=MAX_VARIABLES_TEXT, widget=lines, **common)
        case Kind.WORDS:
            return WordsField(max_length=COLUMN_LENGTH, **common)
        case Kind.NAMES:
            return NamesField(**common)
        case Kind.LONG_TEXT:
            return LinesField(max_length=high, widget=forms.Textarea(attrs={"rows": 3}), **common)
        case _:
            return forms.CharField(max_length=high, **common)


def _choices(about: JobField) -> list[tuple[str, str]]:
    choices = list(about.choices.choices) if about.choices else []
    return [("", about.empty_choice), *choices] if about.empty_choice else choices
