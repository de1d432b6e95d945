"""Search that ignores case and ways to write the same letter, in all scripts, with the same result on both databases."""

from functools import reduce
from operator import or_
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import CharField, Model, Q, TextField, Transform

from portal import generics
from portal.names import search_key

MAX_CHARACTERS = 1000
"""What is compared of the words of a search. SQLite refuses patterns of more than 50,000 bytes, also after folding."""


class Folded(Transform):
    """``name__folded``: the text as ``search_key`` has it."""

    lookup_name = "folded"
    function = "SCHEDULEARN_FOLDED"

    def as_postgresql(self, compiler: Any, connection: Any, **extra: Any) -> tuple[str, Any]:
        # of any locale: the collation of the database may know the case of ASCII only
        template = "normalize(replace(lower(upper(normalize((%(expressions)s)::text, NFKC) COLLATE \"und-x-icu\")), 'ς', 'σ'), NFKC)"
        return super().as_sql(compiler, connection, template=template, **extra)


def add_function(connection: BaseDatabaseWrapper, **_: object) -> None:
    """Give a new connection to SQLite the function that ``Folded`` calls."""
    if connection.vendor == "sqlite":
        connection.connection.create_function("SCHEDULEARN_FOLDED", 1, _folded, deterministic=True)


def _folded(text: object) -> str | None:
    return None if text is None else search_key(str(text))


def register() -> None:
    for field in (CharField, TextField):
        field.register_lookup(Folded)


def any_contains(words: str, *fields: str) -> Q:
    """Return the condition that one of the fields contains these words, in any case."""
    wanted = search_key(words[:MAX_CHARACTERS].replace("\0", ""))
    return reduce(or_, (Q(**{f"{field}__folded__contains": wanted}) for field in fields))


class SearchTextField(generics.TextField[str, str]):
    """The texts of a row that are searched together, in the form in which they are compared.

    The model's ``searched_text`` has them. Databases would take a second to fold the texts of 100,000 rows for each search.
    """

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **{"null": True, "editable": False} | named)  # null: SQLite adds it without a new table

    def pre_save(self, model_instance: Model, add: bool) -> str:
        text: str | None = getattr(model_instance, "searched_text", None)  # which models of migrations do not have
        if text is not None:
            setattr(model_instance, self.attname, search_key(text))
        return str(getattr(model_instance, self.attname) or "")


def stored_text_contains(field: str, words: str) -> Q:
    """Return the condition that a ``SearchTextField`` contains these words."""
    return Q(**{f"{field}__contains": search_key(words[:MAX_CHARACTERS].replace("\0", ""))})
