"""Lists of short words, such as tags: how they are checked, and a column in which any database finds one."""

import re
from collections.abc import Iterable
from functools import reduce
from operator import and_
from typing import Any

from django.db import models
from django.db.models.expressions import BaseExpression

from portal.generics import CharField

MAX_WORDS = 20
MAX_WORD_LENGTH = 40
WORD = re.compile(rf"\w[\w.+:/-]{{0,{MAX_WORD_LENGTH - 1}}}")
COLUMN_LENGTH = 1024


def normalise(words: Iterable[str]) -> tuple[str, ...]:
    """Return the words in lower case, each once, in their order."""
    return tuple(dict.fromkeys(word.lower() for word in words))


def invalid_word(words: Iterable[str]) -> str | None:
    """Return the first word that has unusual characters or is too long."""
    return next((word for word in words if not WORD.fullmatch(word)), None)


def words_in(text: str) -> tuple[str, ...]:
    """Return the words of a text, which stand between spaces or commas."""
    return normalise(text.replace("\0", "").replace(",", " ").split())


def contains_all_words(field: str, text: str) -> models.Q:
    """Return the condition that a ``WordsField`` of this name has all words of the text."""
    words = words_in(text)
    if len(words) > MAX_WORDS:
        return models.Q(pk__in=[])
    return reduce(and_, (models.Q(**{f"{field}__contains": f" {word} "}) for word in words), models.Q())


class WordsField(CharField[Any, tuple[str, ...]]):
    """A tuple of words, stored in one text with a space before and after each."""

    def __init__(self, *args: Any, **named: Any) -> None:
        defaults: dict[str, Any] = {"max_length": COLUMN_LENGTH, "blank": True, "default": ()}
        super().__init__(*args, **defaults | named)

    def from_db_value(self, value: str, expression: BaseExpression, connection: Any) -> tuple[str, ...]:
        return self.to_python(value)

    def to_python(self, value: Any) -> tuple[str, ...]:
        return tuple(value.split()) if isinstance(value, str) else tuple(value or ())

    def get_prep_value(self, value: Any) -> str:
        """Return the stored text; a text is one already, or part of one in a lookup."""
        if isinstance(value, str):
            return value
        return f" {' '.join(value)} " if value else ""

    def value_to_string(self, obj: models.Model) -> str:
        return self.get_prep_value(self.value_from_object(obj))
