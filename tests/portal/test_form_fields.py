"""Texts of several lines: what the browser counts and sends, and what the forms read."""

from collections.abc import Iterator

import pytest
from django import forms

from portal.form_fields import LinesField
from portal.jobs.form_fields import VariablesField, form_field
from portal.jobs.spec import FIELDS
from portal.projects.forms import ProjectForm


@pytest.mark.parametrize("end", ["\r\n", "\n", "\r"])
def test_a_line_end_counts_once_however_it_is_sent(end: str) -> None:
    form = ProjectForm({"name": "Lines", "description": f"x{end}" * 4_999 + "xx"})
    assert form.is_valid(), form.errors
    assert form.cleaned_data["description"] == "x\n" * 4_999 + "xx"
    assert not ProjectForm({"name": "Lines", "description": f"x{end}" * 5_000 + "x"}).is_valid()


def all_forms(base: type[forms.BaseForm]) -> Iterator[type[forms.BaseForm]]:
    for each in base.__subclasses__():
        yield each
        yield from all_forms(each)


def test_all_texts_of_several_lines_count_alike() -> None:
    declared = [
        field
        for form in all_forms(forms.BaseForm)
        if form.__module__.startswith("portal.")
        for field in getattr(form, "base_fields", {}).values()
    ]
    fields = [*declared, *(form_field(name) for name, about in FIELDS.items() if about.form_place is not None)]
    areas = [field for field in fields if isinstance(field.widget, forms.Textarea)]
    assert len(areas) >= 3
    assert all(isinstance(field, LinesField) for field in areas)


@pytest.mark.parametrize(
    ("typed", "read"),
    [
        ("A = 1", {"A": "1"}),
        ("A=1\r\n\r\n  B\t=\t2 3\r\n", {"A": "1", "B": "2 3"}),
        ("A= 1", {"A": " 1"}),
        ("A=", {"A": ""}),
        ("A = x = y", {"A": "x = y"}),
        ("A=x = y", {"A": "x = y"}),
        ("a=1\nA=2", {"a": "1", "A": "2"}),
    ],
)
def test_blanks_around_the_equals_sign_are_not_part_of_a_value(typed: str, read: dict[str, str]) -> None:
    assert VariablesField().clean(typed) == read


def test_a_copy_keeps_the_blanks_of_its_values() -> None:
    field = VariablesField()
    values = {"A": " 1", "B": "", "C": "x = y"}
    assert field.clean(field.prepare_value(values)) == values


def test_all_lines_at_fault_are_named() -> None:
    with pytest.raises(forms.ValidationError) as refused:
        VariablesField().clean("A=1\nB\n\nA = 2\n=3\nA=1")
    assert refused.value.messages == [
        "Line 2 has no “=”. Write it as NAME=value.",
        "Lines 1 and 4 both set A. Keep one of them.",
        "Line 5 has no name before the “=”. Write it as NAME=value.",
        "Lines 1 and 6 both set A. Keep one of them.",
    ]
