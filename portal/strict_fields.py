"""Fields of the API that take values of their own type alone: a number is not taken as a text, nor ``2.5`` as the id 2."""

from typing import Any

from rest_framework import serializers


class TextField(serializers.CharField):
    """A text, which has to be sent as one."""

    default_error_messages = {"invalid": "Send a text."}

    def to_internal_value(self, data: Any) -> str:
        if not isinstance(data, str):
            self.fail("invalid")
        return super().to_internal_value(data)


class IdField(serializers.PrimaryKeyRelatedField[Any]):
    """The id of a row: a whole number, also as a text."""

    default_error_messages = {"incorrect_type": "Send its id, a whole number."}

    def to_internal_value(self, data: Any) -> Any:
        if isinstance(data, bool) or not isinstance(data, int | str):
            self.fail("incorrect_type", data_type=type(data).__name__)
        return super().to_internal_value(data)
