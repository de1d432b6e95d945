"""A column for a message, which keeps the sentences that earlier releases stored."""

import json
from typing import Any

from portal.generics import TextField

MESSAGE_PREFIX = '{"code":'
"""How a message begins in the column."""


class MessageField(TextField[Any, Any]):
    """A message as data (a dict with its code), or the text of an earlier release; empty for none.

    The column is one of text: old rows stay as they are, and can be read while two releases run.
    """

    _pyi_private_set_type: Any
    _pyi_private_get_type: Any

    def from_db_value(self, value: str | None, *_: Any) -> Any:
        return stored_message(value)

    def to_python(self, value: Any) -> Any:
        return value

    def get_prep_value(self, value: Any) -> Any:
        if isinstance(value, dict):
            code = json.dumps(value["code"])
            rest = json.dumps({name: each for name, each in value.items() if name != "code"}, ensure_ascii=False)
            return f"{MESSAGE_PREFIX} {code}{'' if rest == '{}' else f', {rest[1:-1]}'}}}"
        # A text that looks like a message, which jobs may print, stays a text.
        return f" {value}" if isinstance(value, str) and value.startswith(MESSAGE_PREFIX) else value


def stored_message(value: str | None) -> Any:
    """Return the content of such a column as the field does.

    What only looks like a message stays a text: jobs and nodes could write any text into rows of earlier releases.
    """
    if value and value.startswith(MESSAGE_PREFIX):
        try:
            content = json.loads(value)
        except (ValueError, RecursionError):
            return value
        return content if isinstance(content, dict) and isinstance(content.get("code"), str) else value
    return value[1:] if value and value.startswith(f" {MESSAGE_PREFIX}") else value
