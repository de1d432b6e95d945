"""Each relation to a user and each text of the database has a decision on what erasing a person does with it."""

from typing import Any

from django.apps import apps
from django.db import models

from portal.accounts.models import User
from portal.deletion.people import renaming
from portal.deletion.people.decisions import RELATIONS, TEXTS, Text, with_decision

TEXT_FIELDS = (models.CharField, models.TextField, models.JSONField)


def fields_of(model: type[models.Model]) -> "list[models.Field[Any, Any]]":
    return [field for field in model._meta.get_fields() if isinstance(field, models.Field) and not field.auto_created]


def test_each_relation_to_a_user_is_decided_once() -> None:
    found = {
        f"{model._meta.label}.{field.name}"
        for model in apps.get_models()
        for field in fields_of(model)
        if field.is_relation and field.related_model is User
    } | {"accounts.User.groups"}
    decided = [each for names in RELATIONS.values() for each in names]
    assert sorted(decided) == sorted(found), (
        "decide in portal/deletion/people/decisions.py, and write what erasing does"
    )


def test_each_text_is_decided_once() -> None:
    found = {
        f"{model._meta.label}.{field.name}"
        for model in apps.get_models()
        for field in fields_of(model)
        if isinstance(field, TEXT_FIELDS) and not field.choices
    }
    decided = [
        f"{label}.{name}" for label, texts in TEXTS.items() for names in texts.values() for name in names.split()
    ]
    assert sorted(decided) == sorted(found), (
        "decide in portal/deletion/people/decisions.py, and write what erasing does"
    )


def test_what_is_renamed_is_what_the_decisions_state() -> None:
    assert {f"{place.model._meta.label}.{place.field}" for place in renaming.PLACES} == with_decision(Text.RENAMED)
